"""Fuzzing of every reader of dmo: damaged files must be read or rejected without a crash, a hang or excessive memory.

    python pipelines/benchmarks/fuzz.py [--files 10000] [--seed 0] [--only ARFF npz] [--work fuzzed]

Valid small files of each format are changed (bits, spans, words of the format, numbers; a third of them below their
compression, archive or checksums) and read in forked processes. A file is "refused" if dmo raises its own error of one
sentence. Files with any other outcome are kept below --work with their error, and the exit code is 1. Linux only.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import random
import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _fuzzed import Files, Reader, Seed, ours, roots
from _fuzzed_files import FILES
from _fuzzed_stores import STORES
from rich.console import Console
from rich.table import Table

from dmo.workflows.program import option_parser

READERS: dict[str, Reader] = FILES | STORES
LIMIT = 10  # seconds per file
BOUND = 64 << 20  # Bytes that reading one file may add to a process; the files have a few kilobytes.
ADDRESSES = 4 << 30  # Bytes of address space that a process may add; pyarrow reserves a part of it.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    2.5,
    1e300,
    2**70,
    "",
    "x",
    "rbf",
    "float64",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_BINARY = (
    b"\xff" * 4,
    b"\xff" * 8,
    b"\0" * 4,
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\x7f",
    b"\0\0\0\0\0\0\0\x80",
    b"\x01",
)
OUTCOMES = ("read", "refused", "crash", "hang", "memory")


@dataclass
class Found:
    """Results of one reader: number of files by outcome, maximum memory of a file (bytes), maximum time of a file
    (seconds), and the first error of each distinct fault."""

    counts: Counter[str] = field(default_factory=Counter)
    peak: int = 0
    slowest: float = 0.0
    faults: dict[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------- changes


def change(data: bytes, words: Sequence[bytes], chance: random.Random) -> bytes:
    """Return `data` with one random change."""
    n = len(data)
    at = chance.randrange(n + 1)
    end = min(n, at + chance.choice((1, 2, 4, 8, 40, 200)))
    kind = chance.randrange(12)
    if kind > 8 and (document := restructured(data, chance)) is not None:
        return document
    if kind == 0:
        changed = bytearray(data)
        for _ in range(chance.randint(1, 8) if n else 0):
            changed[chance.randrange(n)] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[end:]
    if kind == 3:
        return data[:at] + data[at:end] * chance.choice((2, 3, 50, 2000)) + data[end:]
    if kind == 4:
        return data[:at] + chance.randbytes(end - at) + data[end:]
    if kind == 5:
        word = chance.choice(_BINARY)
        return data[:at] + word + data[at + len(word) :]
    if kind == 6 and (numbers := list(_NUMBER.finditer(data))):
        where = chance.choice(numbers)
        new = chance.choice(
            (b"0", b"-1", b"1e9", b"nan", b"%d" % chance.getrandbits(chance.choice((8, 31, 33, 64, 90))))
        )
        return data[: where.start()] + new + data[where.end() :]
    word = chance.choice(words or _BINARY)
    if kind == 7 and (other := chance.choice(words or _BINARY)) in data:
        return data.replace(other, word, chance.choice((1, 1, -1)))
    return data[:at] + word + data[at:]


def restructured(data: bytes, chance: random.Random) -> bytes | None:
    """Change or remove one value of a JSON document; return None if `data` is not such a document."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(document))
    if not places:
        return None
    inside, key = chance.choice(places)
    if chance.random() < 0.2:
        del inside[key]
    else:
        inside[key] = json.loads(json.dumps(chance.choice(VALUES)))
    return json.dumps(document).encode()


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over every (container, key) of a JSON document."""
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from _places(node[key])


def mutated(reader: Reader, seeds: Sequence[Seed], chance: random.Random) -> tuple[Files, str]:
    """Create a changed input: its files, and the entry to pass to the reader."""
    seed = chance.choice(seeds)
    files, inside = dict(seed.files), seed.pack is not None and chance.random() < 0.6
    if seed.pack is not None and not inside:
        files = seed.pack(files)
    marked = [name for name in files if name in roots(seed)]
    for _ in range(chance.choice((1, 1, 2, 3))):
        name = chance.choice(marked if marked and chance.random() < 0.6 else list(files))
        if len(files) > 1 and chance.random() < 0.05:
            del files[name]
            marked = [other for other in marked if other != name]
            continue
        files[name] = change(files[name], reader.words, chance)[: reader.longest]
    if chance.random() < 0.05 and len(seeds) > 1:  # Join the head of one file and the tail of another.
        name, tail = next(iter(files)), next(iter(chance.choice(seeds).files.values()))
        files[name] = files[name][: len(files[name]) // 2] + tail[chance.randrange(len(tail)) :]
    return (seed.pack(files) if inside and seed.pack is not None else files), seed.entry


def _put(folder: Path, files: Files) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


# ---------------------------------------------------------------- one file in a process


def _resident(key: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def attempt(reader: Reader, path: Path) -> tuple[str, int, str]:
    """Read one file; return the outcome, the bytes added at the peak, and the traceback of a fault."""
    _reset_peak()
    before, outcome, trace = _resident("VmRSS"), "read", ""
    signal.alarm(LIMIT)
    try:
        reader.read(path)
    except MemoryError:
        outcome, trace = "memory", traceback.format_exc()
    except BaseException as error:
        if ours(error):
            outcome = "refused"
        else:
            outcome, trace = "crash", traceback.format_exc()
    signal.alarm(0)
    added = _resident("VmHWM") - before
    if added > BOUND and outcome in ("read", "refused"):
        outcome, trace = "memory", f"{outcome}: {added >> 20} MiB added"
    return outcome, added, trace


def _work(name: str, reader: Reader, first: int, last: int, seed: int, folder: str, pipe: Any) -> None:
    """Read the files first..last; report each file before reading it, so that a crash can be attributed."""
    warnings.simplefilter("ignore")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # Tasks of zarr log the errors that it also raises.
    used = _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, used + ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    seeds = reader.seeds()
    for number in range(first, last):
        files, entry = mutated(reader, seeds, random.Random(f"{seed} {name} {number}"))
        place = Path(folder, str(number))
        place.mkdir()
        _put(place, files)
        pipe.send(("begin", number))
        started = time.process_time()
        pipe.send(("end", (*attempt(reader, place / entry), time.process_time() - started)))
        shutil.rmtree(place)
    pipe.send(("done", None))


def _address_space() -> int:
    return _resident("VmSize")


# ---------------------------------------------------------------- all files of a reader


def fuzz(name: str, reader: Reader, files: int, seed: int = 0, out: Path | None = None) -> Found:
    """Read `files` changed inputs; keep the first input of every distinct fault in `out`."""
    found, next_file, again = Found(), 0, set[int]()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        while next_file < files:
            stop = min(files, next_file + 1000)
            here, there = context.Pipe(duplex=False)
            child = context.Process(target=_work, args=(name, reader, next_file, stop, seed, folder, there))
            child.start()
            there.close()
            number = _follow(found, here, name, reader, seed, out)
            child.join()
            if number is None:
                next_file = stop
                continue
            shutil.rmtree(Path(folder, str(number)), ignore_errors=True)
            kind = "hang" if child.exitcode == -signal.SIGALRM else "crash"
            if kind == "hang" and number not in again:  # Retry once because the machine may have been suspended.
                again.add(number)
                next_file = number
                continue
            text = f"the process ended with {child.exitcode}"
            _keep(found, kind, f"{kind} {child.exitcode}", text, name, reader, seed, number, out)
            next_file = number + 1
    return found


def _follow(found: Found, pipe: Any, name: str, reader: Reader, seed: int, out: Path | None) -> int | None:
    """Count the results reported by a process; return the file that killed it, or None if it finished."""
    number = 0
    while True:
        try:
            kind, value = pipe.recv()
        except EOFError:
            return number
        if kind == "done":
            return None
        if kind == "begin":
            number = value
            continue
        outcome, added, trace, seconds = value
        found.peak, found.slowest = max(found.peak, added), max(found.slowest, seconds)
        if outcome in ("read", "refused"):
            found.counts[outcome] += 1
        else:
            _keep(found, outcome, _signature(outcome, trace), trace, name, reader, seed, number, out)


def _signature(outcome: str, trace: str) -> str:
    """Return the location of a fault in dmo and its type."""
    lines = trace.strip().splitlines()
    own = [line.strip().split(", in")[0] for line in lines if "/dmo/" in line and line.strip().startswith("File")]
    return f"{outcome} {lines[-1].split(':')[0] if lines else ''} {own[-1] if own else ''}"


def _keep(
    found: Found,
    outcome: str,
    signature: str,
    trace: str,
    name: str,
    reader: Reader,
    seed: int,
    number: int,
    out: Path | None,
) -> None:
    found.counts[outcome] += 1
    if signature in found.faults:
        return
    found.faults[signature] = trace
    if out is not None:
        files, entry = mutated(reader, reader.seeds(), random.Random(f"{seed} {name} {number}"))
        folder = out / re.sub(r"\W+", "-", name) / str(number)
        _put(folder, files)
        (folder / "fault.txt").write_text(f"{signature}\nread: {entry}\n{trace}\n", encoding="utf-8")


def main() -> int:
    parser = option_parser(__doc__, seed=0, work=None)
    parser.add_argument("--files", type=int, default=10_000, help="changed files per reader")
    parser.add_argument("--only", nargs="*", choices=list(READERS), metavar="READER", help=", ".join(READERS))
    parser.add_argument("--json", action="store_true", help="print counts and faults as JSON")
    asked = parser.parse_args()
    results: dict[str, Found] = {}
    for name in asked.only or READERS:
        started = time.perf_counter()
        results[name] = fuzz(name, READERS[name], asked.files, asked.seed, asked.work and Path(asked.work))
        if not asked.json:
            Console(stderr=True).print(f"{name}: {dict(results[name].counts)}, {time.perf_counter() - started:.0f} s")
    if asked.json:
        print(json.dumps({name: {"counts": dict(f.counts), "faults": f.faults} for name, f in results.items()}))
    else:
        show(results)
    return int(any(found.faults for found in results.values()))


def show(results: dict[str, Found]) -> None:
    """Print the table of all readers."""
    table = Table("reader", *OUTCOMES, "distinct faults", "peak memory, MiB", "slowest, CPU s")
    for name, found in results.items():
        table.add_row(
            name,
            *(str(found.counts[outcome]) for outcome in OUTCOMES),
            str(len(found.faults)),
            f"{found.peak / 2**20:.1f}",
            f"{found.slowest:.2f}",
        )
    Console(width=140).print(table)
    Console().print(f"limits: {LIMIT} s per file, {BOUND >> 20} MiB in addition to the memory held before")


if __name__ == "__main__":
    raise SystemExit(main())

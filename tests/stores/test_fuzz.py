"""Run the fuzzer briefly on every reader, and check that the fuzzer detects failures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "pipelines" / "benchmarks"
FILES = 24
DAMAGED = {"b.xml"}  # this file is an XML entity expansion bomb

HARMFUL = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fuzz
from _fuzzed import Reader, Seed
from dmo.datasets import DataError

fuzz.LIMIT = 1

def refuse(path):
    raise DataError("no")

def fault(path):
    raise KeyError("x")

def leave(path):
    raise DataError("two\\nlines")

reads = {
    "read": lambda path: None,
    "crash": fault,
    "crash ": lambda path: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda path: time.sleep(60),
    "memory": lambda path: bytearray(os.urandom(1 << 20) * 80),
    "memory ": lambda path: bytearray(1 << 36),
}
for expected, read in reads.items():
    found = fuzz.fuzz(expected, Reader(lambda: [Seed({"a": b"1,2"}, "a")], read), 2, out=Path(sys.argv[2]))
    assert dict(found.counts) == {expected.strip(): 2}, (expected, found)
    assert bool(found.faults) == (expected != "read")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=500)


@pytest.mark.slow
def test_no_reader_crashes_hangs_or_fills_the_memory(tmp_path: Path) -> None:
    done = run(str(FOLDER / "fuzz.py"), "--files", str(FILES), "--seed", "7", "--json", "--work", str(tmp_path))
    found = json.loads(done.stdout)
    assert len(found) >= 20
    for name, result in found.items():
        assert result["faults"] == {}, name
        assert sum(result["counts"].values()) == FILES
        assert result["counts"]["refused"] > 0, name
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_unchanged_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import fuzz

    for name, reader in fuzz.READERS.items():
        for number, seed in enumerate(reader.seeds()):
            folder = tmp_path / name.replace(" ", "-").replace("/", "-") / str(number)
            for file, data in (seed.files if seed.pack is None else seed.pack(seed.files)).items():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_bytes(data)
            if seed.entry not in DAMAGED:
                reader.read(folder / seed.entry)


@pytest.mark.slow
def test_the_fuzzer_notices_harm_and_keeps_the_file(tmp_path: Path) -> None:
    done = run("-c", HARMFUL, str(FOLDER), str(tmp_path))
    assert done.returncode == 0, done.stderr
    kept = sorted(path.parent.parent.name for path in tmp_path.rglob("fault.txt"))
    assert [name.rstrip("-") for name in kept] == ["crash", "crash", "hang", "memory", "memory"]

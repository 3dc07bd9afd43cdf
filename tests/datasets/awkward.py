"""Compare the reader with Python's csv module on random irregular text tables.
`python -m tests.datasets.awkward 400` tests 400 tables.
"""

import csv
import io
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dmo.datasets import DataError, read_samples
from dmo.formats.schema import MISSING

WORDS = ("red", "dark blue", "grün", "a,b", "c;d", 'q"q', "1 2", "x|y", "line\nbreak", " lead", "NAN", "0x1A")
CODES = ("001", "X9", "A7", "1e5", "07")


@dataclass
class Awkward:
    """Random table with its bytes and the options that the reader needs."""

    data: bytes
    text: str  # decoded text without comments and spreadsheet markers
    delimiter: str
    kinds: list[str]  # kind of each column: id, number, comma, gaps, words, codes, truth or classes
    header: bool
    row_names: bool
    damaged: bool  # whether a row has a wrong number of fields


def awkward(rng):
    n, delimiter = int(rng.integers(12, 60)), str(rng.choice([",", ";", "\t", "|"]))
    decimal = "," if delimiter != "," and rng.random() < 0.5 else "."
    kinds = [
        "id",
        "number",
        *rng.choice(["number", "gaps", "whole", "words", "codes", "truth"], int(rng.integers(1, 6))),
    ]
    kinds = [str(kind) for kind in kinds] + ["classes"]
    header, row_names = rng.random() < 0.85, False
    columns = [_cells(kind, n, decimal, rng) for kind in kinds]
    names = [f"{kind} {j}" if rng.random() < 0.3 else f"{kind}{j}" for j, kind in enumerate(kinds)]
    rows = [list(row) for row in zip(*columns)]
    if header and rng.random() < 0.2:
        row_names = True
        rows = [[f"r{i:03d}", *row] for i, row in enumerate(rows)]
    damaged = rng.random() < 0.15
    if damaged:
        row = rows[int(rng.integers(1, n))]
        row[1:] = row[2:] if rng.random() < 0.5 else [row[1], "1", *row[2:]]
    written = io.StringIO()
    ends, quoting = str(rng.choice(["\n", "\r\n"])), [csv.QUOTE_MINIMAL, csv.QUOTE_ALL][int(rng.integers(2))]
    writer = csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator=ends)
    writer.writerows([names, *rows] if header else rows)
    text = written.getvalue()
    shown = text
    if rng.random() < 0.15 and not damaged and quoting == csv.QUOTE_ALL:
        shown = shown.replace(f'"{ends}"', f'"{delimiter}{ends}"').removesuffix(ends) + delimiter + ends
    if rng.random() < 0.1:
        shown = f"sep={delimiter}{ends}" + shown
    elif rng.random() < 0.1:
        shown = f"# export of the lab{ends}" + shown
    codec = str(rng.choice(["utf-8", "utf-8-sig", "utf-16", "cp1252"]))
    return Awkward(shown.encode(codec), text, delimiter, kinds, header, row_names, damaged)


def _cells(kind, n, decimal, rng):
    if kind == "id":
        made = [str(rng.choice([f"{i:05d}", f"{i}E1", f"{i}.10", f"s {i}", f"ü{i}"])) for i in range(n)]
        return made
    if kind in ("number", "gaps", "whole"):
        numbers = rng.integers(-500, 5000, n) if kind == "whole" else rng.normal(size=n) * 10.0 ** rng.integers(-3, 4)
        cells = [str(value) if kind == "whole" else f"{value:.5g}".replace(".", decimal) for value in numbers]
        if kind == "gaps":
            cells = [str(rng.choice(MISSING)) if rng.random() < 0.2 else cell for cell in cells]
        return cells
    known = {"words": WORDS, "codes": CODES, "truth": ("yes", "No"), "classes": ("1000001", "1000002", "1000003")}[kind]
    if kind == "codes":
        known = known[: int(rng.integers(2, len(known) + 1))]
    return [str(word) for word in rng.choice(known, n)]


def oracle(table):
    rows = [row for row in csv.reader(io.StringIO(table.text, newline=""), delimiter=table.delimiter) if row]
    rows = rows[1:] if table.header else rows
    rows = [row[1:] for row in rows] if table.row_names else rows
    columns = dict(enumerate(zip(*rows)))
    parts = []
    for j, kind in enumerate(table.kinds):
        cells = columns[j]
        lost = np.array([cell.strip() in MISSING for cell in cells])
        if kind in ("number", "gaps", "whole"):
            parts.append([np.nan if gone else float(cell.replace(",", ".")) for cell, gone in zip(cells, lost)])
        elif kind == "truth":
            parts.append([float(cell == "yes") for cell in cells])
        elif kind in ("words", "codes"):
            levels = sorted({cell for cell, gone in zip(cells, lost) if not gone})
            parts += [np.where(lost, np.nan, np.array([float(cell == level) for cell in cells])) for level in levels]
    return list(columns[table.kinds.index("id")]), np.column_stack(parts), list(columns[len(table.kinds) - 1])


def outcome(table, path):
    """Compare the reader with the csv module, and return "equal", "rejected: ..." or "different: ..."."""
    path.write_bytes(table.data)
    rows = [row for row in csv.reader(io.StringIO(table.text, newline=""), delimiter=table.delimiter) if row]
    names = rows[0] if table.header else [str(j) for j in range(len(table.kinds))]
    options = {} if table.header else {"header": False}
    try:
        found = read_samples(path, labels=[names[-1]], id=names[0], **options)
    except DataError as error:
        return f"rejected: {error}"
    if table.damaged:
        return "different: a damaged row was read"
    ids, X, classes = oracle(table)
    if found.ids != ids:
        return f"different: ids {found.ids[:3]} instead of {ids[:3]}"
    if not np.array_equal(found.views["x"], X, equal_nan=True):
        return f"different: features {found.feature_names}"
    named = np.array(found.label_names)[np.asarray(found.labels).argmax(axis=1)].tolist()
    return "equal" if named == classes else f"different: classes {found.label_names}"


def main(count, folder):
    """Test `count` random tables, and print the outcomes."""
    counts, reasons = Counter(), Counter()
    for seed in range(count):
        table = awkward(np.random.default_rng(seed))
        said = outcome(table, Path(folder) / "t.csv")
        kind = f"{said.partition(':')[0]}{', damaged' if table.damaged else ''}"
        counts[kind] += 1
        if kind != "equal":
            reasons[f"{kind}: {said.partition(': ')[2].rpartition('t.csv: ')[2][:110]} ({seed})"] += 1
    print(dict(counts))
    print("\n".join(reasons))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ".")

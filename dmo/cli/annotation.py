"""What annotations of feature stores and of folders of pictures share: labels, how many of them, and text files."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

Top = Annotated[int | None, typer.Option(min=1, help="Labels per sample (default: 5, or all where there are fewer).")]


def label_names(model: Any) -> list[str]:
    """Names of the model's labels, numbers where it knows none."""
    known = getattr(model, "label_names_", None)
    return list(known) if known is not None else [str(label) for label in model.classes_]


def label_count(wanted: int | None, labels: int) -> int:
    """Labels per sample: `wanted`, or 5, or all where there are fewer. Raises ValueError for more than there are."""
    if wanted is not None and wanted > labels:
        raise ValueError(f"--top {wanted}: there are {labels} labels; pass a number from 1 to {labels}")
    return min(5, labels) if wanted is None else wanted


def as_csv(samples: Sequence[str], words: Iterable[Sequence[str]], count: int, end: str) -> str:
    """A table of samples with their `count` labels, best first; `end` of its lines."""
    text = StringIO()
    writer = csv.writer(text, lineterminator=end)
    writer.writerow(["sample", *(f"label {i + 1}" for i in range(count))])
    writer.writerows([sample, *row] for sample, row in zip(samples, words, strict=True))
    return text.getvalue()


def replace_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8", newline="")
    os.replace(part, path)

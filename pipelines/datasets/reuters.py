"""Reuters-21578: reader of its SGML files, selections of documents used in papers, and tf-idf feature stores.

    python pipelines/datasets/reuters.py SOURCE STORE [--selection modapte-90] [--stemmer porter]

SOURCE is the folder of .sgm files, or their archive; see README.md in this folder for a download address.
"""

from __future__ import annotations

import html
import os
import re
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from lzma import LZMAError
from pathlib import Path
from typing import IO, Literal
from zlib import error as ZlibError

import numpy as np
import scipy.sparse

from dmo.datasets import Samples
from dmo.datasets.samples import Stemmer, TextVocabulary
from dmo.errors import UserError
from dmo.formats.files import DataError, SequentialRows, Stacked, decompressing, open_binary
from dmo.progress import stage
from dmo.stores import FeatureStore, Provenance
from dmo.workflows.program import option_parser, run_pipeline

Selection = Literal["modapte", "modapte-90", "mlsi", "mope"]
SELECTIONS = ("modapte", "modapte-90", "mlsi", "mope")
_ATTRIBUTE = re.compile(r'([A-Z]+)="([^"]*)"')
_ITEM = re.compile(r"<D>(.*?)</D>", re.DOTALL)
_TAG = re.compile(r"<[^<>]*>")
_UNPACKED = 1 << 30  # Maximum bytes of the temporary unpacked archive, because a small archive can unpack to any size.
_LONGEST = 1 << 20  # Maximum bytes of a document; the longest one of the collection has 20 000.


@dataclass(frozen=True)
class Document:
    """One story: its `number` (NEWID), `topics`, `title`, `text` (title and body), and the marks that define the splits
    (`has_topics`: TOPICS="YES"; `lewis`: TRAIN, TEST or NOT-USED; `cgis`)."""

    number: int
    topics: tuple[str, ...]
    title: str
    text: str
    has_topics: bool
    lewis: str
    cgis: str

    @property
    def modapte(self) -> str | None:
        """Split of the document in the modified Apte split: "train", "test" or None."""
        return {"TRAIN": "train", "TEST": "test"}.get(self.lewis) if self.has_topics else None


def read_reuters(source: str | os.PathLike[str]) -> Iterator[Document]:
    """Read the documents of Reuters-21578 in the order of the file names, one at a time.

    `source` is a folder of .sgm files, a tar archive of them (plain or compressed), or one .sgm file. A DataError names
    the file and line of a document that is truncated, nested, or lacks its number, topics or text.
    """
    found = 0
    for name, open_file in _files(Path(source)):
        for document in _documents(open_file, name):
            found += 1
            yield document
    if not found:
        raise DataError(
            f"{source}: no <REUTERS> document in any .sgm file; pass the folder or archive of the collection"
        )


def _files(source: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if source.is_dir():
        paths = sorted(path for path in source.iterdir() if ".sgm" in path.suffixes)
        for path in paths:
            with open_binary(path) as file:
                yield str(path), file
        return
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file")
    if ".sgm" in source.suffixes:
        with open_binary(source) as file:
            yield str(source), file
        return
    try:
        # Unpack first, because members are read in the order of their names and a compressed stream would restart each
        # time.
        with tempfile.TemporaryFile() as plain, open_binary(source) as stream:
            while block := stream.read(1 << 20):
                if plain.tell() > _UNPACKED:
                    raise DataError(f"{source}: unpacks to more than {_UNPACKED} bytes, the collection has 28 million")
                plain.write(block)
            plain.seek(0)
            with tarfile.open(fileobj=plain) as archive:
                members = sorted((m for m in archive.getmembers() if m.name.endswith(".sgm")), key=lambda m: m.name)
                plain.seek(archive.offset)
                if plain.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("its end is missing")
                for member in members:
                    content = archive.extractfile(member)
                    if content is not None:
                        yield f"{source}::{member.name.removeprefix('./')}", content
    except (tarfile.TarError, EOFError, LZMAError, ZlibError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # The disk failed, not the archive.
            raise
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise DataError(f"{source}: not a readable tar archive of .sgm files ({reason}); fetch it again") from None


def _documents(file: IO[bytes], name: str) -> Iterator[Document]:
    held: list[bytes] = []
    size = first = number = 0
    for number, line in _numbered(file, name):
        opens, closes = line.count(b"<REUTERS "), line.count(b"</REUTERS>")
        if opens > 1 or closes > 1 or (opens and held):
            raise DataError(f"{name}: line {number} opens a document inside another; the file is damaged")
        if opens:
            held, size, first = [line], len(line), number
        elif held:
            held.append(line)
            size += len(line)
        elif closes:
            raise DataError(f"{name}: line {number} ends a document that was not begun; the file is damaged")
        if closes:
            yield parse(b"".join(held).decode("latin-1"), f"{name}: line {first}")
            held = []
        elif size > _LONGEST and held:
            raise DataError(f"{name}: line {first} begins a document of over {_LONGEST} bytes; its end is missing")
    if held:
        raise DataError(f"{name}: ends at line {number} inside the document of line {first}; the file is truncated")


def _numbered(file: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with decompressing(name, lambda: f" after line {number}"):
            while line := file.readline(_LONGEST):
                number += 1
                yield number, line
    except tarfile.TarError as error:
        raise DataError(f"{name}: breaks off after line {number} ({error}); fetch the archive again") from None


def parse(text: str, where: str) -> Document:
    """Parse one <REUTERS> element into a Document; errors (DataError) mention `where`."""
    head, _, rest = text.partition(">")
    marks = dict(_ATTRIBUTE.findall(head))
    if not marks.get("NEWID", "").isdigit():
        raise DataError(f'{where}: the document has no NEWID="number"; the file is damaged')
    for mark in ("TOPICS", "LEWISSPLIT", "CGISPLIT"):
        if mark not in marks:
            raise DataError(f"{where}: document {marks['NEWID']} has no {mark}; no split can be made without it")
    topics = tuple(clean(topic) for topic in _ITEM.findall(_element(rest, "TOPICS", where)))
    story = _element(rest, "TEXT", where)
    title = clean(_optional(story, "TITLE"))
    body = _optional(story, "BODY") if "<BODY>" in story else story.partition(">")[2] if "<TITLE>" not in story else ""
    return Document(
        int(marks["NEWID"]),
        topics,
        title,
        f"{title}\n{clean(_TAG.sub(' ', body))}",
        marks["TOPICS"] == "YES",
        marks["LEWISSPLIT"],
        marks["CGISPLIT"],
    )


def clean(text: str) -> str:
    """Resolve entities, replace control characters by spaces, and strip white space."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f]", " ", html.unescape(text)).strip()


def _element(text: str, tag: str, where: str) -> str:
    """Return the text from the name of the opening tag to the closing tag."""
    start = text.find(f"<{tag}")
    end = text.find(f"</{tag}>", start)
    if start < 0 or end < 0:
        raise DataError(f"{where}: the document has no whole <{tag}> element; the file is damaged")
    return text[start + 1 + len(tag) : end]


def _optional(text: str, tag: str) -> str:
    return text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


@dataclass(frozen=True)
class Chosen:
    """A selection: document numbers and their topics by split, and the topics used as labels (columns, sorted)."""

    numbers: dict[str, list[int]]
    marks: dict[str, list[tuple[str, ...]]]
    topics: list[str]

    def labels(self) -> np.ndarray:
        """Return the labels (n x L, 0/1) with the splits stacked."""
        column = {topic: j for j, topic in enumerate(self.topics)}
        rows = [row for part in self.marks.values() for row in part]
        Y = np.zeros((len(rows), len(column)), dtype=np.uint8)
        for i, row in enumerate(rows):
            Y[i, [column[topic] for topic in row if topic in column]] = 1
        return Y


def select(documents: Iterator[Document], selection: Selection = "modapte", random_state: int = 0) -> Chosen:
    """Choose documents and topics in one pass that keeps only numbers and topics in memory.

    - "modapte": the modified Apte split, 9603 training and 3299 test documents, with all topics that occur;
    - "modapte-90": the same documents, with the topics that have a training and a test document;
    - "mlsi": 1600 documents without a split and 47 topics, the numbers reported by [MLSI], whose document list was not
      published. The topics are the most frequent ones among the documents of the modified Apte split with two or more
      topics; the documents are drawn at random from those that have one of them;
    - "mope": the 10 largest topics of the whole collection and every document with one of them, without a split (9400;
      [MOPE] has 9980).

    `random_state` is the seed of the random choice of "mlsi".
    """
    if selection not in SELECTIONS:
        raise UserError(f"reuters: selection = {selection!r}; known: {', '.join(SELECTIONS)}")
    if selection == "mope":
        return _largest(documents, 10)
    numbers: dict[str, list[int]] = {"train": [], "test": []}
    marks: dict[str, list[tuple[str, ...]]] = {"train": [], "test": []}
    for document in documents:
        if document.modapte is not None:
            numbers[document.modapte].append(document.number)
            marks[document.modapte].append(document.topics)
    if selection == "mlsi":
        return _multilabel(numbers, marks, 1600, 47, random_state)
    used = {split: {topic for row in rows for topic in row} for split, rows in marks.items()}
    every = used["train"] | used["test"] if selection == "modapte" else used["train"] & used["test"]
    return Chosen(numbers, marks, sorted(every))


def _largest(documents: Iterator[Document], n_topics: int) -> Chosen:
    pairs = [(document.number, document.topics) for document in documents if document.topics]
    counts = Counter(topic for _, row in pairs for topic in set(row))
    topics = sorted(sorted(counts, key=lambda topic: (-counts[topic], topic))[:n_topics])
    kept = [(number, row) for number, row in pairs if set(row) & set(topics)]
    return Chosen({"all": [number for number, _ in kept]}, {"all": [row for _, row in kept]}, topics)


def _multilabel(
    numbers: dict[str, list[int]], marks: dict[str, list[tuple[str, ...]]], size: int, n_topics: int, seed: int
) -> Chosen:
    pairs = [(n, row) for split in numbers for n, row in zip(numbers[split], marks[split]) if len(set(row)) > 1]
    counts = Counter(topic for _, row in pairs for topic in set(row))
    topics = sorted(sorted(counts, key=lambda topic: (-counts[topic], topic))[:n_topics])
    pairs = [(n, row) for n, row in pairs if set(row) & set(topics)]
    index = np.random.default_rng(seed).permutation(len(pairs))[:size]
    kept = [pairs[i] for i in np.sort(index)]
    return Chosen({"all": [n for n, _ in kept]}, {"all": [row for _, row in kept]}, topics)


def ingest_reuters(
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    selection: Selection = "modapte",
    min_documents: int = 1,
    stemmer: Stemmer | None = None,
    block: int = 1024,
    overwrite: bool = False,
    random_state: int = 0,
) -> FeatureStore:
    """Write a selection of Reuters-21578 as a feature store, with tf-idf rows of the words and topics as labels.

    The view is "words" (CSR, float32). The vocabulary is learned from the training documents and stored in the
    attribute "vocabulary". Sample ids are NEWIDs; label names are topics. Memory holds the vocabulary, one block, and
    the labels.

    See `read_reuters` for `source` and `select` for `selection`. A word must occur in at least `min_documents` training
    documents. `stemmer` reduces words to their stems and needs the extra `dmo-learn[text]`.
    """
    with stage("select documents"):
        chosen = select(read_reuters(source), selection, random_state)

    def texts(split: str) -> Callable[[], Iterator[str]]:
        wanted = set(chosen.numbers[split])
        return lambda: (document.text for document in read_reuters(source) if document.number in wanted)

    splits = [split for split, numbers in chosen.numbers.items() if numbers]
    if not splits:
        raise DataError(f"{source}: no document of the selection {selection!r}; pass the whole collection")
    with stage("vocabulary"):
        vocabulary = TextVocabulary.learn(texts(splits[0])(), min_documents, stemmer)

    def start(split: str) -> Iterator[scipy.sparse.csr_array]:
        remaining = texts(split)()
        while batch := list(islice(remaining, block)):
            yield vocabulary.rows(batch)

    shapes = {split: (len(chosen.numbers[split]), len(vocabulary.words)) for split in splits}
    parts = [SequentialRows(shapes[s], np.dtype(np.float32), partial(start, s), f"{source} ({s})") for s in splits]
    rows: Sequence[int] = [number for split in splits for number in chosen.numbers[split]]
    found = Samples(
        views={"words": Stacked(parts, str(source)) if len(parts) > 1 else parts[0]},
        labels=chosen.labels(),
        label_names=chosen.topics,
        ids=[str(number) for number in rows],
        split=np.repeat(splits, [len(chosen.numbers[split]) for split in splits]) if splits != ["all"] else None,
        attributes={"dataset": "reuters21578", "selection": selection, "vocabulary": vocabulary.words},
    )
    parameters = {"selection": selection, "min_documents": min_documents, "seed": random_state}
    origin = Provenance(parameters=parameters | ({"stemmer": stemmer} if stemmer else {}))
    return found.write(store, block=block, overwrite=overwrite, provenance=origin, complete=["words"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Ingest a selection and return the exit code (see `dmo.workflows.program`)."""
    made = option_parser(__doc__, run=True)
    made.add_argument("source", help="folder of .sgm files, or their archive (reuters21578.tar...)")
    made.add_argument("store", help="feature store to write")
    made.add_argument(
        "--selection", choices=SELECTIONS, default="modapte", help="modapte-90: only topics that occur in both splits"
    )
    made.add_argument("--random-state", type=int, default=0, help="seed of the random documents of mlsi")
    made.add_argument("--min-documents", type=int, default=1, help="minimum number of training documents of a word")
    made.add_argument("--stemmer", choices=("porter",), help="reduce words to their stems")
    made.add_argument("--block", type=int, default=1024, help="documents per block")
    made.add_argument("--overwrite", action="store_true", help="replace an existing store")
    options = made.parse_args(arguments)
    names = ("selection", "random_state", "min_documents", "stemmer", "block", "overwrite")
    given = {name: getattr(options, name) for name in names}
    return run_pipeline(__file__, options, lambda _: print(ingest_reuters(options.source, options.store, **given)))


if __name__ == "__main__":
    sys.exit(main())

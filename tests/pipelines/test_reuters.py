"""Compare the SGML reader, the document selections and the tf-idf store with scikit-learn and published counts."""

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest
from datasets import reuters
from datasets.reuters import ingest_reuters, main, parse, read_reuters, select
from made_files import story
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

from dmo.datasets.samples import TextVocabulary, analyzer
from dmo.formats.files import DataError, sha256
from dmo.stores import open_features

README = Path(__file__).resolve().parents[2] / "pipelines" / "datasets" / "README.md"
STORIES = [
    story(1, ["cocoa"], "Cocoa prices &lt;rose&gt; in Bahia, cocoa bags"),
    story(2, ["grain", "wheat"], "Wheat and grain fell; wheat sold"),
    story(3, [], "Nothing of note", has="NO"),
    story(4, ["wheat"], "Wheat rose", lewis="TEST"),
    story(5, ["ship"], "Ship sank with cocoa", lewis="TEST"),
    story(6, ["grain"], "Unused", lewis="NOT-USED"),
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    head = '<!DOCTYPE lewis SYSTEM "lewis.dtd">\n'
    (tmp_path / "in" / "reut2-000.sgm").write_text(head + "".join(STORIES[:3]), encoding="latin-1")
    (tmp_path / "in" / "reut2-001.sgm").write_text(head + "".join(STORIES[3:]), encoding="latin-1")
    return tmp_path / "in"


def archived(folder, path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for file in sorted(folder.iterdir(), reverse=True):
            archive.add(file, f"./{file.name}")
    path.write_bytes(lzma.compress(data.getvalue()))
    return path


def test_documents_are_what_the_markup_says(folder, tmp_path):
    found = list(read_reuters(folder))
    assert [document.number for document in found] == [1, 2, 3, 4, 5, 6]
    assert found[1].topics == ("grain", "wheat")
    assert found[0].title == "A TITLE"
    assert "prices <rose> in Bahia" in found[0].text
    assert not any(ord(c) < 32 and c != "\n" for document in found for c in document.text)
    assert [document.modapte for document in found] == ["train", "train", None, "test", "test", None]
    assert list(read_reuters(archived(folder, tmp_path / "all.tar.xz"))) == found
    assert list(read_reuters(folder / "reut2-000.sgm")) == found[:3]


def test_text_without_markup_is_its_body():
    raw = STORIES[0].replace("<TITLE>A TITLE</TITLE>\n<DATELINE> X - </DATELINE><BODY>", "").replace("</BODY>", "")
    assert analyzer()(parse(raw, "here").text) == ["cocoa", "prices", "rose", "bahia", "cocoa", "bags"]


def test_selections(folder):
    every = select(read_reuters(folder))
    assert every.numbers == {"train": [1, 2], "test": [4, 5]}
    assert every.topics == ["cocoa", "grain", "ship", "wheat"]
    np.testing.assert_array_equal(every.labels(), [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]])
    assert select(read_reuters(folder), "modapte-90").topics == ["wheat"]
    assert select(read_reuters(folder), "mlsi").numbers == {"all": [2]}
    with pytest.raises(ValueError, match="selection = 'modlewis'; known: modapte, modapte-90, mlsi, mope"):
        select(read_reuters(folder), "modlewis")


def test_the_ten_largest_topics_keep_every_story_that_has_one(tmp_path):
    marked = [["big"] * 2, ["big", "small"], [f"t{i}" for i in range(9)], [f"t{i}" for i in range(9)], [], []]
    splits = ["TRAIN", "TEST", "NOT-USED", "TRAIN", "TRAIN", "TRAIN"]
    text = "".join(story(i, topics, "Body", lewis) for i, (topics, lewis) in enumerate(zip(marked, splits), 1))
    (tmp_path / "all.sgm").write_text(text + story(7, ["big"], "Body", has="NO"), encoding="latin-1")
    found = select(read_reuters(tmp_path), "mope")
    assert found.topics == ["big", *(f"t{i}" for i in range(9))], "small has one story, the others have two or more"
    assert found.numbers == {"all": [1, 2, 3, 4, 7]}
    assert found.labels().sum(axis=1).tolist() == [1, 1, 9, 9, 1]


def test_tf_idf_is_scikit_learns():
    rng = np.random.default_rng(0)
    words = ["wheat", "cocoa", "the", "ship", "x", "grain", "and", "oil"]
    texts = [" ".join(rng.choice(words, rng.integers(0, 12))) for _ in range(30)]
    vectors = TfidfVectorizer(
        token_pattern=r"[a-z][a-z]+", stop_words=sorted(ENGLISH_STOP_WORDS), sublinear_tf=True
    ).fit(texts[:20])
    vocabulary = TextVocabulary.learn(texts[:20])
    assert vocabulary.words == vectors.get_feature_names_out().tolist()
    np.testing.assert_allclose(vocabulary.rows(texts).toarray(), vectors.transform(texts).toarray(), atol=1e-6)
    assert vocabulary.rows([]).shape == (0, len(vocabulary.words))
    with pytest.raises(DataError, match="no word occurs in at least 50"):
        TextVocabulary.learn(texts, 50)


def test_words_are_cut_to_their_stems(folder, tmp_path):
    """Check examples of Porter (1980): plurals, suffixes, and five words with the same stem."""
    cut = TextVocabulary.learn(["Caresses ponies relational conditional"], stemmer="porter")
    assert cut.words == ["caress", "condit", "poni", "relat"]
    one = TextVocabulary.learn(["connect connected connecting connection connections"], stemmer="porter")
    assert one.words == ["connect"]
    np.testing.assert_allclose(one.rows(["disconnected", "connections"]).toarray(), [[0.0], [1.0]])
    store = ingest_reuters(folder, tmp_path / "stems.zarr", stemmer="porter")
    assert "price" in store.attributes["vocabulary"]
    assert "prices" not in store.attributes["vocabulary"]


def test_the_store_keeps_rows_names_and_splits(folder, tmp_path):
    store = ingest_reuters(folder, tmp_path / "out.zarr", block=3)
    assert store.split.tolist() == ["train", "train", "test", "test"]
    assert store.sample_ids == ["1", "2", "4", "5"]
    assert store.label_names == ["cocoa", "grain", "ship", "wheat"]
    vocabulary = store.attributes["vocabulary"]
    assert "bahia" in vocabulary
    assert "sank" not in vocabulary, "words of test documents alone are unknown"
    texts = [document.text for document in read_reuters(folder) if document.modapte]
    wanted = TextVocabulary.learn(texts[:2]).rows(texts).toarray()
    np.testing.assert_array_equal(store.views["words"][:].toarray(), wanted)
    assert open_features(tmp_path / "out.zarr").view_info("words").kind == "sparse"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (STORIES[0] + STORIES[1][:150], "inside the document of line 10; the file is truncated"),
        (STORIES[0].replace("</REUTERS>\n", "") + STORIES[1], "opens a document inside another"),
        ("</REUTERS>\n" + STORIES[0], "line 1 ends a document that was not begun"),
        (STORIES[0].replace(' NEWID="1"', ""), 'has no NEWID="number"'),
        (STORIES[0].replace('NEWID="1"', 'NEWID="x"'), 'has no NEWID="number"'),
        (STORIES[0].replace('LEWISSPLIT="TRAIN"', ""), "document 1 has no LEWISSPLIT"),
        (STORIES[0].replace("</TOPICS>", ""), "no whole <TOPICS> element"),
        (STORIES[0].replace("</TEXT>", ""), "no whole <TEXT> element"),
        ("not the collection\n", "no <REUTERS> document"),
        (STORIES[0].replace("bags", "x " * 2**20), "begins a document of over"),
    ],
)
def test_a_damaged_file_is_named(text, sentence, tmp_path):
    (tmp_path / "reut2-000.sgm").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=sentence) as caught:
        ingest_reuters(tmp_path, tmp_path / "out.zarr")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.zarr").exists()


def test_an_archive_that_unpacks_to_more_than_any_collection_does_not_fill_the_disk(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(reuters, "_UNPACKED", 1 << 20)
    (tmp_path / "bomb.tar.xz").write_bytes(lzma.compress(bytes(3 << 20)))
    with pytest.raises(DataError, match=r"bomb\.tar\.xz: unpacks to more than 1048576 bytes"):
        list(read_reuters(tmp_path / "bomb.tar.xz"))


def test_damaged_archives_are_named(folder, tmp_path):
    path = archived(folder, tmp_path / "all.tar.xz")
    for content in (path.read_bytes()[:-80], lzma.compress(b"no tar at all" * 100), b"neither"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"all\.tar\.xz: not a readable tar archive"):
            list(read_reuters(path))
    whole, plain = lzma.decompress(archived(folder, path).read_bytes()), tmp_path / "all.tar"
    second = whole.index(b"./reut2-000.sgm")
    # Truncate the archive inside a member or before the end marker.
    for size in (second + 700, 512 * (len(whole.rstrip(b"\0")) // 512 + 1)):
        plain.write_bytes(whole[:size])
        with pytest.raises(
            DataError, match=r"all\.tar: not a readable tar archive .*(its end is missing|unexpected end)"
        ):
            list(read_reuters(plain))
    for name, squeeze in (("a.sgm.gz", gzip.compress), ("a.sgm.bz2", bz2.compress), ("a.sgm.xz", lzma.compress)):
        (tmp_path / name).write_bytes(squeeze(STORIES[0].encode())[:-12])
        with pytest.raises(DataError, match=rf"{name}: cannot be decompressed after line \d+"):
            list(read_reuters(tmp_path / name))
    damaged = bytearray(gzip.compress(b"none" * 300))
    damaged[12:16] = b"harm"
    (tmp_path / "b.tar.gz").write_bytes(bytes(damaged))
    with pytest.raises(DataError, match=r"b\.tar\.gz: not a readable tar archive"):
        list(read_reuters(tmp_path / "b.tar.gz"))
    with pytest.raises(FileNotFoundError, match=r"absent\.tar: no such file"):
        list(read_reuters(tmp_path / "absent.tar"))


def test_the_script_writes_what_the_function_writes(folder, tmp_path):
    where = [str(folder), str(tmp_path / "script.zarr")]
    assert main([*where, "--selection", "modapte-90", "--min-documents", "2"]) == 0
    ours = ingest_reuters(folder, tmp_path / "ours.zarr", selection="modapte-90", min_documents=2)
    found = open_features(where[1])
    assert (found.attributes, found.sample_ids) == (ours.attributes, ours.sample_ids)
    assert main(["no-folder", str(tmp_path / "x.zarr")]) == 2


def test_the_real_collection_has_its_published_counts(dmo_data):
    """The ModApte split has 9603 training and 3299 test documents, and 90 topics occur in both parts."""
    source = dmo_data / "reuters21578" / "reuters21578.tar.xz"
    if not source.exists():
        pytest.skip(f"no {source}")
    assert f"`{sha256(source)}`" in README.read_text(encoding="utf-8")
    documents = list(read_reuters(source))
    assert [document.number for document in documents] == list(range(1, 21579))
    chosen = select(iter(documents), "modapte-90")
    assert {split: len(numbers) for split, numbers in chosen.numbers.items()} == {"train": 9603, "test": 3299}
    assert len(chosen.topics) == 90
    paper = select(iter(documents), "mlsi")
    assert (len(paper.numbers["all"]), len(paper.topics)) == (1600, 47)
    assert (paper.labels().sum(axis=1) > 0).all()
    largest = select(iter(documents), "mope")
    assert largest.topics == [
        "acq", "corn", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade", "wheat"
    ]  # fmt: skip
    assert len(largest.numbers["all"]) == 9400

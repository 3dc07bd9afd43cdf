"""Test globs, folders and lists of shards, arrays and columns inside files, and reading in place."""

import logging
import pickle
import shutil

import fsspec
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import shell
import zarr
from pyarrow import parquet

import dmo
from dmo.datasets import DataError, ingest_files, open_rows, parse_source, read_samples
from dmo.formats.frames import read_frame

N, D, SHARDS = 320, 6, 16
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
EACH = N // SHARDS
IDS = [f"scan-{i}" for i in range(N)]
Y = (X[:, :3] > 0).astype(np.uint8)
FLOAT32 = pa.float32()


def lists(rows, kind=FLOAT32):
    return pa.array([None if row is None else list(row) for row in rows], pa.list_(kind))


def fixed(rows):
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(rows), FLOAT32), D)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Write 16 shards of vectors to `emb`, of ids and labels to `meta`, and of vector columns to `pq`."""
    monkeypatch.chdir(tmp_path)
    for folder in ("emb", "meta", "pq"):
        (tmp_path / folder).mkdir()
    for i in range(SHARDS):
        rows = slice(i * EACH, (i + 1) * EACH)
        np.save(f"emb/part.{i}.npy", X[rows])
        tags = [[f"tag {j}" for j in np.flatnonzero(row)] for row in Y[rows]]
        parquet.write_table(pa.table({"id": IDS[rows], "tags": tags}), f"meta/part.{i}.parquet")
        table = pa.table({"id": IDS[rows], "f": fixed(X[rows]), "l": lists(X[rows])})
        parquet.write_table(table, f"pq/train-{i:05}-of-{SHARDS:05}.parquet", row_group_size=7)
    np.save("y.npy", Y)
    return tmp_path


def test_source_splits_name_at_last_mark_without_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text, paths, name in [
        ("a.npz::X", ("a.npz",), "X"),
        ("s3://b/a.zarr::clip", ("s3://b/a.zarr",), "clip"),
        ("simplecache::s3://b/a.npy", ("simplecache::s3://b/a.npy",), None),
        ("simplecache::s3://b/a.npz::X", ("simplecache::s3://b/a.npz",), "X"),
        ("a.zarr::group/clip", ("a.zarr",), "group/clip"),
    ]:
        source = parse_source(text)
        assert (source.paths, source.name, source.kind) == (paths, name, "file")


@pytest.mark.parametrize("spec", ["emb", "emb/*.npy", "@list.txt", "pq/*.parquet::f", "pq::l", "file://{}/emb/*.npy"])
def test_shards_are_read_in_natural_order(shards, spec):
    (shards / "list.txt").write_text("\n".join(f"emb/part.{i}.npy" for i in range(SHARDS)) + "\n\n")
    found = open_rows(spec.format(shards))
    assert (found.shape, found.dtype) == ((N, D), np.float32)
    np.testing.assert_array_equal(found[:], X)
    np.testing.assert_array_equal(found[17:233], X[17:233])
    np.testing.assert_array_equal(found[5:9], X[5:9])


def test_parquet_vectors_keep_types_and_missing_rows(tmp_path):
    rows = [*X[:5], None, *X[6:9]]
    for kind, dtype in [(pa.float16(), np.float16), (pa.float32(), np.float32), (pa.float64(), np.float64)]:
        given = [None if row is None else row.astype(dtype) for row in rows]
        parquet.write_table(pa.table({"v": lists(given, kind)}), tmp_path / "v.parquet", row_group_size=2)
        found = open_rows(f"{tmp_path}/v.parquet::v")
        assert found.dtype == dtype
        expected = np.array([np.full(D, np.nan) if row is None else row for row in given], dtype)
        np.testing.assert_array_equal(found[:], expected)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(found))[4:7], expected[4:7])
    parquet.write_table(pa.table({"v": lists([[1, 2], None], pa.int8())}), tmp_path / "i.parquet")
    with pytest.raises(DataError, match=r"i\.parquet::v: integer vectors have missing values"):
        open_rows(f"{tmp_path}/i.parquet::v")[:]
    np.testing.assert_array_equal(read_samples(tmp_path / "i.parquet").views["x"], [[1, 2], [np.nan, np.nan]])


def test_arrays_inside_of_files_are_named(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["group/clip"], file["other"] = X, X[:, :2]
        file["elsewhere"] = h5py.ExternalLink("x.h5", "other")
    np.testing.assert_array_equal(open_rows(f"{tmp_path}/x.h5::group/clip")[7:9], X[7:9])
    with pytest.raises(DataError, match=r"contains the matrices group/clip, other, expected one"):
        open_rows(tmp_path / "x.h5")
    with pytest.raises(DataError, match="the array 'elsewhere' is missing"):
        open_rows(f"{tmp_path}/x.h5::elsewhere")
    (tmp_path / "cut.h5").write_bytes((tmp_path / "x.h5").read_bytes()[:900])
    with pytest.raises(DataError, match=r"cut\.h5: cannot be read as HDF5"):
        open_rows(f"{tmp_path}/cut.h5::other")


def test_urls_are_read(shards):
    memory = fsspec.filesystem("memory")
    for i in range(2):
        memory.put_file(f"emb/part.{i}.npy", f"/urls/part.{i}.npy")
        memory.put_file(f"pq/train-{i:05}-of-{SHARDS:05}.parquet", f"/urls/part.{i}.parquet")
    np.savez("x.npz", X=X)
    memory.put_file("x.npz", "/urls/x.npz")
    np.testing.assert_array_equal(open_rows("memory://urls/part.*.npy")[:], X[: 2 * EACH])
    np.testing.assert_array_equal(open_rows("memory://urls/part.*.parquet::f")[3:31], X[3:31])
    np.testing.assert_array_equal(open_rows("memory://urls/x.npz::X")[:], X)


def truncated(shards):
    path = shards / "emb/part.3.npy"
    path.write_bytes(path.read_bytes()[:-10])


def damaged(shards):
    path = shards / f"pq/train-00003-of-{SHARDS:05}.parquet"
    path.write_bytes(path.read_bytes()[:-10])


def short_table(shards):
    parquet.write_table(pa.table({"id": ["x"], "tags": [["tag 0"]]}), shards / "meta/part.3.parquet")


def repeated(shards):
    shutil.copy(shards / "meta/part.2.parquet", shards / "meta/part.3.parquet")


def ragged(shards):
    table = pa.table({"id": IDS[60:80], "f": fixed(X[60:80]), "l": lists([*X[60:79], X[79, :2]])})
    parquet.write_table(table, shards / f"pq/train-00003-of-{SHARDS:05}.parquet")


def infinite(shards):
    rows = X[60:80].copy()
    rows[4, 2] = np.inf
    np.save(shards / "emb/part.3.npy", rows)


@pytest.mark.parametrize(
    ("view", "change", "message"),
    [
        ("emb", lambda at: (at / "emb/part.3.npy").unlink(), r"emb: number 3 is missing from the shards part.0.npy to"),
        (
            "pq::f",
            lambda at: (at / "pq/train-00015-of-00016.parquet").unlink(),
            r"number 15 is missing from the shards",
        ),
        ("emb", truncated, r"part\.3\.npy: ends at byte .* the file is truncated"),
        ("pq::f", damaged, r"train-00003-of-00016\.parquet: cannot be read as Parquet"),
        ("emb", lambda at: np.save(at / "emb/part.3.npy", X[:0]), r"part\.3\.npy: has shape \(0, 6\)"),
        ("emb", lambda at: (at / "emb/part.3.npy").write_bytes(b""), r"part\.3\.npy: no \.npy header"),
        ("emb", lambda at: np.save(at / "emb/part.3.npy", X[:20, :5]), r"part\.3\.npy: has 5 columns of type float32"),
        ("emb", lambda at: np.save(at / "emb/part.3.npy", X[:20] * 1.0 + 0j), r"part\.3\.npy: is of type complex64"),
        (
            "emb",
            lambda at: np.save(at / "emb/part.3.npy", X[:20].astype(float)),
            r"part\.3\.npy: has 6 columns of type float64",
        ),
        ("pq::l", ragged, r"train-00003-of-00016\.parquet::l: row 19 has 2 values, expected 6"),
        ("emb", infinite, r"part\.3\.npy, row 4, column 2 is inf"),
        ("emb", short_table, r"part\.3\.parquet has 1 rows, but emb/part\.3\.npy has 20"),
        (
            "emb",
            repeated,
            r"'scan-40' occurs in 2 rows \(meta/part\.2\.parquet, row 0 and meta/part\.3\.parquet, row 0\)",
        ),
    ],
)
def test_ingest_rejects_bad_shards_by_name(shards, view, change, message):
    change(shards)
    with pytest.raises(DataError, match=message):
        ingest_files({"v": view}, "out.zarr", labels="meta::tags", id="id")
    assert not (shards / "out.zarr").exists()


def test_ingest_counts_nan_by_shard(shards, caplog):
    rows = X[60:80].copy()
    rows[4, 2], rows[7] = np.nan, np.nan
    np.save("emb/part.3.npy", rows)
    with caplog.at_level(logging.WARNING, "dmo"):
        store = ingest_files({"v": "emb"}, "out.zarr")
    assert "view 'v': emb/part.3.npy has NaN in 2 rows, which are treated as missing values" in caplog.messages
    assert not store.views["v"].present[67]
    assert store.attributes["missing"] == {"v": {"2": 1}}


def test_shards_far_apart_in_number_are_no_sequence(tmp_path):
    for day in (20240131, 20240228):
        np.save(tmp_path / f"day-{day}.npy", X)
    assert open_rows(tmp_path).shape == (2 * N, D)


def test_ingest_joins_aligned_shards(shards):
    store = ingest_files({"v": "emb"}, "out.zarr", labels="meta::tags", id="id")
    assert (store.sample_ids, store.label_names) == (IDS, ["tag 0", "tag 1", "tag 2"])
    np.testing.assert_array_equal(store.labels, Y)
    np.testing.assert_array_equal(store.views["v"][:], X)
    assert store.views["v"].dtype == np.float32


def test_ingest_joins_vectors_by_id(shards):
    order = np.random.default_rng(1).permutation(N)[: N - 3]
    tags = [[f"tag {j}" for j in np.flatnonzero(Y[i])] for i in order]
    parquet.write_table(pa.table({"id": [IDS[i] for i in order], "tags": tags}), "tags.parquet")
    inner = ingest_files({"v": "pq::f"}, "inner.zarr", labels="tags.parquet", id="id", how="inner")
    rows = [IDS.index(one) for one in inner.sample_ids]
    assert sorted(rows) == sorted(order.tolist())
    np.testing.assert_array_equal(inner.views["v"][:], X[rows])
    np.testing.assert_array_equal(inner.labels, Y[rows])
    extra = pa.table({"id": ["new"], "f": fixed(X[:1])})
    parquet.write_table(extra, "extra.parquet")
    outer = ingest_files({"v": "extra.parquet", "w": "pq::f"}, "outer.zarr", id="id", how="outer")
    assert outer.views["w"].present.tolist() == [False] + [True] * N
    np.testing.assert_array_equal(outer.views["w"][1:], X)


def test_tables_of_shards_have_their_columns(shards):
    (shards / "meta/part.9.parquet").unlink()
    parquet.write_table(pa.table({"id": ["a"]}), "meta/part.9.parquet")
    with pytest.raises(DataError, match=r"part\.9\.parquet: has other columns than meta/part\.0\.parquet \('tags'"):
        read_frame("meta")


IN_PLACE = ["emb", "pq::f", "features.zarr::clip", "bare.zarr", "x.h5::clip", "memory://place/bare", "file://{}/bare"]


@pytest.mark.parametrize("view", [*IN_PLACE, "numbers"])
def test_models_read_files_in_place(shards, view):
    view = view.format(shards)
    zarr.open_group("features.zarr", mode="w").create_array("clip", data=X, chunks=(50, D))
    for place in ("bare.zarr", "bare"):
        zarr.save_array(place, X)
    zarr.create_array("memory://place/bare", data=X, chunks=(50, D), overwrite=True, zarr_format=2)
    number_shards(shards / "numbers")
    with h5py.File("x.h5", "w") as file:
        file["clip"] = X
    found = shell.run("fit", "ridge", view, "model.zarr", "--labels", "y.npy", "--kernel", "linear")
    assert f"reading {view} in place" in found.output
    shell.run("annotate", "model.zarr", view, "out.zarr", "--scores")
    expected = dmo.MultiViewRidge(kernel="linear").fit(X, Y).decision_function(X)
    np.testing.assert_allclose(dmo.stores.open_results("out.zarr")[:], expected, atol=2e-4 * np.abs(expected).max())
    if view == "numbers":  # numeric columns are identified by name
        table = pd.DataFrame(X, columns=[f"c{j}" for j in range(D)])[::-1]
        table[sorted(table, reverse=True)].assign(more="words").to_csv("other.csv", index=False)
        shell.run("annotate", "model.zarr", "other.csv", "other.zarr", "--scores")
        found = dmo.stores.open_results("other.zarr")[:][::-1]
        np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
        shutil.rmtree("other.zarr")
    again = shell.run("annotate", "model.zarr", view, "out.zarr", "--scores")
    assert "complete already" in again.output
    made = {"bare.zarr", "features.zarr", "model.zarr", "out.zarr"}
    assert {path.name for path in shards.glob("*.zarr")} == made


def number_shards(folder):
    """Write Parquet shards with one column per feature. The columns of the second shard have a different order."""
    folder.mkdir()
    for i, rows in enumerate((slice(0, 200), slice(200, N))):
        columns = {f"c{j}": X[rows, j] for j in range(D)}
        columns = dict(reversed(columns.items())) if i else columns
        parquet.write_table(pa.table(columns), folder / f"part.{i}.parquet", row_group_size=33)


def test_parquet_numbers_keep_types_and_gaps(shards):
    number_shards(shards / "numbers")
    samples = read_samples("numbers")
    assert (samples.views["x"].dtype, samples.feature_names["x"]) == (np.float32, [f"c{j}" for j in range(D)])
    np.testing.assert_array_equal(samples.views["x"], X)
    view = ingest_files({"v": "numbers"}, "none.zarr", in_place=True).views["v"]
    sent = pickle.dumps(view)
    assert len(sent) < 4096 < X.nbytes
    for where in (slice(5, 9), slice(0, N), slice(190, 210), slice(60, 70)):
        np.testing.assert_array_equal(pickle.loads(sent)[where], X[where])
    table = pa.table({"whole": [1, None, (1 << 53) + 1, 4], "no": [True, None, False, True], "f": [0.5, None, 2, 3]})
    parquet.write_table(table, "gaps.parquet")
    found = read_samples("gaps.parquet").views["x"]
    assert found.dtype == np.float64
    expected = [[1, 1, 0.5], [2.0**53, 0, 2], [4, 1, 3]]  # the row with missing values is dropped
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.slice(0, 0), r"part\.1\.parquet: has no rows"),
        (lambda table: table.drop_columns("c2"), r"part\.1\.parquet: has other columns than .*part\.0\.parquet \('c2'"),
        (
            lambda table: table.set_column(0, "c5", table["c5"].cast("float64")),
            r"part\.1\.parquet: column 'c5' is of type float64, expected float32 as in .*part\.0\.parquet",
        ),
        (
            lambda table: table.set_column(0, "c5", pa.array(np.full(len(table), np.inf, np.float32))),
            r"part\.1\.parquet, row 0, column 5 is inf",
        ),
    ],
)
def test_bad_shards_of_numbers_are_rejected_by_name(shards, change, message):
    number_shards(shards / "numbers")
    path = shards / "numbers/part.1.parquet"
    parquet.write_table(change(parquet.read_table(path)), path)
    with pytest.raises(DataError, match=message):
        ingest_files({"v": "numbers"}, "out.zarr", labels="y.npy", in_place=True)
    assert not (shards / "out.zarr").exists()


@pytest.mark.parametrize(
    ("columns", "asked", "dtype"),
    [
        ({"c": ["u", "v"] * 4}, {}, np.float64),
        ({"key": [f"k{i}" for i in range(8)]}, {"id": "key"}, np.float32),
        ({"part": ["train", "test"] * 4}, {"split": "part"}, np.float32),
        ({"note": ["a b c"] * 8}, {"drop_columns": ["note"]}, np.float32),
        ({"kind": [0, 1] * 4}, {"labels": ["kind"]}, np.float32),
        ({"code": [0, 1, 2, 3] * 2}, {"types": {"code": "category"}}, np.float64),
    ],
)
def test_parquet_tables_of_other_columns_are_read_as_before(columns, asked, dtype, tmp_path):
    table = pd.DataFrame({"a": X[:8, 0], "b": X[:8, 1], **columns})
    table.to_parquet(tmp_path / "t.parquet")
    found, expected = read_samples(tmp_path / "t.parquet", **asked), read_samples(table, **asked)
    assert (found.views["x"].dtype, found.feature_names) == (dtype, expected.feature_names)
    np.testing.assert_array_equal(found.views["x"], expected.views["x"])
    assert (found.ids, found.label_names) == (expected.ids, expected.label_names)
    assert (found.split is None) == (expected.split is None)
    index = table.set_index("b")  # pandas stores an index as a column
    index.to_parquet(tmp_path / "i.parquet")
    assert read_samples(tmp_path / "i.parquet", **asked).feature_names == read_samples(index, **asked).feature_names


def test_copies_are_logged_with_reason_and_size(shards, caplog):
    np.save("column.npy", np.asfortranarray(X))
    with caplog.at_level(logging.WARNING, "dmo"):
        store = ingest_files({"v": "column.npy"}, "copy.zarr", labels="y.npy", in_place=True)
    assert store.folder.is_local
    assert any(
        "copy.zarr: writing a copy of at most" in text and "rows cannot be read in any order" in text
        for text in caplog.messages
    )
    np.testing.assert_array_equal(store.views["v"][:], X)


def test_views_in_place_open_their_files_in_other_processes(shards):
    view = ingest_files({"v": "emb"}, "none.zarr", in_place=True).views["v"]
    sent = pickle.dumps(view)
    assert len(sent) < 4096 < X.nbytes
    np.testing.assert_array_equal(pickle.loads(sent)[30:50], X[30:50])
    before = view.contents
    np.save("emb/part.3.npy", X[:20])
    assert ingest_files({"v": "emb"}, "none.zarr", in_place=True).views["v"].contents != before
    assert not (shards / "none.zarr").exists()


def test_info_shows_interpretation_of_sources(shards):
    about = shell.record("info", "pq/*.parquet")
    assert (about["kind"], len(about["shards"]), about["n_samples"]) == ("glob", SHARDS, N)
    assert about["arrays"]["f"] == {"shape": [N, D], "dtype": "float32", "copied": None}
    assert "part.0.npy, part.1.npy ... part.15.npy" in shell.run("info", "emb").output

"""Check that stores return the written bits, and that damaged, unfinished or foreign stores raise helpful errors."""

import itertools
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import dask.array as da
import google_crc32c
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from numpy.testing import assert_array_equal
from shell import disk_full

from dmo.blocks import Subset, rows
from dmo.errors import UserError
from dmo.hashing import fingerprint
from dmo.stores import (
    Provenance,
    StoreError,
    ViewSpec,
    _schema,
    _writer,
    create_features,
    create_kernel,
    create_results,
    describe,
    load_model,
    open_features,
    open_kernel,
    open_results,
    reopen,
    save_model,
    verify,
    write_kernel,
)
from dmo.stores._folder import Folder

N, BLOCK = 37, 8
RNG = np.random.default_rng(5)
GIST = RNG.standard_normal((N, 6)).astype(np.float32)
COUNTS = RNG.integers(0, 9, (N, 3), dtype=np.uint8)
TAGS = sp.random_array((N, 50), density=0.1, format="csr", dtype=np.float64, rng=RNG)
TAGS = sp.csr_array(sp.diags_array(np.repeat([1.0, 0.0, 1.0], [8, 8, 21])) @ TAGS)  # block 1 has no nonzero entries
DATA = {"gist": GIST, "counts": COUNTS, "tags": TAGS}
VIEWS = {
    "gist": ViewSpec(6),
    "counts": ViewSpec(3, "uint8", histogram=True),
    "tags": ViewSpec(50, "float64", kind="sparse"),
}
LABELS = (RNG.random((N, 4)) < 0.3).astype(float)
NAMES = ["sun", "mer", "été", ""]
IDS = [f"image {i}" for i in range(N)]
SAME = {"attributes": {"title": "a test"}, "provenance": Provenance(["/raw/a.mat"], {"scale": 2}, 3)}
SPLIT = ["train"] * 25 + ["test"] * 12


def begin(path, **changes):
    arguments = {"labels": LABELS, "label_names": NAMES, "sample_ids": IDS, "split": SPLIT, "block": BLOCK} | changes
    return create_features(path, arguments.pop("n_samples", N), arguments.pop("views", VIEWS), **arguments)


def fill(writer):
    for view, block in writer.missing():
        writer.write(view, block, DATA[view][writer.rows(block)])
    writer.finish()
    return writer


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "features.zarr"
    fill(begin(path, **SAME))
    return path


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "kernel.zarr"
    fill_kernel(create_kernel(path, N, BLOCK))
    return path


K = np.asarray(GIST @ GIST.T)
K = (K + K.T) / 2


def fill_kernel(writer):
    for i, j in writer.missing():
        writer.write(i, j, K[writer.rows(i), writer.rows(j)])
    writer.finish()


def files(path):
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(Path(path).rglob("*")) if p.is_file()}


def edit_root(path, **changes):
    file = Path(path) / "zarr.json"
    document = json.loads(file.read_text())
    document["attributes"].update(changes)
    file.write_text(json.dumps(document))


def dense(block):
    return block.toarray() if sp.issparse(block) else block


# Tests of values that are written and read


def test_every_slice_of_every_view_is_what_was_written(store):
    views = open_features(store).views
    for name, view in views.items():
        expected = dense(DATA[name])
        assert view.shape == expected.shape
        assert view.dtype == expected.dtype
        for start in range(N + 1):
            for stop in (start - 1, start, start + 1, start + BLOCK, N, N + 5):
                assert np.array_equal(dense(rows(view, slice(start, stop))), expected[start:stop]), (name, start, stop)
        assert np.array_equal(dense(view[-20::3, 1:]), expected[-20::3, 1:])
    with pytest.raises(TypeError, match="read by slices"):
        views["gist"][3]


@pytest.mark.parametrize("step", [3, 64, 1 << 22])
def test_splits_are_read_in_pieces_of_any_size(step, tmp_path, monkeypatch):
    split = np.random.default_rng(0).choice(["train", "test", "t", ""], 200).tolist()
    writer = create_features(tmp_path / "f.zarr", 200, {"x": ViewSpec(1)}, split=split)
    writer.write("x", 0, np.zeros((200, 1)))
    writer.finish()
    monkeypatch.setattr(_writer, "STEP", step)
    assert open_features(tmp_path / "f.zarr").split.tolist() == split


def test_labels_names_and_splits_come_back(store):
    opened = open_features(store)
    assert np.array_equal(opened.labels, LABELS)
    assert opened.labels.dtype == np.uint8
    assert (opened.label_names, opened.sample_ids, opened.split.tolist()) == (NAMES, IDS, SPLIT)
    assert opened.view_info("counts") == VIEWS["counts"]
    assert opened.attributes == {"title": "a test"}
    assert opened.provenance == opened.provenance | {"parents": ["/raw/a.mat"], "parameters": {"scale": 2}, "seed": 3}
    views, Y, index = opened.select("test")
    assert np.array_equal(index, np.arange(25, 37))
    assert np.array_equal(Y, LABELS[25:])
    assert np.array_equal(rows(views["gist"]), GIST[25:])
    assert np.array_equal(dense(rows(views["tags"], slice(3, 9))), TAGS[28:34].toarray())
    with pytest.raises(StoreError, match=r"no split 'valid'; it has 'test', 'train'$"):
        opened.select("valid")


def test_a_store_without_labels_has_none(tmp_path):
    writer = create_features(tmp_path / "f", 3, {"a": ViewSpec(2)})
    writer.write("a", 0, np.eye(3, 2))
    writer.finish()
    opened = open_features(tmp_path / "f")
    assert (opened.labels, opened.label_names, opened.sample_ids, opened.split) == (None, None, None, None)
    assert opened.select(None)[1] is None
    with pytest.raises(StoreError, match="no splits"):
        opened.select("train")


def test_xarray_opens_a_feature_store_as_a_dataset(store):
    found = xr.open_zarr(store)
    assert found["gist"].dims == ("sample", "gist_feature")
    assert found["labels"].dims == ("sample", "label")
    assert found["gist"].chunks[0] == (8, 8, 8, 8, 5)
    assert np.array_equal(found["gist"].values, GIST)
    assert np.array_equal(found["counts"].sel(sample="image 9").values, COUNTS[9])
    assert np.array_equal(found["labels"].sel(label="été").values, LABELS[:, 2])
    assert found["split"].values.tolist() == SPLIT
    assert found.attrs["kind"] == "features"
    assert found.attrs["complete"] is True


def test_zarr_and_dask_read_views_and_sparse_blocks(store):
    view = open_features(store).views["gist"]
    assert np.array_equal(zarr.open_array(view.url, mode="r")[:], GIST)
    assert np.array_equal(da.from_array(view)[5:30].compute(), GIST[5:30])
    for block in range(5):
        group = zarr.open_group(store / "tags" / str(block), mode="r")
        found = sp.csr_array(
            tuple(group[part][:] for part in ("data", "indices", "indptr")), shape=group.attrs["shape"]
        )
        assert np.array_equal(found.toarray(), TAGS[block * 8 : block * 8 + 8].toarray())


CONSOLIDATED = pytest.mark.parametrize("consolidated", [True, False])


def plain_arrays(path, names, consolidated):
    """Read the arrays of a store with the public functions of zarr, dask and xarray."""
    group = zarr.open_group(path, mode="r", use_consolidated=consolidated)
    dataset = xr.open_zarr(path, consolidated=consolidated)
    return {
        name: (group[name][:], da.from_zarr(str(path), component=name).compute(), dataset[name].values)
        for name in names
    }


@CONSOLIDATED
def test_plain_readers_read_feature_stores(store, consolidated):
    expected = {"gist": GIST, "counts": COUNTS, "labels": LABELS, "label": NAMES, "sample": IDS, "split": SPLIT}
    for name, found in plain_arrays(store, expected, consolidated).items():
        for values in found:
            assert_array_equal(values, np.asarray(expected[name]), strict=name in DATA)


@CONSOLIDATED
def test_plain_readers_read_result_stores(tmp_path, consolidated):
    scores = RNG.random((N, 3))
    writer = create_results(tmp_path / "r", N, ["a", "b", "c"], "float64", "scores", block=BLOCK, sample_ids=IDS)
    for block in writer.missing():
        writer.write(block, scores[writer.rows(block)])
    writer.finish()
    expected = {"scores": scores, "column": ["a", "b", "c"], "sample": IDS}
    for name, found in plain_arrays(tmp_path / "r", expected, consolidated).items():
        for values in found:
            assert_array_equal(values, np.asarray(expected[name]))


@CONSOLIDATED
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plain_readers_read_kernel_stores(tmp_path, dtype, consolidated):
    fill_kernel(create_kernel(tmp_path / "k", N, BLOCK, dtype))
    for values in plain_arrays(tmp_path / "k", ["kernel"], consolidated)["kernel"]:
        assert_array_equal(values, K.astype(dtype), strict=True)
    opened = open_kernel(tmp_path / "k")
    assert_array_equal(opened[:], K)
    assert_array_equal(opened.to_dask().compute(), K)


@CONSOLIDATED
def test_lower_kernel_stores_hold_half_of_the_tiles(tmp_path, consolidated):
    fill_kernel(create_kernel(tmp_path / "k", N, BLOCK, triangle="lower"))
    assert len(list((tmp_path / "k" / "lower").glob("c.*"))) == 15
    for values in plain_arrays(tmp_path / "k", ["lower"], consolidated)["lower"]:
        assert np.isnan(values[0, BLOCK])
        assert_array_equal(np.where(np.isnan(values), values.T, values), K)
    opened = open_kernel(tmp_path / "k")
    assert_array_equal(opened[:], K)
    with pytest.raises(UserError, match="triangle must be 'both' or 'lower', got 'upper'"):
        create_kernel(tmp_path / "u", N, BLOCK, triangle="upper")
    with pytest.raises(StoreError, match="was made with triangle = lower, now it is both"):
        create_kernel(tmp_path / "k", N, BLOCK)


def test_plain_readers_read_models(tmp_path):
    save_model(tmp_path / "m", {"weights/gist": GIST, "tags": TAGS}, {})
    root = zarr.open_group(tmp_path / "m", mode="r")
    model = root[root.attrs["generation"]]
    assert_array_equal(model["weights/gist"][:], GIST)
    name = f"{root.attrs['generation']}/weights/gist"
    assert_array_equal(da.from_zarr(str(tmp_path / "m"), component=name).compute(), GIST)
    parts = tuple(model[f"tags/{part}"][:] for part in ("data", "indices", "indptr"))
    assert_array_equal(sp.csr_array(parts, shape=TAGS.shape).toarray(), TAGS.toarray())


def test_calls_of_the_reference_page_read_every_store(store, kernel, tmp_path, monkeypatch):
    store.rename(tmp_path / "set.zarr")
    fill_kernel(create_kernel(tmp_path / "lower.zarr", N, BLOCK, triangle="lower"))
    writer = create_results(tmp_path / "results.zarr", N, 6, kind="scores")
    writer.write(0, GIST)
    writer.finish()
    save_model(tmp_path / "model.zarr", {"weights": GIST}, {})
    page = (Path(__file__).parents[2] / "docs" / "reference" / "stores.md").read_text(encoding="utf-8")
    found = {}
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", page, re.S).group(1), found)
    expected = {"gist": GIST, "tags": TAGS.toarray(), "kernel": K, "full": K, "scores": GIST, "weights": GIST}
    expected |= {"lazy": GIST, "kernel_lazy": K, "kernel_named": K, "scores_lazy": GIST, "scores_named": GIST}
    for name, values in (expected | {"weights_lazy": GIST}).items():
        assert_array_equal(dense(found[name]), values, err_msg=name)
    assert_array_equal(found["test"]["gist"], GIST[25:])


def as_version_1(path):
    """Convert a kernel store to layout version 1, which named the array of the lower triangle `kernel`."""
    for folder in ("", "manifest", "journal"):
        if (path / folder / "lower").exists():
            (path / folder / "lower").rename(path / folder / "kernel")
    file = path / "zarr.json"
    document = json.loads(file.read_text())
    members = document["consolidated_metadata"]["metadata"]
    members["kernel"] = members.pop("lower")
    document["attributes"]["version"] = 1
    del document["attributes"]["configuration"]["triangle"], document["attributes"]["checksum"]
    file.write_text(json.dumps(document))


def test_kernel_stores_of_version_1_are_read_only(tmp_path):
    path = tmp_path / "k"
    fill_kernel(create_kernel(path, N, BLOCK, triangle="lower"))
    as_version_1(path)
    before = files(path)
    assert_array_equal(open_kernel(path)[:], K)
    (problem,) = verify(path)
    assert "is a kernel store of version 1, in which other programs read NaN above the diagonal" in problem
    for triangle in ("both", "lower"):
        with pytest.raises(StoreError, match="of version 1, which this dmo reads but does not write to"):
            create_kernel(path, N, BLOCK, triangle=triangle)
    with pytest.raises(StoreError, match="is a kernel store of version 1"):
        reopen(path)
    assert files(path) == before
    write_kernel(tmp_path / "new", open_kernel(path).to_dask(), BLOCK)
    assert verify(tmp_path / "new") == []
    assert_array_equal(zarr.open_group(tmp_path / "new", mode="r")["kernel"][:], K)


def test_unfinished_kernel_stores_of_version_1_are_not_resumed(tmp_path):
    create_kernel(tmp_path / "k", N, BLOCK, triangle="lower").write(0, 0, K[:BLOCK, :BLOCK])
    as_version_1(tmp_path / "k")
    with pytest.raises(StoreError, match="of version 1, which this dmo reads but does not write to"):
        create_kernel(tmp_path / "k", N, BLOCK, triangle="lower")
    assert [problem for problem in verify(tmp_path / "k") if "14 blocks are missing; remove it and make" in problem]


def test_tile_without_its_transposed_copy_is_missing(tmp_path, monkeypatch):
    writer = create_kernel(tmp_path / "k", N, BLOCK)
    for i, j in writer.missing():
        writer.write(i, j, K[writer.rows(i), writer.rows(j)])
    os.remove(tmp_path / "k" / "kernel" / "c.1.3")
    os.truncate(tmp_path / "k" / "kernel" / "c.0.2", 100)
    os.remove(tmp_path / "k" / "kernel" / "c.4.3")
    assert writer.missing() == [(2, 0), (3, 1), (4, 3)]
    put = Folder.put

    def dies(folder, key, *parts, sync=True):
        if key == "kernel/c.1.3":
            raise KeyboardInterrupt
        put(folder, key, *parts, sync=sync)

    monkeypatch.setattr(Folder, "put", dies)
    with pytest.raises(KeyboardInterrupt):
        writer.write(3, 1, K[24:32, 8:16])
    monkeypatch.undo()
    assert (tmp_path / "k" / "kernel" / "c.3.1").exists()
    assert writer.missing() == [(2, 0), (3, 1), (4, 3)]
    with pytest.raises(StoreError, match=r"3 of 15 blocks are missing, the first is tile \(2, 0\)"):
        writer.finish()
    fill_kernel(writer)
    assert_array_equal(zarr.open_group(tmp_path / "k", mode="r")["kernel"][:], K)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernel_tiles_are_symmetric(tmp_path, dtype):
    writer = create_kernel(tmp_path / "k", N, BLOCK, dtype)
    assert writer.missing() == [(i, j) for i in range(5) for j in range(i + 1)]
    fill_kernel(writer)
    opened = open_kernel(tmp_path / "k")
    out = np.empty((BLOCK, BLOCK), dtype)
    for i in range(5):
        for j in range(5):
            expected = K[writer.rows(i), writer.rows(j)]
            assert np.array_equal(opened.tile(i, j), expected)
            found = opened.tile(i, j, out=out)
            assert np.array_equal(found, expected)
            assert np.shares_memory(found, out)
    with pytest.raises(ValueError, match=r"tiles \(0, 0\) to \(4, 4\), got \(5, 0\)"):
        opened.tile(5, 0)


def test_rows_come_back_with_their_names(tmp_path):
    scores = RNG.random((N, 3))
    writer = create_results(tmp_path / "r", N, ["a", "b", "c"], "float64", "scores", {"top": 5}, BLOCK, IDS)
    for block in writer.missing():
        writer.write(block, scores[writer.rows(block)])
    writer.finish()
    opened = open_results(tmp_path / "r")
    assert np.array_equal(rows(opened), scores)
    assert (opened.kind, opened.columns, opened.sample_ids) == ("scores", ["a", "b", "c"], IDS)
    assert opened.attributes == {"top": 5}
    assert np.array_equal(xr.open_zarr(tmp_path / "r")["scores"].sel(column="b").values, scores[:, 1])


def test_fsspec_urls_hold_every_kind_of_store():
    root = f"memory://dmo-test-{os.getpid()}"
    begin(f"{root}/f").write("gist", 0, GIST[:8])
    writer = begin(f"{root}/f")
    assert ("gist", 0) not in writer.missing()
    fill(writer)
    fill_kernel(create_kernel(f"{root}/k", N, BLOCK))
    save_model(f"{root}/m", {"w": GIST}, {"a": 1})
    save_model(f"{root}/m", {"w": 2 * GIST}, {"a": 2})
    assert np.array_equal(open_features(f"{root}/f").views["gist"][5:30], GIST[5:30])
    assert np.array_equal(open_features(f"{root}/f").views["tags"][:].toarray(), TAGS.toarray())
    assert np.array_equal(open_kernel(f"{root}/k").tile(1, 3), K[8:16, 24:32])
    assert np.array_equal(load_model(f"{root}/m")[0]["w"], 2 * GIST)
    assert [verify(f"{root}/{name}") for name in "fkm"] == [[], [], []]
    assert describe(f"{root}/f")["blocks"] == {"done": 15, "total": 15}
    assert np.array_equal(xr.open_zarr(f"{root}/f")["counts"].values, COUNTS)
    begin(f"{root}/f", overwrite=True, block=5)
    with pytest.raises(StoreError, match="is incomplete"):
        open_features(f"{root}/f")
    with pytest.raises(FileNotFoundError, match=f"no store at {root}/nothing"):
        open_features(f"{root}/nothing")


# Tests of killed, repeated and concurrent writers

KILL_AT = (7, 8, 31)
WORK = """
    import os, pickle, signal, sys
    sys.path.insert(0, sys.argv[1])
    import dmo.stores
    with open(sys.argv[2], "rb") as file:
        data, killed, crowd = pickle.load(file)

    def write_all(writer):
        for view, block in [(view, block) for view in data for block in range(writer.n_blocks)]:
            writer.write(view, block, data[view][writer.rows(block)])

    def die_at(count):
        replace, seen = os.replace, []
        def counting(source, target):
            seen.append(target)
            if len(seen) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)
        os.replace = counting

    children = []
    for count, writer in [*killed.items(), (0, crowd), (0, crowd), (0, crowd)]:
        child = os.fork()
        if child == 0:
            die_at(count)
            write_all(writer)
            os._exit(0)
        children.append(child)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Create stores whose writers were killed at a certain file, and a store with three concurrent writers."""
    folder = tmp_path_factory.mktemp("crowd")
    killed = {count: begin(folder / f"killed-{count}", **SAME) for count in KILL_AT}
    for writer in killed.values():
        writer.write("gist", 3, np.zeros((8, 6)))  # these values are overwritten later
    shared = begin(folder / "crowd", **SAME)
    (folder / "work.pickle").write_bytes(pickle.dumps((DATA, killed, shared)))
    command = [sys.executable, "-c", textwrap.dedent(WORK), str(Path(__file__).parents[2]), str(folder / "work.pickle")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    assert done.stdout.strip() == str([-signal.SIGKILL] * len(KILL_AT) + [0, 0, 0])
    shared.finish()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "first"), list(zip(KILL_AT, [("gist", 3), ("gist", 3), ("tags", 1)])), ids=["values", "entry", "sparse"]
)
def test_a_killed_writer_loses_only_the_block_in_flight_and_the_result_is_the_same(crowd, store, count, first):
    path = crowd / f"killed-{count}"
    blocks = [(view, block) for view in VIEWS for block in range(5)]
    assert begin(path, **SAME).missing() == blocks[blocks.index(first) :]
    with pytest.raises(StoreError, match="is incomplete"):
        open_features(path)
    fill(begin(path, **SAME))
    assert files(path) == files(store)  # no partial file remains


def test_processes_may_write_the_same_blocks_at_once(crowd, store):
    assert files(crowd / "crowd") == files(store)


def test_a_finished_store_keeps_nothing_half_written_and_refuses_no_late_writer(store, tmp_path, monkeypatch):
    path, replace, late = tmp_path / "f", os.replace, []
    writer = begin(path, **SAME)
    copy = pickle.loads(pickle.dumps(writer))
    for folder in [path, *(found for found in path.rglob("*") if found.is_dir())]:
        (folder / ".x.partial").write_bytes(b"of a killed writer")

    def finished_meanwhile(source, target):
        if str(target).endswith("gist/c.2.0") and not late:
            late.append(target)
            fill(copy)
        replace(source, target)

    monkeypatch.setattr(os, "replace", finished_meanwhile)
    writer.write("gist", 2, GIST[16:24])
    assert late
    found = {name: data for name, data in files(path).items() if not name.startswith("journal/")}
    assert found == files(store)
    assert verify(path) == []


def test_a_full_disk_leaves_a_store_that_can_be_resumed(tmp_path):
    path = tmp_path / "f"
    writer = begin(path)
    writer.write("gist", 0, GIST[:8])
    with disk_full(150), pytest.raises(OSError, match=r"cannot write block 1 of view 'gist'.*finished blocks are kept"):
        writer.write("gist", 1, GIST[8:16])
    assert ("gist", 1) in writer.missing()
    assert ("gist", 0) not in writer.missing()
    assert not list(path.rglob("*.partial"))
    fill(begin(path))
    assert verify(path) == []


def test_a_disk_that_refuses_a_block_says_which(tmp_path):
    writer = begin(tmp_path / "f")
    shutil.rmtree(tmp_path / "f" / "gist")
    (tmp_path / "f" / "gist").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write block 2 of view 'gist' \(Not a directory\)"):
        writer.write("gist", 2, GIST[16:24])


def test_blocks_that_vanish_or_shrink_before_finish_are_missing_again(tmp_path):
    path = tmp_path / "f"
    writer = begin(path)
    for view, block in writer.missing():
        writer.write(view, block, DATA[view][writer.rows(block)])
    os.remove(path / "gist" / "c.3.0")
    os.truncate(path / "counts" / "c.0.0", 5)
    os.remove(path / "tags" / "2" / "data" / "c.0")
    (path / "journal" / "gist" / "c.0.0.0").write_bytes(b"torn")
    assert writer.missing() == [("gist", 0), ("gist", 3), ("counts", 0), ("tags", 2)]
    with pytest.raises(StoreError, match="4 of 15 blocks are missing, the first is block 0 of view 'gist'; write them"):
        writer.finish()
    fill(writer)
    assert verify(path) == []


def test_a_block_rewritten_with_fewer_entries_counts_as_it_is_now(tmp_path):
    writer = create_features(tmp_path / "f", 4, {"t": ViewSpec(5, kind="sparse")})
    for block in (np.ones((4, 5)), np.eye(4, 5), np.zeros((4, 5))):
        writer.write("t", 0, block)
        assert writer.missing() == []
    writer.finish()
    assert open_features(tmp_path / "f").views["t"][:].nnz == 0


def test_equal_sparse_rows_give_equal_bytes_however_they_are_held(tmp_path):
    plain = np.array([[0.0, 2.0, 3.0], [1.0, 0.0, 0.0]])
    held = sp.csr_array(([3.0, 1.5, 0.5, 1.0, 0.0], [2, 1, 1, 0, 2], [0, 3, 5]), shape=(2, 3))
    for name, block in (("plain", plain), ("held", held), ("columns", sp.csc_array(plain))):
        writer = create_features(tmp_path / name, 2, {"t": ViewSpec(3, kind="sparse")})
        writer.write("t", 0, block)
        writer.finish()
    assert files(tmp_path / "plain") == files(tmp_path / "held") == files(tmp_path / "columns")
    assert held.nnz == 5


def test_fingerprints_change_with_values_without_reading_them(store, tmp_path):
    found = open_features(store)
    same = begin(tmp_path / "same", **SAME)
    fill(same)
    assert fingerprint(open_features(tmp_path / "same").views["gist"]) == fingerprint(found.views["gist"])
    changed = begin(tmp_path / "changed", **SAME)
    for name in VIEWS:
        for block in range(5):
            values = DATA[name][changed.rows(block)].astype(VIEWS[name].dtype)
            changed.write(name, block, -values if (name, block) == ("gist", 4) else values)
    changed.finish()
    other = open_features(tmp_path / "changed")
    shutil.rmtree(tmp_path / "changed" / "gist")
    assert fingerprint(other.views["gist"]) != fingerprint(found.views["gist"])
    first = fingerprint(Subset(found.views["gist"], np.arange(7)))
    assert first != fingerprint(Subset(found.views["gist"], np.arange(1, 8)))
    assert first != fingerprint(Subset(other.views["gist"], np.arange(7)))
    assert fingerprint(other.views["gist"]) != fingerprint(other.views["tags"])


def test_a_changed_configuration_is_rejected_without_overwrite(store, tmp_path):
    assert begin(store, **SAME).missing() == []
    begin(tmp_path / "unfinished", **SAME)
    sentence = "started with block = 8, now it is 16; pass the same configuration to resume, or overwrite=True"
    with pytest.raises(StoreError, match=sentence):
        begin(tmp_path / "unfinished", **SAME | {"block": 16})
    for changes, message in (
        (
            {"block": 16},
            "made with block = 8, now it is 16; pass overwrite=True (--overwrite) to replace it, or choose another",
        ),
        (
            {"views": VIEWS | {"gist": ViewSpec(6, "float64")}},
            "made with views.gist.dtype = float32, now it is float64",
        ),
        ({"views": VIEWS | {"more": ViewSpec(2)}}, "made with views.more.dimension = nothing, now it is 2"),
        ({"labels": 1 - LABELS}, "made with labels.checksums"),
        ({"split": SPLIT[::-1]}, "made with split.checksums"),
        ({"provenance": Provenance(["/raw/a.mat"], {"scale": 3}, 3)}, "provenance.parameters.scale = 2, now it is 3"),
    ):
        with pytest.raises(StoreError, match=re.escape(message)):
            begin(store, **(SAME | changes))
    writer = begin(store, overwrite=True, block=16, views={"gist": VIEWS["gist"]})
    assert writer.missing() == [("gist", block) for block in range(3)]
    assert not (store / "counts").exists()
    fill(writer)
    assert verify(store) == []


def test_a_complete_store_is_not_written_again(store):
    writer = begin(store, **SAME)
    with pytest.raises(StoreError, match="is complete; pass overwrite=True"):
        writer.write("gist", 0, GIST[:8])
    before = files(store)
    writer.finish()
    assert files(store) == before


# Tests of errors that readers raise


def test_unfinished_foreign_newer_and_absent_stores_are_refused(tmp_path, store, kernel):
    with pytest.raises(FileNotFoundError, match=r"no store at .*nothing.zarr; check the path"):
        open_features(tmp_path / "nothing.zarr")
    (tmp_path / "text").write_text("not a store")
    with pytest.raises(StoreError, match="text is a file"):
        open_features(tmp_path / "text")
    zarr.create_group(tmp_path / "other.zarr", attributes={"kind": "features"})
    for foreign in (tmp_path / "other.zarr", tmp_path):
        with pytest.raises(StoreError, match="is not a dmo store"):
            open_features(foreign)
        for overwrite in (False, True):
            with pytest.raises(StoreError, match="is not a dmo store"):
                begin(foreign, overwrite=overwrite)
    with pytest.raises(
        StoreError, match="is a kernel store, expected a feature store; pass the path of a feature store"
    ):
        open_features(kernel)
    with pytest.raises(StoreError, match="is a kernel store, it is not replaced by a feature store"):
        begin(kernel, overwrite=True)
    begin(tmp_path / "half")
    with pytest.raises(
        StoreError, match="is incomplete: its writer has not finished; run the program that wrote it again"
    ):
        open_features(tmp_path / "half")
    edit_root(store, version=9)
    with pytest.raises(StoreError, match="is a feature store of version 9, this dmo reads up to 2; run: pip install"):
        open_features(store)
    (kernel / "zarr.json").write_text('{"zarr_format": 3, "attr')
    with pytest.raises(StoreError, match=r"zarr.json is damaged, it is not valid JSON; restore it"):
        open_kernel(kernel)


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)


def fix_checksum(file):
    flip(file)
    data = file.read_bytes()[:-4]
    file.write_bytes(data + google_crc32c.value(data).to_bytes(4, "little"))


DAMAGE = {
    "is missing; restore the file": os.remove,
    "fails its checksum; restore the file": flip,
    "has 7 bytes instead of": lambda file: os.truncate(file, 7),
    "fails its checksum": fix_checksum,
}


@pytest.mark.parametrize(("reason", "damage"), DAMAGE.items(), ids=["missing", "flipped", "truncated", "replaced"])
def test_damaged_blocks_are_named_by_readers_and_by_verify(store, kernel, reason, damage):
    assert verify(store) == verify(kernel) == []
    damage(store / "gist" / "c.3.0")
    damage(store / "tags" / "2" / "indices" / "c.0")
    damage(kernel / "kernel" / "c.4.1")
    views, tiles = open_features(store).views, open_kernel(kernel)
    assert np.array_equal(views["gist"][:24], GIST[:24])
    for read, title in (
        (lambda: views["gist"][30:31], "block 3 of view 'gist'"),
        (lambda: views["tags"][17:18], "of view 'tags'"),
        (lambda: tiles.tile(1, 4), r"tile \(4, 1\)"),
    ):
        with pytest.raises(StoreError, match=f"{title} {reason}"):
            read()
    problems = verify(store)
    assert len(problems) == 2
    assert "block 3 of view 'gist'" in problems[0]
    assert "view 'tags'" in problems[1]
    assert len(verify(kernel)) == 1
    damage(kernel / "kernel" / "c.0.3")
    assert len(verify(kernel)) == 2
    assert re.search(rf"tile \(0, 3\) {reason}", verify(kernel)[0])


def test_chunks_that_changed_places_are_found(kernel):
    a, b = kernel / "kernel" / "c.1.0", kernel / "kernel" / "c.2.0"
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second), b.write_bytes(first)
    assert [problem for problem in verify(kernel) if "fails its checksum" in problem] == verify(kernel)
    assert len(verify(kernel)) == 2


def test_damaged_labels_names_metadata_and_manifests_are_found(store):
    flip(store / "labels" / "c.0.0")
    flip(store / "label" / "c.0")
    os.remove(store / "split" / "c.0")
    (store / "counts" / "zarr.json").write_text("{}")
    os.remove(store / "tags" / "0" / "indptr" / "c.0")
    opened = open_features(store)
    with pytest.raises(StoreError, match="'labels' fails its checksum"):
        _ = opened.labels
    with pytest.raises(StoreError, match="strings 'label' fail their checksum"):
        _ = opened.label_names
    with pytest.raises(StoreError, match="strings 'split' are missing"):
        _ = opened.split
    assert len(verify(store)) == 5
    flip(store / "manifest" / "gist" / "c.0.0.0")
    with pytest.raises(StoreError, match="manifest fails its checksum"):
        open_features(store)


def test_verify_and_describe_work_on_unfinished_stores(tmp_path):
    writer = begin(tmp_path / "f")
    writer.write("gist", 0, GIST[:8])
    flip(tmp_path / "f" / "gist" / "c.0.0")
    found = describe(tmp_path / "f")
    assert (found["complete"], found["blocks"]) == (False, {"done": 1, "total": 15})
    assert found["views"]["tags"]["kind"] == "sparse"
    problems = verify(tmp_path / "f")
    assert "14 blocks are missing" in problems[0]
    assert "block 0 of view 'gist' fails its checksum" in problems[1]


# Tests of errors that writers raise


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_samples": 0}, "n_samples must be at least 1, got 0"),
        ({"block": -1}, "block must be at least 1"),
        ({"views": {}}, "at least one view"),
        ({"views": {"a/b": ViewSpec(1)}}, "view name 'a/b' is not usable"),
        ({"views": {"labels": ViewSpec(1)}}, "view name 'labels' is reserved"),
        ({"labels": LABELS[:-1]}, r"labels have shape \(36, 4\), need \(37, L\)"),
        ({"labels": LABELS + (np.arange(4) == 2)}, r"labels, row \d+, column 2 is 2.0; labels are 0 or 1"),
        ({"label_names": NAMES[:3]}, "label_names has 3 entries, needs 4"),
        ({"split": SPLIT[:9]}, "split has 9 entries, needs 37"),
        ({"labels": None}, "label_names were passed without labels"),
        ({"attributes": {"auc": np.nan}}, "cannot be written as JSON"),
    ],
)
def test_a_feature_store_is_not_begun_with_bad_arguments(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        begin(tmp_path / "f", **changes)
    assert not (tmp_path / "f").exists()


def test_view_specs_are_checked():
    with pytest.raises(ValueError, match="dimension of a view must be at least 1, got 0"):
        ViewSpec(0)
    with pytest.raises(TypeError, match="got complex128"):
        ViewSpec(1, "complex128")
    with pytest.raises(ValueError, match="'dense' or 'sparse', got 'csr'"):
        ViewSpec(1, kind="csr")


def test_bad_blocks_are_refused_by_view_row_and_column(tmp_path):
    writer = begin(tmp_path / "f")

    def spoilt(name, row, column, value):
        block = dense(DATA[name])[8:16].astype(float)
        block[row, column] = value
        return block

    for error, view, block, values, message in (
        (ValueError, "gist", 1, spoilt("gist", 3, 4, np.nan), "view 'gist', row 11, column 4 is nan"),
        (ValueError, "gist", 1, spoilt("gist", 3, 4, 1e300), "view 'gist', row 11, column 4 is inf"),
        (ValueError, "tags", 1, spoilt("tags", 2, 40, np.inf), "view 'tags', row 10, column 40 is inf"),
        (ValueError, "gist", 1, GIST[8:15], r"view 'gist', block 1 has shape \(7, 6\), needs \(8, 6\)"),
        (ValueError, "gist", 5, GIST[:8], "view 'gist' has blocks 0 to 4, got block 5"),
        (
            ValueError,
            "counts",
            1,
            COUNTS[8:16].astype("u2") + 300,
            "view 'counts', block 1 contains integers beyond uint8",
        ),
        (TypeError, "counts", 1, spoilt("counts", 0, 0, 0.5), "block 1 has dtype float64, the store holds uint8"),
        (StoreError, "hue", 1, GIST[8:16], "has no view 'hue'; it has counts, gist, tags"),
    ):
        with pytest.raises(error, match=message):
            writer.write(view, block, values)
    assert len(writer.missing()) == 15
    negative = create_features(tmp_path / "h", 2, {"h": ViewSpec(2, histogram=True)})
    with pytest.raises(ValueError, match=r"view 'h' is a histogram, but row 1, column 0 is -1.0"):
        negative.write("h", 0, np.array([[0.0, 1.0], [-1.0, 0.0]]))
    tiles = create_kernel(tmp_path / "k", N, BLOCK)
    for i, j, tile, message in (
        (0, 1, K[:8, 8:16], r"stores tiles with i >= j, got \(0, 1\)"),
        (4, 0, K[:8, :8], r"tile \(4, 0\) has shape \(8, 8\), needs \(5, 8\)"),
        (0, 0, np.full((8, 8), np.inf), r"tile \(0, 0\), row 0, column 0 is inf"),
    ):
        with pytest.raises(ValueError, match=message):
            tiles.write(i, j, tile)
    with pytest.raises(TypeError, match="float32 or float64, got int64"):
        create_kernel(tmp_path / "i", N, BLOCK, "int64")


def test_large_finite_values_are_not_mistaken_for_infinite_ones(tmp_path):
    writer = create_results(tmp_path / "r", 4, 4)
    writer.write(0, np.full((4, 4), 3e38, np.float32))  # the sum overflows
    assert writer.missing() == []


# Tests of models

MODEL = {
    "scalar": np.array(2.5),
    "views/gist/rows": GIST,
    "views/hue, 2": np.asfortranarray(RNG.standard_normal((3, 4, 2))),
    "empty": np.empty((0, 5)),
    "mask": np.array([True, False]),
    "phases": np.array([1j, 2.0]),
    "classes": np.array(["b", "äö", ""]),
    "tags": TAGS,
    "big endian": np.arange(4, dtype=">i8"),
}


def same(found, expected):
    if sp.issparse(expected):
        return sp.issparse(found) and abs(found - expected).nnz == 0
    return found.dtype == expected.dtype.newbyteorder("=") and np.array_equal(found, expected)


def test_models_come_back_as_they_were(tmp_path):
    meta = {"name": "KGHA", "ridge": np.float32(0.5), "shape": (1, 2), "views": ["gist"], "none": None}
    save_model(tmp_path / "m", MODEL, meta, provenance=Provenance([tmp_path / "f.zarr"]))
    arrays, found = load_model(tmp_path / "m")
    assert list(arrays) == list(MODEL)
    assert all(same(arrays[name], MODEL[name]) for name in MODEL)
    assert found == {"name": "KGHA", "ridge": 0.5, "shape": [1, 2], "views": ["gist"], "none": None}
    assert verify(tmp_path / "m") == []
    shown = describe(tmp_path / "m")
    assert shown["arrays"]["views/gist/rows"]["shape"] == [N, 6]
    assert shown["provenance"]["parents"] == [str(tmp_path / "f.zarr")]


def test_labels_lie_in_chunks_of_whole_blocks_and_are_read_by_rows(tmp_path, monkeypatch):
    Y = (np.random.default_rng(0).random((100, 3)) < 0.3).astype(np.uint8)
    monkeypatch.setattr("dmo.stores.features._LABEL_BYTES", 200)
    writer = create_features(tmp_path / "f", 100, {"x": ViewSpec(1)}, Y, block=16)
    for view, i in writer.missing():
        writer.write(view, i, np.ones((100, 1))[writer.rows(i)])
    writer.finish()
    store = open_features(tmp_path / "f")
    assert zarr.open_array(tmp_path / "f" / "labels").chunks == store.label_view.chunks == (64, 3)
    assert_array_equal(store.label_view[60:70], Y[60:70])
    assert_array_equal(store.labels, Y)
    assert verify(tmp_path / "f") == []
    os.remove(tmp_path / "f" / "labels" / "c.1.0")
    assert_array_equal(open_features(tmp_path / "f").labels_of(np.array([3, 60])), Y[[3, 60]])
    with pytest.raises(StoreError, match="labels"):
        open_features(tmp_path / "f").labels_of(np.array([3, 70]))


@pytest.mark.parametrize(
    "texts",
    [
        ["train", "test", "test"],
        ["", "a", ""],
        ["9", "x"] * 40,
        ["x\0y", "y"],
        list("abcdefghij"),
        ["é", "e"],
        ["a" * 300],
    ],
)
def test_texts_come_back_few_or_many_of_them(texts, tmp_path):
    writer = create_features(tmp_path / "f", len(texts), {"x": ViewSpec(1)}, split=texts)
    writer.write("x", 0, np.ones((len(texts), 1)))
    writer.finish()
    store = open_features(tmp_path / "f")
    assert store.split.tolist() == texts
    assert store.splits == sorted(set(texts))
    assert_array_equal(store.select(texts[-1])[2], np.flatnonzero(np.array(texts) == texts[-1]))


def test_models_larger_than_a_chunk_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr("dmo.stores._writer.CHUNK_BYTES", 200)
    save_model(tmp_path / "m", {"w": GIST, "tags": TAGS}, {})
    arrays, _ = load_model(tmp_path / "m")
    assert same(arrays["w"], GIST)
    assert same(arrays["tags"], TAGS)
    assert len([name for name in files(tmp_path / "m") if "/w/c." in name]) == 5


def test_models_refuse_what_they_cannot_hold(tmp_path):
    for error, arrays, meta, message in (
        (TypeError, {"w": np.array([object()])}, {}, "array 'w' has dtype object"),
        (TypeError, {"w": [1, 2]}, {}, "array 'w' is a list"),
        (TypeError, {"w": sp.eye_array(3, format="coo")}, {}, "format coo, models hold CSR"),
        (TypeError, {}, {"kernel": print}, "meta of a model contains a builtin_function_or_method"),
        (ValueError, {}, {"auc": float("nan")}, "meta of a model cannot be written as JSON"),
        (ValueError, {"../w": GIST}, {}, "array name '../w' is not usable"),
        (ValueError, {"a": GIST, "a/b": GIST}, {}, "array name 'a' is also the start of another name"),
    ):
        with pytest.raises(error, match=message):
            save_model(tmp_path / "m", arrays, meta)
    assert not (tmp_path / "m").exists()


def test_rows_say_whether_other_contents_or_none_were_recorded(tmp_path):
    def made(path, **contents):
        parameters = {"contents": contents} if contents else {}
        create_results(tmp_path / path, 3, 1, provenance=Provenance([], parameters))

    made("known", a="1")
    made("unknown")
    for contents in ({"a": "2"}, {"a": "1", "b": "1"}):
        with pytest.raises(StoreError, match=r"was started from other contents of [ab] than there are now"):
            made("known", **contents)
    with pytest.raises(StoreError, match="was started by a version of dmo that did not record what it read"):
        made("unknown", a="1")


def test_a_save_that_fails_leaves_the_old_model(tmp_path):
    path = tmp_path / "m"
    with disk_full(3000), pytest.raises(OSError, match="cannot write the model"):
        save_model(path, {"small": GIST[:1], "large": np.zeros(1000)}, {})
    with pytest.raises(FileNotFoundError, match="no store at"):
        load_model(path)
    save_model(path, {"w": GIST}, {"a": 1})
    before = files(path)
    with disk_full(3000), pytest.raises(OSError, match="cannot write the model"):
        save_model(path, {"small": GIST[:1], "large": np.zeros(1000)}, {})
    assert files(path) == before
    with pytest.raises(StoreError, match="holds a model; pass overwrite=True"):
        save_model(path, {"w": GIST}, {}, overwrite=False)
    save_model(path, {"v": GIST}, {"a": 2})
    assert list(load_model(path)[0]) == ["v"]
    assert len(files(path)) == len(before)


def test_a_model_is_replaced_at_once_for_those_who_load_it(tmp_path):
    path = tmp_path / "m"
    save_model(path, {"a": np.full(50, 0), "b": np.full(50, 0)}, {"i": 0})

    def save():
        for i in itertools.count(1):
            if stop.is_set():
                return
            save_model(path, {"a": np.full(50, i), "b": np.full(50, i)}, {"i": i})

    stop, seen = threading.Event(), set()
    saver = threading.Thread(target=save)
    saver.start()
    try:
        while len(seen) < 8 and saver.is_alive():
            arrays, meta = load_model(path)
            assert {*arrays["a"].tolist(), *arrays["b"].tolist()} == {meta["i"]}
            seen.add(meta["i"])
    finally:
        stop.set()
        saver.join()
    assert len(seen) == 8
    assert verify(path) == []


def test_damaged_models_and_leftovers_are_found(tmp_path, store):
    path = tmp_path / "m"
    save_model(path, {"w": GIST, "tags": TAGS}, {})
    generation = next(child for child in path.iterdir() if child.is_dir())
    shutil.copytree(generation, path / "0123")
    assert verify(path) == [
        f"{path}: 0123 is not part of the model; the next save removes the remains of an interrupted one"
    ]
    shutil.rmtree(path / "0123")
    flip(generation / "w" / "c.0.0")
    with pytest.raises(StoreError, match="block 0 of array 'w' fails its checksum"):
        load_model(path)
    os.remove(generation / "tags" / "data" / "c.0")
    assert len(verify(path)) == 2
    with pytest.raises(StoreError, match="is a feature store, expected a model"):
        load_model(store)
    with pytest.raises(StoreError, match="is a feature store, it is not replaced by a model"):
        save_model(store, {}, {})


def test_stores_travel_by_pickle(store, kernel):
    opened = pickle.loads(pickle.dumps(open_features(store)))
    assert np.array_equal(opened.views["gist"][3:20], GIST[3:20])
    assert np.array_equal(opened.labels, LABELS)
    assert np.array_equal(pickle.loads(pickle.dumps(open_kernel(kernel))).tile(2, 1), K[16:24, 8:16])


def test_a_lost_chunk_is_an_error_here_and_fill_values_in_zarr(tmp_path):
    """dmo does not read chunks with zarr, because zarr replaces a missing chunk with fill values."""
    path = tmp_path / "rows.zarr"
    writer = create_results(path, 6, 2, block=3)
    for block in writer.missing():
        writer.write(block, np.ones((3, 2), np.float32))
    writer.finish()
    (path / "embedding" / "c.1.0").unlink()
    np.testing.assert_array_equal(zarr.open_array(path / "embedding", mode="r")[:], [[1, 1]] * 3 + [[0, 0]] * 3)
    with pytest.raises(StoreError, match=r"block 1 of .* is missing"):
        open_results(path)[:]


def with_labels(path, Y, **options):
    writer = create_features(
        path, len(Y) if isinstance(Y, np.ndarray) else Y.shape[0], {"x": ViewSpec(1)}, Y, **options
    )
    for view, i in writer.missing():
        where = writer.rows(i)
        writer.write(view, i, np.ones((where.stop - where.start, 1)))
    writer.finish()
    return open_features(path)


def rare_labels(n=500, L=300, unknown=False):
    Y = (np.random.default_rng(0).random((n, L)) < 0.02).astype(float)
    if unknown:
        Y[np.random.default_rng(1).random((n, L)) < 0.01] = np.nan
    return Y


@pytest.mark.parametrize("unknown", [False, True])
def test_sparse_labels_follow_the_csr_layout_of_anndata(tmp_path, monkeypatch, unknown):
    monkeypatch.setattr("dmo.stores.features._LABEL_ENTRIES", 1000)
    Y = rare_labels(unknown=unknown)
    store = with_labels(tmp_path / "f", Y)
    group = zarr.open_group(tmp_path / "f", mode="r")["labels"]
    assert (group.attrs["encoding-type"], group.attrs["encoding-version"]) == ("csr_matrix", "0.1.0")
    parts = tuple(group[name][:] for name in ("data", "indices", "indptr"))
    plain = sp.csr_array(parts, shape=tuple(group.attrs["shape"])).toarray().astype(float)
    assert_array_equal(np.where(plain == -1, np.nan, plain), Y)
    assert group["indices"].chunks == (1000,)
    assert sp.issparse(store.labels)
    assert_array_equal(store.labels.toarray(), Y)
    assert_array_equal(store.labels_of(np.array([7, 3, 499])).toarray(), Y[[7, 3, 499]])
    assert (store.label_view is None) == unknown
    assert unknown or np.array_equal(store.label_view[120:310].toarray(), Y[120:310])
    assert not store.real_labels
    assert verify(tmp_path / "f") == []
    with open(tmp_path / "f" / "labels" / "indices" / "c.1", "r+b") as file:
        file.write(b"other")
    assert "indices" in "".join(verify(tmp_path / "f"))
    with pytest.raises(StoreError, match="fails its checksum"):
        _ = open_features(tmp_path / "f").labels


def test_sparse_and_dense_labels_make_the_same_store(tmp_path):
    Y = rare_labels()
    one, other = with_labels(tmp_path / "a", Y), with_labels(tmp_path / "b", sp.csr_matrix(Y))
    assert one.configuration == other.configuration


def test_stores_with_dense_labels_of_version_1_are_read(tmp_path, monkeypatch):
    Y = rare_labels()
    with monkeypatch.context() as former:
        former.setattr("dmo.blocks._PACKED", Y.size)
        former.setitem(_schema.VERSIONS, "features", 1)
        with_labels(tmp_path / "f", Y)
    store = open_features(tmp_path / "f")
    assert isinstance(store.labels, np.ndarray)
    assert_array_equal(store.labels, Y)
    assert_array_equal(store.label_view[10:20], Y[10:20])


def test_one_class_per_sample_is_checked_in_sparse_labels(tmp_path):
    Y = np.eye(200, dtype=np.uint8)[np.arange(1000) % 200]
    assert with_labels(tmp_path / "f", Y, class_labels=True).class_labels
    Y[3, :2] = 1
    with pytest.raises(UserError, match="every sample has exactly one"):
        with_labels(tmp_path / "g", Y, class_labels=True)

"""Check that dask inputs have lazy dask results with the same values as NumPy inputs."""

import os
import pickle
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import psutil
import pytest
import scipy.sparse
import zarr
from numpy.testing import assert_allclose, assert_array_equal

from dmo import (
    JEC,
    KGHA,
    LLTSVR,
    MLSI,
    MORP,
    Exact,
    Graph,
    LabelPropagation,
    MultiSetCCA,
    MultiViewRidge,
    Nystrom,
    TraceEmbedding,
    UserError,
)
from dmo.blocks import rows
from dmo.cluster import connect
from dmo.stores import ViewSpec, create_features, open_features, open_kernel, write_kernel

RNG = np.random.default_rng(0)
N = 70
A, B = RNG.standard_normal((N, 6)), RNG.random((N, 3))
Y = ((A @ RNG.standard_normal((6, 4)) + RNG.standard_normal((N, 4))) > 0).astype(np.uint8)
VIEWS = {"gist": A, "hue": B}
SPLIT = np.where(np.arange(N) % 3 == 0, "test", "train")
MODELS: dict[str, tuple[Any, Any, list[str]]] = {
    "KGHA": (
        KGHA(n_components=2, decoder="probabilities"),
        VIEWS,
        ["transform", "decision_function", "predict", "predict_proba"],
    ),
    # Use float64, because the last digits of float32 scores depend on the chunks.
    "ridge, moments": (
        MultiViewRidge(approximation=Nystrom(rank=15, precision="float64")),
        VIEWS,
        ["decision_function", "predict"],
    ),
    "CCA": (MultiSetCCA(n_components=2), VIEWS, ["transform"]),
    "JEC": (JEC(), VIEWS, ["decision_function", "predict"]),
    "label propagation": (LabelPropagation(graph=Graph(n_neighbors=5)), A, ["decision_function", "predict"]),
    "MORP": (MORP(), A, ["transform", "decision_function", "predict", "predict_proba"]),
    "MLSI": (MLSI(), np.abs(A), ["transform", "decision_function"]),
    "PCA": (TraceEmbedding("pca"), A, ["transform"]),
    "LLTSVR": (LLTSVR(tol=1e-3), A, ["predict", "decision_function", "predict_proba"]),
}


def _lazy(X: Any, rows: int = 20) -> Any:
    """Convert arrays to dask arrays with chunks in both dimensions."""
    if isinstance(X, dict):
        return {name: _lazy(view, rows + 5 * i) for i, (name, view) in enumerate(X.items())}
    return da.from_array(X, chunks=(rows, 2))


@pytest.fixture
def uncomputed(monkeypatch):
    """Fail if a dask scheduler computes a graph."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("computed")

    with dask.config.set(scheduler=refuse):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("planning", [True, False])
def test_lazy_values_are_those_of_arrays(case, planning, uncomputed):
    model, X, methods = MODELS[case]
    fitted = model.fit(X, Y)
    for name in methods:
        expected = getattr(fitted, name)(X)
        with dask.config.set({"array.query-planning": planning}):
            found = getattr(fitted, name)(_lazy(X))
            assert isinstance(found, da.Array)
            assert (found.shape, found.dtype, found.chunks[0]) == (expected.shape, expected.dtype, (20, 20, 20, 10))
            assert found.name == getattr(fitted, name)(_lazy(X)).name
            assert_allclose(found[5:25].compute(scheduler="sync"), expected[5:25], atol=1e-10)
            values = found.compute(scheduler="threads")
        assert values.dtype == expected.dtype
        assert_allclose(values, expected, atol=1e-10)


def _kept(X: Any, keep: np.ndarray) -> Any:
    """Filter the rows of dask arrays with a mask, which can empty some chunks of 10 rows."""
    if isinstance(X, dict):
        return {name: _kept(view, keep) for name, view in X.items()}
    return da.from_array(X, chunks=(10, -1))[da.from_array(keep, chunks=10)]


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "uncounted"])
@pytest.mark.parametrize("case", MODELS)
def test_predictions_take_empty_chunks(case, counted):
    model, X, methods = MODELS[case]
    keep = (np.arange(N) < 10) | (np.arange(N) >= 65)
    few = {name: view[keep] for name, view in X.items()} if isinstance(X, dict) else X[keep]
    lazy = _kept(X, keep)
    if counted:
        for view in lazy.values() if isinstance(lazy, dict) else [lazy]:
            view.compute_chunk_sizes()
            assert view.chunks[0].count(0) == 5
    fitted = model.fit(X, Y)
    for name in methods:
        found, expected = getattr(fitted, name)(lazy).compute(), getattr(fitted, name)(few)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert_allclose(found, expected, atol=1e-10)
        assert getattr(fitted, name)(_kept(X, keep < 0)).compute().shape == (0, *expected.shape[1:])
    if "predict" in methods:
        assert_array_equal(fitted.top_labels(lazy, 2)[0], fitted.top_labels(few, 2)[0])


def test_predictions_of_classes_and_many_labels_take_empty_chunks(monkeypatch):
    keep = np.arange(N) < 15
    classes = MultiViewRidge().fit(A, np.array(["sand", "sea"])[Y[:, 0]])
    assert_array_equal(classes.predict(_kept(A, keep)).compute(), classes.predict(A[keep]))
    monkeypatch.setattr("dmo.methods.annotator._MANY", 3)  # predictions of more than 3 labels are sparse
    many = MultiViewRidge().fit(A, Y)
    found = many.predict(_kept(A, keep)).compute()
    assert scipy.sparse.issparse(found)
    assert_array_equal(found.toarray(), many.predict(A[keep]).toarray())


@pytest.mark.parametrize("model", [MultiViewRidge(), KGHA("linear", n_components=2, approximation=Nystrom(rank=15))])
def test_fit_takes_empty_chunks(model):
    keep = np.arange(N) % 40 >= 12
    expected = model.fit(A[keep], Y[keep]).decision_function(A)
    found = model.fit(_kept(A, keep), _kept(Y, keep)).decision_function(A)
    assert_allclose(found, expected, atol=1e-6)


def test_views_in_memory_with_uncounted_chunks_are_rejected():
    model, keep = MultiViewRidge().fit(VIEWS, Y), np.arange(N) < 15
    with pytest.raises(UserError, match=r"view 'hue' is in memory.*compute_chunk_sizes\(\)"):
        model.predict({"gist": _kept(A, keep), "hue": B[keep]})


def test_the_model_is_one_node_of_the_graph_and_stays_what_it_was():
    model = MultiViewRidge(approximation="exact").fit(VIEWS, Y)
    few, many = model.predict(_lazy(VIEWS, 35)), model.predict(_lazy(VIEWS, 1))
    sizes = [len(pickle.dumps(found.__dask_graph__())) for found in (few, many)]
    alone = len(pickle.dumps(model))
    assert sizes[1] - sizes[0] < alone * 10  # the second graph has 70 more chunks
    before = model.decision_function(_lazy(VIEWS))
    expected = model.decision_function(VIEWS)
    model.fit(VIEWS, 1 - Y)
    assert_allclose(before.compute(), expected)


def test_two_classes_and_names():
    y = np.array(["no", "yes"])[Y[:, 0]]
    model = MultiViewRidge().fit(VIEWS, y)
    found = model.decision_function(_lazy(VIEWS))
    assert found.shape == (N,)
    assert_array_equal(model.predict(_lazy(VIEWS)).compute(), model.predict(VIEWS))
    top = KGHA(n_components=2).fit(VIEWS, Y)
    assert_array_equal(top.predict(_lazy(VIEWS), 2).compute(), top.predict(VIEWS, top=2))
    with pytest.raises(UserError, match=r"MultiViewRidge: as_names is not supported for dask arrays; leave it out"):
        model.predict(_lazy(VIEWS), as_names=True)
    with pytest.raises(UserError, match="JEC: view 'hue' is missing"):
        JEC().fit(VIEWS, Y).predict({"gist": _lazy(A)})
    assert_allclose(model.decision_function({"gist": _lazy(A)}).compute(), model.decision_function({"gist": A}))
    with pytest.raises(UserError, match="MultiViewRidge: view 'hue' has 2 features, expected 3 as in the fit"):
        model.predict({"gist": _lazy(A), "hue": _lazy(B[:, :2])})


def test_sparse_chunks_mixed_views_and_rows_that_nobody_counted():
    model = MultiViewRidge("linear").fit(VIEWS, Y)
    expected = model.decision_function(VIEWS)
    sparse = _lazy(A).rechunk((20, -1)).map_blocks(scipy.sparse.csr_array)
    for given in ({"gist": sparse, "hue": _lazy(B)}, {"gist": A, "hue": _lazy(B)}):
        assert_allclose(model.decision_function(given).compute(), expected, atol=1e-10)
    unknown = {name: view[view[:, 0] > -np.inf] for name, view in _lazy(VIEWS, 20).items() if name == "gist"}
    one = MultiViewRidge("linear").fit(A, Y)
    assert np.isnan(unknown["gist"].shape[0])
    assert_allclose(one.decision_function(unknown["gist"]).compute(), one.decision_function(A), atol=1e-10)
    assert_allclose(MultiViewRidge("linear").fit(unknown["gist"], Y).decision_function(A), one.decision_function(A))


def test_dask_data_frames():
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(A, columns=list("abcdef"))
    X, targets = (
        dd.from_pandas(frame, npartitions=3),
        dd.from_pandas(pd.DataFrame(Y, columns=list("wxyz")), npartitions=3),
    )
    model = KGHA(n_components=2).fit(X, targets)
    plain = KGHA(n_components=2).fit(frame, Y)
    assert (model.feature_names_in_.tolist(), model.label_names_) == (list("abcdef"), list("wxyz"))
    for name in ("transform", "decision_function", "predict"):
        found = getattr(model, name)(X)
        assert isinstance(found, da.Array)
        assert_allclose(found.compute(), getattr(plain, name)(frame), atol=1e-8)


def test_blocks_are_learned_one_after_the_other():
    model = MultiViewRidge(approximation=Nystrom(rank=15))
    X, targets = _lazy(VIEWS, 35), da.from_array(Y, chunks=(35, 2))
    blocks = zip(
        X["gist"].rechunk((35, -1)).blocks, X["hue"].rechunk((35, -1)).blocks, targets.rechunk((35, -1)).blocks
    )
    for gist, hue, labels in blocks:
        model.partial_fit({"gist": gist, "hue": hue}, labels)
    by_hand = MultiViewRidge(approximation=Nystrom(rank=15)).partial_fit({k: v[:35] for k, v in VIEWS.items()}, Y[:35])
    by_hand.partial_fit({k: v[35:] for k, v in VIEWS.items()}, Y[35:])
    assert_allclose(model.decision_function(VIEWS), by_hand.decision_function(VIEWS), rtol=1e-9)


@pytest.fixture
def store(tmp_path):
    names = [f"s{i}" for i in range(N)]
    views = {name: ViewSpec(view.shape[1], "float64") for name, view in VIEWS.items()} | {
        "words": ViewSpec(6, "float64", "sparse")
    }
    more = {"labels": Y, "label_names": list("wxyz"), "sample_ids": names, "split": SPLIT}
    writer = create_features(str(tmp_path / "f.zarr"), N, views, **more, block=16)
    for name, view in (VIEWS | {"words": np.maximum(A, 0)}).items():
        for block in range(writer.n_blocks):
            writer.write(name, block, view[writer.rows(block)])
    writer.finish()
    return open_features(str(tmp_path / "f.zarr"))


def test_a_feature_store_is_dask_arrays_and_a_dataset(store):
    pytest.importorskip("xarray")
    lazy = store.to_dask()
    assert lazy["gist"].chunks == ((16, 16, 16, 16, 6), (6,))
    assert_array_equal(lazy["gist"].compute(), A)
    assert_array_equal(
        lazy["words"].map_blocks(lambda part: part.toarray(), meta=np.empty((0, 0))).compute(), np.maximum(A, 0)
    )
    data = store.to_xarray()
    assert set(data.data_vars) == {"gist", "hue", "labels"}
    part = data.sel(sample=data.split == "test")
    assert_array_equal(part.gist, A[SPLIT == "test"])
    model = MultiViewRidge().fit(data.sel(sample=data.split == "train"), Y[SPLIT == "train"])
    scores = model.decision_function(part)
    assert isinstance(scores.data, da.Array)
    assert scores.dims == ("sample", "label")
    assert scores.sample.values.tolist() == part.sample.values.tolist()
    plain = MultiViewRidge().fit({k: v[SPLIT == "train"] for k, v in VIEWS.items()}, Y[SPLIT == "train"])
    assert_allclose(scores, plain.decision_function({k: v[SPLIT == "test"] for k, v in VIEWS.items()}), atol=1e-9)
    one = KGHA(n_components=2).fit(data.gist.load(), data.labels)
    embedding = one.transform(data.gist)
    assert embedding.dims == ("sample", "component")
    assert embedding.component.values.tolist() == ["kgha0", "kgha1"]
    assert embedding.split.values.tolist() == SPLIT.tolist()


def test_a_kernel_store_is_a_dask_array_and_takes_one(tmp_path):
    K = A @ A.T
    write_kernel(str(tmp_path / "k.zarr"), da.from_array(K, chunks=(30, 17)), block=14, dtype="float64")
    store = open_kernel(str(tmp_path / "k.zarr"))
    whole = store.to_dask()
    assert whole.chunks == ((14,) * 5,) * 2
    assert_allclose(whole.compute(), K)
    assert_allclose(whole[3:40, 50:70].compute(), K[3:40, 50:70])
    assert_allclose(store[20:21, 5:], K[20:21, 5:])
    assert store[5:5].shape == (0, N)
    ridge = whole + 0.1 * da.eye(N, chunks=14)
    assert_allclose(
        da.linalg.solve(ridge, da.from_array(Y.astype(float), chunks=(14, 4)), assume_a="pos").compute(),
        np.linalg.solve(K + 0.1 * np.eye(N), Y),
        rtol=1e-6,
        atol=1e-8,
    )
    fitted = LLTSVR(kernel="precomputed", tol=1e-4).fit(store, Y * 2.0 - 1)
    assert_allclose(
        fitted.predict(whole).compute(),
        LLTSVR(kernel="precomputed", tol=1e-4).fit(K, Y * 2.0 - 1).predict(K),
        atol=1e-6,
    )
    with pytest.raises(UserError, match="the matrix is not symmetric in rows"):
        write_kernel(str(tmp_path / "bad.zarr"), RNG.random((20, 20)), block=16)
    with pytest.raises(UserError, match="a kernel is n x n, got shape"):
        write_kernel(str(tmp_path / "bad.zarr"), A)


def test_a_cluster_computes_what_was_asked_lazily(client):
    model = MultiViewRidge(approximation=Nystrom(rank=15, precision="float64")).fit(VIEWS, Y)
    found = client.compute(model.decision_function(_lazy(VIEWS))).result()
    assert_allclose(found, model.decision_function(VIEWS), atol=1e-10)


def test_a_task_computes_rows_by_its_own_thread(client: Any) -> None:
    def names(block: np.ndarray) -> np.ndarray:
        return np.full(block.shape, threading.get_ident(), np.int64)

    lazy = da.from_array(A, chunks=(7, 6)).map_blocks(names, dtype=np.int64)
    here, found = client.submit(lambda: (threading.get_ident(), rows(lazy))).result(timeout=60)
    assert_array_equal(found, here)


def _counting(folder: Path, A: np.ndarray) -> da.Array:
    """Return a dask array of four chunks. Each chunk appends one byte to its file whenever it is computed."""

    def chunk(k: int) -> np.ndarray:
        with (folder / str(k)).open("a", encoding="ascii") as file:
            file.write("x")
        return A[30 * k : 30 * k + 30]

    return da.concatenate([da.from_delayed(dask.delayed(chunk)(k), (30, A.shape[1]), A.dtype) for k in range(4)])


def _copies(dask_worker: Any) -> list[str]:
    return [path.name for path in Path(dask_worker.local_directory).glob("dmo-*")]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["memory", "a temporary store", "workers"])
@pytest.mark.parametrize("approximation", [Nystrom(rank=20), Exact(storage="recomputed", block=32)])
def test_a_fit_keeps_what_dask_computes_and_says_where(
    place: str,
    approximation: Any,
    tmp_path: Path,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    A = np.random.default_rng(1).standard_normal((120, 3))
    y = (A > 0).astype(np.uint8)
    if place != "memory":
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=0, total=1 << 40))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = MultiViewRidge(approximation=approximation, prepare="standard")
    with caplog.at_level("INFO", logger="dmo"), connect(client if place == "workers" else "in-process"):
        model.fit(_counting(tmp_path, A), y)
        counts = [len((tmp_path / str(k)).read_text(encoding="ascii")) for k in range(4)]
        scores = model.decision_function(A)  # exact models compute scores from training rows
    # A temporary store is written only after two passes, and a block that spans two chunks computes both chunks. Each
    # of two workers computes a block twice before it keeps a copy, but does not compute it in each of many products.
    assert max(counts) <= {"memory": 1, "a temporary store": 5, "workers": 24}[place]
    said = [text for record in caplog.records if "2.8 KiB" in (text := record.getMessage())]
    assert len(said) == 1
    assert {"memory": "in memory", "a temporary store": str(tmp_path), "workers": "the workers compute"}[place] in said[
        0
    ]
    assert not any(client.run(_copies).values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]  # the temporary store was removed
    assert_allclose(scores, model.fit(A, y).decision_function(A), atol=1e-4)  # conjugate gradients have this tolerance


def _read_at(folder: Path, zarray: Any) -> Any:
    """Return the dask array of a stored array, and record the process that reads each of its blocks in a folder."""
    return da.from_zarr(zarray).map_blocks(_recorded, folder, meta=np.empty((0, 0)))


def _recorded(block: np.ndarray, folder: Path) -> np.ndarray:
    (folder / str(os.getpid())).touch()
    return block


@pytest.mark.parametrize("kernel", ["rbf", "precomputed"])
@pytest.mark.parametrize("form", ["stored", "computed", "persisted"])
def test_workers_read_arrays_of_dask(
    form: str, kernel: str, client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = A @ A.T if kernel == "precomputed" else A
    stored = zarr.create_array(tmp_path / "x.zarr", data=given, chunks=(20, given.shape[1]))
    (tmp_path / "readers").mkdir()
    lazy = da.from_zarr(stored) if form == "stored" else _read_at(tmp_path / "readers", stored)
    engines = {"precomputed": Exact(storage="resident", block=25), "rbf": Nystrom(rank=15, precision="float64")}
    model = MultiViewRidge(kernel, approximation=engines[kernel])
    expected = model.fit(given, Y).decision_function(given)
    with caplog.at_level("INFO", logger="dmo"), connect(client):
        model.fit(client.persist(lazy) if form == "persisted" else lazy, Y)
        assert_allclose(model.decision_function(given), expected, atol=1e-6)
    assert not (tmp_path / "readers" / str(os.getpid())).exists()
    assert ("the workers compute" in caplog.text) == (form != "stored")


def test_a_model_has_the_source_of_the_rows_that_its_fit_kept() -> None:
    model = pickle.loads(pickle.dumps(MultiViewRidge(approximation="exact").fit(_lazy(A), Y)))
    assert_allclose(model.decision_function(A), MultiViewRidge(approximation="exact").fit(A, Y).decision_function(A))

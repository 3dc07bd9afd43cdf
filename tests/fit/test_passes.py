"""Check that a fit reads its rows once, by counting the chunks read from feature stores and chunked arrays."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr
from distributed import Future
from sklearn.base import clone

import dmo
from dmo import KGHA, MLSI, MORP, Krylov, Meka, MultiSetCCA, MultiViewRidge, Nystrom, Solver, TraceEmbedding, stores
from dmo.blocks import InOrder, Subset
from dmo.cluster import connect
from dmo.decoders import Scores
from dmo.fit import row_sums
from dmo.fit.krylov import ShiftedRows
from dmo.fit.moments import Moments
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.inputs import EntryRows, LabelRows
from dmo.stores import _arrays, features
from dmo.stores.checkpoints import checkpoints

# The chunk size 300 and the block size 256 do not divide each other, and 2600 rows exceed the limit for float64
# kernels.
N, CHUNK = 2600, 300
LOW = Nystrom(rank=20, fit_rows=100, random_state=0)
STEPS = Nystrom(rank=20, fit_rows=100, random_state=0, solver="cg")


@pytest.fixture(scope="module")
def data() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((N, 3))
    views = {"a": np.hstack([Z, rng.standard_normal((N, 3))]), "b": Z[:, :2] + 0.1 * rng.standard_normal((N, 2))}
    return {name: X.astype(np.float32) for name, X in views.items()}, (Z > 0.3).astype(np.uint8)


@pytest.fixture(scope="module")
def store(data: Any, tmp_path_factory: pytest.TempPathFactory) -> stores.FeatureStore:
    path = tmp_path_factory.mktemp("store") / "f.zarr"
    specs = {name: stores.ViewSpec(X.shape[1]) for name, X in data[0].items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "_LABEL_BYTES", 1)  # chunk labels like views
        writer = stores.create_features(path, N, specs, labels=data[1], block=CHUNK)
    for name, block in writer.missing():
        writer.write(name, block, data[0][name][CHUNK * block : CHUNK * (block + 1)])
    writer.finish()
    return stores.open_features(path)


class Readings:
    """Count the reads of every chunk and the rows that are read individually."""

    def __init__(self) -> None:
        self.chunks: Counter[Any] = Counter()
        self.rows = 0


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Readings]:
    found = Readings()
    read, sample = _arrays.DenseArray.read, _arrays.sample_rows

    def counted(self: Any, index: Any, *given: Any, **more: Any) -> Any:
        found.chunks[self.name, index] += 1
        return read(self, index, *given, **more)

    def counted_sample(array: Any, entries: Any, index: np.ndarray) -> Any:
        found.rows += len(index)
        return sample(array, entries, index)

    monkeypatch.setattr(_arrays.DenseArray, "read", counted)
    monkeypatch.setattr(_arrays, "sample_rows", counted_sample)
    monkeypatch.setattr(row_sums, "BLOCK", 256)
    return found


def one(make: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    return lambda views, Y: make().fit(views["a"], Y)


def several(make: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    return lambda views, Y: make().fit(views, Y)


FITS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {  # a fit and the number of views that the fit reads
    "KGHA, Nystrom": (several(lambda: KGHA(approximation=LOW, n_components=2, decoder=Scores(label_sets=False))), 2),
    "KGHA, MEKA": (
        several(
            lambda: KGHA(
                approximation=Meka(clusters=2, rank=8, fit_rows=100), n_components=2, decoder=Scores(label_sets=False)
            )
        ),
        2,
    ),
    "KGHA, exact": (
        several(
            lambda: KGHA(
                approximation="exact",
                ridge=1.0,
                n_components=2,
                solver=Solver(tol=1e-2),
                decoder=Scores(label_sets=False),
            )
        ),
        2,
    ),
    "ridge, Nystrom": (several(lambda: MultiViewRidge(approximation=LOW, decoder=Scores(label_sets=False))), 2),
    "ridge, exact": (several(lambda: MultiViewRidge(approximation="exact", combine="kernels", ridge=1.0)), 2),
    "MORP, Nystrom": (one(lambda: MORP(form="direct", approximation=LOW, decoder=Scores(label_sets=False))), 1),
    "MORP, primal": (
        one(lambda: MORP("linear", form="direct", approximation="exact", decoder=Scores(label_sets=False))),
        1,
    ),
    "MLSI, primal": (one(lambda: MLSI(approximation="exact", decoder=Scores(label_sets=False))), 1),
    "CCA, primal": (one(lambda: TraceEmbedding("cca", approximation="exact", decoder=Scores(label_sets=False))), 1),
    "CCA, Nystrom": (
        one(lambda: TraceEmbedding("cca", kernel="rbf", approximation=LOW, decoder=Scores(label_sets=False))),
        1,
    ),
    "HSIC, weighted rows": (
        one(lambda: TraceEmbedding("hsic-1", approximation="exact", decoder=Scores(label_sets=False))),
        1,
    ),
    "multiple-set CCA": (several(lambda: MultiSetCCA(approximation=LOW)), 2),
    "graph": (one(lambda: TraceEmbedding("lpp", kernel="rbf", n_landmarks=20)), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_a_fit_reads_every_block_of_a_store_once_and_a_sample(name: str, store: Any, data: Any, readings: Any) -> None:
    fit, views = FITS[name]
    fit(store.views, data[1])
    assert len(readings.chunks) == views * -(-N // CHUNK)
    # An exact ridge reads all chunks twice, because the keys of samples depend on the rows.
    assert set(readings.chunks.values()) == {2 if name == "ridge, exact" else 1}
    # A sample of at most 256 rows determines the scale of the columns.
    first = 0 if "MLSI" in name else views * 256
    # A fit reads 100 rows individually, and up to 4096 rows for the bandwidth and the error estimate.
    assert readings.rows <= views * N + first
    assert (readings.rows <= 256 + first) == (
        "primal" in name or "exact" in name or "graph" in name or "weighted" in name
    )


@pytest.mark.parametrize("label_sets", [False, True])
def test_label_sets_take_their_rows_in_one_reading_more(label_sets: bool, store: Any, data: Any, readings: Any) -> None:
    """Learning label sets requires another pass over all rows, because the data set is small."""
    KGHA(approximation=LOW, n_components=2, decoder=Scores(label_sets=label_sets)).fit(store.views, data[1])
    # A third pass computes the keys of samples.
    assert set(readings.chunks.values()) == {1 + 2 * label_sets}


@pytest.mark.parametrize(("extra", "steps"), [(4, 1), (1, 2)])
def test_a_krylov_subspace_takes_one_reading_for_every_step_and_one_to_start(
    extra: int, steps: int, store: Any, data: Any, readings: Any
) -> None:
    """Three labels and four random columns span six features at once, whereas one random column needs a second step."""
    MLSI(approximation=Krylov(3, extra), decoder=Scores(label_sets=False)).fit(store.views["a"], data[1])
    assert set(readings.chunks.values()) == {steps + 1}


class Chunked:
    """Chunked row source that counts the chunks read, similar to a Zarr array."""

    def __init__(self, X: np.ndarray):
        self.X, self.shape, self.dtype, self.ndim, self.chunks = X, X.shape, X.dtype, 2, (CHUNK, X.shape[1])
        self.read: Counter[int] = Counter()

    def __getitem__(self, where: slice) -> np.ndarray:
        rows = range(self.shape[0])[where]
        if len(rows):
            self.read.update(range(rows.start // CHUNK, (rows[-1]) // CHUNK + 1))
        return self.X[where]


@pytest.mark.parametrize("name", FITS)
def test_a_fit_reads_other_arrays_once_and_once_more_for_a_sample(name: str, data: Any, readings: Any) -> None:
    views = {view: Chunked(X) for view, X in data[0].items()}
    fit, _ = FITS[name]
    fit(views, data[1])
    sampled = "Nystrom" in name or "MEKA" in name or "multiple" in name
    for view in views.values():
        more = {"ridge, exact": 2, "KGHA, exact": 1}.get(name, 0)  # sample keys and row hashes need more reads
        assert view.read[8] == (2 if sampled else 1) + more or not view.read  # the first rows determine the scale
        assert max((count for chunk, count in view.read.items() if chunk), default=0) <= 2 + more
        assert view.read[0] <= 3 + more


@pytest.mark.parametrize("kind", ["dask", "zarr", "subset"])
@pytest.mark.parametrize("name", ["KGHA, Nystrom", "KGHA, exact", "MORP, primal", "MLSI, primal", "graph"])
def test_rows_that_are_not_finite_are_refused_as_they_are_read(kind: str, name: str, data: Any) -> None:
    X = data[0]["a"].copy()
    X[2590, 4] = np.nan
    wrong: Any = {
        "dask": lambda: da.from_array(X, chunks=(700, -1)),
        "zarr": lambda: zarr.array(X, chunks=(CHUNK, 4)),
        "subset": lambda: Subset(zarr.array(X, chunks=(CHUNK, 4)), np.arange(N)),
    }[kind]()
    views = {"a": wrong, "b": data[0]["b"]} if "KGHA" in name else {"a": {"a": wrong}}
    with pytest.raises(
        ValueError,
        match=r"^\S+: view 'a' has NaN at row 2590, column 4( \(0% of the rows are NaN there\))?; pass prepare=Prepare",
    ):
        FITS[name][0](views, data[1])


def test_on_workers_too_the_row_is_named(data: Any, client: Any) -> None:
    from dmo.inputs.views import FiniteRows

    X = zarr.array(np.where(np.arange(N)[:, None] == 2001, np.inf, data[0]["b"]), chunks=(CHUNK, 2))
    raw = FeatureRows({"b": FiniteRows(X, "b")}, {"b": ShiftedRows(None)})
    with connect(client), pytest.raises(ValueError, match=r"^view 'b' has inf at row 2001, column 0"):
        collect_moments(raw, None)


def test_labels_folds_and_weights_lie_beside_their_rows(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sums, "BLOCK", 100)
    X, Y, w = data[0]["a"].astype(float), data[1], np.linspace(-1, 2, N)
    folds = np.arange(N) % 3
    raw = FeatureRows({"x": X}, {"x": ShiftedRows(None)}, weights={"weighted": ("x", w)})
    for fold, found in enumerate(collect_moments(raw, Y, folds)):
        mine = folds == fold
        expected = Moments.of({"x": X[mine], "weighted": X[mine] * w[mine, None], "labels": Y[mine].astype(float)})
        assert found.widths == expected.widths
        np.testing.assert_allclose(found.gram, expected.gram, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("index", [None, "rising", "shuffled"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "dask"])
@pytest.mark.parametrize("block", [1, 7, 64, 256, 1000])
def test_blocks_in_order_are_those_of_the_source(kind: str, block: int, index: str | None) -> None:
    X = np.random.default_rng(0).random((611, 3)).round()
    source: Any = {
        "dense": lambda: Chunked(X),
        "sparse": lambda: scipy.sparse.csr_array(X),
        "dask": lambda: da.from_array(X, chunks=((100, 11, 500), (3,))),
    }[kind]()
    picked = np.arange(len(X))
    if index is not None:
        picked = np.flatnonzero(np.random.default_rng(1).random(len(X)) < 0.4)
        picked = picked if index == "rising" else np.random.default_rng(2).permutation(picked)
        source = Subset(source, picked)
    reader = InOrder(source)
    found = [reader[slice(at, min(at + block, len(picked)))] for at in range(0, len(picked), block)]
    found = [part.toarray() if scipy.sparse.issparse(part) else part for part in found]
    np.testing.assert_array_equal(np.vstack(found), X[picked])
    # This read is out of order.
    np.testing.assert_array_equal(np.asarray(reader[slice(5, 9)] @ np.eye(3)), X[picked[5:9]])


def test_a_sample_of_rows_of_a_store_is_what_the_store_holds(store: Any, data: Any, tmp_path: Path) -> None:
    index = np.array([0, 5, 299, 300, 301, 2599])
    np.testing.assert_array_equal(store.views["a"].sample(index), data[0]["a"][index])
    np.testing.assert_array_equal(store.views["a"].sample(np.arange(N)), data[0]["a"])


@pytest.mark.parametrize(
    ("estimator", "engine", "on_workers"),
    [*itertools.product([KGHA, MultiViewRidge], [LOW], [False, True]), (MultiViewRidge, STEPS, False)],
)
def test_labels_of_a_store_are_read_by_blocks_and_give_the_same_model(
    estimator: Any, engine: Any, on_workers: bool, store: Any, data: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, read = [0], Subset.__getitem__

    def counted(self: Any, where: Any) -> Any:
        found = read(self, where)
        most[0] = max(most[0], len(found) if found.shape[1] == 3 else 0)
        return found

    monkeypatch.setattr(Subset, "__getitem__", counted)
    monkeypatch.setattr(row_sums, "BLOCK", 256)
    monkeypatch.setattr("dmo.blocks._CELLS", 1500)
    monkeypatch.setattr("dmo.inputs.needs._ROWS", 500)
    index = np.flatnonzero(np.arange(N) % 7)
    views = {name: Subset(view, index) for name, view in store.views.items()}
    labels = LabelRows(Subset(store.label_view, index))
    with connect(client if on_workers else "in-process"):
        model = estimator(approximation=engine, decoder=Scores(label_sets=False)).fit(views, labels)
        assert 0 < most[0] <= 256 + CHUNK
        same = estimator(approximation=engine, decoder=Scores(label_sets=False)).fit(views, data[1][index])
    assert np.array_equal(model.decision_function(data[0]), same.decision_function(data[0]))
    assert np.array_equal(model.classes_, same.classes_)


@pytest.mark.parametrize("given", [{"approximation": "exact"}, {"class_weight": "balanced"}, {"decoder": "f1-macro"}])
def test_what_needs_labels_in_memory_takes_those_of_a_store_as_well(given: Any, store: Any, data: Any) -> None:
    some = {name: X[:300] for name, X in data[0].items()}
    labels = LabelRows(Subset(store.label_view, np.arange(300)))
    given = {"approximation": LOW} | given
    found, same = (MultiViewRidge(**given).fit(some, y).decision_function(some) for y in (labels, data[1][:300]))
    assert np.array_equal(found, same)
    for where in (5, slice(2, 9), np.arange(300) % 2 == 0, (np.array([7, 3]), ...), (slice(0, 20), 1)):
        assert np.array_equal(labels[where], data[1][:300][where])


@pytest.mark.parametrize("estimator", [MultiViewRidge, KGHA])
@pytest.mark.parametrize("on_workers", [False, True])
def test_low_rank_fits_of_sparse_labels_equal_those_of_arrays(
    estimator: Any, on_workers: bool, data: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = np.eye(40, dtype=np.uint8)[np.random.default_rng(0).integers(0, 40, N)]
    rare[:, 0] |= data[1][:, 0]
    model = estimator(approximation=LOW)
    with connect(client if on_workers else "in-process"):
        found = [clone(model).fit(data[0], y) for y in (rare, scipy.sparse.csr_array(rare, dtype=float))]
    monkeypatch.setattr("dmo.blocks._PACKED", rare.size)
    expected = model.fit(data[0], rare)
    for same in found:
        scores = expected.decision_function(data[0])
        np.testing.assert_allclose(same.decision_function(data[0]), scores, atol=1e-3 * np.abs(scores).max())
        assert (same.predict(data[0]) != expected.predict(data[0])).mean() < 1e-3
    assert [same.label_dtype_ for same in found] == ["uint8", "float64"]


def rare_labels(unknown: bool) -> tuple[np.ndarray, scipy.sparse.csr_array]:
    """Return 40 labels, one per sample, as a dense and as a CSR array. If `unknown` is True, some entries are NaN."""
    rng = np.random.default_rng(0)
    rare = np.eye(40)[rng.integers(0, 40, N)]
    gaps = unknown * (rng.random(rare.shape) < 0.01)
    gaps[:20] = unknown
    missing = scipy.sparse.csr_array(gaps.astype(float))
    missing.data[:] = np.nan
    return np.where(gaps, np.nan, rare), scipy.sparse.csr_array(np.where(gaps, 0, rare)) + missing


LINEAR = {"kernel": "linear", "approximation": Nystrom(rank=30)}
CASES = {
    "ridge": MultiViewRidge(**LINEAR),
    "ridge of balanced labels": MultiViewRidge(**LINEAR, class_weight="balanced"),
    "ridge with a decoder": MultiViewRidge(**LINEAR, decoder="f1@1"),
    "ridge of standardized scores": MultiViewRidge(**LINEAR, decoder=Scores(standardize=1.0)),
    "KGHA": KGHA(**LINEAR, n_components=8),
    "MORP": MORP(**LINEAR, n_components=8),
    "MORP without a center": MORP(**LINEAR, n_components=8, center=False),
}


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_fits_of_sparse_labels_equal_dense_fits(
    case: str, unknown: bool, weights: bool, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense, sparse = rare_labels(unknown)
    X = data[0]["a"].astype(np.float64)
    often = np.random.default_rng(1).integers(0, 4, N) if weights else None
    found = clone(CASES[case]).fit(X, sparse, sample_weight=often)
    monkeypatch.setattr("dmo.blocks._PACKED", 2 * dense.size)
    wanted = clone(CASES[case]).fit(X, dense, sample_weight=often)
    for method in ("decision_function", "predict_proba"):
        np.testing.assert_allclose(getattr(found, method)(X[:99]), getattr(wanted, method)(X[:99]), atol=1e-9)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(
    ("case", "unknown"),
    [*itertools.product(["ridge", "ridge of balanced labels", "KGHA"], [False, True]), ("MORP", False)],
)
def test_fits_read_sparse_labels_by_blocks(
    case: str, unknown: bool, weights: bool, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sums, "BLOCK", 128)
    monkeypatch.setattr(dmo.blocks, "_CELLS", 128 * 40)
    read, most = EntryRows.__getitem__, [0]

    def counted(self: Any, where: Any) -> Any:
        found = read(self, where)
        most[0] = max(most[0], len(found))
        return found

    monkeypatch.setattr(EntryRows, "__getitem__", counted)
    monkeypatch.setattr(EntryRows, "__array__", None)
    model = clone(CASES[case]).set_params(decoder=Scores(label_sets=False))
    often = np.random.default_rng(1).integers(0, 4, N) if weights else None
    model.fit(data[0]["a"], rare_labels(unknown)[1], sample_weight=often)
    assert most[0] <= 128


def test_passes_read_sparse_labels_without_making_them_dense(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rare, most = np.eye(40, dtype=np.uint8)[np.arange(N) % 40], [0]
    dense = LabelRows.__getitem__

    def counted(self: Any, where: Any) -> Any:
        found = dense(self, where)
        most[0] = max(most[0], len(found))
        return found

    monkeypatch.setattr(LabelRows, "__getitem__", counted)
    monkeypatch.setattr(LabelRows, "__array__", None)
    KGHA(approximation=LOW, decoder=Scores(label_sets=False)).fit(data[0], rare)
    MultiViewRidge(approximation=LOW, decoder=Scores(label_sets=False)).fit(data[0], rare)
    assert most[0] == 0


def test_stored_labels_that_do_not_fit_are_refused(store: Any, data: Any) -> None:
    with pytest.raises(ValueError, match=r"y has 2600 rows, X has 300"):
        MultiViewRidge(approximation=LOW).fit(data[0]["a"][:300], LabelRows(store.label_view))
    none = np.flatnonzero(~data[1].any(axis=1))
    with pytest.raises(ValueError, match="no sample has a label"):
        MultiViewRidge(approximation=LOW).fit(data[0]["a"][none], LabelRows(Subset(store.label_view, none)))


@pytest.mark.parametrize("keep", [False, True])
def test_a_pass_on_workers_sends_one_sum_here_and_those_that_are_kept(
    keep: bool, data: Any, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sums, "BLOCK", 50)
    monkeypatch.setattr(row_sums, "_SEGMENT", 4)
    sent, result = [], Future.result
    monkeypatch.setattr(Future, "result", lambda *given: sent.append(1) or result(*given))
    raw = FeatureRows({"a": data[0]["a"]}, {"a": ShiftedRows(None)})
    with connect(client), checkpoints(str(tmp_path) if keep else None, 0.0):
        (found,) = collect_moments(raw, data[1])
    tasks = -(-N // (50 * row_sums.task_blocks(N)))
    segments = -(-tasks // 4)
    assert segments > 4
    assert len(sent) == (segments if keep else 1)
    with connect(client):
        (same,) = collect_moments(raw, data[1])
    assert np.array_equal(found.gram, same.gram)
    S = np.hstack([data[0]["a"], data[1]]).astype(float)
    np.testing.assert_allclose(found.gram, S.T @ S, rtol=1e-5, atol=1e-2)


def test_very_many_rows_are_some_hundred_tasks() -> None:
    assert [row_sums.task_blocks(n) for n in (10_000, 131_072, 2_000_000, 10_000_000)] == [1, 2, 2, 9]
    assert [row_sums.task_blocks(n, 20) for n in (10_000, 131_072, 2_000_000, 10_000_000)] == [1, 2, 7, 38]
    assert row_sums.task_blocks(10_000_000, 1000) == 9


def test_sums_that_were_kept_with_tasks_of_another_size_are_not_gone_on_from(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sums, "BLOCK", 50)
    raw = FeatureRows({"a": data[0]["a"]}, {"a": ShiftedRows(None)})
    found = []
    for blocks in (4, 1):
        monkeypatch.setattr(row_sums, "task_blocks", lambda *_, blocks=blocks: blocks)
        with checkpoints(str(tmp_path), 0.0):
            found += collect_moments(raw, data[1])
    assert np.array_equal(found[0].gram, found[1].gram)


@pytest.mark.parametrize("density", [0.01, 0.5])
@pytest.mark.parametrize("folds", [None, np.arange(90) % 3])
def test_sparse_labels_yield_the_moments_of_dense_ones(density: float, folds: Any) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(90, 4)), (rng.random((90, 30)) < density).astype(np.uint8)
    raw = FeatureRows({"a": X}, {"a": ShiftedRows(None)})
    S, weights = np.hstack([X, Y]), rng.random(90)
    found = [collect_moments(raw, given, folds, weights=weights) for given in (Y, scipy.sparse.csr_array(Y))]
    for parts in found:
        np.testing.assert_allclose(sum(part.gram for part in parts), S.T @ (weights[:, None] * S), rtol=1e-6, atol=1e-6)

"""Check that successive calls of `partial_fit` are equivalent to one `fit` on all rows and labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dmo import KGHA, MLSI, MORP, MultiSetCCA, MultiViewRidge, Nystrom, TraceEmbedding, load
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.kernels import RBF, Linear
from dmo.methods.catalog import METHODS
from dmo.methods.trace import _BY_SAMPLE
from dmo.workflows.suggest import read_answers

RNG = np.random.default_rng(0)
VIEWS = {"a": RNG.standard_normal((120, 6)), "b": RNG.standard_normal((120, 6)) + 1}
Y = (VIEWS["a"] @ RNG.standard_normal((6, 5)) + 0.3 * RNG.standard_normal((120, 5)) > 0.5).astype(np.uint8)
NEW = {name: RNG.standard_normal((9, X.shape[1])) for name, X in VIEWS.items()}
BATCHES = (slice(0, 50), slice(50, 53), slice(53, 120))
# A linear kernel has at most as many dimensions as features. The low-rank map of the first batch is therefore exact.
LOW = Nystrom(rank=6, landmarks="rpcholesky")


def some(where: slice) -> dict[str, np.ndarray]:
    return {name: X[where] for name, X in VIEWS.items()}


def made(kind: type, **how: Any) -> Any:
    return kind(Linear(), ridge=0.3, approximation=LOW, **how)


KINDS = pytest.mark.parametrize("kind", [KGHA, MultiViewRidge])


@KINDS
def test_batches_give_the_fit_of_all_rows(kind: type) -> None:
    model = made(kind, intercept=True)
    for where in BATCHES:
        model.partial_fit(some(where), Y[where])
    whole = kind(Linear(), ridge=0.3, approximation="exact", intercept=True).fit(VIEWS, Y)
    np.testing.assert_allclose(model.decision_function(NEW), whole.decision_function(NEW), atol=2e-5)
    np.testing.assert_array_equal(model.predict(NEW, top=2), whole.predict(NEW, top=2))


@KINDS
def test_weights_of_batches_are_those_of_one_fit(kind: type) -> None:
    counts = RNG.integers(0, 3, 120)
    model = made(kind, intercept=True)
    for where in BATCHES:
        model.partial_fit(some(where), Y[where], sample_weight=counts[where])
    whole = kind(Linear(), ridge=0.3, approximation="exact", intercept=True)
    whole.fit({view: np.repeat(X, counts, axis=0) for view, X in VIEWS.items()}, np.repeat(Y, counts, axis=0))
    np.testing.assert_allclose(model.decision_function(NEW), whole.decision_function(NEW), atol=2e-5)


def test_label_sets_of_a_weighted_batch_are_those_of_the_weighted_fit() -> None:
    counts = RNG.integers(0, 3, 120)
    batch = made(MultiViewRidge).partial_fit(VIEWS, Y, sample_weight=counts)
    fitted = made(MultiViewRidge).fit(VIEWS, Y, sample_weight=counts)
    np.testing.assert_allclose(batch.decoding_.thresholds, fitted.decoding_.thresholds, atol=1e-4)


def test_answers_of_people_go_into_a_model_that_goes_on(tmp_path: Path) -> None:
    names = [[f"label {j}" for j in np.flatnonzero(row)] for row in Y]
    tasks = [
        {"data": {"sample": f"{i}.jpg"}, "annotations": [{"result": [{"value": {"choices": names[i]}}]}]}
        for i in range(50, 120)
    ]
    (tmp_path / "answers.json").write_text(json.dumps(tasks))
    answers = read_answers(tmp_path / "answers.json")
    rows = [int(sample.removesuffix(".jpg")) for sample in answers]
    model = made(MultiViewRidge).partial_fit(some(slice(0, 50)), names[:50])
    model.partial_fit({view: X[rows] for view, X in VIEWS.items()}, list(answers.values()))
    whole = made(MultiViewRidge).partial_fit(some(slice(0, 50)), Y[:50]).partial_fit(some(slice(50, 120)), Y[50:])
    np.testing.assert_allclose(model.decision_function(NEW), whole.decision_function(NEW), atol=1e-6)


@KINDS
def test_new_labels_are_absent_from_earlier_rows(kind: type) -> None:
    late = Y.copy()
    late[:50, 3:] = 0
    model = made(kind).partial_fit(some(slice(0, 50)), late[:50, :3]).partial_fit(some(slice(50, 120)), late[50:])
    whole = kind(Linear(), ridge=0.3, approximation="exact").fit(VIEWS, late)
    np.testing.assert_allclose(model.decision_function(NEW), whole.decision_function(NEW), atol=2e-5)
    assert model.classes_.tolist() == [0, 1, 2, 3, 4]


@KINDS
def test_the_statistics_of_held_out_folds_see_every_row(kind: type) -> None:
    model = made(kind, decoder=Scores(standardize=1.0))
    for where in BATCHES:  # the second batch has fewer rows than folds
        model.partial_fit(some(where), Y[where])
    assert sum(part.n for part in model.pass_.folds) == 120
    held = made(kind, decoder=Scores(standardize=1.0)).fit(VIEWS, Y).rule_  # this fit uses different folds
    np.testing.assert_allclose(model.rule_.deviation, held.deviation, rtol=0.2)


@KINDS
def test_a_saved_model_goes_on_where_it_was(kind: type, tmp_path: Path) -> None:
    model = made(kind).partial_fit(some(BATCHES[0]), Y[BATCHES[0]])
    model.save(str(tmp_path / "model.zarr"))
    read = load(str(tmp_path / "model.zarr"))
    for going in (model, read):
        going.partial_fit(some(BATCHES[2]), Y[BATCHES[2]])
    np.testing.assert_array_equal(read.decision_function(NEW), model.decision_function(NEW))


def test_classes_may_come_later() -> None:
    y = np.array(["x", "y", "z"])[Y[:, 0] + Y[:, 1].astype(int)]
    X = VIEWS["a"]
    model = MultiViewRidge("linear", ridge=0.3, approximation=Nystrom(rank=6))
    model.partial_fit(X[:60], y[:60], classes=["x", "y", "z", "never"]).partial_fit(X[60:], y[60:])
    whole = MultiViewRidge("linear", ridge=0.3, approximation="exact").fit(X, y)
    assert (model.predict(X) == whole.predict(X)).all()
    with pytest.raises(ValueError, match=r"y has the class .*'w'.*, expected one of"):
        model.partial_fit(X[:2], ["x", "w"])


def test_what_cannot_go_on_says_so() -> None:
    model = made(KGHA)
    with pytest.raises(
        ValueError,
        match="first call of partial_fit with a vector of classes needs the list of all classes; pass classes",
    ):
        model.partial_fit(VIEWS, Y[:, 0])
    model.partial_fit(VIEWS, Y)
    with pytest.raises(ValueError, match="y has 3 labels, expected 5 as in earlier calls; pass all labels"):
        model.partial_fit(VIEWS, Y[:, :3])
    with pytest.raises(ValueError, match="'b'"):
        model.partial_fit({"a": VIEWS["a"]}, Y)
    with pytest.raises(ValueError, match="a model of fit cannot be continued by partial_fit"):
        model.fit(VIEWS, Y).partial_fit(VIEWS, Y)
    assert not hasattr(KGHA(approximation="exact"), "partial_fit")


ADDED = [name for name, entry in METHODS.items() if entry.family == "global" and name not in _BY_SAMPLE]
PROJECTIONS = [
    MORP(n_components=3, ridge=0.3),
    MORP(n_components=3, ridge=0.3, form="direct", center=False),
    *[TraceEmbedding(name, n_components=3) for name in ADDED],
]


@pytest.mark.parametrize("model", PROJECTIONS, ids=lambda m: vars(m).get("method", "MORP"))
@pytest.mark.parametrize("weighted", [False, True])
def test_projections_of_batches_are_exact_on_the_factor_rows(model: Any, weighted: bool) -> None:
    X, new, counts = VIEWS["a"], NEW["a"], RNG.integers(1, 3, 120)
    model = clone(model).set_params(kernel=RBF(3.0), approximation=Nystrom(rank=12), prepare="none")
    for where in BATCHES:
        model.partial_fit(X[where], Y[where], sample_weight=counts[where] if weighted else None)
    rows = model.pass_.maps["x"]
    wanted = clone(model).set_params(kernel="linear", approximation="exact")
    again = np.repeat(np.arange(120), counts) if weighted else np.arange(120)
    wanted.fit(rows(X[again]), Y[again])
    np.testing.assert_allclose(model.eigenvalues_, wanted.eigenvalues_, rtol=1e-6)
    Z, other = model.transform(new), wanted.transform(rows(new))
    signs = np.sign((Z * other).sum(axis=0))
    np.testing.assert_allclose(Z, other * signs, atol=1e-5 * np.abs(other).max())
    if model._decodes:
        np.testing.assert_allclose(model.decision_function(new), wanted.decision_function(rows(new)), atol=1e-5)


def test_batches_of_documents_are_those_of_one_fit() -> None:
    model = MLSI(n_components=3, ridge=0.1, approximation=Nystrom(rank=6))
    for where in BATCHES:
        model.partial_fit(VIEWS["a"][where], Y[where])
    whole = MLSI(n_components=3, ridge=0.1, approximation="exact").fit(VIEWS["a"], Y)
    np.testing.assert_allclose(model.decision_function(NEW["a"]), whole.decision_function(NEW["a"]), atol=2e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_batches_without_labels_give_the_space_of_all_rows(weighted: bool, tmp_path: Path) -> None:
    counts = RNG.integers(1, 3, 120)
    model = made(MultiSetCCA, n_components=3)
    for where in BATCHES:
        model.partial_fit(some(where), sample_weight=counts[where] if weighted else None)
        model.save(str(tmp_path / "model.zarr"))
        model = load(str(tmp_path / "model.zarr"))
    again = np.repeat(np.arange(120), counts) if weighted else np.arange(120)
    whole = MultiSetCCA(Linear(), ridge=0.3, approximation="exact", n_components=3)
    whole.fit({view: X[again] for view, X in VIEWS.items()})
    Z, other = model.transform(NEW), whole.transform(NEW)
    np.testing.assert_allclose(model.eigenvalues_, whole.eigenvalues_, rtol=1e-5)
    np.testing.assert_allclose(Z, other * np.sign((Z * other).sum(axis=0)), atol=2e-5 * np.abs(other).max())


CONTINUED = [
    MORP(Linear(), n_components=3, approximation=LOW),
    MLSI(n_components=3, approximation=LOW),
    TraceEmbedding("cca", n_components=3, approximation=LOW),
]


@pytest.mark.parametrize("model", CONTINUED, ids=lambda model: type(model).__name__)
def test_saved_projections_continue(model: Any, tmp_path: Path) -> None:
    X, new = VIEWS["a"], NEW["a"]
    model = clone(model).partial_fit(X[:50], Y[:50])
    model.save(str(tmp_path / "model.zarr"))
    read = load(str(tmp_path / "model.zarr"))
    for going in (model, read):
        going.partial_fit(X[50:], Y[50:])
    np.testing.assert_array_equal(read.decision_function(new), model.decision_function(new))
    with pytest.raises(UserError, match="a model of fit cannot be continued by partial_fit"):
        model.fit(X, Y).partial_fit(X, Y)


@pytest.mark.parametrize("model", CONTINUED, ids=lambda model: type(model).__name__)
def test_classes_and_outputs_of_batches_are_those_of_one_fit(model: Any) -> None:
    X, new = VIEWS["a"], NEW["a"]
    y = np.array(["x", "y", "z"])[Y[:, 0] + Y[:, 1].astype(int)]
    found = clone(model).set_params(n_components=2)
    found.partial_fit(X[:60], y[:60], classes=["x", "y", "z"]).partial_fit(X[60:], y[60:])
    whole = clone(found).set_params(approximation="exact").fit(X, y)
    np.testing.assert_allclose(found.decision_function(new), whole.decision_function(new), atol=2e-4)
    T = X[:, :3] + 0.1 * VIEWS["b"][:, :3]
    found = clone(model).partial_fit(X[:60], T[:60]).partial_fit(X[60:], T[60:])
    whole = clone(found).set_params(approximation="exact").fit(X, T)
    np.testing.assert_allclose(found.predict(new), whole.predict(new), atol=2e-5)
    with pytest.raises(UserError, match="y has 2 targets, expected 3 as in earlier calls"):
        found.partial_fit(X, T[:, :2])


def test_projections_that_cannot_add_rows_raise() -> None:
    assert not hasattr(MLSI(approximation="krylov"), "partial_fit")
    assert not hasattr(TraceEmbedding("hsic-1", approximation=LOW), "partial_fit")
    assert not hasattr(TraceEmbedding("lpp", approximation=LOW), "partial_fit")
    with pytest.raises(UserError, match="use label_kernel='linear', or fit"):
        MORP(approximation=LOW, label_kernel="rbf").partial_fit(VIEWS["a"], Y)

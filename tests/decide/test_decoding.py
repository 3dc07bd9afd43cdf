"""Compare predictions from coordinates with scikit-learn's models on the same coordinates."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_wine, make_multilabel_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

import dmo
from dmo import (
    JEC,
    LLTSVR,
    MESD,
    MLSI,
    MOPE,
    MORP,
    FastTag,
    Graph,
    LabelPropagation,
    MultiViewRidge,
    NeighborVotes,
    Nystrom,
    TraceEmbedding,
    TwoPassKNN,
)
from dmo.decoders import Scores

X, y = load_wine(return_X_y=True)
X = StandardScaler().fit_transform(X)
A, Y = make_multilabel_classification(80, 8, n_classes=4, random_state=0)
NAMES = ["sea", "sky", "sand", "snow"]
MODELS = {
    "MORP": MORP(n_components=2),
    "MORP, low rank": MORP(n_components=2, form="direct", approximation=Nystrom(rank=20)),
    "MLSI": MLSI(n_components=2),
    "MOPE": MOPE(n_components=2),
    "MOPE, kernel": MOPE(n_components=2, kernel="rbf"),
    "MESD": MESD(n_components=2),
    "FDA": TraceEmbedding("fda"),
    "kernel FDA": TraceEmbedding("fda", kernel="rbf"),
    "CCA": TraceEmbedding("cca"),
    "kernel CCA": TraceEmbedding("cca", kernel="rbf", ridge=0.1),
    "SSFDA": TraceEmbedding("ssfda"),
}


@pytest.mark.parametrize("name", MODELS)
def test_classes_are_those_of_discriminant_analysis_on_the_coordinates(name, tmp_path):
    model = MODELS[name].fit(X[::2], y[::2])
    Z, new = model.transform(X[::2]), model.transform(X[1::2])
    found, expected = model.predict(X[1::2]), LinearDiscriminantAnalysis().fit(Z, y[::2]).predict(new)
    assert (found == expected).mean() > 0.98  # dmo adds 0.1 % of the total scatter to the within-class scatter
    assert model.score(X[1::2], y[1::2]) == (found == y[1::2]).mean() > 0.85
    model.save(str(tmp_path / "m.zarr"))
    assert_array_equal(dmo.load(str(tmp_path / "m.zarr")).predict(X[1::2]), found)


@pytest.mark.parametrize("name", MODELS)
def test_label_scores_are_least_squares_on_the_coordinates(name):
    model = MODELS[name].fit(A, pd.DataFrame(Y, columns=NAMES))
    Z = model.transform(A)
    assert_allclose(model.decision_function(A), LinearRegression().fit(Z, Y).predict(Z), atol=1e-4)
    bare = clone(model).set_params(decoder=Scores(label_sets=False)).fit(A, Y)
    assert bare.predict(A).sum(axis=1).tolist() == [round(Y.sum() / len(Y))] * len(Y)
    assert set().union(*model.predict(A, as_names=True)) <= set(NAMES)
    assert model.score(A, Y) == pytest.approx(dmo.metrics.metric_of("ranking")(Y, model.decision_function(A)))


def test_the_class_in_the_middle_is_found():
    rows = np.concatenate([np.random.default_rng(0).normal(c, 0.3, (30, 2)) for c in (0, 4, 8)])
    classes = np.repeat(["low", "mid", "top"], 30)
    for model in (MORP(n_components=1), MLSI(n_components=1, mixing=0.9), TraceEmbedding("pls", n_components=1)):
        assert model.fit(rows, classes).score(rows, classes) > 0.95


def test_samples_without_labels_and_methods_without_outputs():
    known = y.copy()
    known[::3] = -1
    for model in (MOPE(n_components=2), MESD(n_components=2), TraceEmbedding("fda")):
        Z = model.fit(X, known).transform(X)
        expected = LinearDiscriminantAnalysis().fit(Z[known >= 0], known[known >= 0]).predict(Z)
        assert (model.predict(X) == expected).mean() > 0.98
        assert model.classes_.tolist() == [0, 1, 2]
    for plain in (TraceEmbedding("pca"), TraceEmbedding("isomap"), TraceEmbedding("mddm", label_kernel="rbf")):
        assert not hasattr(plain, "predict")
        assert not hasattr(plain, "score")


def test_a_discriminant_tells_classes_that_are_points():
    rows, classes = np.eye(6)[np.arange(12) % 6], np.arange(12) % 6 // 2
    model = TraceEmbedding("pls", n_components=2).fit(rows, classes)
    scores = model.decision_function(rows)
    assert_array_equal(model.predict(rows), classes)
    # Both points of a class have the same coordinates, and the classes are arranged symmetrically.
    for number in range(3):
        assert_allclose(scores[classes == number] - scores[classes == number][0], 0.0, atol=1e-6 * np.ptp(scores))
        assert_allclose(scores[classes == number, number], scores[classes == 0, 0], rtol=1e-6)


CLASSIFIERS = [
    JEC(),
    TwoPassKNN(),
    FastTag(MultiViewRidge(ridge=1.0)),
    NeighborVotes(MultiViewRidge(ridge=1.0)),
    LabelPropagation(graph=Graph(n_neighbors=10)),
]


@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda model: type(model).__name__)
def test_classes_have_probabilities(model, tmp_path):
    fitted = clone(model).fit(X[::2], y[::2])
    found = fitted.predict_proba(X[1::2])
    assert found.shape == (len(X[1::2]), 3)
    assert_allclose(found.sum(axis=1), 1.0)
    assert (found >= 0).all()
    oracle = KNeighborsClassifier(5).fit(X[::2], y[::2])
    assert log_loss(y[1::2], found) < log_loss(y[1::2], oracle.predict_proba(X[1::2]))
    assert (found.argmax(axis=1) == y[1::2]).mean() > 0.85
    fitted.save(str(tmp_path / "m.zarr"))
    assert_allclose(dmo.load(str(tmp_path / "m.zarr")).predict_proba(X[1::2]), found)


def test_names_of_labeled_arrays_come_back():
    xr = pytest.importorskip("xarray")
    rows = xr.DataArray(A, dims=("sample", "feature"), coords={"sample": np.arange(80) + 100})
    labels = xr.DataArray(Y, dims=("sample", "label"), coords={"label": NAMES})
    for model in (MultiViewRidge(), MultiViewRidge(targets="real"), LLTSVR(tol=1e-2), MESD()):
        method = "decision_function" if hasattr(model, "decision_function") else "predict"
        scores = getattr(model.fit(rows, labels), method)(rows)
        assert scores.label.values.tolist() == NAMES
        assert scores.sample.values.tolist() == list(range(100, 180))


def test_a_path_of_regressions_scales_its_rows_as_the_fit_does():
    wild = A * np.array([1e4] + [1.0] * 7)
    (model,) = LLTSVR(tol=1e-4).path(wild, 2.0 * Y - 1, C=[1.0])
    alone = LLTSVR(C=1.0, tol=1e-4).fit(wild, 2.0 * Y - 1)
    assert_allclose(model.decision_function(wild), alone.decision_function(wild), atol=1e-2)
    assert model.predict(wild).sum(axis=1).tolist() == [round(Y.sum() / len(Y))] * len(Y)

"""Test the estimator contract: scikit-learn's checks, input containers, saved models and error messages."""

import re
import weakref
from functools import cache, partial

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from cases import checked_by_scikit_learn
from numpy.testing import assert_allclose
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier
from sklearn.feature_selection import RFE
from sklearn.linear_model import Ridge
from sklearn.metrics import get_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, TunedThresholdClassifierCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer, StandardScaler

import dmo
from dmo import (
    JEC,
    KGHA,
    LLTSVR,
    MESD,
    MLSI,
    MOPE,
    MORP,
    CoupledSVR,
    Exact,
    FastTag,
    Graph,
    HomogeneityAnalysis,
    LabelPropagation,
    Meka,
    MultiSetCCA,
    MultiViewRidge,
    NeighborVotes,
    Nystrom,
    Solver,
    TagProp,
    TraceEmbedding,
    TwoPassKNN,
)
from dmo.cluster import connect
from dmo.decoders import Scores
from dmo.fit.fitted_views import Groups
from dmo.fit.moments import Moments
from dmo.inputs import needs_of
from dmo.kernels import RBF
from dmo.linalg.linear import InaccurateSolve
from dmo.methods.view_weights import KernelSearch, MomentSearch
from dmo.parameters import places
from dmo.selection import sweep
from dmo.stores import StoreError

RNG = np.random.default_rng(0)
VIEWS = {"gist": RNG.standard_normal((60, 8)), "hue": RNG.random((60, 5))}
LABELS = (RNG.random((60, 6)) < 0.3).astype(np.uint8)


OF_DECODERS = {"check_class_weight_classifiers": "a decoder learns probabilities of classes as often as they are"}
NO_CATEGORIES = {"check_sample_weight_equivalence_on_dense_data": "categories of samples of weight 0 alone are unknown"}


def failing(model):
    if isinstance(model, HomogeneityAnalysis):
        return NO_CATEGORIES
    return OF_DECODERS if getattr(model, "decoder", None) == "probabilities" else {}


@pytest.mark.filterwarnings("ignore:KGHA. n_components = 1 is above the rank 0")
@checked_by_scikit_learn(
    [
        KGHA(RBF(1.0), solver=Solver(tol=1e-10)),
        # Use a fixed bandwidth. A learned bandwidth would include distances of 1e-8 between repeated rows instead of 0.
        MultiViewRidge(RBF(1.0)),
        MultiViewRidge(RBF(1.0), decoder="probabilities"),
        JEC(),
        TagProp(),
        TwoPassKNN(),
        FastTag(MultiViewRidge(RBF(1.0))),
        NeighborVotes(),
        MultiSetCCA(n_components=1),
        HomogeneityAnalysis(),
    ],
    expected_failed_checks=failing,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("container", ["list", "dask", "zarr", "sparse"])
def test_the_container_does_not_matter(container, tmp_path):
    views = {
        "list": lambda: list(VIEWS.values()),
        "dask": lambda: {name: da.from_array(X, chunks=(17, -1)) for name, X in VIEWS.items()},
        "zarr": lambda: {name: zarr.array(X, chunks=(13, 4)) for name, X in VIEWS.items()},
        "sparse": lambda: {name: scipy.sparse.csr_array(X) for name, X in VIEWS.items()},
    }[container]()
    scores = KGHA(n_components=3).fit(views, LABELS).decision_function(views)
    np.testing.assert_allclose(scores, KGHA(n_components=3).fit(VIEWS, LABELS).decision_function(VIEWS), atol=1e-8)


@pytest.mark.parametrize(
    "model",
    [
        KGHA(kernel={"gist": RBF(bandwidth="median"), "hue": "hellinger-rbf"}, ridge={"gist": 0.1, "hue": 0.2}),
        MultiViewRidge(combine="product", decoder=Scores(standardize=1.0), approximation=Exact(block=16)),
        MultiSetCCA(n_components=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_saved_model_is_the_model(model, tmp_path):
    model = clone(model).fit(VIEWS, LABELS)
    model.save(str(tmp_path / "model.zarr"))
    back = dmo.load(str(tmp_path / "model.zarr"))
    assert type(back) is type(model)
    assert back.get_params()["random_state"] == model.get_params()["random_state"]
    for method in ("transform", "decision_function"):
        if hasattr(model, method):
            np.testing.assert_array_equal(getattr(back, method)(VIEWS), getattr(model, method)(VIEWS))


def test_homogeneity_analysis_on_disk(tmp_path):
    X = np.array([["a", "u"], ["b", "v"], ["a", "v"], ["b", "u"], ["c", "u"]], dtype=object)
    model = HomogeneityAnalysis(n_components=2).fit(X)
    model.save(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(dmo.load(str(tmp_path / "m.zarr")).transform(X), model.transform(X))


def test_loading_something_else_is_refused(tmp_path):
    with pytest.raises((StoreError, FileNotFoundError), match=r"nothing|no |not "):
        dmo.load(str(tmp_path / "absent.zarr"))


def test_predict_assigns_top_labels_or_classes():
    model = KGHA(n_components=3).fit(VIEWS, LABELS)
    top = model.predict(VIEWS, top=2)
    scores = model.decision_function(VIEWS)
    assert (top.sum(axis=1) == 2).all()
    assert ((scores * top).sum(axis=1) >= np.sort(scores, axis=1)[:, -2:].sum(axis=1) - 1e-12).all()
    classes = np.array(["cat", "dog", "owl"])[np.arange(60) % 3]
    predicted = KGHA(n_components=2).fit(VIEWS, classes).predict(VIEWS)
    assert set(predicted) <= set(classes)
    with pytest.raises(ValueError, match="top = 7, expected a number from 1 to 6"):
        model.predict(VIEWS, top=7)


UNSEEN = np.insert(LABELS, [0, 4], 0, axis=1)  # labels 0 and 5 never occur in training

ANNOTATORS = {
    "KGHA": KGHA(n_components=3),
    "KGHA, prior and standardize": KGHA(n_components=3, decoder=Scores(prior_power=0.5, standardize=1.0)),
    "KGHA, moments": KGHA(
        n_components=3, intercept=True, decoder=Scores(standardize=0.5), approximation=Nystrom(rank=20)
    ),
    "ridge": MultiViewRidge(intercept=True, decoder=Scores(prior_power=1.0)),
    "ridge, moments": MultiViewRidge(decoder=Scores(standardize=1.0), approximation=Nystrom(rank=20)),
    "label propagation": LabelPropagation(),
    "MORP": MORP(n_components=3),
    "MORP, moments": MORP(n_components=3, approximation=Nystrom(rank=20)),
    "MLSI": MLSI(n_components=3),
}


@pytest.mark.parametrize("case", ANNOTATORS)
def test_a_label_without_a_training_sample_ranks_last(case):
    model = clone(ANNOTATORS[case])
    X = VIEWS if isinstance(model, (KGHA, MultiViewRidge)) else VIEWS["gist"]
    scores = model.fit(X, UNSEEN).decision_function(X)
    unseen = [0, 5]
    assert (scores[:, unseen].max(axis=1) < np.delete(scores, unseen, axis=1).min(axis=1)).all()
    assert np.isfinite(scores).all()
    assert np.ptp(scores[:, unseen]) == 0  # all samples have equal scores
    assert model.n_seen_labels_ == 6
    if hasattr(model, "predict"):
        assert not model.predict(X, top=8)[:, unseen].any()
    part = scores[7:9]
    one_by_one = {name: view[7:9] for name, view in X.items()} if isinstance(X, dict) else X[7:9]
    np.testing.assert_allclose(model.decision_function(one_by_one), part, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("classes", [["cat", "dog", "owl"], [10, 20, 30], np.array(["cat", "dog", "owl"], object)])
def test_classes_on_disk_keep_their_type(classes, tmp_path):
    y = np.asarray(classes)[np.arange(60) % 3]
    model = KGHA(n_components=2).fit(VIEWS, y)
    model.save(str(tmp_path / "model.zarr"))
    back = dmo.load(str(tmp_path / "model.zarr"))
    assert back.classes_.tolist() == list(classes)
    assert back.predict(VIEWS).tolist() == model.predict(VIEWS).tolist()


TWO = (VIEWS["gist"][:, 0] + 0.3 * RNG.standard_normal(60) > 0).astype(int)
SCORERS = [KGHA(n_components=1), MultiViewRidge(decoder="probabilities"), JEC(), TagProp(), NeighborVotes()]
SCORERS += [LabelPropagation(graph=Graph(n_neighbors=5))]


@pytest.mark.parametrize("model", SCORERS, ids=lambda model: type(model).__name__)
def test_two_classes_have_one_score_as_in_scikit_learn(model, tmp_path):
    X, y = VIEWS["gist"], np.array(["no", "yes"])[TWO]
    fitted = clone(model).fit(X, y)
    assert is_classifier(model)
    scores = fitted.decision_function(X)
    assert scores.shape == (60,)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[(scores > 0).astype(int)])
    if hasattr(fitted, "predict_proba"):
        np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1.0)
    np.testing.assert_allclose(
        get_scorer("roc_auc")(fitted, X, y), roc_auc_score(TWO, fitted.decision_function(X)), rtol=1e-12
    )
    fitted.save(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(dmo.load(str(tmp_path / "m.zarr")).decision_function(X), scores)


def test_scikit_learn_s_tools_for_classifiers_take_ours():
    X, y = VIEWS["gist"], TWO
    folds = StratifiedKFold(5)
    aucs = cross_val_score(MultiViewRidge(), X, y, scoring="roc_auc")  # stratified by default
    np.testing.assert_array_equal(aucs, cross_val_score(MultiViewRidge(), X, y, scoring="roc_auc", cv=folds))
    assert aucs.mean() > 0.8
    calibrated = CalibratedClassifierCV(MultiViewRidge()).fit(X, y)
    assert calibrated.predict_proba(X).shape == (60, 2)
    tuned = TunedThresholdClassifierCV(MultiViewRidge(), scoring="f1", cv=3).fit(X, y)
    assert tuned.score(X, y) > 0.8
    stacked = StackingClassifier([("ridge", MultiViewRidge()), ("kgha", KGHA(n_components=1))], cv=3).fit(X, y)
    assert stacked.score(X, y) > 0.8
    one_rest = OneVsRestClassifier(MultiViewRidge()).fit(X, LABELS)
    np.testing.assert_allclose(one_rest.decision_function(X), 2 * MultiViewRidge().fit(X, LABELS).decision_function(X))


def test_predicted_labels_have_the_type_of_the_labels():
    for dtype in ("uint8", "int64", "float32", "bool"):
        fitted = MultiViewRidge().fit(VIEWS, LABELS.astype(dtype))
        assert fitted.predict(VIEWS).dtype == dtype


def test_pipeline_and_grid_search():
    X, y = VIEWS["gist"], np.arange(60) % 3
    pipeline = make_pipeline(StandardScaler(), MultiViewRidge())
    search = GridSearchCV(pipeline, {"multiviewridge__ridge": [0.1, 1.0]}, cv=3).fit(X, y)
    assert search.best_params_["multiviewridge__ridge"] in (0.1, 1.0)
    assert KGHA(n_components=2).fit(X, y).set_output(transform="pandas").transform(X).columns[0] == "kgha0"


NAMES = ["sky", "sea", "boat", "tree", "car", "dog"]
LISTS = [[NAMES[j] for j in np.flatnonzero(row)] for row in LABELS]
ONE_VIEW = [KGHA(n_components=3), MultiViewRidge(), LabelPropagation(), MORP(), MLSI(), MOPE(), MESD()]
ONE_VIEW += [TraceEmbedding("cca"), TraceEmbedding("fda")]


@pytest.mark.slow
@pytest.mark.parametrize("model", ONE_VIEW, ids=repr)
@pytest.mark.parametrize("kind", ["lists", "sets", "series of lists"])
def test_lists_of_labels_are_multilabelbinarizer_s_matrix(model, kind):
    given = {"lists": LISTS, "sets": [set(row) for row in LISTS], "series of lists": pd.Series(LISTS)}[kind]
    oracle = MultiLabelBinarizer().fit(LISTS)
    fitted, expected = clone(model).fit(VIEWS["gist"], given), clone(model)
    expected.fit(VIEWS["gist"], oracle.transform(LISTS))
    assert fitted.label_names_ == oracle.classes_.tolist()
    method = "decision_function" if hasattr(model, "decision_function") else "transform"
    found = getattr(fitted, method)(VIEWS["gist"])
    np.testing.assert_array_equal(found, getattr(expected, method)(VIEWS["gist"]))
    if hasattr(model, "predict"):
        named = fitted.predict(VIEWS["gist"], top=2, as_names=True)
        assert named == oracle.inverse_transform(fitted.predict(VIEWS["gist"], top=2))
        assert fitted.score(VIEWS["gist"], given) == expected.score(VIEWS["gist"], oracle.transform(LISTS))


def test_names_of_lists_survive_on_disk_and_an_unknown_label_is_left_out_of_a_score(tmp_path):
    model = KGHA(n_components=3).fit(VIEWS, LISTS)
    model.save(str(tmp_path / "model.zarr"))
    back = dmo.load(str(tmp_path / "model.zarr"))
    assert back.predict(VIEWS, as_names=True) == model.predict(VIEWS, as_names=True)
    with pytest.warns(UserWarning, match="unknown class.*'ufo'"):
        assert back.score(VIEWS, [[*row, "ufo"] for row in LISTS]) == model.score(VIEWS, LISTS)


@pytest.mark.parametrize("model", ONE_VIEW, ids=repr)
def test_names_of_data_frames_are_kept(model):
    columns = [f"f{j}" for j in range(8)]
    X, Y = pd.DataFrame(VIEWS["gist"], columns=columns), pd.DataFrame(LABELS, columns=NAMES)
    fitted = clone(model).fit(X, Y)
    assert fitted.feature_names_in_.tolist() == columns
    assert fitted.label_names_ == NAMES
    method = "transform" if hasattr(model, "transform") else "decision_function"
    plain = clone(model).fit(VIEWS["gist"], LABELS)
    assert_allclose(getattr(fitted, method)(X), getattr(plain, method)(VIEWS["gist"]), rtol=1e-8, atol=1e-10)
    if hasattr(model, "get_feature_names_out"):
        assert list(fitted.get_feature_names_out()) == list(fitted.set_output(transform="pandas").transform(X).columns)
    plain = fitted.fit(VIEWS["gist"], LABELS)
    assert not hasattr(plain, "label_names_")
    assert not hasattr(plain, "feature_names_in_")


def test_data_frames_in_another_order_are_refused(tmp_path):
    frame = pd.DataFrame(VIEWS["gist"], columns=list("abcdefgh"))
    views, Y = {"gist": frame, "hue": VIEWS["hue"]}, pd.DataFrame(LABELS, columns=NAMES)
    model = KGHA(n_components=3).fit(views, Y)
    model.save(str(tmp_path / "model.zarr"))
    model = dmo.load(str(tmp_path / "model.zarr"))
    with pytest.raises(
        dmo.UserError, match="KGHA: view 'gist' has the column 'h' at place 0, expected 'a' as in the fit"
    ):
        model.transform(views | {"gist": frame[frame.columns[::-1]]})
    with pytest.raises(dmo.UserError, match="KGHA: column 0 of y is 'dog', expected 'sky' as in the fit"):
        model.score(views, Y[NAMES[::-1]])


@pytest.mark.parametrize("text", [str, object, "string", "category"])
def test_classes_may_be_text(text):
    y = np.array(["cat", "dog", "owl"])[np.arange(60) % 3]
    given = y.astype(text) if text in (str, object) else pd.Series(y, dtype=text)
    model = KGHA(n_components=2).fit(VIEWS, given)
    assert model.classes_.tolist() == ["cat", "dog", "owl"]
    assert model.predict(VIEWS).tolist() == KGHA(n_components=2).fit(VIEWS, y).predict(VIEWS).tolist()
    assert model.score(VIEWS, given) == np.mean(model.predict(VIEWS) == y)


MODELS = [*ONE_VIEW, MultiSetCCA(), HomogeneityAnalysis(), LLTSVR(), CoupledSVR()]
SCALARS = [
    (model, name)
    for model in MODELS
    for name in needs_of(type(model))
    if name
    not in ("method", "n_neighbors", "decoder__prior_power", "decoder__standardize", "label_ridge", "kernel__gamma")
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), SCALARS, ids=lambda part: part if isinstance(part, str) else repr(part))
@pytest.mark.parametrize("value", ["many", -1.5, np.nan])
def test_a_parameter_that_is_not_what_it_must_be_is_named(model, name, value):
    with pytest.raises(dmo.UserError) as caught:
        clone(model).set_params(**{name: value}).fit(VIEWS["gist"], LABELS)
    shown = {place: flat for flat, place in places(type(model)).items()}.get(name, name)
    assert re.match(rf"{type(model).__name__}.*: {shown} = {value!r}; (needs|known)", str(caught.value))


def test_a_refused_setting_of_a_sweep_is_named():
    with pytest.raises(dmo.UserError, match="KGHA: ridge = -1; needs a positive number"):
        sweep(KGHA(), VIEWS, LABELS, {"ridge": [0.1, -1]})


def test_a_warning_points_at_the_caller():
    with pytest.warns(UserWarning, match="^KGHA: n_components = 20 is above the rank 6") as caught:
        KGHA(n_components=20).fit(VIEWS, LABELS)
    assert {warning.filename for warning in caught} == {__file__}


def nan_view():
    X = VIEWS["gist"].copy()
    X[3, 5] = np.nan
    return {"gist": X, "hue": VIEWS["hue"]}


def beside(column):
    """Return a table with a numeric column and the given column."""
    return pd.DataFrame({"width": np.arange(60.0), "made": column})


BAD = {
    "dates": (
        lambda: beside(pd.date_range("2020", periods=60)),
        LABELS,
        {},
        r"has '2020-01-01.* column 1 \('made'\)",
    ),
    "periods": (
        lambda: beside(pd.period_range("2020", periods=60)),
        LABELS,
        {},
        r"has '2020-01-01' at row 0, column 1",
    ),
    "dates alone": (lambda: np.full((60, 2), np.datetime64("2020-01-01")), LABELS, {}, "has '2020-01-01' at row 0"),
    "digits as text": (
        lambda: np.full((60, 2), "1"),
        LABELS,
        {},
        "view 'x' has '1' at row 0, column 0, but features",
    ),
    "dates on disk": (
        lambda: {"gist": da.from_array(np.full((60, 2), np.datetime64("2020")))},
        LABELS,
        {},
        "view 'gist' has dtype datetime64.*features must be numbers",
    ),
    "complex": (lambda: VIEWS["gist"] + 1j, LABELS, {}, "KGHA: Complex data not supported$"),
    "too small": (
        lambda: VIEWS["gist"] * 1e-170,
        LABELS,
        {"kernel": "rbf"},
        "too small: their squares underflow in float64",
    ),
    "NaN": (nan_view, LABELS, {}, "view 'gist' has NaN at row 3, column 5"),
    "unequal rows": (
        lambda: {"gist": VIEWS["gist"][:-1], "hue": VIEWS["hue"]},
        LABELS,
        {},
        "has 60 rows, expected 59 as in view 'gist'",
    ),
    "empty view": (lambda: {"gist": VIEWS["gist"], "hue": np.zeros((60, 0))}, LABELS, {}, "view 'hue' is empty"),
    "no views": (dict, LABELS, {}, "no views"),
    "labels of other rows": (lambda: VIEWS, LABELS[:50], {}, "y has 50 rows, X has 60"),
    "labels not 0/1": (lambda: VIEWS, LABELS * 2, {}, "labels must be 0 or 1, got 2"),
    "arguments swapped": (
        lambda: LABELS,
        VIEWS,
        {},
        r"KGHA: y is views \['gist', 'hue'\].* views first and the labels",
    ),
    "a list of views as labels": (lambda: LABELS, list(VIEWS.values()), {}, "y is a list of 2 arrays"),
    "lists of labels as views": (lambda: LISTS, LABELS, {}, "X has rows of unequal lengths; pass samples x features f"),
    "a vector as a view": (
        lambda: {"hue": VIEWS["hue"][:, 0]},
        LABELS,
        {},
        r"view 'hue' has shape \(60,\), expected samples x features; pass",
    ),
    "no text in a matrix": (
        lambda: VIEWS,
        LABELS.astype(str) + "s",
        {},
        "labels must be 0 or 1, got .*list of label nam",
    ),
    "classes of no type": (lambda: VIEWS, np.array(["a", 1] * 30, object), {}, "y mixes text and numbers"),
    "classes without order": (
        lambda: VIEWS,
        np.array([np.datetime64("2020").item(), 1] * 30, object),
        {},
        r"classes of mixed types \(date, int\) have no order; pass all as text",
    ),
    "complex outputs": (
        lambda: VIEWS,
        LABELS + 1j,
        {},
        "y contains complex numbers; pass real and imaginary parts as sep",
    ),
    "complex objects": (
        lambda: VIEWS,
        (LABELS + 1j).astype(object),
        {},
        "y contains complex numbers; pass real and imag",
    ),
    "a class that is missing": (lambda: VIEWS, np.array([*"abc" * 19, *"ab", None]), {}, "NaN or None at row 59"),
    "a ridge of one view": (
        lambda: VIEWS,
        LABELS,
        {"ridge": {"gist": 1, "hue": 0}},
        "ridge of view 'hue' = 0; needs a p",
    ),
    "a ridge of no view": (
        lambda: VIEWS,
        LABELS,
        {"ridge": {"gist": 1, "hue": 1, "x": 1}},
        "entry for 'x', which is no",
    ),
    "no labels": (lambda: VIEWS, LABELS * 0, {}, "no sample has a label"),
    "too many components": (lambda: VIEWS, LABELS, {"n_components": 60}, "n_components = 60, but there are 60 samples"),
    "a negative ridge": (lambda: VIEWS, LABELS, {"ridge": -1.0}, "KGHA: ridge = -1.0; needs a positive number"),
    "a ridge for another view": (lambda: VIEWS, LABELS, {"ridge": {"gist": 0.1}}, "ridge has no entry for view 'hue'"),
    "an unknown kernel": (lambda: VIEWS, LABELS, {"kernel": "rfb"}, "rfb"),
    "an unknown solver": (lambda: VIEWS, LABELS, {"solver": "newton"}, "known: 'krylov', 'als'"),
    "an unknown approximation": (lambda: VIEWS, LABELS, {"approximation": "magic"}, "approximation = 'magic'"),
}


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
def test_bad_input_gets_a_sentence(case):
    views, labels, parameters, sentence = BAD[case]
    with pytest.raises(ValueError, match=sentence) as caught:
        KGHA(**parameters).fit(views(), labels)
    assert "\n" not in str(caught.value)


def test_a_model_refuses_other_views():
    model = MultiViewRidge(combine="kernels").fit(VIEWS, LABELS)
    with pytest.raises(ValueError, match=r"view 'hue' is missing; the model was fitted on \['gist', 'hue'\]"):
        model.decision_function({"gist": VIEWS["gist"]})
    with pytest.raises(ValueError, match="view 'hue' has 4 features, expected 5 as in the fit"):
        model.decision_function({"gist": VIEWS["gist"], "hue": VIEWS["hue"][:, :4]})


def test_views_under_other_names_are_refused():
    model = MultiViewRidge().fit(VIEWS, LABELS)
    with pytest.raises(
        dmo.UserError, match=r"MultiViewRidge: view 'x' is unknown; the model was fitted on \['gist', 'hue'"
    ):
        model.predict(VIEWS | {"x": VIEWS["hue"]})
    with pytest.raises(
        dmo.UserError, match=r"view 'gist' is missing; .*, got \['view0', 'view1'\]; pass a mapping with"
    ):
        model.predict(list(VIEWS.values()))
    with pytest.raises(
        dmo.UserError, match="view 'hue' has 9 rows, expected 60 as in view 'gist'; pass the same samples in every v"
    ):
        model.predict({"gist": VIEWS["gist"], "hue": VIEWS["hue"][:9]})
    with pytest.raises(dmo.UserError, match="y has 59 rows, X has 60; pass one row of y per sample"):
        model.score(VIEWS, LABELS[1:])


def test_a_ridge_below_the_rounding_of_float32_is_refused_or_taken_in_float64():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2300, 3)).astype(np.float32)
    y = rng.integers(0, 2, 2300)
    with pytest.raises(ValueError, match=r"ridge 1e-09 is below the noise floor .* float32 kernel of view 'x'"):
        MultiViewRidge(ridge=1e-9, approximation=Exact(precision="float32")).fit(X, y)
    model = MultiViewRidge(ridge=1e-7).fit(X, y)
    assert next(iter(model.expansions_.values())).dtype == np.float64


def whole_numbers(n=300, d=4, labels=6, seed=0):
    """Return integer features from 0 to 50, whose sums are exact in float64, and labels that depend on the features."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 51, (n, d)).astype(np.float64)
    raw = X @ rng.standard_normal((d, labels)) + 9 * rng.standard_normal((n, labels))
    return X, (raw > np.quantile(raw, 0.7, axis=0)).astype(np.uint8)


def svd_ridge(X, ridge, Y):
    """Compute the scores of a centered linear ridge regression from a singular value decomposition."""
    U, s, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    return U @ ((s**2 / (s**2 + ridge))[:, None] * (U.T @ (Y - Y.mean(axis=0))))


@pytest.mark.filterwarnings("ignore:300 of 300 samples are fitted almost exactly")
@pytest.mark.parametrize("d", [4, 400])
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e3, 1e4, 1e5, 1e7])
def test_a_linear_ridge_regression_is_that_of_singular_values_at_every_scale(factor, d):
    X, Y = whole_numbers(d=d)
    for ridge in (0.01, 0.01 * factor**2):
        model = MultiViewRidge("linear", ridge=ridge, approximation="exact").fit(X * factor, Y)
        assert_allclose(model.decision_function(X * factor), svd_ridge(X * factor, ridge, Y), atol=1e-9)


@pytest.mark.parametrize("combine", ["predictions", "kernels"])
def test_views_of_every_scale_and_offset_are_averaged_as_they_should(combine):
    X, Y = whole_numbers(d=7)
    left, right = X[:, :4], X[:, 4:]
    views = {"a": left * 1e4 + 1e9, "b": right * 1e-4}
    model = MultiViewRidge("linear", ridge=0.5, combine=combine, approximation="exact").fit(views, Y)
    wanted = (svd_ridge(left * 1e4, 0.5, Y) + svd_ridge(right * 1e-4, 0.5, Y)) / 2
    if combine == "kernels":
        wanted = svd_ridge(np.hstack([left * 1e4, right * 1e-4]) / np.sqrt(2), 0.5, Y)
    assert_allclose(model.decision_function(views), wanted, atol=1e-8)


def test_leave_one_out_statistics_of_a_linear_kernel_are_those_of_as_many_fits():
    X, Y = whole_numbers(n=40)
    model = MultiViewRidge(
        "linear", ridge=1e-4, center=False, decoder=Scores(standardize=1.0), approximation="exact"
    ).fit(X * 1e4, Y)
    held = np.empty(Y.shape)
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        augmented = np.vstack([X[rest] * 1e4, np.sqrt(1e-4) * np.eye(X.shape[1])])
        padded = np.vstack([Y[rest], np.zeros((X.shape[1], Y.shape[1]))])
        held[i] = X[i] * 1e4 @ np.linalg.lstsq(augmented, padded, rcond=None)[0]
    assert_allclose(model.rule_.mean, held.mean(axis=0), atol=1e-10)
    assert_allclose(model.rule_.deviation, held.std(axis=0), atol=1e-10)


LINEAR = {
    "ridge": lambda: MultiViewRidge("linear", ridge=0.1, approximation="exact"),
    "kgha": lambda: KGHA("linear", ridge=0.1, n_components=3, solver=Solver(tol=1e-11), approximation="exact"),
    "multiset": lambda: MultiSetCCA(
        "linear", ridge=1e4, n_components=2, solver=Solver(tol=1e-11), approximation="exact"
    ),
    "svr": lambda: dmo.LLTSVR("linear", C=1e-3, frame="identity", tol=1e-6, decoder=Scores(label_sets=False)),
    "morp": lambda: dmo.MORP("linear", ridge=0.1, n_components=3),
}
KINDS = {
    "sparse": scipy.sparse.csr_array,
    "sparse whole": lambda X: scipy.sparse.csr_array(X.astype(np.int64)),
    "big-endian": lambda X: X.astype(">f8"),
    "whole": lambda X: X.astype(np.int64),
    "big-endian whole": lambda X: X.astype(">i4"),
    "half": lambda X: X.astype(np.float16),
    "single": lambda X: X.astype(np.float32),
    "whole far away": lambda X: X.astype(np.int64) + 10**8,
}


def learned(model, X, Y):
    model.fit(X, Y)
    apply = next(getattr(model, name) for name in ("decision_function", "predict", "transform") if hasattr(model, name))
    return apply(X)


@cache
def learned_from_numbers(estimator, d):
    return learned(LINEAR[estimator](), *whole_numbers(n=90, d=d))


OF_SVR = ("sparse", "whole far away")
"""Kinds of rows for which support vector regressions are tested with 4 columns, where a fit needs a second."""


@pytest.mark.parametrize(
    ("d", "kind", "estimator"),
    [
        (d, kind, estimator)
        for d in (4, 60)
        for kind in KINDS
        for estimator in LINEAR
        if estimator != "svr" or d == 60 or kind in OF_SVR
    ],
)
def test_rows_of_every_type_are_taken_as_the_numbers_that_they_are(d, kind, estimator):
    X, Y = whole_numbers(n=90, d=d)
    wanted, got = learned_from_numbers(estimator, d), learned(LINEAR[estimator](), KINDS[kind](X), Y)
    tol = 1e-2 if estimator == "svr" else 1e-7  # a duality gap of 1e-6 allows score errors of 1e-3
    tol = 2e-6 if (estimator, kind) == ("morp", "single") else tol  # float32 rows are multiplied in float32
    assert_allclose(got, wanted, atol=tol * np.abs(wanted).max())


@pytest.mark.parametrize("seed", range(6))  # the sign of a pivot near 0 depends on the seed
def test_a_ridge_that_rounding_hides_is_refused_with_the_smallest_that_it_does_not(seed):
    X, Y = whole_numbers(seed=seed)
    depends = np.hstack([X, X @ [[0.1], [0.2], [0.3], [0.4]]]) * 1e9
    with pytest.raises(
        ValueError, match=r"MultiViewRidge: view 'x': ridge 1e-09 is below .* can honor is \S+: raise"
    ) as got:
        MultiViewRidge("linear", ridge=1e-9, approximation="exact").fit(depends, Y)
    assert "\n" not in str(got.value)
    least = float(str(got.value).split("can honor is ")[1].split(":")[0])
    model = MultiViewRidge("linear", ridge=2 * least, approximation="exact").fit(depends, Y)
    assert_allclose(model.decision_function(depends), svd_ridge(X, 0.0, Y), atol=1e-6)


@pytest.mark.parametrize(("precision", "digits"), [("float32", 1e-4), ("float64", 1e-11)])
@pytest.mark.parametrize(
    "model", [MultiViewRidge(decoder=Scores(label_sets=False)), KGHA(decoder=Scores(label_sets=False), random_state=0)]
)
@pytest.mark.parametrize(
    "engine", [Exact, partial(Nystrom, rank=300), partial(Meka, clusters=3, rank=60)], ids=["exact", "nystrom", "meka"]
)
def test_a_row_alone_scores_as_among_others_to_the_stated_precision(engine, model, precision, digits):
    rng = np.random.default_rng(0)
    views = {"a": rng.standard_normal((600, 12)), "b": rng.standard_normal((600, 7)) + 2}
    raw = np.hstack(list(views.values())) @ rng.standard_normal((19, 6)) + rng.standard_normal((600, 6))
    fitted = clone(model).set_params(approximation=engine(precision=precision)).fit(views, (raw > 1).astype(np.uint8))
    new = {view: X[:40] + 0.1 for view, X in views.items()}
    among = fitted.decision_function(new)
    alone = np.vstack([fitted.decision_function({view: X[[i]] for view, X in new.items()}) for i in range(40)])
    assert_allclose(alone, among, rtol=0, atol=digits * np.abs(among).max())


def test_a_kernel_solve_that_rounding_spoils_is_told():
    rng = np.random.default_rng(0)
    with pytest.warns(InaccurateSolve, match=r"ridge 1e-11 has a relative residual of .*, above 1e-06: .* raise it"):
        MultiViewRidge(ridge=1e-11, center=False).fit(rng.standard_normal((700, 2)), rng.integers(0, 2, 700))


@pytest.mark.parametrize("method", ["mds", "donpp", "pca"])
@pytest.mark.parametrize("as_store", [False, True])
def test_features_whose_squares_overflow_are_refused(method: str, as_store: bool):
    X = np.random.default_rng(0).standard_normal((30, 4))
    X[7, 2] = -1e160
    given = da.from_array(X, chunks=(10, 4)) if as_store else X
    with pytest.raises(dmo.UserError, match=r"view 'x' has -1e\+160 at row 7, column 2; divide the features"):
        dmo.TraceEmbedding(method=method, n_components=2).fit(given, np.arange(30) % 3)


UNITS = {  # pairs of an estimator for a given ridge, and whether the estimator centers
    "ridge": (lambda c, how: MultiViewRidge("linear", ridge=c, approximation=how), True),
    "leave-one-out": (
        lambda c, how: MultiViewRidge("linear", ridge=c, decoder=Scores(standardize=0.5), approximation=how),
        True,
    ),
    "kgha": (
        lambda c, how: KGHA(
            "linear", ridge=c, label_ridge=0.1, n_components=3, solver=Solver(tol=1e-11), approximation=how
        ),
        True,
    ),
    "multiset": (
        lambda c, how: MultiSetCCA("linear", ridge=c, n_components=2, solver=Solver(tol=1e-11), approximation=how),
        True,
    ),
    "svr": (
        lambda c, how: dmo.LLTSVR(
            "linear", C=1 / c, frame="identity", tol=1e-6, decoder=Scores(label_sets=False), approximation=how
        ),
        True,
    ),
    "morp": (lambda c, how: dmo.MORP("linear", ridge=c, n_components=3, approximation=how), True),
    "simplified": (
        lambda c, how: dmo.MORP("linear", form="simplified", ridge=c, n_components=3, approximation=how),
        True,
    ),
    "mlsi": (lambda c, how: dmo.MLSI(ridge=c, n_components=3, dual=False, approximation=how), False),
    "mlsi of documents": (lambda c, how: dmo.MLSI(ridge=c, n_components=3, dual=True, approximation=how), False),
    "pca": (lambda c, how: dmo.TraceEmbedding("pca", kernel="linear", n_components=3, approximation=how), True),
    "pls": (lambda c, how: dmo.TraceEmbedding("pls", kernel="linear", n_components=3, approximation=how), True),
    "cca": (
        lambda c, how: dmo.TraceEmbedding("cca", kernel="linear", ridge=c, n_components=3, approximation=how),
        True,
    ),
}
MOVED = [(1e-6, 0.0), (1e-3, 0.0), (1e3, 0.0), (1e6, 0.0), (1.0, 1e6), (1e-3, 1e3), (1e3, -1e9)]
MOVED_FEW = [(1e-6, 0.0), (1e6, 0.0), (1e3, -1e9)]
"""Subset of the changes of units for estimators whose fit needs half a second."""


@cache
def learned_in_own_units(name):
    wanted = learned(UNITS[name][0](500.0, "exact"), *whole_numbers(n=90, d=6))
    return wanted / np.linalg.norm(wanted, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exact", Nystrom(rank=80)], ids=["exact", "moments"])
@pytest.mark.parametrize("name", UNITS)
def test_units_and_offsets_of_the_features_change_no_decision(name, how):
    make, centers = UNITS[name]
    X, Y = whole_numbers(n=90, d=6)
    wanted = learned_in_own_units(name)
    for factor, offset in [(1.0, 0.0), *(MOVED if name != "svr" else MOVED_FEW)]:
        if offset and not centers:
            continue
        got = learned(make(500.0 * factor**2, how), X * factor + offset, Y)
        got = got / np.linalg.norm(got, axis=0)  # coordinates scale with the features
        if name not in ("ridge", "leave-one-out", "kgha", "svr"):
            got = got * np.sign((got * wanted).sum(axis=0))
        tol = {"svr": 1e-2, "leave-one-out": 0.1 if how != "exact" else 1e-7}.get(name, 1e-6)
        assert_allclose(got, wanted, atol=tol, err_msg=f"{factor:g} x + {offset:g}")


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("how", ["exact", Nystrom(rank=80)], ids=["exact", "moments"])
def test_principal_components_of_rows_far_away_are_those_of_singular_values(how, offset):
    X, Y = whole_numbers(n=90, d=6)
    model = dmo.TraceEmbedding("pca", kernel="linear", n_components=3, approximation=how).fit(X + offset, Y)
    U, s, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    got = model.transform(X + offset)
    assert_allclose(np.abs(got.T @ U[:, :3]), np.diag(s[:3]), atol=1e-6 * s[0])


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_linear_models_have_coefficients_that_selections_of_features_take(scale):
    X = RNG.standard_normal((60, 5)) * [1, 10, 0.1, 5, 2000]
    Y = (X / [1, 10, 0.1, 5, 2000] @ RNG.standard_normal((5, 3)) > 0.5).astype(int)
    model = MultiViewRidge("linear", ridge=0.5, prepare=scale, intercept=True).fit(X, Y)
    if scale == "none":
        oracle = Ridge(0.5).fit(X, Y)
        np.testing.assert_allclose(model.coef_, oracle.coef_, atol=1e-12)
        np.testing.assert_allclose(model.intercept_, oracle.intercept_, atol=1e-12)
        numbers = X @ np.ones(5)
        np.testing.assert_allclose(
            MultiViewRidge("linear", ridge=0.5, prepare=scale, targets="real").fit(X, numbers).coef_,
            Ridge(0.5).fit(X, numbers).coef_,
        )
    np.testing.assert_allclose(X @ model.coef_.T + model.intercept_, model.decision_function(X), atol=1e-12)
    y = np.array(["no", "yes"])[Y[:, 0]]
    assert RFE(clone(model), n_features_to_select=2).fit(X, y).estimator_.coef_.shape == (1, 2)
    for other in (MultiViewRidge("linear"), MultiViewRidge().fit(X, y), MultiViewRidge("linear").fit([X, X], y)):
        assert not hasattr(other, "coef_")


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=20)], ids=["exact", "moments"])
@pytest.mark.parametrize("combine", ["predictions", "kernels"])
def test_a_ridge_per_label_is_one_fit_per_label(kernel, approximation, combine, tmp_path):
    views = {"a": RNG.standard_normal((60, 5)), "b": RNG.random((60, 4))}
    Y = (views["a"] @ RNG.standard_normal((5, 4)) > 0.3).astype(int)
    ridges = np.array([0.1, 10.0, 0.1, 1.0])
    plain = MultiViewRidge(kernel, approximation=approximation, combine=combine, decoder="calibrated")
    model = clone(plain).set_params(ridge=ridges, decoder=None).fit(views, Y)
    held_out = clone(plain).set_params(ridge=ridges).fit(views, Y).held_out_scores_
    for label, c in enumerate(ridges):
        alone = clone(plain).set_params(ridge=float(c)).fit(views, Y)
        np.testing.assert_allclose(held_out[:, label], alone.held_out_scores_[:, label], atol=1e-10)
        found = model.decision_function(views)[:, label]
        np.testing.assert_allclose(
            found, alone.set_params(decoder=None).fit(views, Y).decision_function(views)[:, label]
        )
    plain.set_params(decoder=None)
    if combine == "predictions":
        mixed = clone(plain).set_params(ridge={"a": ridges, "b": 0.5}).fit(views, Y)
        mixed.save(str(tmp_path / "m.zarr"))
        again = dmo.load(str(tmp_path / "m.zarr"))
        np.testing.assert_array_equal(again.ridge["a"], ridges)
        one = clone(plain).set_params(ridge={"a": 10.0, "b": 0.5}).fit(views, Y).decision_function(views)
        np.testing.assert_allclose(again.decision_function(views)[:, 1], one[:, 1], atol=1e-10)
    for refused, message in (
        ({"ridge": ridges[:3]}, "ridge has 3 values for 4 labels"),
        ({"ridge": -ridges}, "ridge = .*needs a positive number, or one per label"),
    ):
        with pytest.raises(ValueError, match=message):
            clone(plain).set_params(**refused).fit(views, Y)
    with pytest.raises(ValueError, match="a ridge per label does not support missing labels"):
        clone(plain).set_params(ridge=ridges).fit(views, np.where(np.eye(60, 4), np.nan, Y))


def views_and_targets(n, seed=0):
    """Return two views and three targets. The targets depend on view "a", on view "b" and on both views."""
    rng = np.random.default_rng(seed)
    views = {"a": rng.standard_normal((n, 6)), "b": 30 * rng.standard_normal((n, 9))}
    signals = (
        np.sin(views["a"] @ rng.standard_normal((6, 3)) / 2),
        np.sin(views["b"] @ rng.standard_normal((9, 3)) / 80),
    )
    shares = np.array([[1.0, 0.0, 0.7], [0.0, 1.0, 0.7]])
    return views, sum(s * x for s, x in zip(shares, signals, strict=True)) + 0.1 * rng.standard_normal((n, 3))


def kernels_by_hand(views, kernel):
    for X in views.values():
        d = ((X[:, None] - X[None]) ** 2).sum(axis=2)
        yield X @ X.T if kernel == "linear" else np.exp(-d / (2 * np.sqrt(d)[np.triu_indices(len(X), 1)].mean() ** 2))


@pytest.mark.parametrize("by_moments", [False, True])
def test_a_move_of_weights_per_target_makes_the_target_more_likely(by_moments):
    """Measure the likelihood with a Gaussian process whose scale is optimal."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((60, 4)) for _ in range(3)]
    K = np.stack([np.exp(-np.square(x[:, None] - x).sum(axis=-1) / 8) for x in rows])
    y = np.linalg.cholesky(K[1] + 0.1 * np.eye(60)) @ rng.standard_normal(60)

    def likelihood(w):
        A = np.tensordot(w, K, 1) + 0.1 * np.eye(60)
        return -(60 * np.log(y @ np.linalg.solve(A, y)) + np.linalg.slogdet(A)[1]) / 2

    before = np.full(3, 1 / 3)
    search = KernelSearch.of(K, y[:, None], False)
    if by_moments:
        factors = {f"{j}": np.linalg.cholesky(A + 1e-12 * np.eye(60)) for j, A in enumerate(K)}
        search = MomentSearch.of(Moments.of(factors | {"labels": y[:, None]}), False)
    search.weights[:], search.ridges[:] = before, 0.1
    after = search.moved(0)
    assert likelihood(after) > likelihood(before) + 1
    assert after.argmax() == 1


@pytest.mark.parametrize("center", [True, False])
def test_a_candidate_of_weights_per_target_is_scored_from_moments_as_from_kernels(center):
    rng = np.random.default_rng(1)
    F = [rng.standard_normal((80, width)) + 1 for width in (7, 12, 5)]
    Y = np.column_stack([F[0][:, 0], F[1] @ rng.standard_normal(12), rng.standard_normal(80)])
    Y += 0.5 * rng.standard_normal(Y.shape) + 2
    search = MomentSearch.of(Moments.of({f"{j}": part for j, part in enumerate(F)} | {"labels": Y}), center)
    H = np.eye(80) - (1 / 80 if center else 0.0)
    K = [H @ part @ part.T @ H for part in F]
    scale = [np.trace(A) / 80 for A in K]
    np.testing.assert_allclose(search.scale, scale)
    best = np.full((3, 2), np.inf)
    for w in ([0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.0, 0.7, 0.3]):
        search.score(np.array(w))
        A = sum(share / s * own for share, s, own in zip(w, scale, K, strict=True))
        for c in np.trace(A) / 80 * 10.0 ** np.arange(-4, 4.5, 0.5):
            left = c * np.linalg.inv(A + c * np.eye(80))
            error = np.square(left @ H @ Y).sum(axis=0) * (80 / (np.trace(left) - center)) ** 2
            better = error < best[:, 0]
            best[better] = np.column_stack([error, np.full(3, c)])[better]
    np.testing.assert_allclose(np.column_stack([search.errors, search.ridges]), best, rtol=1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
@pytest.mark.parametrize("center", [True, False])
def test_weights_per_target_are_one_ridge_regression_per_target(kernel, center, tmp_path):
    views, Y = views_and_targets(50)
    labels = (Y > 0.2).astype(int)
    plain = Scores(label_sets=False)
    model = MultiViewRidge(kernel, weights="per-target", center=center, prepare="none", decoder=plain).fit(
        views, labels
    )
    K = np.stack(list(kernels_by_hand(views, kernel)))
    fill = labels - labels.mean(axis=0) if center else labels.astype(float)
    held_out = clone(model).set_params(decoder="calibrated").fit(views, labels).held_out_scores_

    rest = np.array([np.delete(np.arange(50), i) for i in range(50)])

    def error(w, c, label):
        """Return the leave-one-out squared error and predictions, computed by refitting without each sample."""
        A = np.tensordot(w, K, 1)
        among, y = A[rest[:, :, None], rest[:, None]], fill[rest, label]
        mean = y.mean(axis=1, keepdims=True) if center else np.zeros((50, 1))
        columns, rows = among.mean(axis=1, keepdims=True), among.mean(axis=2, keepdims=True)
        centered = among - columns - rows + columns.mean(axis=2, keepdims=True) if center else among
        dual = np.linalg.solve(centered + c * np.eye(49), (y - mean)[:, :, None])[:, :, 0]
        shift = (columns[:, 0] * dual).sum(axis=1) if center else 0.0
        found = (A[np.arange(50)[:, None], rest] * dual).sum(axis=1) - shift + mean[:, 0]
        return ((fill[:, label] - found) ** 2).sum(), found

    for label, (w, c) in enumerate(zip(model.target_weights_, model.target_ridges_, strict=True)):
        own, alone = error(w, c, label)
        np.testing.assert_allclose(held_out[:, label], alone, atol=1e-8)
        scale = np.trace(K, axis1=1, axis2=2) / 50
        tried = [
            error(share / scale, c, label)[0]
            for share in np.column_stack([np.linspace(0, 1, 9), np.linspace(1, 0, 9)])
            for c in 10.0 ** np.arange(-3, 2.1)
        ]
        assert own < 1.02 * min(tried)
    one = MultiViewRidge(
        kernel, weights=dict(zip(views, w, strict=True)), ridge=c, combine="kernels", center=center, prepare="none"
    )
    scores = model.decision_function(views)
    np.testing.assert_allclose(scores[:, 2], one.fit(views, labels).decision_function(views)[:, 2], atol=1e-8)
    model.save(str(tmp_path / "m.zarr"))
    again = dmo.load(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(again.decision_function(views), scores)
    np.testing.assert_array_equal(again.target_importances_, model.target_importances_)


@pytest.mark.parametrize("center", [True, False])
def test_weights_per_target_of_moments_are_one_ridge_regression_per_target(center):
    views, Y = views_and_targets(90)
    views["b"] /= 40
    own = {"center": center, "prepare": "none", "targets": "real", "approximation": Nystrom(rank=9)}
    model = MultiViewRidge("linear", weights="per-target", **own).fit(views, Y)
    H = np.eye(90) - (1 / 90 if center else 0.0)
    K = [H @ A @ H for A in kernels_by_hand(views, "linear")]
    targets = (Y - Y.mean(axis=0)) / Y.std(axis=0)  # real targets are standardized before the fit
    told = (model.predict(views) - Y.mean(axis=0)) / Y.std(axis=0)
    for j, (w, c) in enumerate(zip(model.target_weights_, model.target_ridges_, strict=True)):
        dual = np.linalg.solve(w[0] * K[0] + w[1] * K[1] + c * np.eye(90), targets[:, j])
        parts = [share * A @ dual for share, A in zip(w, K, strict=True)]
        np.testing.assert_allclose(told[:, j], sum(parts), atol=1e-4)
        shares = [part @ sum(parts) / np.square(sum(parts)).sum() for part in parts]
        np.testing.assert_allclose(model.target_importances_[j], shares, atol=1e-4)


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=100)])
def test_weights_per_target_give_every_target_its_view(approximation):
    views, Y = views_and_targets(400)
    old, new = ({view: X[part] for view, X in views.items()} for part in (slice(0, 200), slice(200, None)))
    truth = Y[200:]

    def explained(**parameters):
        model = MultiViewRidge("rbf", combine="kernels", approximation=approximation, **parameters).fit(old, Y[:200])
        return model, 1 - ((truth - model.predict(new)) ** 2).sum(axis=0) / ((truth - truth.mean(axis=0)) ** 2).sum(
            axis=0
        )

    model, found = explained(weights="per-target")
    shared = max((explained(ridge=c)[1] for c in (0.01, 0.03, 0.1, 0.3)), key=np.mean)
    assert (found[:2] > shared[:2]).all()
    assert found[:2].mean() > shared[:2].mean() + 0.03
    assert found[2] > shared[2] - 0.02
    assert model.target_importances_.sum(axis=1) == pytest.approx(np.ones(3))
    assert (model.target_importances_[[0, 1], [0, 1]] > 0.95).all()
    assert 0.3 < model.target_importances_[2, 0] < 0.7
    assert model.view_weights_ == pytest.approx(dict(zip(views, model.target_weights_.mean(axis=0), strict=True)))


def test_weights_per_target_of_more_rows_than_are_searched_are_nearly_the_same(monkeypatch):
    views, Y = views_and_targets(300)
    whole = MultiViewRidge("rbf", weights="per-target").fit(views, Y)
    monkeypatch.setattr("dmo.methods.ridge.SEARCHED", 200)
    some = MultiViewRidge("rbf", weights="per-target").fit(views, Y)
    assert not np.array_equal(some.target_ridges_, whole.target_ridges_)
    assert np.corrcoef(some.predict(views).ravel(), whole.predict(views).ravel())[0, 1] > 0.99


def test_weights_per_target_of_more_columns_than_are_searched_are_nearly_the_same(monkeypatch):
    views, Y = views_and_targets(300)
    model = MultiViewRidge("rbf", weights="per-target", approximation=Nystrom(rank=60))
    whole = clone(model).fit(views, Y)
    monkeypatch.setattr("dmo.methods.view_weights.SEARCHED", 90)
    some = clone(model).fit(views, Y)
    assert not np.array_equal(some.target_ridges_, whole.target_ridges_)
    assert np.corrcoef(some.predict(views).ravel(), whole.predict(views).ravel())[0, 1] > 0.98


def test_weights_per_target_of_further_rows_are_those_of_all():
    views, Y = views_and_targets(200)
    model = MultiViewRidge(
        "linear", weights="per-target", approximation=Nystrom(rank=9), targets="real", prepare="none"
    )
    together, parts = clone(model).fit(views, Y), clone(model)
    for part in (slice(0, 120), slice(120, 200)):
        parts.partial_fit({view: X[part] for view, X in views.items()}, Y[part])
    assert_allclose(parts.predict(views), together.predict(views), rtol=0.05, atol=0.05)
    with pytest.raises(ValueError, match=r"use fit, or decoder=Scores\(label_sets=False\)$"):
        clone(model).set_params(targets="labels").partial_fit(views, (Y > 0.2).astype(int))
    clone(model).set_params(targets="labels", decoder=Scores(label_sets=False)).partial_fit(
        views, (Y > 0.2).astype(int)
    )


@pytest.mark.parametrize(
    ("parameters", "change"),
    [
        ({"combine": "product"}, {"combine": "kernels"}),
        ({"kernel": "product"}, {"kernel": "rbf"}),
        ({"approximation": Nystrom(rank=20, solver="cg")}, {"approximation": Nystrom(rank=20, solver="direct")}),
        ({"approximation": "nystrom", "combine": "product"}, {"combine": "kernels"}),
        ({"approximation": Exact(storage="recomputed")}, {"approximation": Exact()}),
        ({"class_weight": "balanced"}, {"class_weight": None}),
    ],
)
def test_what_weights_per_target_do_not_take_is_told_with_what_they_do(parameters, change):
    model = MultiViewRidge(weights="per-target").set_params(**parameters)
    with pytest.raises(
        ValueError, match=r"^MultiViewRidge: weights='per-target' (does not support|needs) .*; (pass|use) "
    ):
        model.fit(VIEWS, LABELS)
    model.set_params(**change).fit(VIEWS, LABELS)


@pytest.mark.parametrize(("approximation", "n"), [("auto", 120), (Nystrom(rank=20), 300)])
def test_a_search_with_weights_per_target_searches_kernels_first(approximation, n):
    views, Y = views_and_targets(n)
    model = dmo.tune(MultiViewRidge(weights="per-target", approximation=approximation), views, Y)
    assert model.weights == "per-target"
    by_target = [row["mean"] for row in model.tuning_.table if row.get("weights") == "per-target"]
    assert [model.tuning_.best_score] == by_target
    assert by_target[0] > max(row["mean"] for row in model.tuning_.table if "weights" not in row)


@pytest.mark.slow
def test_a_ridge_holds_the_tiles_of_one_view_at_a_time(client, monkeypatch):
    made, under = [], Groups.under

    def fitted(self, *given):
        assert not any(operator() for operator in made)
        view = under(self, *given)
        made.append(weakref.ref(view.built.operator))
        return view

    monkeypatch.setattr(Groups, "under", fitted)
    with connect(client):
        MultiViewRidge(approximation=Exact("resident", block=20)).fit(VIEWS | {"edge": VIEWS["hue"] ** 2}, LABELS)
    assert len(made) == 3


def test_a_product_kernel_as_an_object_is_that_of_its_name(tmp_path):
    views = {"hue": np.abs(VIEWS["hue"]), "edge": np.abs(VIEWS["hue"][:, ::-1]) ** 2}
    named = MultiViewRidge("product", distances="chi2", gamma=1.5, weights="tagprop").fit(views, LABELS)
    model = (
        MultiViewRidge(dmo.ProductKernel("chi2", weights="tagprop")).set_params(kernel__gamma=1.5).fit(views, LABELS)
    )
    assert model.view_weights_ == named.view_weights_
    np.testing.assert_array_equal(model.predict_proba(views), named.predict_proba(views))
    model.save(str(tmp_path / "model.zarr"))
    loaded = dmo.load(str(tmp_path / "model.zarr"))
    assert loaded.kernel == model.kernel
    np.testing.assert_array_equal(loaded.decision_function(views), model.decision_function(views))
    with pytest.raises(
        dmo.UserError, match=r"MultiViewRidge: gamma = 3.0 was passed with kernel=ProductKernel\(...\); pass"
    ):
        MultiViewRidge(dmo.ProductKernel(), gamma=3.0).fit(views, LABELS)
    # The fit succeeds if `gamma` is passed as the message suggests.
    assert model.set_params(kernel=dmo.ProductKernel(gamma=3.0)).fit(views, LABELS).is_exact
    with pytest.raises(dmo.UserError, match=r"gamma = -1\.0; needs a positive number"):
        MultiViewRidge(dmo.ProductKernel(gamma=-1.0)).fit(views, LABELS)


@pytest.mark.parametrize("model", [KGHA, MultiViewRidge])
def test_weights_learned_from_labels_are_refused_for_numbers(model):
    with pytest.raises(dmo.UserError, match="weights = 'tagprop' needs labels, but y has regression targets"):
        model(dmo.ProductKernel(weights="tagprop")).fit(VIEWS, VIEWS["hue"][:, :2])


def test_where_kernels_live_is_chosen_once_and_told_once(caplog):
    with caplog.at_level("INFO", logger="dmo"):
        MultiViewRidge(decoder=Scores(label_sets=False), approximation="exact").fit(VIEWS, LABELS)
    assert sum(text.startswith("kernels memory: ") for text in caplog.messages) == 1

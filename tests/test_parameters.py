"""Test parameter objects, nested parameters, names as shortcuts, and parameters of earlier versions."""

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dmo
from dmo import MOPE, Graph, MethodOptions, Prepare, ProductKernel, Proximity, Solver, TraceEmbedding, UserError
from dmo.cli.estimator_options import options_of
from dmo.decoders import PlugIn, Scores
from dmo.parameters import flat, nested, parts_of, placed, places
from dmo.persistence import described, rebuilt
from dmo.selection import sweep

KINDS = [kind for name in dmo.__all__ if hasattr(kind := getattr(dmo, name), "_needs") and hasattr(kind, "fit")]
rng = np.random.default_rng(0)
X, Y = rng.standard_normal((40, 6)), (rng.random((40, 3)) < 0.5).astype(np.uint8)
Y[:, 0] = X[:, 0] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_of_an_object_is_reached_by_its_nested_and_its_flat_name(kind: Any) -> None:
    model = kind()
    if "kernel__gamma" in places(kind).values():  # only the product kernel has `gamma`
        model.set_params(kernel="product")
    for name, place in places(kind).items():
        value = nested(model)[place]
        assert flat(model)[name] is value or flat(model)[name] == value
        new = value if place.startswith("proximity__") else "changed"  # a `Proximity` rejects invalid values
        changed = clone(model).set_params(**{place: new})
        assert vars(getattr(changed, place.partition("__")[0]))[place.partition("__")[2]] == new
        assert clone(changed).get_params()[place] == new
        if name not in kind._get_param_names():
            with pytest.raises(UserError, match=rf"^{kind.__name__}: {name} is now \w+=\w+\(\w+='changed'\)$"):
                kind(**{name: "changed"})
            with pytest.raises(UserError, match=f"{name} is now"):
                model.set_params(**{name: "changed"})


@pytest.mark.parametrize("kind", KINDS)
def test_the_shell_has_the_flat_names(kind: Any) -> None:
    unsaid = {name for name in places(kind) if name in ("views",)}
    assert set(places(kind)) - unsaid <= set(options_of(kind.__name__))
    assert not {part.parameter for part in parts_of(kind) if part.kind._short} & {
        o.place for o in options_of(kind.__name__).values()
    }


def test_a_class_shows_its_own_signature() -> None:
    assert list(inspect.signature(MOPE).parameters)[:3] == ["proximity", "combination", "graph"]
    assert not [kind.__name__ for kind in KINDS if len(inspect.signature(kind).parameters) > 14]
    with pytest.raises(UserError, match=r"^MOPE has no parameter 'grap'; did you mean graph\?"):
        MOPE(grap=3)  # type: ignore[call-arg]


def test_a_plain_value_creates_the_parameter_object() -> None:
    for bare, whole in (
        (MOPE("bits", graph="local"), MOPE(Proximity("bits"), graph=Graph(weight="local"))),
        (MOPE(graph=7), MOPE(graph=Graph(7), solver=Solver(tol=1e-6))),
        (TraceEmbedding(prepare="standard"), TraceEmbedding(prepare=Prepare("standard"))),
        (TraceEmbedding(options=None), TraceEmbedding(options=MethodOptions())),
    ):
        assert [flat(bare)[name] for name in places(type(bare))] == [flat(whole)[name] for name in places(type(whole))]
    assert Graph(5) == Graph(5)
    assert Graph(5) != Graph(6)
    assert Graph(5) != Solver()


def test_unknown_parameters_are_rejected() -> None:
    with pytest.raises(UserError, match=r"^MESD\('fda'\): does not use search of graph=Graph\(...\); leave it out"):
        dmo.MESD(graph=Graph(search="approximate")).fit(X, Y)
    with pytest.raises(UserError, match="does not use views of prepare=Prepare"):
        TraceEmbedding(prepare=Prepare(views={"a": [0]})).fit(X)
    with pytest.raises(UserError, match="Graph has no parameter 'k'; it has n_neighbors"):
        MOPE().set_params(graph__k=3)
    with pytest.raises(UserError, match="MOPE: tol = 0; needs a positive number"):
        MOPE(solver=Solver(tol=0)).fit(X, Y)


def test_a_name_of_a_decoder_stands_for_its_object_and_no_other_is_put_in_its_place() -> None:
    assert dmo.MORP(decoder="f1@2").set_params(decoder__metric="f1@3").decoder == PlugIn("f1@3")
    assert clone(dmo.MORP(decoder=PlugIn("f1@2", 50))).get_params()["decoder__size"] == 50
    with pytest.raises(UserError, match="PlugIn has no parameter 'prior_power'; it has metric, size"):
        dmo.KGHA(decoder="f1@2").set_params(decoder__prior_power=0.5)
    with pytest.raises(UserError, match=r"PlugIn: metric = 'f1@0'"):
        dmo.KGHA(n_components=1, decoder=PlugIn()).set_params(decoder__metric="f1@0").fit(X, Y)
    with pytest.raises(UserError, match=r"MORP: does not use standardize of decoder=Scores\(...\); leave it out"):
        dmo.MORP(decoder=Scores(standardize=1.0)).fit(X, Y)
    with pytest.raises(UserError, match=r"JEC: decoder = Scores\(\); known: 'calibrated'"):
        dmo.JEC(decoder=Scores()).fit(X, Y)


def test_a_sweep_tries_objects_beside_names() -> None:
    tried = [Scores(), Scores(standardize=1.0), "calibrated"]
    found = sweep(dmo.MultiViewRidge(), X, Y, {"decoder": tried, "ridge": [0.1, 1.0]}, metric="f1@2", refit=False)
    alone = [
        sweep(dmo.MultiViewRidge(decoder=own), X, Y, {"ridge": [0.1, 1.0]}, metric="f1@2", refit=False) for own in tried
    ]
    means = [row["mean"] for part in alone for row in part.table]
    np.testing.assert_allclose(sorted(row["mean"] for row in found.table), sorted(means), atol=1e-12)


def test_scikit_learn_searches_nested_parameters_of_a_name() -> None:
    found = GridSearchCV(dmo.MultiViewRidge(), {"prepare__scale": ["none", "standard"]}, cv=2).fit(X, Y)
    assert found.best_estimator_.prepare.scale == found.best_params_["prepare__scale"]


OLD: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "MOPE": (
        MOPE("bits", graph="all", n_components=1),
        {
            "scheme": "bits",
            "n_neighbors": None,
            "tau": 2.0,
            "combination": "sum",
            "beta": 0.5,
            "tol": 1e-4,
            "scale": "none",
        },
        {
            "graph": Graph("all", tau=2.0),
            "combination": dmo.Combine("sum", beta=0.5),
            "solver": Solver(tol=1e-4),
            "proximity": Proximity("bits"),
            "prepare": Prepare("none"),
        },
    ),
    "TraceEmbedding": (
        TraceEmbedding("lpp"),
        {"method": "lpp", "n_neighbors": None, "weight": None, "mixing": None, "tol": 1e-5, "impute": "mean"},
        {"graph": Graph(), "options": MethodOptions(), "solver": Solver(tol=1e-5), "prepare": Prepare(impute="mean")},
    ),
    "MultiViewRidge": (
        dmo.MultiViewRidge("linear"),
        {"kernel": "linear", "scale": {"x": "l2"}, "impute": None, "views": None},
        {"kernel": "linear", "prepare": Prepare({"x": "l2"})},
    ),
    "KGHA": (
        dmo.KGHA(decoder=Scores(prior_power=0.25, label_sets=False)),
        {
            "kernel": "rbf",
            "distances": "auto",
            "gamma": 2.0,
            "weights": None,
            "decoder": None,
            "prior_power": 0.25,
            "standardize": 0.0,
            "propensity": False,
            "label_sets": False,
        },
        {"kernel": "rbf", "decoder": Scores(prior_power=0.25, label_sets=False)},
    ),
    "KGHA, product": (
        dmo.KGHA(ProductKernel("l2", weights="alignment"), approximation="exact"),
        {"kernel": "product", "distances": "l2", "gamma": 2.0, "weights": "alignment"},
        {"kernel": ProductKernel("l2", weights="alignment")},
    ),
    "MORP": (
        dmo.MORP(decoder="probabilities"),
        {"decoder": "probabilities", "label_sets": True},
        {"decoder": "probabilities"},
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_models_of_versions_without_objects_are_read(name: str) -> None:
    model, parameters, wanted = OLD[name]
    if name == "MOPE":
        model.set_params(graph=Graph("all"))
    model = model.fit(X, Y)
    arrays, meta = described(model)
    own = {key: value for key, value in meta["parameters"].items() if key not in wanted}
    old = meta | {"parameters": {key: value for key, value in own.items() if key not in parameters} | parameters}
    if name == "MultiViewRidge":
        old["parameters"]["scale"] = {"mapping": {"x": "l2"}}
    found = rebuilt(arrays, old)
    assert {key: getattr(found, key) for key in wanted} == wanted
    np.testing.assert_array_equal(found.predict(X), model.predict(X)) if name != "TraceEmbedding" else None
    assert placed(type(model), model.get_params(deep=False)) == model.get_params(deep=False)


@pytest.mark.parametrize("kind", KINDS)
def test_estimators_are_not_dataclasses(kind: Any) -> None:
    assert not dataclasses.is_dataclass(kind)  # for dataclasses, Dask would compute equal tokens for two fits
    assert not {"approximation", "decoder", "random_state"} & vars(kind).keys()


def test_parameter_names_are_cached_per_class(monkeypatch: Any) -> None:
    class Own(dmo.KGHA):
        def __init__(self, kernel: Any = "rbf", own: int = 1):
            super().__init__(kernel)
            self.own = own

    asked = [kind().get_params(deep=False) for kind in (dmo.KGHA, Own, Scores)]
    assert asked[1].keys() == {"kernel", "own"} < {*asked[0], "own"}
    monkeypatch.setattr("sklearn.base.inspect.signature", lambda *_: pytest.fail("a signature was read again"))
    assert [kind().get_params(deep=False).keys() for kind in (dmo.KGHA, Own, Scores)] == [a.keys() for a in asked]

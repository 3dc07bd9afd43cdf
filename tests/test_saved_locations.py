"""Check that paths and URLs in a loaded model are not accessed unless the user passes them again."""

import builtins
import inspect
import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import fsspec.core
import numpy as np
import pandas as pd
import pytest
import shell
from sklearn.base import BaseEstimator, clone

import dmo
from dmo import KGHA, Exact, FastTag, MultiViewRidge, NeighborVotes, stores
from dmo.decoders import Calibration, PlugIn, PooledCalibration, Scores
from dmo.errors import UserError
from dmo.methods.base import SweepResult
from dmo.parameters import LOCATIONS, SavedLocation
from dmo.persistence import Persistent, decoded, described, rebuilt
from dmo.workflows.apply import named_store
from dmo.workflows.rows import open_trial

PLAIN_TEXT = {
    "class_similarity": "name of a similarity",
    "data": "arrays of `Views`, which no model stores",
    "decoder": "name of a decoder",
    "distances": "name of a distance",
    "graph": "name of a weight of edges",
    "kernel": "name of a kernel",
    "label_kernel": "name of a kernel",
    "method": "name in the catalog",
    "metric": "name of a metric",
    "projection": "name of a projection",
    "ridge": "numbers by view",
    "similarity": "name of a similarity",
    "supervised": "name in the catalog",
    "unsupervised": "name in the catalog",
    "views": "names of columns",
    "weight": "name of a weight of edges",
}
"""Meaning of each text parameter that is not a location. Add new text parameters here or to
`dmo.parameters.LOCATIONS`."""
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(48, 4)), (RNG.random((48, 4)) < 0.4).astype(np.uint8)
HIERARCHY = {"1": ["0"], "2": ["7"]}
"""Label hierarchy in which label 7 is not a column of `Y`."""


def _public() -> dict[str, type]:
    """Return the public classes that a saved model can refer to."""
    places = [import_module(name) for name in ("dmo", "dmo.decoders", "dmo.labels.label_kernels")]
    found = {name: getattr(place, name) for place in places for name in place.__all__}
    return {name: kind for name, kind in found.items() if isinstance(kind, type)}


def _admits_text(hint: Any) -> bool:
    if hint in (str, Any, object):
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return False
    if origin not in (Union, UnionType, None) and issubclass(origin, Mapping):
        inner = inner[1:]  # mapping keys are view names
    return any(map(_admits_text, inner))


def _text_parameters(kind: type) -> list[str]:
    init = vars(kind).get("__init__", kind.__init__)
    hints = get_type_hints(init)
    return [name for name in inspect.signature(kind).parameters if _admits_text(hints.get(name, Any))]


def test_text_parameters_are_classified():
    found = {name for kind in _public().values() if not issubclass(kind, Exception) for name in _text_parameters(kind)}
    assert found == {*PLAIN_TEXT, *LOCATIONS}


class Trap:
    """Recorder of file system and fsspec calls that access a FIFO or a URL."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.path, self.url, self.touched = str(folder / "trap"), "http://127.0.0.1:9/trap", list[str]()
        os.mkfifo(self.path)
        calls = [(builtins, "open"), (io, "open"), (fsspec.core, "url_to_fs")]
        calls += [
            (os, name) for name in ("open", "mkdir", "makedirs", "replace", "rename", "listdir", "scandir", "unlink")
        ]
        for place, name in calls:
            monkeypatch.setattr(place, name, self._watched(getattr(place, name)))

    def _watched(self, call: Any) -> Any:
        def watched(*given: Any, **options: Any) -> Any:
            for value in given:
                if any(place in repr(value) for place in (self.path, self.url)):
                    self.touched.append(f"{call.__name__}({value})")
                    raise FileNotFoundError(f"trap {value}")  # a FIFO without a writer would block
            return call(*given, **options)

        return watched


@pytest.fixture
def trap(tmp_path, monkeypatch):
    return Trap(tmp_path, monkeypatch)


def _forged(model: Any, change: Any) -> Any:
    """Load a model after changing the parameters in its stored description."""
    arrays, description = described(model)
    description = json.loads(json.dumps(description))
    change(description["parameters"])
    return rebuilt(arrays, description)


def _object(name: str, **arguments: Any) -> dict[str, Any]:
    return {"object": name, "arguments": arguments}


def _places() -> dict[str, Any]:
    """Return an estimator, a parameter and a value for each place where stored parameters can contain locations."""
    decoders = [kind.__name__ for kind in (Calibration, PlugIn, PooledCalibration, Scores)]
    found = {f"decoder {name}": (MultiViewRidge(), "decoder", name, "hierarchy") for name in decoders}
    found |= {f"base of {kind.__name__}": (kind(), "base", "", "") for kind in (FastTag, NeighborVotes)}
    found["engine"] = (MultiViewRidge(), "approximation", "Exact", "path")
    found["engine of a base"] = (FastTag(MultiViewRidge()), "base", "MultiViewRidge", "approximation")
    found["flat hierarchy"] = (MultiViewRidge(), "hierarchy", "", "")
    return found


def _value(kind: str, name: str, location: Any) -> Any:
    more = {"storage": "stored"} if kind == "Exact" else {}
    if name == "approximation":
        location = _value("Exact", "path", location)
    return _object(kind, **{name: location}, **more) if kind else location


@pytest.mark.parametrize("place", _places())
@pytest.mark.parametrize("shape", ["path", "url", "list", "mapping", "number"])
def test_locations_of_a_loaded_model_are_not_opened(place, shape, trap, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made, parameter, kind, name = _places()[place]
    made.fit(X, Y)
    location = {
        "path": trap.path,
        "url": trap.url,
        "list": [trap.path],
        "mapping": {"mapping": {trap.path: "a"}},
        "number": 5,
    }[shape]

    def change(parameters: dict[str, Any]) -> None:
        parameters[parameter] = _value(kind, name, location)

    loaded = _forged(made, change)
    np.testing.assert_array_equal(loaded.decision_function(X), made.decision_function(X))
    assert repr(loaded) == repr(rebuilt(*described(loaded)))
    with suppress(UserError):
        clone(loaded).fit(X, Y)
    assert not trap.touched
    assert os.listdir(tmp_path) == ["trap"]


@pytest.mark.parametrize("name", sorted(name for name, kind in _public().items() if issubclass(kind, Persistent)))
def test_texts_of_a_loaded_model_are_not_opened(name, trap, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = _public()[name]
    if not issubclass(kind, BaseEstimator) or not hasattr(kind, "fit"):
        return
    fast = {"tol": 0.1} if "tol" in inspect.signature(kind).parameters else {}
    for parameter in _text_parameters(kind):
        for location in (trap.path, trap.url):
            try:
                kind(**decoded({parameter: location}), **fast).fit(X[:24], Y[:24])
            except UserError:
                continue
    assert not trap.touched
    assert os.listdir(tmp_path) == ["trap"]


@pytest.mark.parametrize(
    "estimator",
    [
        lambda place: MultiViewRidge(approximation=Exact("stored", path=place)),
        lambda place: MultiViewRidge(decoder=Scores(hierarchy=place)),
        lambda place: NeighborVotes(base=place),
    ],
)
def test_locations_that_the_user_passes_are_opened(estimator, trap):
    """Check that the trap records opened locations, because the previous tests rely on the trap."""
    with pytest.raises((UserError, OSError)):
        estimator(trap.path).fit(X, Y)
    assert trap.touched


def test_hierarchy_of_a_loaded_model_is_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tree.csv").write_text("parent,child\n0,1\n7,2\n")
    model = KGHA(decoder=Scores(hierarchy="tree.csv")).fit(X, Y)
    assert model.decoder.hierarchy == "tree.csv"
    model.save("m.zarr")
    os.unlink("tree.csv")
    loaded = dmo.load("m.zarr")
    assert loaded.decoder.hierarchy == HIERARCHY
    sets = clone(loaded).fit(X, [list(map(str, np.flatnonzero(row))) for row in Y]).predict(X, as_names=True)
    assert all("0" in one for one in sets if "1" in one)
    assert all("7" in one for one in sets if "2" in one)
    loaded.save("n.zarr")
    again = dmo.load("n.zarr")
    assert again.decoder.hierarchy == HIERARCHY
    np.testing.assert_array_equal(again.ancestors_, model.ancestors_)

    arrays, description = described(model)  # earlier versions stored only the relations between label columns
    del description["fitted"]["hierarchy_"]
    older = rebuilt(arrays, description)
    assert older.decoder.hierarchy == {"1": ["0"]}
    np.testing.assert_array_equal(clone(older).fit(X, Y).predict(X), model.predict(X))


@pytest.mark.parametrize("kind", [FastTag, NeighborVotes])
def test_base_of_a_loaded_model_is_the_stored_one(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MultiViewRidge(ridge=0.3).fit(X, Y).save("base.zarr")
    model = kind(base="base.zarr").fit(X, Y)
    model.save("m.zarr")
    os.rename("base.zarr", "gone.zarr")
    loaded = dmo.load("m.zarr")
    assert loaded.base.ridge == 0.3
    np.testing.assert_array_equal(clone(loaded).fit(X, Y).decision_function(X), model.decision_function(X))
    inner = FastTag(base=MultiViewRidge(decoder=Scores(hierarchy=HIERARCHY))).fit(X, Y)
    inner.set_params(base__decoder__hierarchy="tree.csv")
    inner.save("m.zarr")
    assert dmo.load("m.zarr").base.decoder.hierarchy == HIERARCHY


def test_kernels_of_a_loaded_model_are_not_stored(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    model = MultiViewRidge(approximation=Exact("stored", path="kernels")).fit(X, Y)
    model.save("m.zarr")
    os.rename("kernels", "gone")
    loaded = dmo.load("m.zarr")
    assert loaded.approximation == Exact("stored", path=SavedLocation("kernels"))
    again = clone(loaded).fit(X, Y)
    assert not Path("kernels").exists()
    assert "kernels are not stored in 'kernels', the path saved in the loaded model" in caplog.text
    np.testing.assert_allclose(again.decision_function(X), model.decision_function(X), atol=1e-5)
    loaded.save("n.zarr")
    assert dmo.load("n.zarr").approximation == loaded.approximation
    loaded.set_params(approximation=Exact("stored", path="kernels")).fit(X, Y)
    assert Path("kernels").exists()


def test_locations_in_a_sweep_of_a_loaded_model_stay_text():
    row = {"base": "a.zarr", "decoder__hierarchy": "tree.csv", "mean": 0.5, "approximation": Exact("stored", path="k")}
    meta = SweepResult([row], "lrap", {"base": "a.zarr"}, 0.5, None, 1).to_meta()
    found = SweepResult.from_meta(json.loads(json.dumps(meta)), None)
    assert found.best_params == {"base": SavedLocation("a.zarr")}
    assert found.table[0]["decoder__hierarchy"] == SavedLocation("tree.csv")
    assert found.table[0]["approximation"].path == SavedLocation("k")
    assert found.table[0]["mean"] == 0.5


@pytest.mark.parametrize("origin", ["url", "pipe", "table", "nothing", "results"])
def test_only_a_local_feature_store_is_an_origin(origin, trap, tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    writer = stores.create_results(tmp_path / "r.zarr", 2, 2)
    writer.write(0, np.ones((2, 2)))
    writer.finish()
    named = {
        "url": trap.url,
        "pipe": trap.path,
        "table": str(tmp_path / "t.csv"),
        "nothing": str(tmp_path / "no.zarr"),
        "results": str(tmp_path / "r.zarr"),
    }[origin]
    model = str(tmp_path / "m.zarr")
    MultiViewRidge("linear").fit(X, Y).save(model, stores.Provenance([named]))
    said: list[str] = []
    assert open_trial(model, None, None, 10, said.append).known is None
    assert len(said) == 1
    assert f"{named}, which {model} names as its origin" in said[0]
    assert origin != "url" or not trap.touched


def test_origin_of_a_model_is_announced(tmp_path):
    store = str(tmp_path / "f.zarr")
    writer = stores.create_features(store, len(X), {"a": stores.ViewSpec(4)}, labels=Y)
    writer.write("a", 0, X.astype(np.float32))
    writer.finish()
    model, said = str(tmp_path / "m.zarr"), list[str]()
    MultiViewRidge("linear").fit({"a": X}, Y).save(model, stores.Provenance([store]))
    assert named_store(model, said.append) == store
    assert said == [f"using the samples of {store}, as recorded in {model}; pass a feature store to use another"]


def test_update_keeps_a_hierarchy_of_named_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["animal", "dog", "cat", "stone"]
    Path("tree.csv").write_text("parent,child\nanimal,dog\nanimal,cat\nanimal,horse\n")
    writer = stores.create_features("f.zarr", len(X), {"a": stores.ViewSpec(4)}, labels=Y, label_names=names)
    writer.write("a", 0, X.astype(np.float32))
    writer.finish()
    table = pd.DataFrame(Y, columns=names)
    MultiViewRidge("linear", decoder=Scores(hierarchy="tree.csv")).fit({"a": X}, table).save("m.zarr")
    os.unlink("tree.csv")
    Path("answers.csv").write_text("sample,labels\n0,dog\n1,horse\n")
    shell.run("update", "m.zarr", "f.zarr", "n.zarr", "answers.csv", "--new-labels")
    assert dmo.load("n.zarr").ancestors_.tolist() == [[1, 0], [2, 0], [4, 0]]

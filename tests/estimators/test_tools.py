"""Tools of scikit-learn, pickle, joblib, threads and Dask around every estimator and every kind of input.

With DMO_TOOLS_TABLE=FILE the suite tries every kind of input, and writes what works as a table; else a few of them.
"""

import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dmo import (
    JEC,
    KGHA,
    LLTSVR,
    MESD,
    MLSI,
    MOPE,
    MORP,
    CoupledSVR,
    LabelPropagation,
    MultiSetCCA,
    MultiViewRidge,
    NeighborVotes,
    TagProp,
    TraceEmbedding,
    Views,
)

RNG = np.random.default_rng(0)
N = 48
A, B = RNG.random((N, 6)), RNG.random((N, 4))
Y = ((A @ RNG.standard_normal((6, 3)) + 0.3 * RNG.standard_normal((N, 3))) > 0).astype(int)
Y[np.arange(3), np.arange(3)] = 1
WHOLE = np.hstack([A, B])
COLUMNS = pd.MultiIndex.from_tuples([("a", f"a{i}") for i in range(6)] + [("b", f"b{i}") for i in range(4)])

SEVERAL: dict[str, Any] = {
    "KGHA": KGHA(n_components=2),
    "MultiViewRidge": MultiViewRidge(),
    "MultiSetCCA": MultiSetCCA(n_components=2),
    "JEC": JEC(),
    "TagProp": TagProp(n_neighbors=10),
    "NeighborVotes": NeighborVotes(),
    "LLTSVR": LLTSVR(tol=1e-2),
    "CoupledSVR": CoupledSVR(tol=1e-2),
}
ONE: dict[str, Any] = {
    "LabelPropagation": LabelPropagation(n_neighbors=5),
    "MORP": MORP(),
    "MLSI": MLSI(),
    "MOPE": MOPE(n_components=2),
    "MESD": MESD(n_components=2),
    "TraceEmbedding": TraceEmbedding("cca"),
}
MODELS = SEVERAL | ONE
INPUTS: dict[str, Callable[[], Any]] = {
    "array": lambda: WHOLE,
    "sparse": lambda: scipy.sparse.csr_array(WHOLE),
    "DataFrame": lambda: pd.DataFrame(WHOLE, columns=[f"f{i}" for i in range(10)]),
    "dask": lambda: da.from_array(WHOLE, chunks=(16, 10)),
    "two-level DataFrame": lambda: pd.DataFrame(WHOLE, columns=COLUMNS),
    "Views": lambda: Views({"a": A, "b": B}),
    "Views of dask": lambda: Views({"a": da.from_array(A, chunks=(16, 6)), "b": da.from_array(B, chunks=(16, 4))}),
}
VIEWS = ("two-level DataFrame", "Views", "Views of dask")
USUAL = ("DataFrame", "dask", "Views of dask")
"""Inputs of a usual run; of estimators of several views the last."""


def _kinds(model: str) -> list[str]:
    """Inputs that an estimator takes."""
    return [kind for kind in INPUTS if model in SEVERAL or kind not in VIEWS]


def _answer(model: Any, X: Any) -> np.ndarray:
    """What the model says of some samples."""
    method = next(name for name in ("decision_function", "predict", "transform") if hasattr(model, name))
    return np.asarray(getattr(model, method)(X))


def _alike(model: Any, other: Any, X: Any) -> None:
    assert_allclose(_answer(other, X), _answer(model, X), rtol=1e-9, atol=1e-9)


def _fitted(model: Any, X: Any, folder: Path) -> None:
    plain = clone(model).fit(np.asarray(WHOLE) if not isinstance(X, Views) else Views({"a": A, "b": B}), Y)
    if not hasattr(X, "columns") or X.columns.nlevels == 1:  # others have other views
        assert_allclose(_answer(clone(model).fit(X, Y), X), _answer(plain, np.asarray(WHOLE)), rtol=1e-4, atol=1e-5)


def _pickled(model: Any, X: Any, folder: Path) -> None:
    fitted = clone(model).fit(X, Y)
    _alike(fitted, pickle.loads(pickle.dumps(fitted)), X)


def _dumped(model: Any, X: Any, folder: Path) -> None:
    fitted = clone(model).fit(X, Y)
    joblib.dump(fitted, folder / "m.joblib")
    _alike(fitted, joblib.load(folder / "m.joblib"), X)


def _in_threads(model: Any, X: Any, folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: clone(model).fit(X, Y), range(2))
    alone = clone(model).fit(X, Y)
    _alike(alone, first, X)
    _alike(alone, second, X)


def _split(model: Any, X: Any, folder: Path) -> None:
    old, new, Y_old, _ = train_test_split(X, Y, test_size=12, random_state=0)
    assert len(_answer(clone(model).fit(old, Y_old), new)) == 12


def _cross_validated(model: Any, X: Any, folder: Path) -> None:
    scoring = None if hasattr(model, "score") else lambda fitted, X, y: -float(np.abs(_answer(fitted, X)).mean())
    assert np.isfinite(cross_val_score(model, X, Y, cv=2, scoring=scoring)).all()


def _searched(model: Any, X: Any, folder: Path) -> None:
    name = next(
        name for name in ("C", "n_components", "ridge", "n_neighbors", "sharpness") if name in model.get_params()
    )
    grid = {name: {"n_neighbors": [4, 5], "n_components": [1, 2]}.get(name, [0.5, 1.0])}
    scoring = None if hasattr(model, "score") else lambda fitted, X, y: -float(np.abs(_answer(fitted, X)).mean())
    assert GridSearchCV(model, grid, cv=2, scoring=scoring).fit(X, Y).best_params_


def _piped(model: Any, X: Any, folder: Path) -> None:
    piped = make_pipeline(FunctionTransformer(), clone(model)).fit(X, Y)
    _alike(clone(model).fit(X, Y), piped, X)


TOOLS: dict[str, Callable[[Any, Any, Path], None]] = {
    "fit as of an array": _fitted,
    "pickle": _pickled,
    "joblib": _dumped,
    "two fits in threads": _in_threads,
    "train_test_split": _split,
    "cross_val_score": _cross_validated,
    "GridSearchCV": _searched,
    "Pipeline": _piped,
}


@pytest.fixture(scope="module")
def table() -> Iterator[list[tuple[str, str, str]]]:
    """Rows (tool, estimator, input) of what works."""
    rows: list[tuple[str, str, str]] = []
    yield rows
    if path := os.environ.get("DMO_TOOLS_TABLE"):
        works = defaultdict(list)
        for tool, model, kind in rows:
            works[model, tool].append(kind)
        cells = [[model, *(_cell(works[model, tool], model) for tool in TOOLS)] for model in MODELS]
        lines = [["estimator", *TOOLS], ["---"] * (len(TOOLS) + 1), *cells]
        Path(path).write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")


def _cell(kinds: list[str], model: str) -> str:
    missing = [kind for kind in _kinds(model) if kind not in kinds]
    return "all" if not missing else f"not: {', '.join(missing)}"


@pytest.mark.filterwarnings("ignore::UserWarning")  # of rank and convergence on a few samples
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", MODELS)
def test_tools_take_every_estimator_and_input(name, tool, tmp_path, table):
    whole = "DMO_TOOLS_TABLE" in os.environ
    for kind in [kind for kind in _kinds(name) if whole or kind in (USUAL[2:] if name in SEVERAL else USUAL[:2])]:
        TOOLS[tool](MODELS[name], INPUTS[kind](), tmp_path)
        table.append((tool, name, kind))

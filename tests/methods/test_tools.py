"""Use every estimator with tools of scikit-learn, dask-ml, pickle, joblib, threads and Dask.

The table of docs/reference/tools.md lists the supported combinations. A run tries every tool with every estimator on
one kind of input. If DMO_TOOLS_TABLE=docs/reference/tools.md is set, the run tries all kinds of input and writes the
table.
"""

import os
import pickle
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    cross_val_score,
    learning_curve,
    train_test_split,
)
from sklearn.multioutput import ClassifierChain, RegressorChain
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
    FastTag,
    Graph,
    LabelPropagation,
    MultiSetCCA,
    MultiViewRidge,
    NeighborVotes,
    TagProp,
    TraceEmbedding,
    TwoPassKNN,
    Views,
)
from dmo.decoders import Scores

xr = pytest.importorskip("xarray", reason="xarray is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # dask-ml warns when it is imported
    pytest.importorskip("dask_ml", reason="dask-ml is not installed")
    from dask_ml.model_selection import GridSearchCV as DaskGridSearchCV
    from dask_ml.wrappers import ParallelPostFit

RNG = np.random.default_rng(0)
N = 48
A, B = RNG.random((N, 6)), RNG.random((N, 4))
Y = ((A @ RNG.standard_normal((6, 3)) + 0.3 * RNG.standard_normal((N, 3))) > 0).astype(int)
Y[np.arange(3), np.arange(3)] = 1
WHOLE = np.hstack([A, B])
NAMES = [f"f{i}" for i in range(10)]
COLUMNS = pd.MultiIndex.from_tuples([("a", f"a{i}") for i in range(6)] + [("b", f"b{i}") for i in range(4)])

SEVERAL: dict[str, Any] = {
    "KGHA": KGHA(n_components=2),
    "MultiViewRidge": MultiViewRidge(),
    "MultiSetCCA": MultiSetCCA(n_components=2),
    "JEC": JEC(),
    "TagProp": TagProp(n_neighbors=10),
    "NeighborVotes": NeighborVotes(),
    "FastTag": FastTag(),
    "TwoPassKNN": TwoPassKNN(),
    # Disable label sets, whose thresholds would require ten additional fits.
    "LLTSVR": LLTSVR(tol=1e-2, decoder=Scores(label_sets=False)),
    "CoupledSVR": CoupledSVR(tol=1e-2, decoder=Scores(label_sets=False)),
}
ONE: dict[str, Any] = {
    "LabelPropagation": LabelPropagation(graph=Graph(n_neighbors=5)),
    "MORP": MORP(),
    "MLSI": MLSI(),
    "MOPE": MOPE(n_components=2, graph=Graph(n_neighbors=5)),
    "MESD": MESD(n_components=2),
    "TraceEmbedding": TraceEmbedding("cca"),
}
MODELS = SEVERAL | ONE
INPUTS: dict[str, Callable[[], Any]] = {
    "array": lambda: WHOLE,
    "sparse": lambda: scipy.sparse.csr_array(WHOLE),
    "DataFrame": lambda: pd.DataFrame(WHOLE, columns=NAMES),
    "dask": lambda: da.from_array(WHOLE, chunks=(16, 10)),
    "dask DataFrame": lambda: dd.from_pandas(pd.DataFrame(WHOLE, columns=NAMES), npartitions=3),
    "xarray": lambda: xr.DataArray(WHOLE, dims=("sample", "feature"), coords={"feature": NAMES}),
    "two-level DataFrame": lambda: pd.DataFrame(WHOLE, columns=COLUMNS),
    "Views": lambda: Views({"a": A, "b": B}),
    "Views of dask": lambda: Views({"a": da.from_array(A, chunks=(16, 6)), "b": da.from_array(B, chunks=(16, 4))}),
    "Dataset": lambda: xr.Dataset({"a": (("sample", "a_feature"), A), "b": (("sample", "b_feature"), B)}),
    "Views of a Dataset": lambda: Views(
        xr.Dataset({"a": (("sample", "a_feature"), A), "b": (("sample", "b_feature"), B)})
    ),
}
VIEWS = ("two-level DataFrame", "Views", "Views of dask", "Dataset", "Views of a Dataset")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tools.md"


def _kinds(model: str) -> list[str]:
    """Return the kinds of input that an estimator supports."""
    return [kind for kind in INPUTS if model in SEVERAL or kind not in VIEWS]


def _answer(model: Any, X: Any) -> np.ndarray:
    """Return the scores, predictions or coordinates of some samples."""
    method = next(name for name in ("decision_function", "predict", "transform") if hasattr(model, name))
    return np.asarray(getattr(model, method)(X))


def _alike(model: Any, other: Any, X: Any) -> None:
    assert_allclose(_answer(other, X), _answer(model, X), rtol=1e-9, atol=1e-9)


def _fitted(model: Any, X: Any, folder: Path) -> None:
    several = isinstance(X, (Views, xr.Dataset)) or getattr(getattr(X, "columns", None), "nlevels", 1) == 2
    same = Views({"a": A, "b": B}) if several else WHOLE
    plain = clone(model).fit(same, Y)
    assert_allclose(_answer(clone(model).fit(X, Y), X), _answer(plain, same), rtol=1e-4, atol=1e-5)


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


def _scoring(model: Any) -> Any:
    """Return None if the model has a `score` method, otherwise an arbitrary scoring function."""
    if hasattr(model, "score"):
        return None
    return lambda fitted, X, y: -float(np.abs(_answer(fitted, X)).mean())


def _grid(model: Any) -> dict[str, list[Any]]:
    known = {
        "C": [0.5, 1.0],
        "n_components": [1, 2],
        "ridge": [0.5, 1.0],
        "n_neighbors": [4, 5],
        "graph__n_neighbors": [4, 5],
        "sharpness": [0.5, 1.0],
        "strength": [0.5, 1.0],
    }
    name = next(name for name in known if name in model.get_params())
    return {name: known[name]}


def _cross_validated(model: Any, X: Any, folder: Path) -> None:
    assert np.isfinite(cross_val_score(model, X, Y, cv=2, scoring=_scoring(model))).all()


def _searched(model: Any, X: Any, folder: Path) -> None:
    assert GridSearchCV(model, _grid(model), cv=2, scoring=_scoring(model)).fit(X, Y).best_params_


def _piped(model: Any, X: Any, folder: Path) -> None:
    piped = make_pipeline(FunctionTransformer(), clone(model)).fit(X, Y)
    _alike(clone(model).fit(X, Y), piped, X)


def _halved(model: Any, X: Any, folder: Path) -> None:
    grid, scoring, y = _grid(model), _scoring(model), np.arange(N) % 3
    found = HalvingGridSearchCV(model, grid, cv=2, scoring=scoring, min_resources=24, random_state=0).fit(X, y)
    assert found.n_resources_[0] == 24


def _curve(model: Any, X: Any, folder: Path) -> None:
    _, _, held = learning_curve(model, X, Y, cv=2, train_sizes=[0.5, 1.0], scoring=_scoring(model))
    assert np.isfinite(held).all()


def _framed(model: Any, X: Any, folder: Path) -> None:
    if not hasattr(model, "transform"):
        return
    plain = clone(model).fit(X, Y)
    found = clone(model).set_output(transform="pandas").fit(X, Y).transform(X)
    assert list(found.columns) == plain.get_feature_names_out().tolist()
    assert_allclose(np.asarray(found), np.asarray(plain.transform(X)), rtol=1e-9, atol=1e-9)


def _post_fitted(model: Any, X: Any, folder: Path) -> None:
    fitted = clone(model).fit(X, Y)
    method = next(name for name in ("predict", "transform") if hasattr(model, name))
    found, plain = getattr(ParallelPostFit(fitted), method)(X), np.asarray(getattr(fitted, method)(X))
    # dask-ml declares one dimension for multi-label predictions (see test_dask_ml.py).
    blocks = found.blocks if isinstance(found, da.Array) else [found]
    assert_allclose(np.concatenate([np.asarray(block) for block in blocks]), plain, rtol=1e-9, atol=1e-9)


def _searched_by_dask(model: Any, X: Any, folder: Path) -> None:
    search = DaskGridSearchCV(model, _grid(model), cv=2, scoring=_scoring(model), scheduler="sync")
    assert search.fit(X, Y).best_params_


TOOLS: dict[str, Callable[[Any, Any, Path], None]] = {
    "fit as of an array": _fitted,
    "pickle": _pickled,
    "joblib": _dumped,
    "two fits in threads": _in_threads,
    "train_test_split": _split,
    "cross_val_score": _cross_validated,
    "GridSearchCV": _searched,
    "HalvingGridSearchCV": _halved,
    "learning_curve": _curve,
    "Pipeline": _piped,
    "set_output": _framed,
    "ParallelPostFit": _post_fitted,
    "GridSearchCV of dask-ml": _searched_by_dask,
}
WHOLE_TABLE = "DMO_TOOLS_TABLE" in os.environ


@pytest.fixture(scope="module")
def table() -> Iterator[dict[tuple[str, str], dict[str, str]]]:
    """Collect the failures by estimator, tool and kind of input."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    yield found
    if path := os.environ.get("DMO_TOOLS_TABLE"):
        text = PAGE.read_text(encoding="utf-8")
        lines = [["estimator", *TOOLS], ["---"] * (len(TOOLS) + 1)]
        lines += [[name, *(_cell(found.get((name, tool), {})) for tool in TOOLS)] for name in MODELS]
        head = text[: text.index("| estimator |")]
        errors: dict[str, list[str]] = defaultdict(list)
        for (name, tool), failed in found.items():
            for kind, error in failed.items():
                errors[error].append(f"{tool}, {name}, {kind}")
        Path(path).write_text(head + "".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")
        for error, cases in errors.items():
            print(f"{error}: {len(cases)} as {cases[0]}")


def _cell(failed: dict[str, str]) -> str:
    return f"not: {', '.join(failed)}" if failed else "all"


def _documented() -> dict[tuple[str, str], set[str]]:
    """Read the unsupported kinds of input of each estimator and tool from the documentation page."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in text[text.index("| estimator |") :].splitlines()
    ]
    tools = rows[0][1:]
    return {
        (row[0], tool): set() if cell == "all" else set(cell.removeprefix("not: ").split(", "))
        for row in rows[2:]
        for tool, cell in zip(tools, row[1:], strict=True)
    }


def _tried(name: str, tool: str) -> list[str]:
    """Return the kinds of input to test: all kinds, or a single kind that varies with the estimator and the tool."""
    kinds = _kinds(name)
    return kinds if WHOLE_TABLE else [kinds[(list(MODELS).index(name) + list(TOOLS).index(tool)) % len(kinds)]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # few samples cause rank and convergence warnings
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", MODELS)
def test_tools_take_every_estimator_and_input(name, tool, tmp_path, table):
    for kind in _tried(name, tool):
        error = ""
        try:
            TOOLS[tool](MODELS[name], INPUTS[kind](), tmp_path)
        except Exception as raised:
            if not WHOLE_TABLE and kind not in _documented()[name, tool]:
                raise
            error = f"{type(raised).__name__}: {str(raised).splitlines()[0] if str(raised) else ''}"
            table.setdefault((name, tool), {})[kind] = error
        if not WHOLE_TABLE:
            assert bool(error) == (kind in _documented()[name, tool]), "it works now: write the table again"


def test_chains_of_scikit_learn_run_over_estimators_and_equal_the_loop_that_they_stand_for():
    model = MultiViewRidge(ridge=0.1)
    chain = ClassifierChain(model, order=[2, 0, 1], random_state=0).fit(WHOLE, Y)
    real = WHOLE @ RNG.standard_normal((10, 3))
    regressors = RegressorChain(CoupledSVR(tol=1e-2), order=[2, 0, 1]).fit(WHOLE, real)
    rows, found, expected = WHOLE, {}, {}
    for label in (2, 0, 1):
        found[label] = clone(model).fit(
            rows if label == 2 else np.hstack([WHOLE, Y[:, [2, 0][: 1 + (label == 1)]]]), Y[:, label]
        )
        earlier = [expected[one][:, None] for one in expected]
        expected[label] = found[label].predict(np.hstack([WHOLE, *earlier]))
    assert_allclose(chain.predict(WHOLE), np.column_stack([expected[label] for label in range(3)]))
    first = clone(CoupledSVR(tol=1e-2)).fit(WHOLE, real[:, 2]).predict(WHOLE)
    assert_allclose(regressors.predict(WHOLE)[:, 2], first.ravel())
    assert regressors.predict(WHOLE).shape == real.shape

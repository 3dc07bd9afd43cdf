"""Run the test suites of other libraries on estimators of dmo.

    python tests/other_suites.py [scikit-learn] [cca-zoo] [skmatter] [--table FILE]

Every suite runs unchanged in pytest. This module is a plug-in that replaces the estimators of the other library with
adapters of dmo's estimators. Only tests that fit an adapter count. Failures are listed with their errors.
If a wheel does not contain the tests, pip downloads the library's source distribution.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmo import MORP, MultiSetCCA, MultiViewRidge, Solver

_FITTED = [False]
"""Whether an adapter has been fitted since the current test started."""


def _ridge_for(original: type, **settings: Any) -> type:
    """Adapt MultiViewRidge to the parameters of `original`, whose parameter C or alpha determines the ridge."""
    theirs = inspect.signature(original).parameters  # type: ignore[arg-type]
    ours = inspect.signature(MultiViewRidge).parameters
    defaults = {name: known.default for name, known in (ours | theirs).items()} | settings
    defaults = {name: value for name, value in defaults.items() if name != "ridge"}
    kernels = {"linear", "rbf", "poly", "sigmoid"} if "kernel" in theirs else set()

    class Adapter(MultiViewRidge):
        def __init__(self, *values: Any, **given: Any):
            for name, value in (defaults | dict(zip(theirs, values)) | given).items():
                setattr(self, name, value)

        @property
        def ridge(self) -> Any:
            if not hasattr(self, "C"):
                return max(self.alpha, 1e-6) if hasattr(self, "alpha") else 1e-6
            # An infinite C means that there is no ridge, but MultiViewRidge needs a positive ridge.
            return max(1 / (2 * self.C), 1e-9) if isinstance(self.C, (int, float)) and self.C else self.C

        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            _FITTED[0] = True
            if kernels and self.kernel not in kernels:
                raise ValueError(f"kernel {self.kernel!r}")
            # Replace SVC's rules for gamma with a number, because MultiViewRidge scales the kernels itself.
            if isinstance(self.gamma, str):
                self.gamma = 2.0
            return super().fit(X, y, sample_weight)

        def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
            _FITTED[0] = True
            return super().partial_fit(X, y, classes, sample_weight)

    names = dict.fromkeys([*theirs, *defaults])
    Adapter.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        + [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name]) for name in names]
    )
    Adapter.__name__ = Adapter.__qualname__ = original.__name__
    Adapter.__module__ = __name__
    globals()[original.__name__] = Adapter  # pickle looks up the class under this name
    return Adapter


def _scikit_learn() -> None:
    labels = {"kernel": "linear", "class_weight": None}
    for module, name, settings in (
        ("linear_model", "LogisticRegression", labels),
        ("linear_model", "SGDClassifier", labels),
        ("linear_model", "RidgeClassifier", labels),
        ("linear_model", "Ridge", {"kernel": "linear", "targets": "real"}),
        ("linear_model", "SGDRegressor", {"kernel": "linear", "targets": "real"}),
        ("linear_model", "Lasso", {"kernel": "linear", "targets": "real"}),
        ("linear_model", "LinearRegression", {"kernel": "linear", "targets": "real"}),
        ("svm", "LinearSVC", labels),
        ("svm", "SVC", {"kernel": "rbf"}),
    ):
        home = importlib.import_module(f"sklearn.{module}")
        setattr(home, name, _ridge_for(getattr(home, name), **settings))


def _cca_zoo() -> None:
    from cca_zoo import linear

    class GCCA(linear.GCCA):
        """GCCA with the validation and scores of cca-zoo, and weights from MultiSetCCA in the same units."""

        def fit(self, views: Any, y: Any = None, sample_weight: Any = None) -> Any:
            _FITTED[0] = True
            own = self._setup_fit(views)
            shrinkage = np.broadcast_to(self.shrinkage, len(own))
            n = len(own[0]) if sample_weight is None else float(np.sum(sample_weight))
            model = MultiSetCCA(
                "linear",
                # A shrinkage of 1 corresponds to an infinite ridge.
                ridge=[max(s / max(1 - s, 1e-12) * (n - 1), 1e-9) for s in shrinkage],
                n_components=self.n_components,
                center=self.center,
                prepare="none",
                solver=Solver(tol=1e-12),
            ).fit([np.asarray(view) for view in views], sample_weight=sample_weight)
            self.weights_ = []
            for (name, found), view, s in zip(model.expansions_.items(), own, shrinkage):
                eye = np.eye(view.shape[1])
                W = found({name: eye}) - found({name: np.zeros_like(eye)})
                self.weights_.append(W * np.sqrt(n - 1) / max(1 - s, 1e-12))
            if sample_weight is not None and self.center:
                self.means_ = [np.average(view, axis=0, weights=sample_weight) for view in views]
            self._fit_maps_and_importances(own)
            return self

    home = importlib.import_module(linear.GCCA.__module__)
    GCCA.__module__, GCCA.__qualname__ = home.__name__, "GCCA"  # pickle looks up the class under this name
    linear.GCCA = home.GCCA = GCCA  # type: ignore[attr-defined]


def _skmatter() -> None:
    from skmatter import decomposition

    class PCovR(decomposition.PCovR):
        """PCovR with coordinates from MORP's direct form, and with regression and reconstruction as in skmatter."""

        def fit(self, X: Any, Y: Any, W: Any = None) -> Any:
            _FITTED[0] = True
            X, Y = np.asarray(X), np.asarray(Y).reshape(len(X), -1)
            k = min(X.shape) if self.n_components is None else self.n_components
            # With a mixing of 1, the number of components of MORP is limited by the number of outputs.
            share = min(1 - self.mixing, 1 - 1e-9)
            self.model_ = MORP(
                "linear", form="direct", mixing=share, ridge=0.0, n_components=k, prepare="none", center=False
            ).fit(X, Y)
            self.n_components = self.n_components_ = k  # PCovR sets both attributes
            T = self.model_.transform(X)
            self.pxt_ = self.model_.components_.T
            self.ptx_, self.pty_ = (np.linalg.lstsq(T, B, rcond=None)[0] for B in (X, Y))
            self.pxy_, self.mean_ = self.pxt_ @ self.pty_, np.zeros(X.shape[1])
            self.singular_values_ = np.linalg.norm(T, axis=0)
            self.explained_variance_ = self.singular_values_**2 / (len(X) - 1)
            return self

        def transform(self, X: Any = None) -> np.ndarray:
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)
            return self.model_.transform(X)

        def predict(self, X: Any = None, T: Any = None) -> np.ndarray:
            if X is None and T is None:
                raise ValueError("Either X or T must be supplied.")
            return np.asarray((self.transform(X) if T is None else T) @ self.pty_)

        def inverse_transform(self, T: Any) -> np.ndarray:
            return np.asarray(T @ self.ptx_)

    decomposition.PCovR = PCovR


SUITES: dict[str, tuple[Any, str, str, list[str]]] = {
    # Each entry contains the function that installs adapters, the tested release, its folder, and arguments of pytest.
    "scikit-learn": (
        _scikit_learn,
        version("scikit-learn"),
        "",
        [
            "tests/test_multioutput.py",
            "tests/test_calibration.py",
            "model_selection/tests/test_validation.py",
            "model_selection/tests/test_search.py",
            "model_selection/tests/test_classification_threshold.py",
            "model_selection/tests/test_successive_halving.py",
        ],
    ),
    "cca-zoo": (
        _cca_zoo,
        "4.0.1",
        "cca_zoo-4.0.1",
        [
            "tests/test_model_contract.py",
            "tests/test_hyperparameters.py",
            "tests/test_invariances.py",
            "tests/test_objectives.py",
            "tests/test_recovery.py",
            "tests/test_limits.py",
            "tests/test_estimator_checks.py",
            "tests/linear/test_eigendecomposition.py",
            "tests/linear/test_sample_weight.py",
            "-k=GCCA and not KGCCA",
        ],
    ),
    # Source distributions of later releases do not contain the tests.
    "skmatter": (_skmatter, "0.1.4", "skmatter-0.1.4", ["tests/test_pcovr.py"]),
}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Install the adapters before the tests and their helpers are imported."""
    if suite := os.environ.get("DMO_SUITE"):
        SUITES[suite][0]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test or subtest, and whether the test fitted an adapter."""
    if report.when == "setup":
        _FITTED[0] = False
    if report.when == "call" and "DMO_SUITE_RESULTS" in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = "" if crash is None else crash.message.split("\n")[0][:200]
        with Path(os.environ["DMO_SUITE_RESULTS"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.outcome, _FITTED[0], why]) + "\n")


def run_suite(suite: str, replaced: bool) -> dict[str, tuple[str, bool, str]]:
    """Return for each test its outcome, whether an adapter was fitted, and its error."""
    _, release, folder, files = SUITES[suite]
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(importlib.import_module("sklearn").__file__ or "").parent
        if folder:
            wanted = f"{suite}=={release}"
            fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", wanted]
            subprocess.run([*fetch, "--dest", scratch], check=True)
            with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
                archive.extractall(scratch, filter="data")
            home = Path(scratch) / folder
            # Remove the source code, so that the installed library is tested.
            for source in (home / "src", home / suite.replace("-", "_")):
                if source.exists():
                    shutil.rmtree(source)
        results = Path(scratch) / "results.jsonl"
        here = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), str(home)])
        environment = os.environ | {"PYTHONPATH": here, "DMO_SUITE_RESULTS": str(results), "OPENBLAS_NUM_THREADS": "1"}
        environment |= {"DMO_SUITE": suite} if replaced else {}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "other_suites", "-p", "no:cacheprovider"]
        command += [
            "-c",
            os.devnull,
            "--rootdir",
            str(home),
            "--import-mode",
            "importlib",
            "--tb",
            "no",
            "--continue-on-collection-errors",
        ]
        done = subprocess.run(
            [*command, *(name if name.startswith("-") else str(home / name) for name in files)],
            env=environment,
            cwd=home,
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{suite}: pytest ended with {done.returncode}")
        rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    found: dict[str, tuple[str, bool, str]] = {}
    for name, outcome, fitted, why in rows:  # a test fails if one of its subtests fails
        before = found.get(name, ("passed", False, ""))
        found[name] = before if before[0] == "failed" else (outcome, fitted or before[1], why)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=list(SUITES), choices=[*SUITES, []])
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    lines = ["| tests of | file | fit ours | pass |", "|---|---|---|---|"]
    for suite in arguments.suites:
        plain, ours = run_suite(suite, False), run_suite(suite, True)
        counted = {name: row for name, row in ours.items() if row[1] and plain.get(name, ("passed",))[0] == "passed"}
        files = dict.fromkeys(name.partition("::")[0] for name in counted)
        for file in files:
            own = [row for name, row in counted.items() if name.startswith(f"{file}::")]
            passed = sum(row[0] == "passed" for row in own)
            lines.append(f"| {suite} {SUITES[suite][1]} | {file} | {len(own)} | {passed} |")
        for name, (outcome, _, why) in counted.items():
            if outcome == "failed":
                print(f"{name}\n    {why}")
    print("\n".join(lines))
    if arguments.table:
        arguments.table.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""All global projections as one estimator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils import Tags

from dmo.estimators.projecting import Projection, check_outputs
from dmo.estimators.roads import MethodTask, Road, project
from dmo.estimators.views import count_components
from dmo.labels import LabelKernel
from dmo.methods.projections import METHODS, Method, Settings

_DEFAULTS = {"label_kernel": "linear", "ridge": 1e-3, "supervision": 0.5, "balance": 0.5}


class TraceEmbedding(Projection):
    """A global projection of the samples, chosen by name: max tr(W'AW) subject to W'BW = I.

    Parameters
    ----------
    method : name
        One of `TraceEmbedding.methods()`, which says what each solves, and where it was published.
    n_components : int
    kernel : kernel or its name
        "linear" projects the features themselves (any row source, sparse rows stay sparse); another kernel makes it
        the method's kernel form (kernel PCA, kernel CCA, ...).
    label_kernel : "linear", a kernel or its name, SetKernel, SequenceKernel, "precomputed"; None: "linear"
        Similarity of the outputs, for methods that take one. See `dmo.labels`.
    ridge : float >= 0; None: 0.001
        c of X'X + c I (features in their own units), or of the regression of new rows.
    supervision : float in [0, 1]; None: 0.5
        beta: share of the labels.
    balance : float in [0, 1]; None: 0.5
        mu of MDDM's constraint mu X'X + (1 - mu) I.
    approximation : "exact", Exact(...), Nystrom(...) or Meka(...)
    tolerance : float
        Residual of the eigenpairs relative to the largest eigenvalue, where they are found by iteration.
    max_iter : int
    random_state : int or None

    A parameter that the method does not use is refused. Attributes: expansion_, eigenvalues_ (descending),
    n_components_, embedding_ (n x n_components, where the fit gives it), n_iter_.
    Source: Mu, Goulermas, Tsujii, Ananiadou 2012, eqs. 30, 31, 46, and the source of each method.
    """

    def __init__(
        self,
        method: str = "pca",
        *,
        n_components: int = 2,
        kernel: Any = "linear",
        label_kernel: LabelKernel | None = None,
        ridge: float | None = None,
        supervision: float | None = None,
        balance: float | None = None,
        approximation: Any = "exact",
        tolerance: float = 1e-7,
        max_iter: int = 300,
        random_state: int | None = 0,
    ):
        self.method = method
        self.n_components = n_components
        self.kernel = kernel
        self.label_kernel = label_kernel
        self.ridge = ridge
        self.supervision = supervision
        self.balance = balance
        self.approximation = approximation
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.random_state = random_state

    @staticmethod
    def methods() -> list[dict[str, Any]]:
        """One dict per method: name, title, problem (objective | constraint), parameters, labels, engines, paper."""
        return [
            {
                "name": name,
                "title": method.title,
                "problem": method.formula,
                "parameters": list(method.parameters),
                "labels": method.supervised,
                "engines": ["moments", "exact"],
                "paper": method.source,
            }
            for name, method in METHODS.items()
        ]

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from samples X (n x d) and, where the method is supervised, outputs y (n x L, or as its kernel asks)."""
        method, settings = self._method()
        view, source = self._source(X, reset=True)
        k = count_components("TraceEmbedding", self._whole(), 1, source.shape[0], source.shape[0])
        labels = None
        if method.supervised:
            kernel = "linear" if self.label_kernel is None else self.label_kernel
            labels = check_outputs(f"TraceEmbedding({self.method!r})", y, source.shape[0], kernel)
        road = Road(self.kernel, self.approximation, self.tolerance, self.max_iter, self.random_state)
        try:
            learnt = project(
                "TraceEmbedding", MethodTask(method, settings, method.center), view, source, labels, k, road
            )
        except ValueError as error:
            raise _named(f"TraceEmbedding({self.method!r})", error) from error
        self._learn(learnt)
        return self

    def _whole(self) -> int:
        if isinstance(self.n_components, bool) or not isinstance(self.n_components, (int, np.integer)):
            raise ValueError(f"TraceEmbedding: n_components must be a whole number, got {self.n_components!r}")
        return int(self.n_components)

    def _method(self) -> tuple[Method, Settings]:
        """The method and its settings, checked."""
        if self.method not in METHODS:
            raise ValueError(f"TraceEmbedding: method = {self.method!r}; known: {', '.join(METHODS)}")
        method = METHODS[self.method]
        for name in _DEFAULTS:
            if getattr(self, name) is not None and name not in method.parameters:
                uses = ", ".join(method.parameters) or "none"
                raise ValueError(
                    f"TraceEmbedding: method {self.method!r} does not use {name}; leave it out (it uses: {uses})"
                )
        chosen: dict[str, Any] = {
            name: _DEFAULTS[name] if getattr(self, name) is None else getattr(self, name) for name in _DEFAULTS
        }
        settings = {name: bounded("TraceEmbedding", name, chosen[name]) for name in ("ridge", "supervision", "balance")}
        return method, Settings(**settings)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.method in METHODS and METHODS[self.method].supervised
        return tags


def bounded(who: str, name: str, value: Any) -> float:
    """`value` as a float: a ridge or gamma at least 0, a share (supervision, balance) in [0, 1]."""
    most = np.inf if name in ("ridge", "gamma") else 1.0
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool) or not 0 <= value <= most:
        needed = "a number that is not negative" if np.isinf(most) else "a number between 0 and 1"
        raise ValueError(f"{who}: {name} must be {needed}, got {value!r}")
    if not np.isfinite(value):
        raise ValueError(f"{who}: {name} must be finite, got {value!r}")
    return float(value)


def _named(who: str, error: ValueError) -> ValueError:
    text = str(error)
    return type(error)(text if text.startswith(who.partition("(")[0]) else f"{who}: {text}")

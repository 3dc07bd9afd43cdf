"""What is to be solved of a projection, whatever the engine: a method of the catalog, or a form of MORP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from dmo.engines.moments import LABELS, ROWS, Moments
from dmo.linalg.eigen import power_of
from dmo.linalg.operators import Operator
from dmo.methods.embeddings.catalog import CatalogEntry
from dmo.methods.embeddings.morp import Form, morp_moments, morp_operator
from dmo.methods.embeddings.samples import Options, Samples
from dmo.methods.embeddings.solvers import EmbeddingFit, fit_moments, fit_operator

Decoder = tuple[np.ndarray, np.ndarray]
"""Least squares of the label columns on coordinates: coefficients (k x q) and offset (q)."""


class Task(Protocol):
    """What is to be solved of a projection, whatever the engine.

    Attributes
    ----------
    decodes : bool
        Whether a decoder of the labels is wanted.

    Examples
    --------
    >>> from dmo.methods.embeddings.catalog import METHODS
    >>> from dmo.methods.embeddings.samples import Options
    >>> from dmo.methods.embeddings.tasks import MethodTask
    >>> MethodTask(METHODS["opls"], Options(ridge=0.1)).ridge
    0.1
    """

    decodes: ClassVar[bool]

    @property
    def center(self) -> bool:
        """Whether rows and labels are taken less their means."""

    @property
    def ridge(self) -> float:
        """The smallest ridge that is solved with; infinite where nothing is."""

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Say what a pass over the rows needs.

        Parameters
        ----------
        samples : Samples
            With their labels.

        Returns
        -------
        labels : ndarray of shape (n, q) or None
            Label columns.
        diagonal : ndarray of shape (n,) or None
            Weights of the rows in a second product.
        """
        ...

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit:
        """Solve it from moments.

        Parameters
        ----------
        samples : Samples
            With the trace of the kernel.
        moments : Moments
            Of groups ROWS and LABELS.
        k : int
            Components.

        Returns
        -------
        EmbeddingFit
            Coefficients on the columns of ROWS.
        """

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit:
        """Solve it from products with the kernel.

        Parameters
        ----------
        samples : Samples
            With the trace of the kernel.
        K : Operator
            The kernel.
        k : int
            Components.
        tol : float
            Of the eigenpairs' residuals.
        max_steps : int
            Products with blocks at most.
        random_state : int or None
            Of the start.

        Returns
        -------
        EmbeddingFit
            Coefficients on kernel columns.
        """


@dataclass(frozen=True)
class MethodTask(Task):
    """A method of the catalog as a task.

    Parameters
    ----------
    entry : CatalogEntry
        The method.
    options : Options
        What it uses.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.embeddings.catalog import METHODS
    >>> from dmo.methods.embeddings.samples import Options, Samples
    >>> from dmo.methods.embeddings.tasks import MethodTask
    >>> task = MethodTask(METHODS["pls"], Options())
    >>> task.center, task.columns(Samples(2, labels=np.eye(2)))[0]
    (True, array([[ 0.5, -0.5],
           [-0.5,  0.5]]))
    """

    decodes: ClassVar[bool] = False

    entry: CatalogEntry
    options: Options

    @property
    def center(self) -> bool:
        return self.entry.center

    @property
    def ridge(self) -> float:
        return self.options.ridge if "ridge" in self.entry.parameters else np.inf

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        form = self.entry.problem(samples, self.options).A
        return form.factor, form.diagonal

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit:
        return fit_moments(self.entry.problem(samples, self.options), moments, k, samples.weights)

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit:
        problem = self.entry.problem(samples, self.options).rooted(samples.weights)
        return fit_operator(problem, K, k, tol, max_steps, random_state)


@dataclass(frozen=True)
class FormTask(Task):
    """A form of multi-output regularized projection as a task.

    Parameters
    ----------
    form : {"simplified", "regularized", "direct"}
        See `dmo.methods.embeddings.morp`.
    options : Options
        Ridge and mixing.
    centered : bool
        Take rows and labels less their means.
    scaled : bool, default=True
        Give coordinates the root of their eigenvalue as length.

    Examples
    --------
    >>> from dmo.methods.embeddings.samples import Options
    >>> from dmo.methods.embeddings.tasks import FormTask
    >>> FormTask("direct", Options(ridge=0.0), centered=True).floored(1e-7).ridge
    1e-07
    """

    decodes: ClassVar[bool] = True

    form: Form
    options: Options
    centered: bool
    scaled: bool = True

    @property
    def center(self) -> bool:
        return self.centered

    @property
    def ridge(self) -> float:
        return 0.0 if self.form == "regularized" and self.options.mixing else self.options.ridge

    def floored(self, ridge: float) -> FormTask:
        """Put a ridge in the place of 0, where the form solves for labels.

        Parameters
        ----------
        ridge : float
            The smallest that makes sense.

        Returns
        -------
        FormTask
            With it, or the same.
        """
        options = self.options
        if options.ridge or not options.mixing or self.form == "regularized":
            return self
        return replace(self, options=replace(options, ridge=ridge))

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        return samples.factor, None  # without mixing for the decoder alone

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit:
        fit = morp_moments(self.form, samples, self.options, moments, k)
        return fit if self.scaled else fit.unscaled()

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit:
        fit = morp_operator(self.form, samples, self.options, K, k, tol, max_steps, random_state)
        return fit if self.scaled else fit.unscaled()


def decode(moments: Moments) -> Decoder | None:
    """Decode labels by least squares with an intercept.

    Parameters
    ----------
    moments : Moments
        Of the coordinates ROWS and of the LABELS.

    Returns
    -------
    (ndarray of shape (k, q), ndarray of shape (q,)) or None
        Coefficients and offset; None without LABELS.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import Moments
    >>> from dmo.methods.embeddings.tasks import decode
    >>> Z = np.array([[0.0], [1.0], [2.0]])
    >>> B, offset = decode(Moments.of({"rows": Z, "labels": 2 * Z + 1}))
    >>> B.round(6), offset.round(6)
    (array([[2.]]), array([1.]))
    """
    if LABELS not in moments.widths:
        return None
    slices, centered = moments.slices(), moments.centered().gram
    Z = slices[ROWS]
    B = power_of(centered[Z, Z], -1.0) @ centered[Z, slices[LABELS]]
    mean = moments.mean()
    return B, mean[slices[LABELS]] - mean[Z] @ B


_SHRINKAGE = 1e-3
"""Share of the total scatter in the one within classes, which may be 0: training samples of a class can fall on a point."""


def discriminants(moments: Moments) -> Decoder | None:
    """Discriminate classes by coordinates: logarithms of the densities of Gaussian classes with one covariance.

    Parameters
    ----------
    moments : Moments
        Of the coordinates ROWS and of the classes LABELS, one column of 0 and 1 each.

    Returns
    -------
    (ndarray of shape (k, q), ndarray of shape (q,)) or None
        Coefficients and offset, up to what all classes have in common; None without LABELS.

    References
    ----------
    Fisher 1936.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import Moments
    >>> from dmo.methods.embeddings.tasks import discriminants
    >>> Z = np.array([[0.0], [1.0], [9.0], [10.0]])
    >>> B, offset = discriminants(Moments.of({"rows": Z, "labels": np.eye(2)[[0, 0, 1, 1]]}))
    >>> (Z @ B + offset).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    if LABELS not in moments.widths:
        return None
    slices, total = moments.slices(), moments.centered().gram
    Z, labels = slices[ROWS], slices[LABELS]
    counts = moments.sums[labels]
    means = moments.gram[labels, Z] / np.maximum(counts, 1.0)[:, None]
    mean = moments.mean()[Z]
    apart = means - mean
    within = total[Z, Z] - apart.T @ (counts[:, None] * apart)
    B = power_of((within + _SHRINKAGE * total[Z, Z]) / moments.n, -1.0) @ apart.T
    offset = np.log(np.maximum(counts, 1.0) / moments.n) - np.einsum("qk,kq->q", apart / 2 + mean, B)
    return B, offset


Learner: TypeAlias = Callable[[Moments], Decoder | None]
"""`decode` or `discriminants`."""


def decode_rows(task: Task, samples: Samples, embedding: np.ndarray, learn: Learner | None = None) -> Decoder | None:
    """Decode the labels from coordinates in memory.

    Parameters
    ----------
    task : Task
        Whether it `decodes`.
    samples : Samples
        With their labels.
    embedding : array of shape (n, k)
        Coordinates.
    learn : callable, default=None
        By what, also where the task decodes nothing; None: least squares with an intercept.

    Returns
    -------
    (ndarray of shape (k, q), ndarray of shape (q,)) or None
        Coefficients and offset.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.embeddings.samples import Options, Samples
    >>> from dmo.methods.embeddings.tasks import FormTask, decode_rows
    >>> Z = np.array([[0.0], [1.0], [2.0]])
    >>> B, offset = decode_rows(FormTask("direct", Options(), True), Samples(3, labels=2 * Z + 1), Z)
    >>> B.round(6), offset.round(6)
    (array([[2.]]), array([1.]))
    """
    if samples.labels is None or not (task.decodes or learn):
        return None
    groups = {ROWS: samples.rooted(np.asarray(embedding, np.float64)), LABELS: samples.rooted(samples.labels)}
    roots = None if samples.weights is None else np.sqrt(samples.weights)
    moments = Moments.zeros({name: part.shape[1] for name, part in groups.items()}).absorb(groups, roots)
    return (learn or decode)(moments)


def solve_moments(
    task: Task, samples: Samples, moments: Moments, k: int, trace: float | None = None
) -> tuple[EmbeddingFit, np.ndarray, Decoder | None]:
    """Solve a task from moments.

    Parameters
    ----------
    task : Task
        What is to be solved.
    samples : Samples
        With their labels.
    moments : Moments
        Of groups ROWS and LABELS.
    k : int
        Components.
    trace : float, optional
        Of the kernel, where the mapped rows lack some.

    Returns
    -------
    fit : EmbeddingFit
        Coefficients on the columns of ROWS.
    offset : ndarray of shape (k,)
        Of new rows.
    decoder : (ndarray of shape (k, q), ndarray of shape (q,)) or None
        Coefficients and offset.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import Moments
    >>> from dmo.methods.embeddings.catalog import METHODS
    >>> from dmo.methods.embeddings.samples import Options, Samples
    >>> from dmo.methods.embeddings.tasks import MethodTask, solve_moments
    >>> X = np.array([[1.0], [2.0], [6.0]])
    >>> fit, offset, _ = solve_moments(MethodTask(METHODS["pca"], Options()), Samples(3), Moments.of({"rows": X}), 1)
    >>> fit.coefficients, offset
    (array([[1.]]), array([-3.]))
    """
    where = moments.slices()[ROWS]
    if trace is None:
        inner = moments.centered() if task.center else moments
        trace = float(np.trace(inner.gram[where, where]))
    fit = task.moments(replace(samples, trace=trace), moments, k)
    offset = -(moments.mean()[where] @ fit.coefficients) if task.center else np.zeros(k)
    decoder = decode(moments.mixed({ROWS: fit.coefficients})) if task.decodes else None
    if decoder is not None and samples.labels is not None:
        B, rest = decoder  # of coordinates less their offset, for label columns that may be centered
        mean = samples.mean(samples.labels) if task.center else np.zeros(B.shape[1])
        decoder = B, rest + mean - offset @ B
    return fit, offset, decoder


def solve_operator(
    task: Task, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
) -> EmbeddingFit:
    """Solve a task from products with the kernel, whose trace it may need.

    Parameters
    ----------
    task : Task
        What is to be solved.
    samples : Samples
        With their labels.
    K : Operator
        The kernel, centered where the task asks for it.
    k : int
        Components.
    tol : float
        Of the eigenpairs' residuals.
    max_steps : int
        Products with blocks at most.
    random_state : int or None
        Of the start.

    Returns
    -------
    EmbeddingFit
        Coefficients on kernel columns.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.operators import Dense
    >>> from dmo.methods.embeddings.catalog import METHODS
    >>> from dmo.methods.embeddings.samples import Options, Samples
    >>> from dmo.methods.embeddings.tasks import MethodTask, solve_operator
    >>> K = Dense(np.diag([4.0, 1.0, 1.0]))
    >>> solve_operator(MethodTask(METHODS["lsi"], Options()), Samples(3), K, 1, 1e-9, 50, 0).values.round(6)
    array([4.])
    """
    seen = replace(samples, trace=float(K.diagonal().sum()))
    return task.operator(seen, K, k, tol, max_steps, random_state)

"""Types of the estimators' arguments, from which the command line makes its options, and the words that many share."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dmo.decoders import Calibration, PlugIn, PooledCalibration
from dmo.engines.exact import Exact
from dmo.engines.krylov import Krylov
from dmo.kernels import Kernel
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.validation import ClassWeight as ClassWeight
from dmo.validation import Inputs as Inputs
from dmo.validation import Outputs as Outputs
from dmo.validation import RowWeights as RowWeights

KernelSpec = str | Kernel
"""A kernel or its name."""
KernelSpecs = str | Kernel | Mapping[str, Any] | Sequence[Any]
"""One kernel for all views, or one per view."""
Ridges = float | Mapping[str, float] | Sequence[float]
"""One ridge for all views, or one per view."""
LabelRidges = float | np.ndarray | Mapping[str, Any] | Sequence[Any]
"""The same, each a number for all labels or an array of one per label."""
Weights = Mapping[str, float] | Sequence[float] | Literal["equal", "tagprop", "alignment"] | None
"""Weights of the views, or how they are learned."""
Decoder = str | Calibration | PlugIn | PooledCalibration | None
"""From held-out scores to decisions: an object of dmo.decoders, "calibrated", "probabilities", or a metric as "f1@5"."""
Engine = Literal["auto", "exact"] | Exact | Nystrom | Meka | BestLowRank
"""The kernel as it is, or one of low rank; "auto" decides by size."""
GivenEngine = Literal["exact"] | Exact | Nystrom | Meka | BestLowRank
"""The same without "auto"."""
LinearEngine = Literal["auto", "exact"] | Exact | Krylov | Nystrom
"""Of a linear problem, which may be solved in a Krylov subspace too."""
AnyEngine = Literal["auto", "exact"] | Exact | Krylov | Nystrom | Meka | BestLowRank

_PARAGRAPHS = {
    "X": """X : mapping of view to rows, list of rows, or rows
    Views of n samples each: NumPy, SciPy sparse, dask or Zarr arrays of shape (n, d), in chunks of whole rows; or one
    view.""",
    "X_gaps": """X : mapping of view to rows, list of rows, or rows
    Views of n samples each: NumPy, SciPy sparse, dask or Zarr arrays of shape (n, d), in chunks of whole rows; or one
    view. Of several views in memory, rows of NaN are samples that a view lacks.""",
    "X_new": """X : mapping of view to rows, list of rows, or rows
    The views of fit, of m samples: arrays of shape (m, d), in chunks of whole rows.""",
    "y": """y : array-like of shape (n, L) or (n,)
    Labels of 0 and 1, n classes, or n lists of labels.""",
    "y_unused": """y : object, default=None
    Ignored; here so that pipelines can pass it.""",
    "views": """views : mapping of view to slice, list of int or list of str, or None, default=None
    Columns of the views, where X is one array, or a DataFrame whose columns have these names.""",
    "scale": """scale : {"auto", "none", "standard", "maxabs", "l2"}, or mapping of view to these, default="auto"
    How columns (l2: rows) are scaled, learned from the training rows; standard takes no mean off sparse rows. "auto":
    standard (maxabs of rows that are mostly zeros) where columns differ in size by a factor above 100 and the kernel
    does not need the rows as they are; else none.""",
    "impute": """impute : {"mean", "median", "zero"}, each with "+indicator" or not, mapping of view, or None, default=None
    What missing cells (NaN) are filled with, learned from the training rows; "+indicator" marks them by a further
    column for every column that has some. None: they are refused.""",
    "random_state": """random_state : int or None, default=0
    Seed of everything that is drawn, such as landmarks, starting vectors, folds and samples of rows.""",
    "approximation": """approximation : {"auto", "exact"}, Exact, Nystrom, Meka or BestLowRank, default="auto"
    The exact engine (Exact says where and in which precision the kernels live), or a low-rank kernel per view and the
    moment engine: one pass over the rows, then small dense algebra. "auto": exact where it fits in memory.""",
    "distances": """distances : {"auto", "l1", "l2", "chi2"}, or mapping of view to these, default="auto"
    "l1" and "chi2" compare histograms (rows scaled to sum 1), "l2" is the Euclidean distance; "auto", and views that a
    mapping does not name: "chi2" where their feature store calls them histograms, else "l2". Each is divided by its
    mean over the training samples.""",
    "targets": """targets : {"auto", "labels", "real"}, default="auto"
    What y is. "real": numbers in any units, which `predict` returns, and the estimator is a regressor to scikit-learn.
    "auto": real where y is a matrix of floats other than 0, 1, -1 and NaN, else labels.""",
    "decoder": """decoder : Calibration, PlugIn, PooledCalibration, str or None, default=None
    Learned from out-of-fold scores of the training samples (four further fits), what ranks the labels; None: their
    scores do.""",
    "label_sets": """label_sets : bool, default=True
    Where there is no decoder: learn which labels `predict` gives, and `predict_proba`, from one further fit on at most
    2000 samples; of at most 1000 samples from four to ten fits, each on other folds. False: `predict` gives every sample
    as many labels as a training sample has on average.""",
    "metric": """metric : {"euclidean", "cosine"}, default="euclidean"
    Distance by which neighbors are sought.""",
}
_MARK = re.compile(r"^( *)%\((\w+)\)s$", re.MULTILINE)


def fill_docstrings(kind: type) -> None:
    """Put the shared paragraphs in the place of marks such as %(scale)s, in the docstrings of a class and its methods."""

    def put(mark: re.Match[str]) -> str:
        return textwrap.indent(_PARAGRAPHS[mark[2]], mark[1])

    for thing in (kind, *vars(kind).values()):
        for part in (thing, getattr(thing, "fn", None)):  # scikit-learn's `available_if` keeps the function as `fn`
            text = getattr(part, "__doc__", None)
            if isinstance(text, str) and "%(" in text:
                part.__doc__ = _MARK.sub(put, text)  # type: ignore[union-attr]

"""Base classes of estimators that project samples of one view, and that predict outputs from the coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows, iterate
from dmo.decide.decoders import Scores
from dmo.decide.out_of_fold import LeftOut
from dmo.errors import UserError
from dmo.fit.engine import LowRankPass
from dmo.fit.functions import Expansion, FactorExpansion, LinearExpansion, load_expansions, store_expansions
from dmo.fit.krylov import Krylov
from dmo.fit.moments import LABELS, ROWS, Moments
from dmo.fit.row_sums import BLOCK
from dmo.inputs import (
    Data,
    Inputs,
    Outputs,
    Prepare,
    SampleWeights,
    check_label_factor,
    check_outputs,
    count_components,
    read_some,
    sample_count,
)
from dmo.inputs.outputs import RealOutputs, are_real, refuse_for_real
from dmo.labels.label_kernels import LabelKernel
from dmo.methods.annotator import Annotator
from dmo.methods.base import Estimator
from dmo.methods.incremental import Incremental
from dmo.methods.lazy_rows import row_by_row
from dmo.methods.options import Decoder
from dmo.methods.projector import Learner, Projected, Task, decode, discriminants, project_pass
from dmo.parameters import Part


class Projection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Base class of transformers of one view.

    `fit` learns a function of a sample, `expansion_`, and `transform` evaluates this function.
    """

    one_view = True
    _weight_detail = "sample"
    _prepare = Part(Prepare, scale="auto", impute=None)
    expansion_: Expansion
    eigenvalues_: np.ndarray

    def _keep(self, learned: Projected) -> None:
        if not learned.fit.converged:
            self._warn(
                f"the eigenproblem stopped after {learned.fit.steps} block steps with a residual of "
                f"{learned.fit.residual:.1e}; raise max_iter, or tol (Krylov's own: steps, or tol)",
                ConvergenceWarning,
            )
        self.expansion_, self.eigenvalues_ = learned.expansion, learned.fit.values
        self.n_components_ = self._n_features_out = len(learned.fit.values)
        self.n_iter_ = max(1, learned.fit.steps)
        for name in ("embedding_", "decoder_", "decoder_offset_"):
            self.__dict__.pop(name, None)
        if learned.decoder is not None:
            self.decoder_, self.decoder_offset_ = learned.decoder
        if learned.embedding is not None:
            self.embedding_ = np.asarray(learned.embedding, np.float64)

    @property
    def components_(self) -> np.ndarray:
        """Directions of a linear projection, of shape (`n_components_`, d), for features scaled as in `fit`."""
        if isinstance(self.expansion_, LinearExpansion):
            return np.asarray(self.expansion_.coefficients).T
        raise AttributeError(
            f"{self._title} has a nonlinear kernel, which has no directions; use kernel='linear', or "
            "dmo.space.describe_space"
        )

    @row_by_row
    def transform(self, X: Inputs) -> np.ndarray:
        """Compute the coordinates of samples, one block of rows at a time.

        Parameters
        ----------
        X : rows of shape (m, d)
            Samples, as a NumPy, SciPy sparse, dask or Zarr array. Each chunk must contain whole rows.

        Returns
        -------
        ndarray of shape (m, n_components_)
            Coordinates of the samples.
        """
        check_is_fitted(self)
        return self.expansion_(self._checked(X))

    def fit_transform(self, X: Inputs, y: Outputs | None = None) -> np.ndarray:
        """Fit the projection and return the coordinates of the training samples.

        Parameters
        ----------
        X : rows of shape (n, d)
            Training samples. Each chunk must contain whole rows.
        y : array-like of shape (n, L) or (n,), default=None
            Outputs of the samples, as in `fit`.

        Returns
        -------
        ndarray of shape (n, n_components_)
            Coordinates of the samples.
        """
        self.fit(X, y)  # type: ignore[attr-defined]
        return self.embedding_ if hasattr(self, "embedding_") else self.transform(X)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays: dict[str, Any] = {"eigenvalues": self.eigenvalues_}
        for name in ("decoder", "decoder_offset"):
            if hasattr(self, f"{name}_"):
                arrays[name] = getattr(self, f"{name}_")
        if isinstance(self.expansion_, LinearExpansion):
            own, meta = self.expansion_.to_arrays()
            return arrays | own, {"linear": meta["view"], "n_iter": self.n_iter_}
        own, meta = store_expansions({"x": self.expansion_})
        return arrays | own, meta | {"n_iter": self.n_iter_}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        if "linear" in meta:
            self.expansion_ = LinearExpansion(meta["linear"], arrays["coefficients"], arrays["offset"])
        else:
            self.expansion_ = load_expansions(arrays, meta)["x"]
        for name in ("decoder", "decoder_offset"):
            if name in arrays:
                setattr(self, f"{name}_", arrays[name])
        self.eigenvalues_, self.n_iter_ = arrays["eigenvalues"], meta["n_iter"]
        self.n_components_ = self._n_features_out = len(self.eigenvalues_)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = tags.target_tags.single_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags


class DecodingProjection(Annotator, Projection):
    """Base class of projections that also predict the outputs of samples from their coordinates.

    The subclasses are `MORP`, `MLSI`, `MOPE`, `MESD` and `TraceEmbedding`.
    """

    _tells_classes = True  # Linear discriminants replace least squares for a vector of classes.

    decoder: Decoder
    _by_scores = Part(Scores, "decoder", label_sets=True, hierarchy=None)

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        """Read labels; samples may be unlabeled."""
        self.outputs_ = None
        return read_some(self, views, y, weights)

    def _read_factor(
        self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None, kernel: LabelKernel
    ) -> Data:
        """Read labels or regression targets as a factor of their kernel matrix, with 0 for unknown entries."""
        often = None if weights is None else weights.labels
        Y, known = check_label_factor(self, y, sample_count(views), kernel, often)
        Y = Y if known is None else np.where(known, Y, 0.0)
        if self._decodes:
            labels = ((Y == 0) | (Y == 1)).all()
            self.outputs_ = None if labels else RealOutputs.plain(Y.shape[1], np.ndim(y) == 1)
            if not labels:
                refuse_for_real(self)
        # Methods that use all labels at once impute missing labels, so keep samples without any known label.
        return replace(Data.of(views, Y, weights, known, passive=True), known=known)

    @property
    def _learner(self) -> Learner:
        """Function that fits the decoder: least squares for labels and numbers, linear discriminants for classes."""
        # A least-squares classifier never predicts the middle class of three classes whose centers lie on a line.
        return decode if self.multilabel_ else discriminants

    def _fit_decoder(self, view: str, source: Rows, Y: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Fit the decoder, a linear function from coordinates to outputs, on the weighted training samples.

        If the fit did not store the coordinates, computing them requires an additional pass over the data.
        """
        embedding = getattr(self, "embedding_", None)
        blocks: Iterable[tuple[slice, Any]] = [(slice(0, len(Y)), embedding)]
        if embedding is None:
            blocks = ((where, self.expansion_({view: block})) for where, block in iterate(source, BLOCK))
        moments = Moments.zeros({ROWS: self.n_components_, LABELS: Y.shape[1]})
        for where, Z in blocks:
            roots = np.ones(len(Z)) if weights is None else np.sqrt(weights[where])
            groups = {ROWS: np.asarray(Z, np.float64), LABELS: Y[where].astype(np.float64)}
            moments = moments.absorb({name: roots[:, None] * part for name, part in groups.items()}, roots)
        found = self._learner(moments)
        assert found is not None  # The result is None only for moments without labels.
        self.decoder_, self.decoder_offset_ = found

    def _decide(self, data: Data, left: LeftOut | None) -> None:
        if data.Y is not None and self._decodes:
            super()._decide(data, left)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return np.asarray(self.expansion_(views) @ self.decoder_ + self.decoder_offset_)


class IncrementalProjection(Incremental, DecodingProjection):
    """Base class of projections with `partial_fit`, which need only the first and second moments of the samples."""

    targets = "labels"

    @property
    def _learns_outputs(self) -> bool:
        """Whether the projection is supervised."""
        return True

    @property
    def _adds_rows(self) -> bool:
        return not isinstance(self.approximation, Krylov) and super()._adds_rows

    @property
    def _functions_of_views(self) -> Mapping[str, Any]:
        expansion = cast(FactorExpansion, self.expansion_)
        return {expansion.view: expansion}

    def _task(self) -> Task:
        """Return the eigenproblem that determines the projection."""
        raise NotImplementedError

    def _read_batch(self, y: Any, n: int, first: bool, weights: np.ndarray | None, classes: Any) -> np.ndarray | None:
        """Read a batch of labels, classes or regression targets without scaling the targets."""
        if first:
            self.outputs_ = None
        if not self._learns_outputs:
            return None
        if not self._decodes:
            raise UserError("partial_fit supports only linear label kernels; use label_kernel='linear', or fit")
        if first and are_real(y):
            self._read_factor({ROWS: np.empty((n, 0))}, y, None, "linear")
        if self.outputs_ is None:
            return super()._read_batch(y, n, first, weights, classes)
        Y = check_outputs(y, n)[0]
        if Y.shape[1] != len(self.outputs_.scale):
            raise UserError(
                f"y has {Y.shape[1]} targets, expected {len(self.outputs_.scale)} as in earlier calls; pass the same "
                "targets"
            )
        return Y

    def _fit_pass(self, done: LowRankPass) -> None:
        ((view, feature_map),) = done.maps.items()
        total = done.total
        moments = replace(total, widths={ROWS if name == view else name: width for name, width in total.widths.items()})
        learn, n = self._learner if self._decodes else None, int(total.n)
        k = count_components(self.n_components, 1, n, n)
        self._project_pass(lambda k: project_pass(self._task(), view, feature_map, moments, k, learn), k)
        if self._decodes:
            self._learn_rule(done.frequency, total.n)

    def _project_pass(self, learn: Callable[[int], Projected], k: int) -> None:
        """Compute a projection to k dimensions with `learn`, and store it."""
        self._keep(learn(k))

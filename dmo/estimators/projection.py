"""What the estimators of one view and its outputs share: validation, the fitted function, models on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.estimators.arguments import Inputs, Outputs
from dmo.estimators.base import Estimator
from dmo.estimators.lazy import row_by_row
from dmo.estimators.projector import Projected
from dmo.functions import Expansion, LinearExpansion, load_expansions, store_expansions
from dmo.parameters import Part
from dmo.validation import Prepare, check_one_view


class Projection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """A transformer of one view: fit learns one function of new rows, `expansion_`, and transform applies it.

    The base class of the estimators of one view.
    """

    one_view = True
    _prepare = Part(Prepare, scale="auto", impute=None)
    expansion_: Expansion
    eigenvalues_: np.ndarray

    def _learn(self, learned: Projected) -> None:
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
        """Directions (n_components_ x d) of linear functions: rows, less their means and scaled as in fit, times them."""
        if isinstance(self.expansion_, LinearExpansion):
            return np.asarray(self.expansion_.coefficients).T
        raise AttributeError(
            f"{self._title} has a kernel: its functions have no directions; see dmo.space.describe_space"
        )

    @row_by_row
    def transform(self, X: Inputs) -> np.ndarray:
        """Give samples their coordinates, worked out block by block.

        Parameters
        ----------
        X : rows of shape (m, d)
            Samples: a NumPy, SciPy sparse, dask or Zarr array in chunks of whole rows.

        Returns
        -------
        ndarray of shape (m, n_components_)
            Coordinates.
        """
        check_is_fitted(self)
        view, source = check_one_view(self, X, reset=False)
        return self.expansion_({view: source})

    def fit_transform(self, X: Inputs, y: Outputs | None = None) -> np.ndarray:
        """Learn from samples and return their coordinates.

        Parameters
        ----------
        X : rows of shape (n, d)
            Samples, in chunks of whole rows.
        y : array-like of shape (n, L) or (n,), default=None
            Outputs, as fit takes them.

        Returns
        -------
        ndarray of shape (n, n_components_)
            Coordinates.
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

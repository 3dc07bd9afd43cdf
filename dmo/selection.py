"""Cross-validated sweeps over hyperparameter candidates that share computations between fits.

Everything that is learned from rows (imputation, scales, bandwidths, landmarks, weights, units, decoders) is learned
from the training rows of a fold. Candidates that only change small linear algebra (ridge, balance, n_components,
center, and decoding) are evaluated together. With low-rank kernels, each fold needs one pass over its training rows per
set of kernels; with exact kernels, each fold computes one set of kernels. A single pass serves all folds of linear
kernels whose rows need no learned scale. Neighbor votes share the fits of their base estimator within a fold. For all
other parameters and estimators, each candidate is fitted separately.
"""

from dmo.select.sweeps import sweep

__all__ = ["sweep"]

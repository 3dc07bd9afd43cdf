"""Cross-validated sweeps over hyperparameter candidates that share computations between fits.

In each fold, all parameters of preprocessing, kernels and decoders are learned from the training rows of the fold.
Candidates that differ only in `ridge`, `balance`, `n_components`, `center` or the decoder share the expensive
computations of a fit. Low-rank kernels need one pass over the training rows per fold and kernel, and exact kernels are
computed once per fold. Linear kernels without a learned scale need a single pass for all folds. Neighbor votes share
the fits of their base estimator within a fold. For all other parameters and estimators, each candidate is fitted
separately.
"""

from dmo.select.sweeps import sweep

__all__ = ["sweep"]

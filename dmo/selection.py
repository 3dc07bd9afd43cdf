"""Cross-validated sweeps that share what their fits have in common.

What is learned from rows (fillings, scales, bandwidths, landmarks, weights, units, decoders) is learned from the training
rows of a fold. Settings that only change small algebra (ridge, balance, n_components, center, and how scores are decoded)
are swept together: in every fold one pass over its training rows per set of kernels with a low-rank kernel, one set of
kernels with exact ones. One pass serves all folds of linear kernels whose rows need no learned scale. Votes of neighbors
share the fits of their base within a fold. Every other parameter, and every other estimator, is fitted setting by setting.
"""

from dmo.select.sweeps import sweep

__all__ = ["sweep"]

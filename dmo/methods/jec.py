"""Joint equal contribution: labels transferred from the nearest training samples, the baseline of the image papers."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from dmo.blocks import row_blocks

_QUERIES = 512  # rows whose similarity to all training samples in labels is held at a time


def transferred_labels(nearest: np.ndarray, Y: np.ndarray, same: bool = False) -> np.ndarray:
    """Label scores of samples from their nearest training samples.

    nearest (m, k); Y (n, L) -> (m, L)
    """
    # The labels of the nearest come first, the frequent ones before the rare ones; then those of the next neighbors,
    # by how many have them times how often they occur together with the nearest one's.
    #
    # Makadia, Pavlovic, Kumar 2008, section 3.
    known, frequency = scipy.sparse.csr_array(Y, dtype=np.float64), Y.mean(axis=0)
    scores = np.empty((len(nearest), Y.shape[1]))
    for where in row_blocks(len(nearest), _QUERIES):
        first, rest = Y[nearest[where, 0]].astype(np.float64), nearest[where, 1:]
        others = np.zeros(first.shape)
        for column in rest.T:  # one at a time: all of them are m k L numbers
            others += Y[column] / rest.shape[1]
        # label a with label b: n_ab / n_b, as (first / n_b) Y' Y without the L x L matrix of n_ab
        own = Y[where].astype(np.float64) if same else np.zeros(first.shape)
        share = first / np.maximum(Y.sum(axis=0) - own, 1)
        together = (known.T @ (known @ share.T)).T - own * (share * own).sum(axis=1, keepdims=True)
        transfer = others * together / np.maximum(first.sum(axis=1), 1.0)[:, None]
        scores[where] = first * (2 + frequency) + (1 - first) * (transfer + 1e-3 * frequency)
    return scores

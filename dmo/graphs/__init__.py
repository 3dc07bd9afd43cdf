"""Neighbor graphs: exact and approximate neighbors, adjacency, weights, Laplacians, geodesics; all sparse.

`neighbors` and `nearest` give lists, `adjacency` makes a graph, `weigh` gives its edges values.
"""

from dmo.graphs.adjacency import (
    KINDS,
    adjacency,
    check_connected,
    check_symmetric,
    edge_dots,
    ends,
    geodesics,
    laplacian,
    local_scales,
    reconstruction_weights,
    root_mean_square,
    weigh,
)
from dmo.graphs.search import Metric, Neighbors, nearest, neighbors, recall

__all__ = [
    "KINDS",
    "Metric",
    "Neighbors",
    "adjacency",
    "check_connected",
    "check_symmetric",
    "edge_dots",
    "ends",
    "geodesics",
    "laplacian",
    "local_scales",
    "nearest",
    "neighbors",
    "recall",
    "reconstruction_weights",
    "root_mean_square",
    "weigh",
]

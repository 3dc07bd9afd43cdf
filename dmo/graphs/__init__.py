"""Neighbor graphs: exact and approximate neighbors, adjacency, weights, Laplacians, geodesics; all sparse.

`neighbors` and `nearest` give lists, `adjacency` makes a graph, `weigh` gives its edges values.
"""

from dmo.graphs.adjacency import adjacency, check_connected, check_symmetric, geodesics, laplacian
from dmo.graphs.search import Metric, Neighbors, nearest, neighbors, recall
from dmo.graphs.weights import KINDS, edge_dots, ends, local_scales, reconstruction_weights, root_mean_square, weigh

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

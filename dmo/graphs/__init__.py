"""Sparse neighbor graphs: exact and approximate neighbors, adjacency, edge weights, Laplacians and geodesics.

`neighbors` and `nearest` return neighbor lists, `adjacency` converts a list to a graph, and `weigh` weights its edges.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # public names: see __init__.pyi
del lazy_loader

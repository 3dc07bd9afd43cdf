"""Neighbor graphs: exact and approximate neighbors, adjacency, weights, Laplacians, geodesics; all sparse.

`neighbors` and `nearest` give lists, `adjacency` makes a graph, `weigh` gives its edges values.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names stand in __init__.pyi
del lazy_loader

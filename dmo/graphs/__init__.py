"""Nearest neighbors and sparse neighbor graphs.

`neighbors` and `nearest` find nearest neighbors, `adjacency` converts them to a graph, and `weigh` computes edge
weights. Laplacians and geodesic distances are computed from such graphs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # public names: see __init__.pyi
del lazy_loader

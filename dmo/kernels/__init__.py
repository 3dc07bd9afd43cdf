"""Kernel functions: parameter objects that give tiles of Gram matrices.

    kernel = parse("hellinger-rbf")            # or RBF(bandwidth="median", normalize="hellinger")
    K, fitted = gram_matrix(kernel, X)         # n x n, the symmetric work done once
    x, y = fitted.prepare(X_new), fitted.prepare(X)
    K_new = fitted.tile(x, y)                  # m x n
    lazy = kernel_array(kernel, X)             # the same as a dask array, which `dmo.stores.write_kernel` takes

Only positive semidefinite kernels are parsed by name; `parse_relation` takes distances too, for relation features.
Sums, products and positive multiples of kernels are kernels.
"""

import lazy_loader

from dmo.kernels import composite as composite  # whose classes + and * make, of whatever kernels

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names stand in __init__.pyi
del lazy_loader

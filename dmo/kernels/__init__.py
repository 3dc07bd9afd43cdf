"""Kernel functions and their Gram matrices.

    kernel = parse("hellinger-rbf")            # or RBF(bandwidth="median", normalize="hellinger")
    K, fitted = gram_matrix(kernel, X)         # n x n; computes each pair once
    x, y = fitted.prepare(X_new), fitted.prepare(X)
    K_new = fitted.tile(x, y)                  # m x n
    lazy = kernel_array(kernel, X)             # the same matrix as a dask array, for `dmo.stores.write_kernel`

`parse` accepts only positive semidefinite kernels. `parse_relation` also accepts distances, which are used to compute
relation features. Sums, products and positive multiples of kernels are kernels, too.
"""

import lazy_loader

from dmo.kernels import composite as composite  # This module defines sums and products of kernels.

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # public names: see __init__.pyi
del lazy_loader

"""Stores of features, kernels, results and models on disk.

A store is a Zarr v3 group at a local path or an fsspec URL. The attributes of every group are `kind`, `version`,
`complete`, `provenance`, `configuration` and `attributes`. Several processes can write blocks of a feature, kernel or
result store at the same time. The store records the CRC-32C of each finished block and sets `complete` at the end.
Repeating an interrupted call writes only the missing blocks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # public names are declared in __init__.pyi
del lazy_loader

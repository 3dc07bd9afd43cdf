"""Feature, kernel, result and model stores on disk: Zarr v3 groups at local paths or fsspec URLs.

The attributes of every group are `kind`, `version`, `complete`, `provenance`, `configuration` and `attributes`.
Feature, kernel and result stores are written in whole blocks, by any number of processes. Each finished block is
recorded with its CRC-32C, and `complete` is set last. Repeating an interrupted call resumes the store.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # public names are declared in __init__.pyi
del lazy_loader

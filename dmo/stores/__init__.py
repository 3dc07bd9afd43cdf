"""What is on disk: feature, kernel, result and model stores, in Zarr v3, on local paths and fsspec URLs.

Every store is a Zarr group whose attributes are `kind`, `version`, `complete`, `provenance`, `configuration` and
`attributes`. Stores of blocks are written a whole block at a time, by any number of processes; each block is recorded
with its CRC-32C as it is done, `complete` is written last, and the same call goes on with a store whose writer was
interrupted.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names stand in __init__.pyi
del lazy_loader

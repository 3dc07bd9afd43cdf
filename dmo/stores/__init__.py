"""What is on disk: feature, kernel, result and model stores, in Zarr v3, on local paths and fsspec URLs.

Every store is a Zarr group whose attributes are `kind`, `version`, `complete`, `provenance`, `configuration` and
`attributes`. Stores of blocks are written a whole block at a time, by any number of processes; each block is recorded
with its CRC-32C as it is done, `complete` is written last, and the same call goes on with a store whose writer was
interrupted.
"""

from dmo.stores._arrays import DenseView, SparseView
from dmo.stores._files import (
    check_output,
    check_output_file,
    existing_store,
    put_in_place,
    relative_path,
    replace_file,
    replace_files,
)
from dmo.stores._folder import StoreError, writing
from dmo.stores._lock import reserve
from dmo.stores._schema import Provenance
from dmo.stores.audit import describe, reopen, verify
from dmo.stores.features import FeatureStore, FeatureWriter, ViewSpec, create_features, open_features
from dmo.stores.kernels import KernelStore, KernelWriter, create_kernel, open_kernel, write_kernel
from dmo.stores.models import load_model, model_contents, reserve_model, save_model
from dmo.stores.results import ResultStore, ResultWriter, create_results, open_results

__all__ = [
    "DenseView",
    "FeatureStore",
    "FeatureWriter",
    "KernelStore",
    "KernelWriter",
    "Provenance",
    "ResultStore",
    "ResultWriter",
    "SparseView",
    "StoreError",
    "ViewSpec",
    "check_output",
    "check_output_file",
    "create_features",
    "create_kernel",
    "create_results",
    "describe",
    "existing_store",
    "load_model",
    "model_contents",
    "open_features",
    "open_kernel",
    "open_results",
    "put_in_place",
    "relative_path",
    "reopen",
    "replace_file",
    "replace_files",
    "reserve",
    "reserve_model",
    "save_model",
    "verify",
    "write_kernel",
    "writing",
]

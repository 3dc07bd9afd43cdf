"""Support for arrays of other libraries and devices by the Python array API standard.

`array_api_compat` recognizes arrays of CuPy, PyTorch, JAX and other libraries. NumPy arrays have their own code paths
with compiled in-place loops, which are several times as fast on a CPU.
"""

from __future__ import annotations

import importlib
from typing import Any

import array_api_compat
import dask.config
import numpy as np

from dmo.errors import UserError


def foreign(array: Any) -> Any:
    """Return the array API namespace of an array from another library than NumPy, or None for all other arrays."""
    if isinstance(array, np.ndarray) or not array_api_compat.is_array_api_obj(array):
        return None
    lazy = array_api_compat.is_dask_array(array) or array_api_compat.is_pydata_sparse_array(array)
    return None if lazy else array_api_compat.array_namespace(array)


def placed(array: Any, other: Any) -> Any:
    """Copy a NumPy array to the library and the device of the array `other`."""
    space = foreign(other)
    if space is None or not isinstance(array, np.ndarray):
        return array
    return space.asarray(np.ascontiguousarray(array), device=array_api_compat.device(other))


def to_numpy(array: Any) -> Any:
    """Convert an array from any library to a NumPy array."""
    if foreign(array) is None:
        return array
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):  # NumPy cannot access the memory of other devices.
        return np.asarray(array_api_compat.to_device(array, "cpu"))


def moved(block: Any) -> Any:
    """Copy a dense block to the library and device in the setting `dmo.device`, such as "torch:cuda" or "cupy"."""
    wanted = dask.config.get("dmo.device", None)
    if wanted is None or not isinstance(block, np.ndarray):
        return block
    module, _, device = str(wanted).partition(":")
    try:
        library = importlib.import_module(module)
        # PyTorch does not support uint16, and CuPy and other libraries do not support half precision.
        if block.dtype.kind != "f" or block.dtype.itemsize < 4:
            block = block.astype(np.float32 if block.dtype.itemsize <= 2 else np.float64)
        found = library.asarray(np.ascontiguousarray(block))
        space = array_api_compat.array_namespace(found)
        return space.asarray(found, device=device) if device else found
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"the setting dmo.device is {wanted!r}, but rows cannot be copied there ({error}); install the library, or "
            "name a library and its device, such as torch:cuda"
        ) from error

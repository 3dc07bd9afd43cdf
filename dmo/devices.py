"""Arrays of other libraries and devices, through the Python array API standard.

CuPy, torch, JAX and others are recognized by their namespace (`array_api_compat`), never by name. NumPy arrays use
NumPy code, because its compiled loops work in place and are several times as fast on a CPU.
"""

from __future__ import annotations

import importlib
from typing import Any

import array_api_compat
import dask.config
import numpy as np

from dmo.errors import UserError


def foreign(array: Any) -> Any:
    """Return the namespace of an array that is not a NumPy array, otherwise None."""
    if isinstance(array, np.ndarray) or not array_api_compat.is_array_api_obj(array):
        return None
    lazy = array_api_compat.is_dask_array(array) or array_api_compat.is_pydata_sparse_array(array)
    return None if lazy else array_api_compat.array_namespace(array)


def placed(array: Any, other: Any) -> Any:
    """Copy a NumPy array to the library and device of another array."""
    space = foreign(other)
    if space is None or not isinstance(array, np.ndarray):
        return array
    return space.asarray(np.ascontiguousarray(array), device=array_api_compat.device(other))


def to_numpy(array: Any) -> Any:
    """Convert an array to NumPy."""
    if foreign(array) is None:
        return array
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):  # the array is not in host memory
        return np.asarray(array_api_compat.to_device(array, "cpu"))


def moved(block: Any) -> Any:
    """Copy dense rows to the device in the setting `dmo.device`: "torch:cuda", "cupy", or a module and its device."""
    wanted = dask.config.get("dmo.device", None)
    if wanted is None or not isinstance(block, np.ndarray):
        return block
    module, _, device = str(wanted).partition(":")
    try:
        library = importlib.import_module(module)
        # torch does not support uint16, and CuPy and others do not support half precision.
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

"""Arrays of other libraries, on the devices they lie on: whatever the Python array API standard describes.

CuPy, torch, JAX and others are told by their own namespace (`array_api_compat`), never by name. What is NumPy's takes
NumPy's roads, whose compiled loops work in place and are several times as fast on a processor.
"""

from __future__ import annotations

import importlib
from typing import Any

import array_api_compat
import dask.config
import numpy as np
import scipy.sparse

from dmo.errors import UserError


def foreign(array: Any) -> Any:
    """Look up the namespace of an array that is not NumPy's."""
    if isinstance(array, np.ndarray) or scipy.sparse.issparse(array) or not array_api_compat.is_array_api_obj(array):
        return None
    lazy = array_api_compat.is_dask_array(array) or array_api_compat.is_pydata_sparse_array(array)
    return None if lazy else array_api_compat.array_namespace(array)


def placed(array: Any, other: Any) -> Any:
    """Take an array of NumPy's to the library and the device of another array."""
    space = foreign(other)
    if space is None or not isinstance(array, np.ndarray):
        return array
    return space.asarray(np.ascontiguousarray(array), device=array_api_compat.device(other))


def to_numpy(array: Any) -> Any:
    """Take an array to NumPy."""
    if foreign(array) is None:
        return array
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):  # not in this machine's memory
        return np.asarray(array_api_compat.to_device(array, "cpu"))


def moved(block: Any) -> Any:
    """Take dense rows to where the setting `dmo.device` says: "torch:cuda", "cupy", or a module and a device of it."""
    wanted = dask.config.get("dmo.device", None)
    if wanted is None or not isinstance(block, np.ndarray):
        return block
    module, _, device = str(wanted).partition(":")
    try:
        library = importlib.import_module(module)
        # torch has no uint16, CuPy and others no half precision
        if block.dtype.kind != "f" or block.dtype.itemsize < 4:
            block = block.astype(np.float32 if block.dtype.itemsize <= 2 else np.float64)
        found = library.asarray(np.ascontiguousarray(block))
        space = array_api_compat.array_namespace(found)
        return space.asarray(found, device=device) if device else found
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"the setting dmo.device is {wanted!r}, and rows cannot be taken there ({error}); install the library, or name "
            "one with a device of it, such as torch:cuda"
        ) from error

"""MATLAB version 5 files (v5, v6, v7): numeric, logical and sparse matrices."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse

from dmo.datasets.files import DataError, existing

NUMERIC = {"double", "single", "logical", "sparse"} | {f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)}
MATRIX, COMPRESSED = 14, 15
HEADER = 128


def _check(path: Path) -> None:
    """Walk the data elements: every one must lie within the file.

    Source: MathWorks, MAT-File Format (R2014b), "Level 5 MAT-File Format".
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(HEADER)
        if head[:19] == b"MATLAB 7.3 MAT-file" or head[:8] == b"\x89HDF\r\n\x1a\n":
            raise DataError(f"{path}: is a MATLAB 7.3 (HDF5) file at byte 0, expected version 5; save it with -v7")
        if len(head) < HEADER or head[126:128] not in (b"IM", b"MI"):
            raise DataError(f"{path}: no byte order mark at byte 126, expected the header of a MATLAB version 5 file")
        order = "<" if head[126:128] == b"IM" else ">"
        position = HEADER
        while position < size:
            file.seek(position)
            tag = file.read(8)
            if len(tag) < 8:
                raise DataError(
                    f"{path}: ends at byte {size}, expected an 8-byte tag from byte {position} on; truncated"
                )
            kind, count = struct.unpack(order + "II", tag)
            if kind not in (MATRIX, COMPRESSED):
                raise DataError(
                    f"{path}: element of type {kind} at byte {position}, expected a matrix ({MATRIX}) or a compressed "
                    f"one ({COMPRESSED})"
                )
            if position + 8 + count > size:
                raise DataError(
                    f"{path}: ends at byte {size}, expected {count} bytes from byte {position + 8} on; truncated"
                )
            position += 8 + count


def matlab_variables(path: str | os.PathLike[str]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Names, shapes and classes of the variables of a MATLAB version 5 file: {name: (shape, class)}.

    Raises DataError when the file is truncated or of another format.
    """
    path = existing(path)
    _check(path)
    try:
        found = scipy.io.whosmat(path, appendmat=False)
    except (ValueError, TypeError, OSError, zlib.error, KeyError) as error:
        raise DataError(
            f"{path}: the matrices after byte {HEADER} cannot be listed ({error}); fetch it again"
        ) from None
    return {name: (shape, kind) for name, shape, kind in found}


def read_matlab(
    path: str | os.PathLike[str], names: list[str] | None = None
) -> dict[str, np.ndarray | scipy.sparse.csr_array]:
    """Matrices of a MATLAB version 5 file: {name: array}, dense as they are stored (the smallest type that holds them,
    as MATLAB writes it), sparse ones as CSR.

    Arguments: `path`; `names`, the variables wanted (None: every numeric one). Others are not read; cells, structs,
    objects and functions never are.
    Raises DataError when the file is truncated or of another format, or a wanted variable is missing or not numeric.
    """
    variables = matlab_variables(path)
    if names is None:
        names = [name for name, (_, kind) in variables.items() if kind in NUMERIC]
    for name in names:
        if name not in variables:
            raise DataError(f"{path}: no variable {name!r}, expected one of {', '.join(variables) or 'none'}")
        if variables[name][1] not in NUMERIC:
            raise DataError(f"{path}: variable {name!r} is a {variables[name][1]}, expected a numeric or sparse matrix")
    try:
        loaded = scipy.io.loadmat(path, appendmat=False, variable_names=names, spmatrix=False)
    except (ValueError, TypeError, OSError, zlib.error, KeyError) as error:
        raise DataError(f"{path}: the matrices after byte {HEADER} cannot be read ({error}); fetch it again") from None
    return {name: scipy.sparse.csr_array(v) if scipy.sparse.issparse(v := loaded[name]) else v for name in names}

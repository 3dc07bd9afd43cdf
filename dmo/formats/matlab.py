"""MATLAB files of version 5 (v5, v6, v7) and 7.3: numeric, logical and sparse matrices, alone and in cells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from dmo.formats import matlab5, matlab73
from dmo.formats.files import DataError, existing
from dmo.formats.matlab5 import NUMERIC


def matlab_variables(path: str | os.PathLike[str]) -> dict[str, tuple[tuple[int, ...], str]]:
    """List the variables of a MATLAB file; no values are read.

    Parameters
    ----------
    path : path-like
        A file of version 5 (v5, v6, v7) or, with `dmo-learn[matlab]`, 7.3.

    Returns
    -------
    dict of str to (tuple of int, str)
        Name -> shape and class ("double", "uint8", "sparse", "char", ...; "uint8" for a logical one).

    Raises
    ------
    DataError
        Where the file is truncated, damaged or of another format, with the byte in a file of version 5.
    ImportError
        For a file of version 7.3 where h5py is not installed.

    Examples
    --------
    >>> import numpy as np, scipy.io
    >>> from dmo.datasets import matlab_variables
    >>> scipy.io.savemat("set.mat", {"X": np.ones((3, 2))})
    >>> matlab_variables("set.mat")
    {'X': ((3, 2), 'double')}
    """
    return {name: (variable.shape, variable.kind) for name, variable in _variables(existing(path)).items()}


def read_matlab(
    path: str | os.PathLike[str], names: list[str] | None = None
) -> dict[str, np.ndarray | scipy.sparse.csr_array]:
    """Read matrices of a MATLAB file.

    Parameters
    ----------
    path : path-like
        A file of version 5 (v5, v6, v7) or, with `dmo-learn[matlab]`, 7.3.
    names : list of str, default=None
        The variables wanted, one in a cell as "X{2}"; None: every numeric one that is in no cell. Others are not read;
        structs, objects and functions never are.

    Returns
    -------
    dict of str to ndarray or csr_array
        Name -> matrix, dense in the type that MATLAB stored it in (version 5: the smallest that holds the values), a
        sparse one as CSR.

    Raises
    ------
    DataError
        Where the file is truncated, damaged or of another format, with the byte in a file of version 5, and where a
        wanted variable is missing, complex or not numeric.
    ImportError
        For a file of version 7.3 where h5py is not installed.

    Examples
    --------
    >>> import numpy as np, scipy.io
    >>> from dmo.datasets import read_matlab
    >>> scipy.io.savemat("set.mat", {"X": np.ones((3, 2)), "name": "corel"})
    >>> {name: matrix.shape for name, matrix in read_matlab("set.mat").items()}
    {'X': (3, 2)}
    """
    path = existing(path)
    variables = dict(_variables(path))
    for cell in dict.fromkeys(name.partition("{")[0] for name in names or () if name.endswith("}")):
        variables |= {part.name: part for part in _cells(variables.get(cell))}
    found = {}
    for name in [name for name, v in variables.items() if v.kind in NUMERIC] if names is None else names:
        if name not in variables:
            raise DataError(f"{path}: no variable {name!r}, expected one of {', '.join(variables) or 'none'}")
        if variables[name].kind not in NUMERIC:
            raise DataError(
                f"{path}: variable {name!r} is a {variables[name].kind}, expected a numeric or sparse matrix"
            )
        found[name] = variables[name].read()
    return found


def matlab_cells(path: str | os.PathLike[str]) -> dict[str, dict[str, tuple[tuple[int, ...], str]]]:
    """The cells of a MATLAB file, by name: what each holds by "X{1}", "X{2}", ..., with shape and class."""
    found = {name: _cells(variable) for name, variable in _variables(existing(path)).items() if variable.kind == "cell"}
    return {name: {part.name: (part.shape, part.kind) for part in parts} for name, parts in found.items()}


def _cells(variable: Any) -> list[Any]:
    return variable.cells() if variable is not None and variable.kind == "cell" else []


def _variables(path: Path) -> Mapping[str, matlab5.Variable | matlab73.Variable]:
    return (matlab73 if matlab73.is_hdf5(path) else matlab5).variables(path)

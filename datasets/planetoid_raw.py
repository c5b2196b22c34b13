"""Raw files of Planetoid: pickles, read without running code that they may hold.

A pickle may call anything, so a file from others could do anything at a site. Here only
arrays, sparse matrices and plain containers may stand in one; what was read is checked
before PyTorch Geometric, which unpickles without a look, gets a copy of the same bytes.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import numpy as np
from typing_extensions import override

from fedgraph_flwr.errors import DataError

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_CONTENT = {
    "graph": "lists of nodes by node",
    "test.index": "numbers of nodes",
}
_MOST_NODES = 100_000  # PyTorch Geometric makes a table up to the largest number
_TABLES = ("x", "y", "tx", "ty", "allx", "ally")
# What the published files and copies written by newer versions of NumPy and SciPy name.
_RECONSTRUCT: Any = np.zeros(1).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,  # of Python 2
    ("builtins", "list"): list,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}
_SPARSE = (("scipy.sparse.csr", "csr_matrix"), ("scipy.sparse._csr", "csr_matrix"))


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that knows arrays, sparse matrices, lists and dicts."""

    @override
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Look a name up in the table of allowed ones."""
        if (module, name) in _SPARSE:
            from scipy.sparse import csr_matrix  # here: runs on graphs need no SciPy

            made: Callable[..., Any] = csr_matrix
            return made
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _ALLOWED[module, name]


def safe_copy(path: Path, target: Path) -> None:
    """Copy a raw file, after a check that PyTorch Geometric may unpickle it.

    Raises
    ------
    DataError
        It is no pickle, or holds other things than arrays of numbers, or, for the
        graph, than lists of ints by int.
    """
    content = path.read_bytes()
    part = path.name.split(".", 2)[2]
    if problem := _problem(part, content):
        what = _CONTENT.get(part, "arrays of numbers")
        raise DataError(
            f"{path} is not taken: {problem}; Planetoid's files are pickles, which can"
            f" run code, and this one may hold {what} only: fetch the data set again,"
            " from where you trust"
        )
    target.write_bytes(content)


def _problem(part: str, content: bytes) -> str:
    """Say what is wrong with a file; "" if nothing is."""
    try:
        if part == "test.index":
            _check_index(content)
            return ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old SciPy names and array layouts
            found = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        if part in _TABLES:
            _check_table(found)
        else:
            _check_graph(found)
    except Exception as error:  # whatever a crafted file makes of these parts
        return f"{type(error).__name__}: {error}"
    return ""


def _check_table(found: object) -> None:
    """Refuse all but a matrix of numbers with indices in range."""
    from scipy.sparse import csr_matrix

    if isinstance(found, csr_matrix):
        if any(map(callable, vars(found).values())):
            _refuse("its matrix brings methods of its own")
        found.check_format(full_check=True)  # todense() would write where it says
        found = found.data
    elif not isinstance(found, np.ndarray) or found.ndim != 2:
        _refuse("it is not a matrix")
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        _refuse("its entries are not numbers")


def _check_index(content: bytes) -> None:
    if not all(0 <= int(line) < _MOST_NODES for line in content.split()):
        _refuse(f"its numbers of nodes are not all below {_MOST_NODES}")


def _check_graph(found: object) -> None:
    if not isinstance(found, dict):
        _refuse("it is not a dict")
    for node, others in found.items():
        if type(node) is not int or type(others) is not list:
            _refuse("it does not map ints to lists")
        if not all(type(other) is int for other in others):
            _refuse("its lists do not hold ints")


def _refuse(problem: str) -> Never:
    raise pickle.UnpicklingError(problem)


def check_npz(path: Path) -> None:
    """Refuse an Amazon file whose sparse matrices point outside their shape.

    Raises
    ------
    ValueError
        So it is, or the file holds objects, which NumPy would unpickle.
    """
    from scipy.sparse import csr_matrix

    with np.load(path, allow_pickle=False) as file:
        for name in ("attr", "adj"):
            parts = tuple(file[f"{name}_{k}"] for k in ("data", "indices", "indptr"))
            matrix = csr_matrix(parts, file[f"{name}_shape"])
            matrix.check_format(full_check=True)

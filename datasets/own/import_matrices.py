"""Makes tables of whole graphs from one matrix of weights for each subject.

Each pair of regions may be an edge, whose weight is the cell of the matrix. NumPy reads
the matrices, and nothing is unpickled.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

from ..tabular.table import Table
from .import_tables import (
    by_site,
    check_unique,
    column_of,
    new_folder,
    renamed,
    told,
    write,
)

_ENDS = (".npy", ".npz")
_SHOWN = 5  # subjects that a message names
_ALIKE = 1e-3  # of the largest value: half-precision numbers differ by less
Matrix = NDArray[np.float32]
_Get = Callable[[int], Matrix]
_CURE = (
    "save numbers by numpy.save: subjects x n x n, or one n x n matrix in a file for"
    " each subject, or subjects x n(n-1)/2, the upper triangles row by row"
)


def import_matrices(
    files: Sequence[Path],
    table: Table,
    out: Path,
    *,
    names: Mapping[str, str],
    threshold: float | None = None,
    density: float | None = None,
    features: bool = True,
    site: str = "",
    drop: Sequence[str] = (),
    array: str = "",
) -> list[str]:
    """Write ``graphs.csv``, ``nodes.csv``, ``edges.csv``, in a folder for each site.

    Returns what was kept and left out, in words.

    Parameters
    ----------
    files : sequence of Path
        One file of all subjects, in the order of the table; or a file for each, called
        as the subject, or a folder of these.
    table : Table
        A row for each subject; further columns stay.
    out : Path
        A new folder.
    names : mapping of str
        Column of the table by the name that it gets: ``graph``, ``label``.
    threshold, density : float, optional
        Pairs of at least this absolute value become edges; or this share of all pairs,
        the largest absolute values first, ties in their order. Without, all but zeros.
    features : bool
        Whether a node's features are its row of the matrix, with 0 for itself.
    site, array : str
        Column of sites in the table; array of a file that has several; or "".
    drop : sequence of str
        Columns of the table to leave out.

    Raises
    ------
    DataError
        A file has no matrices, or subjects do not fit; the message names the first.
    StorageError
        ``out`` cannot be written.
    """
    subjects = renamed(table, names, [*drop, site])
    ids, notes = subjects["graph"], told(table)
    check_unique(table, ids)
    matrix_of, has_matrix = _find(files, array, ids, table, notes)
    homes = column_of(table, site) if site else ["all"] * len(ids)
    folders = by_site(homes, has_matrix, notes)
    bad, num_edges, num_negative = list[str](), 0, 0
    size = len(matrix_of(next(iter(folders.values()))[0]))
    pairs = np.triu_indices(size, 1)
    with new_folder(out) as made:
        for name, rows in folders.items():
            place = name if site else ""
            write(made / place / "graphs.csv", subjects, rows)
            with (
                (made / place / "nodes.csv").open("w", newline="") as of_nodes,
                (made / place / "edges.csv").open("w", newline="") as of_edges,
            ):
                nodes = csv.writer(of_nodes, lineterminator="\n")
                edges = csv.writer(of_edges, lineterminator="\n")
                columns = [f"to_{k}" for k in range(size)] if features else []
                nodes.writerow(["graph", "node", *columns])
                edges.writerow(["graph", "source", "target", "weight"])
                for row in rows:
                    matrix, graph = matrix_of(row), ids[row]
                    if why := _flaw(matrix, size):
                        bad.append(f"subject {graph}: {why}")
                        continue
                    np.fill_diagonal(matrix, 0)
                    cells = matrix.astype(str).tolist()  # the fewest digits that tell
                    for k, of_node in enumerate(cells):
                        nodes.writerow([graph, k, *(of_node if features else [])])
                    kept = _edges(matrix[pairs], threshold, density)
                    for a, b in zip(
                        *(ends[kept].tolist() for ends in pairs), strict=True
                    ):
                        edges.writerow([graph, a, b, cells[a][b]])
                    num_edges += len(kept)
                    num_negative += int((matrix[pairs][kept] < 0).sum())
            notes.append(f"{out / place}: {len(rows)} graphs")
        if bad:
            raise DataError(
                f"{len(bad)} of {len(ids)} subjects cannot be used:"
                f" {'; '.join(bad[:_SHOWN])}{'; ...' * (len(bad) > _SHOWN)}"
            )
    total = len(pairs[0]) * sum(map(len, folders.values()))
    notes.append(
        f"{size} nodes in each graph; {num_edges} of {total} pairs are edges"
        f" ({num_edges / total:.1%}), {num_negative} with a negative weight"
    )
    return notes


def _edges(weights: Matrix, threshold: float | None, density: float | None) -> IntArray:
    """Return which pairs become edges, ascending."""
    sizes = np.abs(weights)
    is_kept = sizes >= (threshold or 0)
    if density is not None:
        is_kept[np.argsort(-sizes, kind="stable")[round(density * len(sizes)) :]] = (
            False
        )
    return np.asarray(np.flatnonzero(is_kept & (weights != 0)))


def _find(
    files: Sequence[Path],
    array: str,
    ids: Sequence[str],
    table: Table,
    notes: list[str],
) -> tuple[_Get, list[bool]]:
    """Return how to get the matrix of a row of the table, and which rows have one."""
    given = list[Path]()
    for path in files:
        inside = sorted(path.iterdir()) if path.is_dir() else []
        given += [p for p in inside if p.suffix in _ENDS and p.name[0] != "."]
        given += [path] * (not path.is_dir())
    if not given:
        raise DataError(f"{shortened(', '.join(map(str, files)))}: no file; {_CURE}")
    first = _load(given[0], array)
    if len(given) == 1 and (first.ndim == 3 or first.shape[0] != first.shape[1]):
        if len(first) != len(ids):
            raise DataError(
                f"{given[0]} has {len(first)} matrices, {table.path} has {len(ids)}"
                " rows; both must have the same subjects in the same order"
            )
        if first.ndim == 2:
            return _triangles(given[0], first, notes), [True] * len(ids)
        return lambda row: np.array(first[row], np.float32), [True] * len(ids)
    by_stem = {path.stem: path for path in given}
    if strange := [stem for stem in by_stem if stem not in {*ids}]:
        text = f"{len(strange)} file(s), such as {strange[0]!r}, are no subject of"
        if len(strange) == len(by_stem):
            raise DataError(
                f"{text} {table.name}, which has {ids[0]!r}; call files as the subjects"
                " of the column that --id names"
            )
        notes.append(f"{text} {table.name}, and are left out")
    return (
        lambda row: np.array(_load(by_stem[ids[row]], array), np.float32),
        [name in by_stem for name in ids],
    )


def _triangles(path: Path, rows: NDArray[Any], notes: list[str]) -> _Get:
    """Return how to get matrices of upper triangles, row by row, without diagonals."""
    width = rows.shape[1]
    size = round((1 + (1 + 8 * width) ** 0.5) / 2)
    if size * (size - 1) // 2 != width:
        raise DataError(f"{path}: shape {rows.shape} is no matrix; {_CURE}")
    first = np.cumsum([0, *range(size - 1, 1, -1)])  # of each row with its diagonal
    if len(rows) > 1 and (rows[:, first] == rows[0, 0]).all() and np.ptp(rows[0]):
        raise DataError(
            f"{path}: columns {', '.join(map(str, first[:3]))}, ... are"
            f" {rows[0, 0]:g} for all subjects, as if triangles had their diagonals;"
            f" leave these out, as numpy.triu_indices({size - 1}, 1) does"
        )
    notes.append(
        f"{path.name}: {width} columns are upper triangles, row by row and without"
        f" diagonal, of {size} x {size} matrices"
    )

    def get(row: int) -> Matrix:
        made = np.zeros((size, size), np.float32)
        made[np.triu_indices(size, 1)] = rows[row]
        return made + made.T

    return get


def _load(path: Path, array: str) -> NDArray[Any]:
    """Load numbers of two or three axes; an object array is never unpickled."""
    if path.suffix not in _ENDS:
        raise DataError(f"{path} must end with {' or '.join(_ENDS)}; {_CURE}")
    found, odd = dict[str, NDArray[Any]](), ""
    try:
        if path.suffix == ".npy":
            found[array] = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            with np.load(path, allow_pickle=False) as file:
                for name in [array] if array in file.files else file.files:
                    try:
                        found[name] = file[name]
                    except ValueError:  # pickled, as lists of names often are
                        odd += f", {name} of Python's objects"
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read as numbers: {shortened(str(error))}; {_CURE}"
        ) from error
    fit = [v for v in found.values() if v.ndim in (2, 3) and v.dtype.kind in "fiub"]
    if len(fit) == 1 and array in ("", *found):
        return fit[0]
    arrays = ", ".join(f"{k} {v.shape} {v.dtype}" for k, v in found.items())
    raise DataError(
        f"{path} must hold one array of matrices of numbers, got {arrays.strip()}{odd};"
        f" {'choose one by --array' if len(fit) > 1 else _CURE}"
    )


def _flaw(matrix: Matrix, size: int) -> str:
    """Say why a matrix cannot be used; "" if it can."""
    if matrix.shape != (size, size):
        return (
            f"shape {matrix.shape} is not {(size, size)}, one square for all subjects"
        )
    rest = np.where(np.eye(size, dtype=bool), 0, matrix)
    if len(gaps := np.argwhere(~np.isfinite(rest))):
        row, column = gaps[0]
        return (
            f"{len(gaps)} cells are no finite numbers (the first: row {row}, column"
            f" {column}); write 0 for what is not known, or leave the subject out"
        )
    gap = np.abs(rest - rest.T)
    if gap.max() > _ALIKE * np.abs(rest).max():
        row, column = np.unravel_index(int(gap.argmax()), gap.shape)
        return (
            f"the matrix is not symmetric: {matrix[row, column]:g} at row {row}, column"
            f" {column}, and {matrix[column, row]:g} the other way; save (m + m.T) / 2,"
            " or give directed edges as a table by --edges"
        )
    return ""

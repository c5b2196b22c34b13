"""Makes tables of whole graphs from one matrix of weights for each subject.

Each pair of regions may be an edge, whose weight is the cell of the matrix. Matrices
are read by NumPy, and never unpickled.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

from ..tabular.table import Table
from .import_tables import by_site, column_of, new_folder, renamed, write

_ENDS = (".npy", ".npz")
_SHOWN = 5  # subjects that a message names
_ALIKE = 1e-3  # of the largest value: half-precision numbers differ by less
Matrix = NDArray[np.float32]
NO_MATRIX = (
    "save numbers by numpy.save: subjects x n x n, or one n x n matrix in a file for"
    " each subject, or subjects x n(n-1)/2, the upper triangles row by row"
)


@dataclass(frozen=True)
class Choice:
    """Which pairs of regions become edges, and whether nodes have features.

    Parameters
    ----------
    threshold : float, optional
        Pairs whose absolute value is at least this.
    density : float, optional
        This share of all pairs, those of the largest absolute values; ties go to the
        pair that comes first. Without both, all pairs.
    features : bool
        Whether a node's features are its row of the matrix, with 0 for itself.
    """

    threshold: float | None = None
    density: float | None = None
    features: bool = True

    def pairs(self, weights: NDArray[np.float32]) -> IntArray:
        """Return which pairs are edges, ascending; none of weight 0."""
        size = np.abs(weights)
        kept = np.arange(len(weights))
        if self.density is not None:
            most = round(self.density * len(weights))
            kept = np.sort(np.argsort(-size, kind="stable")[:most])
        elif self.threshold is not None:
            kept = np.flatnonzero(size >= self.threshold)
        return np.asarray(kept[weights[kept] != 0])


def import_matrices(
    files: Sequence[Path],
    table: Table,
    out: Path,
    *,
    names: dict[str, str],
    choice: Choice,
    site: str = "",
    drop: Sequence[str] = (),
    array: str = "",
) -> list[str]:
    """Write ``graphs.csv``, ``nodes.csv``, ``edges.csv``, in a folder for each site.

    Parameters
    ----------
    files : sequence of Path
        One file of all subjects, in the order of the table; or a file for each, called
        as the subject, or a folder of these.
    table : Table
        A row for each subject; further columns stay.
    out : Path
        A new folder.
    names : dict of str
        Column of the table by the name that it gets: ``graph``, ``label``.
    choice : Choice
    site : str
        Column of the table; "" makes one folder.
    drop : sequence of str
        Columns of the table to leave out.
    array : str
        Name of the array in a file that has several.

    Returns
    -------
    list of str
        What was kept and left out.

    Raises
    ------
    DataError
        A file has no matrices, or subjects do not fit; the message names the first.
    StorageError
        ``out`` cannot be written.
    """
    subjects = renamed(table, names, [*drop, site])
    ids = subjects["graph"]
    notes = [f"{table.name}: {table.rows.told}"] if table.rows.told else []
    if twice := [name for name in dict.fromkeys(ids) if ids.count(name) > 1]:
        raise DataError(
            f"{table.path}: subject {twice[0]!r} is there twice, of {len(twice)} such;"
            " delete rows, or name another column by --id"
        )
    matrix_of = _find(files, array, ids, table, notes)
    homes = list(column_of(table, site)) if site else ["all"] * len(ids)
    homes = [h if i in matrix_of else "" for i, h in zip(ids, homes, strict=True)]
    folders = by_site(homes, notes)
    bad, num_edges, num_negative, num_pairs = list[str](), 0, 0, 0
    size = len(matrix_of[ids[next(iter(folders.values()))[0]]]())
    pairs = np.triu_indices(size, 1)
    with new_folder(out) as made:
        for name, rows in folders.items():
            folder = made / name if site else made
            write(folder / "graphs.csv", subjects, rows)
            with (
                (folder / "nodes.csv").open("w", newline="") as of_nodes,
                (folder / "edges.csv").open("w", newline="") as of_edges,
            ):
                nodes = csv.writer(of_nodes, lineterminator="\n")
                edges = csv.writer(of_edges, lineterminator="\n")
                columns = [f"to_{k}" for k in range(size)] if choice.features else []
                nodes.writerow(["graph", "node", *columns])
                edges.writerow(["graph", "source", "target", "weight"])
                for subject in (ids[row] for row in rows):
                    matrix = matrix_of[subject]()
                    if why := _flaw(matrix, size):
                        bad.append(f"subject {subject}: {why}")
                        continue
                    np.fill_diagonal(matrix, 0)
                    cells = matrix.astype(str).tolist()  # the fewest digits that tell
                    nodes.writerows(
                        [subject, k, *(row if choice.features else [])]
                        for k, row in enumerate(cells)
                    )
                    kept = choice.pairs(matrix[pairs])
                    ends = [side[kept].tolist() for side in pairs]
                    for a, b in zip(*ends, strict=True):
                        edges.writerow([subject, a, b, cells[a][b]])
                    num_edges += len(kept)
                    num_pairs += len(pairs[0])
                    num_negative += int((matrix[pairs][kept] < 0).sum())
            few = f"{len(rows)} graphs"
            notes.append(f"{out / name}: {few}" if site else f"{out}: {few}")
        if bad:
            raise DataError(
                f"{len(bad)} of {len(ids)} subjects cannot be used:"
                f" {'; '.join(bad[:_SHOWN])}{'; ...' * (len(bad) > _SHOWN)}"
            )
    notes.append(
        f"{size} nodes in each graph; {num_edges} of {num_pairs} pairs are edges"
        f" ({num_edges / num_pairs:.1%}), {num_negative} with a negative weight"
    )
    if choice.density is None and choice.threshold is None:
        notes.append("every pair that is not 0 is an edge (else: --density 0.1)")
    return notes


def _find(
    files: Sequence[Path],
    array: str,
    ids: Sequence[str],
    table: Table,
    notes: list[str],
) -> dict[str, Callable[[], Matrix]]:
    """Return how to get the matrix of each subject that has one."""
    given = [
        found
        for path in files
        for found in (sorted(path.iterdir()) if path.is_dir() else [path])
        if found.suffix in _ENDS or not path.is_dir()
    ]
    if not given:
        raise DataError(
            f"{shortened(', '.join(map(str, files)))}: no file; {NO_MATRIX}"
        )
    first = _load(given[0], array)
    if len(given) == 1 and (first.ndim == 3 or first.shape[0] != first.shape[-1]):
        if len(first) != len(ids):
            raise DataError(
                f"{given[0]} has {len(first)} matrices, {table.path} has {len(ids)}"
                " rows; both must have the same subjects in the same order"
            )
        stack = first if first.ndim == 3 else _Triangles(given[0], first, notes)
        loads = {n: partial(stack.__getitem__, row) for row, n in enumerate(ids)}
        return {name: partial(_numbers, load) for name, load in loads.items()}
    by_stem = {path.name.removesuffix(path.suffix): path for path in given}
    if strange := [stem for stem in by_stem if stem not in {*ids}]:
        told = f"{len(strange)} file(s), such as {strange[0]!r}, are no subject of"
        if len(strange) == len(by_stem):
            raise DataError(
                f"{told} {table.name}, which has {ids[0]!r}; call files as the subjects"
                " of the column that --id names"
            )
        notes.append(f"{told} {table.name}, and are left out")
    loads = {n: partial(_load, by_stem[n], array) for n in ids if n in by_stem}
    return {name: partial(_numbers, load) for name, load in loads.items()}


def _numbers(load: Callable[[], NDArray[Any]]) -> Matrix:
    return np.array(load(), np.float32)


class _Triangles:
    """Matrices of upper triangles, row by row, without diagonals."""

    def __init__(self, path: Path, rows: NDArray[Any], notes: list[str]) -> None:
        width = rows.shape[1]
        self._size = round((1 + (1 + 8 * width) ** 0.5) / 2)
        if self._size * (self._size - 1) // 2 != width:
            raise DataError(f"{path}: shape {rows.shape} is no matrix; {NO_MATRIX}")
        self._rows = rows
        notes.append(
            f"{path.name}: {width} columns are upper triangles, row by row and without"
            f" diagonal, of {self._size} x {self._size} matrices"
        )

    def __getitem__(self, row: int) -> Matrix:
        made = np.zeros((self._size, self._size), np.float32)
        made[np.triu_indices(self._size, 1)] = self._rows[row]
        return made + made.T


def _load(path: Path, array: str) -> NDArray[Any]:
    """Load numbers of two or three axes; an object array is never unpickled."""
    if path.suffix not in _ENDS:
        raise DataError(f"{path} must end with {' or '.join(_ENDS)}; {NO_MATRIX}")
    odd = ""
    try:
        if path.suffix == ".npy":
            found = {"": np.load(path, mmap_mode="r", allow_pickle=False)}
        else:
            found = {}
            with np.load(path, allow_pickle=False) as file:
                for name in [array] if array in file.files else file.files:
                    try:
                        found[name] = file[name]
                    except ValueError:  # pickled, as are lists of names
                        odd += f", {name} of Python's objects"
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read as numbers: {shortened(str(error))}; {NO_MATRIX}"
        ) from error
    fit = {
        k: v for k, v in found.items() if v.ndim in (2, 3) and v.dtype.kind in "fiub"
    }
    if len(fit) == 1 and (not array or array in fit or path.suffix == ".npy"):
        return next(iter(fit.values()))
    arrays = ", ".join(f"{k} {v.shape} {v.dtype}".strip() for k, v in found.items())
    cure = "choose one by --array" if len(fit) > 1 else NO_MATRIX
    raise DataError(
        f"{path} must hold one array of matrices of numbers, got {arrays}{odd}; {cure}"
    )


def _flaw(matrix: Matrix, size: int) -> str:
    """Say why a matrix cannot be used; "" if it can."""
    if matrix.shape != (size, size):
        return (
            f"the matrix has shape {matrix.shape}, not {(size, size)}; all must be"
            " square, of the same regions"
        )
    is_open = ~np.isfinite(matrix) & ~np.eye(size, dtype=bool)
    if is_open.any():
        row, column = np.argwhere(is_open)[0]
        return (
            f"{int(is_open.sum())} cells are no finite numbers (the first: row {row},"
            f" column {column}); write 0 for what is not known, or leave the subject"
            " out"
        )
    rest = np.where(np.eye(size, dtype=bool), 0, matrix)
    gap = np.abs(rest - rest.T)
    if gap.max() > _ALIKE * np.abs(rest).max():
        row, column = np.unravel_index(int(gap.argmax()), gap.shape)
        return (
            f"the matrix is not symmetric: {matrix[row, column]:g} at row {row}, column"
            f" {column}, and {matrix[column, row]:g} the other way; save (m + m.T) / 2,"
            " or give directed edges as a table by --edges"
        )
    return ""

"""Sets of molecules with several labels each: building, keeping and taking parts.

Atoms are kept as numbers of rows of a small table of different atoms, which makes the
files of a set a hundred times smaller than its features written out: the 93 087
molecules of MUV take 50 MB instead of 1.2 GB.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphSet, IntArray, pointer

from .atoms import (
    NUM_FEATURES,
    AtomKind,
    atom_features,
    atom_kind,
    bond_pairs,
    feature_columns,
    order_free,
    parse_smiles,
)
from .cache import CACHE_FORMAT
from .encode import SHOWN

log = logging.getLogger("flwr.fedgraph")

FORMAT = 2  # part of every fingerprint: raise it when atoms or bonds are read otherwise
SMILES_CSV = "smiles-csv"  # name of the data set of users' own molecules
# What a model must have been trained on to read them: reword it when features change.
OWN_COLUMNS = "atoms in canonical order, chirality by CIP labels"
LEFT_OUT = "left out"  # what a warning of such rows is about

BadRow = tuple[int, str]  # its number, and why it cannot be used


@dataclass(frozen=True, kw_only=True)
class Molecules:
    """A set of molecules, as cached; edges and pointers are as in ``GraphSet``.

    Parameters
    ----------
    kinds : float32 array, shape (num_kinds, 133)
        Features of the different atoms; ``atom`` has the row of each node.
    y : float32 array, shape (num_graphs, num_tasks)
        Labels, NaN where missing; ``tasks`` are the names of its columns.
    row : int64 array, shape (num_graphs,)
        Row of each molecule in its file, from 0, the header not counted.
    bad_row : int64 array, shape (num_bad,)
        Rows that were left out, numbered as whoever reads the file says, and why.
    """

    name: str
    kinds: NDArray[np.float32]
    atom: NDArray[np.integer]
    edge_index: NDArray[np.int32]
    node_ptr: IntArray
    edge_ptr: IntArray
    y: NDArray[np.float32]
    row: IntArray
    tasks: list[str]
    raw_sha256: str
    bad_row: IntArray
    bad_reason: list[str]

    @property
    def bad(self) -> list[BadRow]:
        """Rows that were left out, and why."""
        return list(zip(self.bad_row.tolist(), self.bad_reason, strict=True))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, ids: IntArray, features: str = "atoms") -> GraphSet:
        """Copy out the molecules ``ids``, in that order; x is float32.

        ``features`` is a key of ``atoms.FEATURES``.
        """
        graphs = GraphSet(
            name=self.name,
            x=self.atom,
            edge_index=self.edge_index,
            node_ptr=self.node_ptr,
            edge_ptr=self.edge_ptr,
            y=self.y,
            num_features=len(self.kinds),
            num_classes=len(self.tasks),
            is_undirected=True,
            raw_sha256=self.raw_sha256,
            columns=OWN_COLUMNS if self.name == SMILES_CSV else "",
        ).take(ids)
        table = np.ascontiguousarray(self.kinds[:, feature_columns(features)])
        return replace(graphs, x=table[graphs.x], num_features=table.shape[1])


class MoleculeBuilder:
    """Collects molecules one by one; ``bad`` lists rows that could not be added.

    With ``as_written`` atoms and chirality follow the order in which a SMILES is
    written, as in published sets; else every spelling gives the same graph.
    """

    def __init__(self, *, as_written: bool = False) -> None:
        self._as_written = as_written
        self.bad: list[BadRow] = []
        self._kinds: dict[AtomKind, int] = {}
        self._rows = array("q")
        self._atom = array("i")
        self._ends = array("i")
        self._num_nodes = array("q")
        self._num_edges = array("q")

    def add(self, smiles: str, row: int) -> int:
        """Add a molecule, or note why not; return the number of its atoms, or 0."""
        try:
            mol = parse_smiles(smiles)
        except ValueError as error:
            self.bad.append((row, str(error).strip()))
            return 0
        if not self._as_written:
            mol = order_free(mol)
        kinds = self._kinds
        for atom in mol.GetAtoms():
            self._atom.append(kinds.setdefault(atom_kind(atom), len(kinds)))
        pairs = bond_pairs(mol)
        for pair in pairs:
            self._ends.extend(pair)
        self._rows.append(row)
        self._num_nodes.append(mol.GetNumAtoms())
        self._num_edges.append(len(pairs))
        return int(mol.GetNumAtoms())

    def finish(
        self,
        name: str,
        y: NDArray[np.float32],
        tasks: Sequence[str],
        *,
        raw_sha256: str,
        bad: Sequence[BadRow],
    ) -> Molecules:
        """Join what was added; ``y`` has its rows in the order of adding."""
        kinds = [atom_features(kind) for kind in self._kinds]
        return Molecules(
            name=name,
            kinds=np.array(kinds, dtype=np.float32).reshape(-1, NUM_FEATURES),
            atom=np.array(self._atom, np.min_scalar_type(max(len(kinds) - 1, 0))),
            edge_index=np.array(self._ends, dtype=np.int32).reshape(-1, 2).T,
            node_ptr=pointer(self._num_nodes),
            edge_ptr=pointer(self._num_edges),
            y=y,
            row=np.array(self._rows, dtype=np.int64),
            tasks=list(tasks),
            raw_sha256=raw_sha256,
            bad_row=np.array([row for row, _ in bad], dtype=np.int64),
            bad_reason=[reason for _, reason in bad],
        )


@cache
def warn_once(text: str, about: str = "") -> None:
    """Log a warning about a file once per process, however many clients load it.

    The record's attribute ``about`` is ``about``.
    """
    log.warning("%s", text, extra={"about": about})


def warn_left_out(told: str, bad: Sequence[str]) -> None:
    """Warn of rows that are left out: the first few, and where to read all."""
    named = "".join(f"\n    {row}" for row in bad[:SHOWN])
    if len(bad) > SHOWN:
        named += (
            f"\n    and {len(bad) - SHOWN} more; python -m fedgraph_flwr.site check"
            " names all"
        )
    warn_once(f"{told}:{named}", about=LEFT_OUT)


def list_all(bad: Sequence[BadRow], word: str) -> list[str]:
    """Name every row with the reason."""
    return [f"{word} {row}: {reason}" for row, reason in bad]


def fingerprint(*parts: object) -> str:
    """Hash of ``parts``, of the formats, and of RDKit's version."""
    whole = (CACHE_FORMAT, FORMAT, version("rdkit"), *parts)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:12]

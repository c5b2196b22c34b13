"""Molecules from SMILES: atoms and bonds as numbers, and what cannot be read.

Atoms are kept as numbers of rows of a small table of different atoms, which makes the
files of a set a hundred times smaller than its features written out: the 93 087
molecules of MUV take 50 MB instead of 1.2 GB.

The 133 atom features are those of GROVER and Chemprop, in their order: one-hot blocks,
each closed by a column for "any other value", then aromaticity and mass. They are raw:
nothing is scaled within a molecule, which would make features depend on the graph.

Two atoms that agree in every property have the same row, and a data set of millions of
atoms has some hundred different ones: :func:`atom_kind` is what they are told apart by.
Bonds are kept in the same way; :func:`bond_features` has their columns.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphSet, IntArray, pointer

from .cache import CACHE_FORMAT
from .tabular.encode import SHOWN
from .tabular.table import Rows

Mol: TypeAlias = Any  # rdkit.Chem.Mol: RDKit is imported where it is used, being slow

HYBRIDIZATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
BONDS = "atoms+bonds"  # value of setting ``features`` with which edges have features
_MOST_COMPARISONS = 1_250_000  # for the CIP labels of a molecule, about a second


class AtomKind(NamedTuple):
    """The properties of an atom from which its features are made.

    ``degree`` counts hydrogens too (``GetTotalDegree``), whether they are written in
    the SMILES or not; ``mass`` is that of the isotope where one is named.
    """

    atomic_number: int
    degree: int
    charge: int
    chirality: int
    hydrogens: int
    hybridization: str
    aromatic: bool
    mass: float


_CHOICES: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "atomic_number": tuple(range(1, 101)),
        "degree": tuple(range(6)),
        "charge": (-1, -2, 1, 2, 0),
        "chirality": tuple(range(4)),
        "hydrogens": tuple(range(5)),
        "hybridization": HYBRIDIZATIONS,
    }
)


def _blocks() -> dict[str, slice]:
    widths = {name: len(values) + 1 for name, values in _CHOICES.items()}
    ends = np.cumsum([*widths.values(), 1, 1]).tolist()
    names = (*widths, "aromatic", "mass")
    starts = [0, *ends[:-1]]
    return {n: slice(a, b) for n, a, b in zip(names, starts, ends, strict=True)}


BLOCKS: Mapping[str, slice] = MappingProxyType(_blocks())
NUM_FEATURES = 133

# Blocks that are functions of the edges give away what edge privacy is to protect:
# the degree outright, the others through valence.
_STRICT = ("atomic_number", "charge", "mass")
FEATURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "atoms": tuple(BLOCKS),
        BONDS: tuple(BLOCKS),
        "atoms-no-degree": tuple(name for name in BLOCKS if name != "degree"),
        "atoms-strict": _STRICT,
    }
)


def feature_columns(features: str) -> NDArray[np.int64]:
    """Columns of the 133 that a value of setting ``features`` selects, ascending."""
    every = np.arange(NUM_FEATURES)
    return np.concatenate([every[BLOCKS[name]] for name in FEATURES[features]])


def atom_column_names() -> list[str]:
    """Names of the 133 columns."""
    blocks = ([f"{n}={v}" for v in (*of, "other")] for n, of in _CHOICES.items())
    return [*(name for block in blocks for name in block), "aromatic", "mass"]


def parse_smiles(smiles: str) -> Mol:
    """Parse and sanitise; hydrogens become properties of their atoms.

    Raises
    ------
    ValueError
        If RDKit refuses the string, or it has no atoms, or white space, after which
        RDKit would read nothing; the message is the reason.
    """
    from rdkit import Chem, rdBase

    if len(smiles.split()) > 1:
        raise ValueError("white space within: give one SMILES and nothing beside it")
    with rdBase.BlockLogs():  # RDKit would write its complaints to stderr
        mol = Chem.MolFromSmiles(smiles)
        if mol is None:
            raise ValueError(_reason(smiles))
    if mol.GetNumAtoms() == 0:
        raise ValueError("no atoms")
    return mol


def _reason(smiles: str) -> str:
    from rdkit import Chem

    rough = Chem.MolFromSmiles(smiles, sanitize=False)
    if rough is None:
        return "not a SMILES string"
    problems = [problem.Message() for problem in Chem.DetectChemistryProblems(rough)]
    return problems[0] if problems else "refused by RDKit"


def order_free(mol: Mol) -> Mol:
    """Return a molecule that is the same however its SMILES is spelled.

    Atoms are in the order of RDKit's canonical SMILES, without map numbers. The
    chirality of a tetrahedral centre is its CIP label: clockwise for R, anticlockwise
    for S, unspecified without a label, and "other" if labels take too long to find.
    RDKit's own tag of a centre is relative to the order in which atoms are written. Its
    stereo of a double bond, Z or E, is not, and stays as it is.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem import ChiralType, rdCIPLabeler

    for atom in mol.GetAtoms():
        atom.SetAtomMapNum(0)
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(Chem.MolToSmiles(mol)) or mol
    tetrahedral = ChiralType.CHI_TETRAHEDRAL_CW, ChiralType.CHI_TETRAHEDRAL_CCW
    centres = [a for a in mol.GetAtoms() if a.GetChiralTag() in tetrahedral]
    if not centres:
        return mol
    of_label = dict(zip("RS", tetrahedral, strict=True))
    unlabelled = ChiralType.CHI_UNSPECIFIED
    labelled = Chem.Mol(mol)  # labels replace Z and E of bonds by cis and trans
    try:
        rdCIPLabeler.AssignCIPLabels(labelled, maxRecursiveIterations=_MOST_COMPARISONS)
    except RuntimeError:  # a cage of high symmetry
        of_label, unlabelled = {}, ChiralType.CHI_OTHER
    for atom in centres:
        found = labelled.GetAtomWithIdx(atom.GetIdx())
        label = found.GetProp("_CIPCode") if found.HasProp("_CIPCode") else ""
        atom.SetChiralTag(of_label.get(label.upper(), unlabelled))
    return mol


def atom_kind(atom: Any) -> AtomKind:
    """Read off the properties of an RDKit atom."""
    return AtomKind(
        atom.GetAtomicNum(),
        atom.GetTotalDegree(),
        atom.GetFormalCharge(),
        int(atom.GetChiralTag()),
        atom.GetTotalNumHs(),
        str(atom.GetHybridization()),
        atom.GetIsAromatic(),
        atom.GetMass(),
    )


def atom_features(kind: AtomKind) -> NDArray[np.float32]:
    """Feature row of a kind of atom.

    It has shape (133,); see ``BLOCKS`` for what stands where.

    Source
    ------
    Chemprop v1, ``features/featurization.py``, which GROVER (Rong et al. 2020,
    arXiv:2007.02835) took over. As there, the chirality of other than tetrahedral
    centres, which RDKit numbers above 3, counts as unknown.
    """
    row = np.zeros(NUM_FEATURES, dtype=np.float32)
    for name, choices in _CHOICES.items():
        value, block = getattr(kind, name), BLOCKS[name]
        unknown = len(choices)
        at = choices.index(value) if value in choices else unknown
        row[block.start + at] = 1
    row[BLOCKS["aromatic"]] = kind.aromatic
    row[BLOCKS["mass"]] = kind.mass / 100
    return row


class BondKind(NamedTuple):
    """The properties of a bond from which its features are made.

    ``stereo`` is RDKit's number: 0 none, 1 any, 2 Z, 3 E, 4 cis, 5 trans.
    """

    order: str
    conjugated: bool
    ring: bool
    stereo: int


ORDERS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
NUM_STEREO = 6
NUM_BOND_FEATURES = len(ORDERS) + 1 + 2 + NUM_STEREO + 1


def bond_features(kind: BondKind) -> NDArray[np.float32]:
    """Feature row of a kind of bond.

    Returns
    -------
    float32 array, shape (14,)
        One-hot: single, double, triple, aromatic, other; then 1 if conjugated, 1 if in
        a ring; one-hot: ``stereo`` 0 to 5, other.

    Source
    ------
    Chemprop v1, as for atoms.

    Differs
    -------
    There, a first column says that there is no bond, and the other kinds have none.
    """
    row = np.zeros(NUM_BOND_FEATURES, np.float32)
    row[ORDERS.index(kind.order) if kind.order in ORDERS else len(ORDERS)] = 1
    row[len(ORDERS) + 1 :][:2] = kind.conjugated, kind.ring
    row[len(ORDERS) + 3 + min(kind.stereo, NUM_STEREO)] = 1
    return row


def directed_bonds(mol: Mol) -> list[tuple[int, int, BondKind]]:
    """List source, target and kind of every bond, both ways, by source, then target."""
    found: list[tuple[int, int, BondKind]] = []
    for bond in mol.GetBonds():
        u, v = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        kind = BondKind(
            str(bond.GetBondType()),
            bond.GetIsConjugated(),
            bond.IsInRing(),
            int(bond.GetStereo()),
        )
        found += [(u, v, kind), (v, u, kind)]
    return sorted(found)


log = logging.getLogger("flwr.fedgraph")

FORMAT = 3  # part of every fingerprint: raise it when atoms or bonds are read otherwise
SMILES_CSV = "smiles-csv"  # name of the data set of users' own molecules
# What a model must have been trained on to read them: reword it when features change.
OWN_COLUMNS = "atoms in canonical order, chirality by CIP labels"
OWN_BONDS = f"{OWN_COLUMNS}; order, conjugation, ring and stereo of bonds"

BadRow = tuple[int, str]  # its number, and why it cannot be used


@dataclass(frozen=True, kw_only=True)
class Molecules:
    """A set of molecules, as cached; edges and pointers are as in ``GraphSet``.

    Parameters
    ----------
    kinds : float32 array, shape (num_kinds, 133)
        Features of the different atoms; ``atom`` has the row of each node.
    bond_kinds : float32 array, shape (num_bond_kinds, 14)
        Features of the different bonds; ``bond`` has the row of each edge.
    scaffold : int64 array, shape (num_graphs,)
        Number of each molecule's Bemis-Murcko scaffold, in the order of the file; all
        molecules without a ring have the same, empty one.
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
    bond_kinds: NDArray[np.float32]
    bond: NDArray[np.integer]
    scaffold: IntArray
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
        """Copy out the molecules ``ids``, in that order; x and edge_attr are float32.

        ``features`` is a key of ``FEATURES``.
        """
        has_bonds = features == BONDS
        columns = OWN_BONDS if has_bonds else OWN_COLUMNS
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
            edge_attr=self.bond if has_bonds else None,
            num_edge_features=NUM_BOND_FEATURES if has_bonds else 0,
            columns=columns if self.name == SMILES_CSV else "",
        ).take(ids)
        table = np.ascontiguousarray(self.kinds[:, feature_columns(features)])
        if has_bonds:
            graphs = replace(
                graphs, edge_attr=np.array(self.bond_kinds)[graphs.edge_attr]
            )
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
        self._bond_kinds: dict[BondKind, int] = {}
        self._scaffolds: dict[str, int] = {}
        self._rows = array("q")
        self._atom = array("i")
        self._bond = array("i")
        self._scaffold = array("q")
        self._ends = array("i")
        self._num_nodes = array("q")
        self._num_edges = array("q")

    def add(self, smiles: str, row: int) -> int:
        """Add a molecule, or note why not; return the number of its atoms, or 0."""
        from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

        try:
            mol = parse_smiles(smiles)
        except ValueError as error:
            self.bad.append((row, str(error).strip()))
            return 0
        if not self._as_written:
            mol = order_free(mol)
        kinds, bond_kinds, scaffolds = self._kinds, self._bond_kinds, self._scaffolds
        for atom in mol.GetAtoms():
            self._atom.append(kinds.setdefault(atom_kind(atom), len(kinds)))
        bonds = directed_bonds(mol)
        for *ends, kind in bonds:
            self._ends.extend(ends)
            self._bond.append(bond_kinds.setdefault(kind, len(bond_kinds)))
        scaffold: str = MurckoScaffoldSmiles(mol=mol)  # type: ignore[no-untyped-call]
        self._scaffold.append(scaffolds.setdefault(scaffold, len(scaffolds)))
        self._rows.append(row)
        self._num_nodes.append(mol.GetNumAtoms())
        self._num_edges.append(len(bonds))
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
        bond_kinds = [bond_features(kind) for kind in self._bond_kinds]
        return Molecules(
            name=name,
            kinds=np.array(kinds, dtype=np.float32).reshape(-1, NUM_FEATURES),
            atom=np.array(self._atom, np.min_scalar_type(max(len(kinds) - 1, 0))),
            bond_kinds=np.array(bond_kinds, np.float32).reshape(-1, NUM_BOND_FEATURES),
            bond=np.array(self._bond, np.min_scalar_type(max(len(bond_kinds) - 1, 0))),
            scaffold=np.array(self._scaffold, dtype=np.int64),
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


def add_all(
    builder: MoleculeBuilder, rows: Rows, column: str
) -> tuple[list[int], list[BadRow]]:
    """Add the molecules of a table's column.

    Returns
    -------
    kept : list of int
        Rows that were added.
    bad : list of (int, str)
        Lines of the others, ascending, and why.
    """
    cells = rows.cells[column]
    kept = [
        row
        for row, text in enumerate(cells)
        if row not in rows.odd and builder.add(text, row)
    ]
    bad = [*rows.odd.items(), *builder.bad]
    return kept, sorted((rows.lines[row], why) for row, why in bad)


@cache
def warn_once(text: str) -> None:
    """Log a warning about a file once per process, however many clients load it."""
    log.warning("%s", text)


def warn_left_out(words: str, bad: Sequence[str]) -> None:
    """Warn of rows that are left out: the first few, and where to read all."""
    named = "".join(f"\n    {row}" for row in bad[:SHOWN])
    if len(bad) > SHOWN:
        named += f"\n    and {len(bad) - SHOWN} more; fedgraph site check names all"
    warn_once(f"{words}:{named}")


def list_all(bad: Sequence[BadRow], word: str) -> list[str]:
    """Name every row with the reason."""
    return [f"{word} {row}: {reason}" for row, reason in bad]


def fingerprint(*parts: object) -> str:
    """Hash of ``parts``, of the formats, and of RDKit's version."""
    whole = (CACHE_FORMAT, FORMAT, version("rdkit"), *parts)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:12]

"""A SMILES string as a graph: one node per heavy atom, one edge per bond and direction.

The 133 atom features are those of GROVER and Chemprop, in their order: one-hot blocks,
each closed by a column for "any other value", then aromaticity and mass. They are raw:
nothing is scaled within a molecule, which would make features depend on the graph.

Two atoms that agree in every property have the same row, and a data set of millions of
atoms has some hundred different ones: :func:`atom_kind` is what they are told apart by.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mol: TypeAlias = Any  # rdkit.Chem.Mol: RDKit is imported where it is used, being slow

HYBRIDIZATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
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
        "atoms-no-degree": tuple(name for name in BLOCKS if name != "degree"),
        "atoms-strict": _STRICT,
    }
)


def feature_columns(features: str) -> NDArray[np.int64]:
    """Columns of the 133 that a value of setting ``features`` selects, ascending."""
    every = np.arange(NUM_FEATURES)
    return np.concatenate([every[BLOCKS[name]] for name in FEATURES[features]])


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
    RDKit's own tag of a centre is relative to the order in which atoms are written.
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
    try:
        rdCIPLabeler.AssignCIPLabels(mol, maxRecursiveIterations=_MOST_COMPARISONS)
    except RuntimeError:  # a cage of high symmetry
        of_label, unlabelled = {}, ChiralType.CHI_OTHER
    for atom in centres:
        label = atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else ""
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

    Parameters
    ----------
    kind : AtomKind

    Returns
    -------
    float32 array, shape (133,)
        See ``BLOCKS`` for what stands where.

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


def bond_pairs(mol: Mol) -> list[tuple[int, int]]:
    """List source and target of every bond, both ways, by source, then target."""
    pairs: list[tuple[int, int]] = []
    for bond in mol.GetBonds():
        ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        pairs += [ends, ends[::-1]]
    return sorted(pairs)

"""Atoms and bonds of SMILES strings, against slow loops over RDKit's own values."""

import csv
from pathlib import Path

import numpy as np
import pytest
import toys
from rdkit import Chem
from rdkit.Chem.Scaffolds.MurckoScaffold import GetScaffoldForMol
from torch_geometric.utils import from_smiles

from datasets import molecules
from datasets.molecules import MoleculeBuilder
from datasets.public.moleculenet import load_moleculenet

EXOTIC = ("[Pt@SP1](F)(Cl)(Br)N", "[Es]", "[Lr]")  # PyG knows no hybridisation SP2D
SMILES = (
    *EXOTIC,
    "C",
    "[Na+].[Cl-]",
    "CC(=O)Oc1ccccc1C(=O)O",
    "C[C@H](N)C(=O)[O-]",
    "C[C@@H](N)C(=O)O",
    "[2H]C([2H])([2H])O",
    "[H]C([H])([H])[H]",
    "[H][H]",
    "*CC",
    "OS(=O)(=O)O",
    "F[P-](F)(F)(F)(F)F",
    "[Fe+3]",
    "FS(F)(F)(F)(F)F",
    "[Cl-].[Cl-].N[Pt+2]N",
    "C[N+](C)(C)C",
    "[O-2].[Mg+2]",
    "C1CC1C#N",
    "c1ccc2[nH]ccc2c1",
    "C/C=C/C=C\\C",
    "[NH3]->[Pt](Cl)(Cl)<-[NH3]",
)


def slow_row(atom):
    """Write the features out as Chemprop v1 lists them."""
    kinds = Chem.rdchem.HybridizationType
    hybrids = [kinds.SP, kinds.SP2, kinds.SP3, kinds.SP3D, kinds.SP3D2]
    row = []
    for value, choices in (
        (atom.GetAtomicNum() - 1, list(range(100))),
        (atom.GetTotalDegree(), [0, 1, 2, 3, 4, 5]),
        (atom.GetFormalCharge(), [-1, -2, 1, 2, 0]),
        (int(atom.GetChiralTag()), [0, 1, 2, 3]),
        (int(atom.GetTotalNumHs()), [0, 1, 2, 3, 4]),
        (atom.GetHybridization(), hybrids),
    ):
        one_hot = [0] * (len(choices) + 1)
        one_hot[choices.index(value) if value in choices else -1] = 1
        row += one_hot
    return [*row, 1 if atom.GetIsAromatic() else 0, atom.GetMass() * 0.01]


@pytest.mark.parametrize("smiles", SMILES)
def test_features_are_those_of_a_slow_loop(smiles):
    x, _ = toys.smiles_to_graph(smiles)
    expected = [slow_row(atom) for atom in Chem.MolFromSmiles(smiles).GetAtoms()]
    assert x.shape == (len(expected), 133)
    assert x.dtype == np.float32
    assert np.allclose(x, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("smiles", [s for s in SMILES if s not in EXOTIC])
def test_edges_are_pygs(smiles):
    _, edges = toys.smiles_to_graph(smiles)
    assert edges.dtype == np.int32
    assert np.array_equal(edges, from_smiles(smiles).edge_index.numpy())


def slow_bond(bond):
    """Write the features out as Chemprop v1 lists them, and a column of other kinds."""
    kinds, stereo = Chem.BondType, bond.GetStereo()
    of_kind = [kinds.SINGLE, kinds.DOUBLE, kinds.TRIPLE, kinds.AROMATIC]
    row = [bond.GetBondType() == kind for kind in of_kind]
    row += [not any(row), bond.GetIsConjugated(), bond.IsInRing()]
    return [*row, *(stereo == Chem.BondStereo.values[k] for k in range(6)), stereo > 5]


def assert_bonds(graphs, mols):
    """Each edge of each graph has the features of its bond."""
    assert (len(mols), graphs.num_edge_features) == (len(graphs), 14)
    expected = []
    for g, mol in enumerate(mols):
        ends = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
        bonds = (mol.GetBondBetweenAtoms(u, v) for u, v in ends.T.tolist())
        expected += map(slow_bond, bonds)
    assert np.array_equal(graphs.edge_attr, np.reshape(expected, (-1, 14)))


def build(smiles, **how):
    """Make a set of one molecule."""
    builder, y = MoleculeBuilder(**how), np.zeros((1, 1), np.float32)
    assert builder.add(smiles, 0)
    return builder.finish("toy", y, ["y"], raw_sha256="", bad=[])


@pytest.mark.parametrize("smiles", [s for s in SMILES if len(s) > 10])
def test_bonds_are_those_of_a_slow_loop(smiles):
    made = build(smiles, as_written=True)
    assert_bonds(made.take(np.arange(1), "atoms+bonds"), [Chem.MolFromSmiles(smiles)])
    assert made.take(np.arange(1)).edge_attr is None


def test_real_bonds_and_scaffolds_are_rdkits(data_dir, tmp_path):
    made = load_moleculenet("ClinTox", data_dir=data_dir, cache_dir=str(tmp_path))
    with Path(data_dir, "moleculenet/clintox/raw/clintox.csv").open() as handle:
        smiles = [row["smiles"] for row in csv.DictReader(handle)]
    mols = [m for m in map(Chem.MolFromSmiles, smiles) if m is not None]
    assert_bonds(made.take(np.arange(len(made)), "atoms+bonds"), mols)
    names = [Chem.MolToSmiles(GetScaffoldForMol(m), isomericSmiles=False) for m in mols]
    assert made.scaffold.tolist() == [[*dict.fromkeys(names)].index(n) for n in names]
    for mol in [*mols[:30], *(m for m in mols if "/" in Chem.MolToSmiles(m))]:
        spelled = Chem.MolToRandomSmilesVect(mol, 3, randomSeed=1)
        assert len({graph_of(s) for s in spelled}) == 1


def test_private_features_drop_blocks():
    without = {
        name: sorted(set(range(133)) - set(molecules.feature_columns(name).tolist()))
        for name in molecules.FEATURES
    }
    assert without["atoms"] == without["atoms+bonds"] == []
    assert without["atoms-no-degree"] == list(range(101, 108))
    assert without["atoms-strict"] == [*range(101, 108), *range(114, 132)]


def test_strict_features_do_not_know_the_bonds():
    strict = molecules.feature_columns("atoms-strict")
    rows = [
        toys.smiles_to_graph(smiles)[0][0, strict]
        for smiles in ("C", "CC", "C#C", "c1ccccc1", "[C@](F)(Cl)(Br)I")
    ]
    assert all(np.array_equal(row, rows[0]) for row in rows)


# Each row: spellings of one molecule, then another molecule, which must differ.
SPELLINGS = (
    ("C[C@H](N)C(=O)O", "N[C@@H](C)C(=O)O", "OC(=O)[C@@H](N)C", "C[C@@H](N)C(=O)O"),
    ("[CH3:7][C@H:1](N)C(=O)O", "N[C@@H:9](C)C(O)=O", "C[C@@H](N)C(=O)O"),
    ("C[C@H]1CC[C@@H](C)CC1", "C1[C@H](C)CC[C@H](C)C1", "C[C@H]1CC[C@H](C)CC1"),
    ("C1CC[C@@H]2CCCC[C@@H]2C1", "[C@H]12[C@H](CCCC1)CCCC2", "C1CC[C@H]2CCCC[C@@H]2C1"),
    ("C[C@H](/C=C/C)\\C=C/C", "C/C=C/[C@@H](C)/C=C\\C", "C[C@H](/C=C\\C)/C=C/C"),
    ("O[C@@H](C(=O)O)[C@H](O)C(=O)O", "OC(=O)[C@@H](O)[C@@H](O)C(O)=O",
     "O[C@H](C(=O)O)[C@H](O)C(=O)O"),
    ("CC[S@](C)=O", "O=[S@](CC)C", "CC[S@@](C)=O"),
    ("[2H]C(F)Cl", "FC([2H])Cl", "[3H]C(F)Cl"),
    ("CC(=O)[O-].[Na+]", "[Na+].[O-]C(C)=O", "CC(=O)[O-].[K+]"),
    ("CN(=O)=O", "[O-][N+](=O)C", "CN=O"),
    ("[H]C([H])([H])O", "[CH3][OH]", "CS"),
    ("C1=CC=CC=C1O", "Oc1ccccc1", "OC1CCCCC1"),
    ("[NH3]->[Pt](Cl)(Cl)<-[NH3]", "Cl[Pt](<-[NH3])(<-[NH3])Cl", "Cl[Pt](Cl)(N)N"),
    ("C/C=C/C", "C\\C=C\\C", "C(/C)=C\\C", "C/C=C\\C"),
    ("C/C=C/[C@H](O)F", "F[C@@H](O)/C=C/C", "C/C=C\\[C@H](O)F"),
)  # fmt: skip


def graph_of(smiles, **how):
    """Bytes of a molecule of users' own, as a set of one row."""
    graphs = build(smiles, **how).take(np.arange(1), "atoms+bonds")
    arrays = graphs.x, graphs.edge_index, graphs.edge_attr
    return b"".join(array.tobytes() for array in arrays)


@pytest.mark.parametrize("row", SPELLINGS, ids=lambda row: row[0])
def test_every_spelling_of_a_molecule_gives_the_same_bytes(row):
    *spellings, other = row
    mol = Chem.MolFromSmiles(spellings[0])
    spellings += Chem.MolToRandomSmilesVect(mol, 20, randomSeed=1)
    assert len(set(spellings)) > 2
    assert len({graph_of(smiles) for smiles in spellings}) == 1
    kinds = (build(s, as_written=s == spellings[0]).bond_kinds for s in spellings)
    assert len({str(sorted(found.tolist())) for found in kinds}) == 1
    assert graph_of(other) != graph_of(spellings[0])


def test_published_sets_keep_the_order_in_which_they_are_written():
    forth, back = (graph_of(s, as_written=True) for s in SPELLINGS[0][:2])
    assert forth != back


@pytest.mark.parametrize(
    ("smiles", "columns"),
    [
        ("C[C@H](N)C(=O)O", [2]),  # S
        ("C[C@@H](N)C(=O)O", [1]),  # R
        ("C[C@H]1CC[C@@H](C)CC1", [2, 2]),  # s, s, where RDKit's tags are equal, too
        ("C[C@H]1CC[C@H](C)CC1", [1, 1]),  # r, r, where they differ
        ("C[C@]12C[C@@H]3C[C@@H](C[C@H](C3)C1)C2", [2, 2, 1, 1]),
        ("[Pt@SP1](F)(Cl)(Br)N", [4]),  # no tetrahedron
    ],
)
def test_centres_are_called_by_their_cip_labels(smiles, columns):
    mol = molecules.order_free(molecules.parse_smiles(smiles))
    rows = [molecules.atom_features(molecules.atom_kind(a)) for a in mol.GetAtoms()]
    found = [row[molecules.BLOCKS["chirality"]].argmax() for row in rows]
    assert [column for column in found if column] == columns


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("C(C", "not a SMILES string"),
        ("hello", "not a SMILES string"),
        ("CN(C)(C)(C)C", "Explicit valence for atom # 1 N, 5"),
        ("c1cccc1", "kekulize"),
        ("", "no atoms"),
        ("C C O", "white space within: give one"),  # RDKit would read methane
        ("CCO ethanol", "white space within"),
    ],
)
def test_refused_strings_have_a_reason(smiles, reason, capfd):
    with pytest.raises(ValueError, match=reason):
        molecules.parse_smiles(smiles)
    assert capfd.readouterr().err == ""

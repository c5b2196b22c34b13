"""``fedgraph site import`` of files that NetworkX, RDKit and PyG wrote."""

import json
import os
import sys
from pathlib import Path

import networkx as nx
import pandas as pd
import pytest
import torch
from commands import at_site
from rdkit import Chem
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from datasets.own.infer import infer_schema


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Type an import into ``out``; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    return lambda line: at_site(["import", *line.split(), "--out", "out"])


def read(name, **how):
    return pd.read_csv(f"out/{name}", dtype=str, keep_default_na=False, **how)


def bank(kind=nx.MultiDiGraph):
    made = kind()
    made.add_node("007", age=0.1, sort="a, b", is_new=True, label="bad")
    made.add_node("7", age=-2e-7, sort="c", label="fine")
    made.add_node("no edge", age=3.0, is_new=False, label="fine")
    made.add_edge("007", "7", weight=1 / 3, booked=5)
    made.add_edge("7", "007", weight=2.5, booked=6)
    return made


WRITERS = {"graphml": nx.write_graphml, "gexf": nx.write_gexf}


@pytest.mark.parametrize("kind", [nx.MultiDiGraph, nx.DiGraph])
@pytest.mark.parametrize("form", WRITERS)
def test_networkx_values_are_kept_one_by_one(typed, form, kind, capsys, tmp_path):
    graph = bank(kind)
    WRITERS[form](graph, f"a.{form}")
    assert typed(f"a.{form} --label label --time booked") == 0
    assert "directed = true in [edges]" in capsys.readouterr().out
    nodes, edges = read("nodes.csv"), read("edges.csv")
    for row, (name, own) in zip(
        nodes.itertuples(), graph.nodes(data=True), strict=True
    ):
        assert (row.node, float(row.age), row.label) == (name, own["age"], own["label"])
        assert row.sort == own.get("sort", "")
        assert row.is_new == str(own.get("is_new", ""))
    for row, (u, v, own) in zip(
        edges.itertuples(), graph.edges(data=True), strict=True
    ):
        assert (row.source, row.target) == (u, v)
        assert (float(row.weight), int(row.time)) == (own["weight"], own["booked"])
    assert infer_schema(tmp_path / "out", min_count=1)[0].classes == ("bad", "fine")


def test_several_files_are_whole_graphs_by_site(typed):
    for number, ward in enumerate(["north", "south", "north"]):
        made = nx.path_graph(number + 2)
        made.graph |= {"ward": ward, "ill": number % 2}
        nx.set_edge_attributes(made, 0.5, "weight")
        nx.write_graphml(made, f"p{number}.graphml")
    assert typed("p0.graphml p1.graphml p2.graphml --site ward --label ill") == 0
    graphs, edges = read("north/graphs.csv"), read("north/edges.csv")
    assert graphs.to_dict("list") == {"graph": ["p0", "p2"], "label": ["0", "0"]}
    assert edges.to_numpy().tolist() == [
        ["p0", "0", "1", "0.5"],
        *(["p2", str(k), str(k + 1), "0.5"] for k in range(3)),
    ]
    assert list(read("south/nodes.csv").node) == ["0", "1", "2"]


def test_a_default_of_graphml_is_every_nodes_value(typed, tmp_path):
    (tmp_path / "a.graphml").write_text(GRAPHML)
    assert typed("a.graphml") == 0
    assert list(read("nodes.csv").n) == ["7", "3"]


def test_an_edge_list_of_networkx_with_a_table_of_nodes(typed, tmp_path):
    nx.write_weighted_edgelist(bank(), "a.edgelist")
    (tmp_path / "n.csv").write_text("who,label\n007,x\n7,y\n")
    assert typed("--edges a.edgelist --nodes n.csv --id who") == 0
    assert read("edges.csv").to_numpy().tolist() == [
        ["007", "7", repr(1 / 3)],
        ["7", "007", "2.5"],
    ]
    assert list(read("nodes.csv").label) == ["x", "y"]


def drawn(number=0, size=4):
    """Make a graph of PyG with two edges and numbers of every kind."""
    draws = torch.Generator().manual_seed(number)
    return Data(
        x=torch.randn(size, 2, generator=draws),
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        edge_attr=torch.randn(2, 3, generator=draws, dtype=torch.float64),
        edge_weight=torch.tensor([0.1, float("nan")]),
        y=torch.tensor([number % 2]),
        z=torch.arange(size),
        name=f"m{number}",
    )


@pytest.mark.parametrize("save", [torch.save, InMemoryDataset.save])
def test_pyg_values_are_kept_one_by_one(typed, save):
    graphs = [drawn(k, 4 + k) for k in range(3)]
    save(graphs, "a.pt")
    assert typed("a.pt") == 0
    nodes, edges = read("nodes.csv"), read("edges.csv")
    assert list(read("graphs.csv").label) == ["0", "1", "0"]
    assert list(read("graphs.csv").name) == ["m0", "m1", "m2"]
    for number, graph in enumerate(graphs):
        own = nodes[nodes.graph == str(number)]
        x = torch.tensor(own[["x_0", "x_1"]].to_numpy(float), dtype=torch.float32)
        assert torch.equal(x, graph.x)
        assert own.z.astype(int).tolist() == graph.z.tolist()
        own = edges[edges.graph == str(number)]
        ends = own[["source", "target"]].to_numpy(int).T
        assert torch.equal(torch.tensor(ends), graph.edge_index)
        attr = torch.tensor(own.filter(like="edge_attr").to_numpy(float))
        assert torch.equal(attr, graph.edge_attr)
        assert list(own.weight) == ["0.1", ""]


def test_masks_of_one_graph_of_pyg_are_its_split(typed, capsys):
    one = drawn()
    one.y = torch.tensor([1, 0, 1, 0])
    one.train_mask = torch.tensor([True, False, False, False])
    one.test_mask = torch.tensor([False, False, True, False])
    one.pair = torch.ones(3, 3)
    torch.save(one, "a.pt")
    assert typed("a.pt") == 0
    assert list(read("nodes.csv").split) == ["train", "", "test", ""]
    assert list(read("nodes.csv").label) == ["1", "0", "1", "0"]
    told = capsys.readouterr().out
    assert "left out: pair of shape (3, 3)" in told
    assert "left out, as of the graph: name" in told


def written(smiles, **more):
    """Write molecules as RDKit does."""
    with Chem.SDWriter("a.sdf") as writer:
        for number, text in enumerate(smiles):
            mol = Chem.MolFromSmiles(text)
            mol.SetProp("_Name", f"m{number}")
            for name, values in more.items():
                mol.SetProp(name, values[number])
            writer.write(mol)


def test_molecules_of_rdkit_are_the_same_molecules(typed, capsys):
    smiles = ["C[C@H](N)C(=O)O", "F/C=C/F", "c1ccccc1[O-]", "[13CH4]"]
    written(smiles, logD=["1.5", "-2", "0.1", ""], lab=["a", "b", "a", "a"])
    with Path("a.sdf").open("a") as file:
        file.write("\nx\n\n  1  0\n$$$$\n")
    assert typed("a.sdf --site lab") == 0
    found = read("a.csv")
    assert "1 left out: molecule 5: not a mol block" in capsys.readouterr().out
    same = [Chem.CanonSmiles(smiles[k]) for k in (0, 2, 3)]
    assert list(map(Chem.CanonSmiles, found.smiles)) == same
    assert list(found.title) == ["m0", "m2", "m3"]
    assert list(found.logD) == ["1.5", "0.1", ""]
    assert Chem.CanonSmiles(read("b.csv").smiles[0]) == Chem.CanonSmiles(smiles[1])


class Touches:
    """Who unpickles it makes a file."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


GRAPHML = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="d0" for="node" attr.name="n" attr.type="int"><default>7</default></key>
<graph edgedefault="directed"><node id="a"/><node id="b"><data key="d0">3</data></node>
<edge source="a" target="b"/></graph></graphml>"""
GEXF = """<gexf version="1.2" xmlns="http://www.gexf.net/1.2draft">
<graph defaultedgetype="directed"><attributes class="node">
<attribute id="0" title="n" type="long"/></attributes><nodes><node id="a"/>
<node id="b"><attvalues><attvalue for="0" value="3"/></attvalues></node></nodes>
<edges><edge id="0" source="a" target="b"/></edges></graph></gexf>"""
SDF = """one
     RDKit          2D

  2  1  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 C   0  0  0  0  0  0  0  0  0  0  0  0
    1.0000    0.0000    0.0000 O   0  0  0  0  0  0  0  0  0  0  0  0
  1  2  1  0
M  END
> <logD>
1

$$$$
"""


def of(text, *pairs):
    """Change a text in each of several ways."""
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def graph(**values):
    made = drawn()
    for name, value in values.items():
        setattr(made, name, value)
    return made


NODES = "nodes, but names"
NO_XML = "cannot be read as .{}: ParseError"
XML = "write it again with networkx"
WEIGHT = "a finite weight, with blanks between, got"
EDGES = "edge_index must be a tensor of two rows, got"
PYG = "save Data, or a list of them"
SAVED = "write it again with torch.save, of PyG's Data"
BAD_MOL = "1 of 1 molecules cannot be used: molecule 1: "
MALFORMED = [
    ("a.graphml", "", NO_XML.format("graphml")),
    ("a.graphml", "a,b\n1,2\n", NO_XML.format("graphml")),
    ("a.graphml", GRAPHML[:200], NO_XML.format("graphml")),
    ("a.graphml", GEXF, "2 nodes, but names 0"),
    ("a.graphml", of(GRAPHML, ('key="d0"', 'key="d9"')), "no key d9; " + XML),
    ("a.graphml", of(GRAPHML, (">3<", ">x<")), "ValueError"),
    ("a.graphml", of(GRAPHML, ("<edge ", "<hyperedge/><edge ")), "hyperedges; " + XML),
    ("a.graphml", of(GRAPHML, ('id="b"', 'id="a"'), ('"b"/', '"a"/')), "2 " + NODES),
    ("a.graphml", of(GRAPHML, ('target="b"', 'target="c"')), "2 " + NODES + " 3"),
    ("a.graphml", of(GRAPHML, ('name="n"', 'name="node"')), "is called 'node'"),
    ("a.graphml", of(GRAPHML, ('attr.type="int"', 'attr.type="wide"')), XML),
    ("a.gexf", "", NO_XML.format("gexf")),
    ("a.gexf", "a,b\n1,2\n", NO_XML.format("gexf")),
    ("a.gexf", GEXF[:250], NO_XML.format("gexf")),
    ("a.gexf", GRAPHML, "No <graph> element in GEXF file.; " + XML),
    ("a.gexf", of(GEXF, ("1.2draft", "9.9draft")), "No <graph> element"),
    ("a.gexf", of(GEXF, ('for="0"', 'for="9"')), "No attribute defined"),
    ("a.gexf", of(GEXF, ('value="3"', 'value="x"')), "ValueError"),
    (
        "a.gexf",
        of(GEXF, ('<edge id="0"', '<edge type="undirected"')),
        "Undirected edge",
    ),
    ("a.gexf", of(GEXF, ('id="b"', 'id="a"'), ('"b"/', '"a"/')), "2 " + NODES),
    ("a.gexf", of(GEXF, ('target="b"', 'target="c"')), "2 " + NODES + " 3"),
    ("a.gexf", of(GEXF, ('title="n"', 'title="node"')), "is called 'node'"),
    ("a.edgelist", "", "has no edge; write source, target, weight"),
    ("a.edgelist", "# a b 1\n", "has no edge; write source, target, weight"),
    ("a.edgelist", "a b 1\na\n", "line 2: must be source, target"),
    ("a.edgelist", "a b 1\nb c\n", WEIGHT + " 'b c'"),
    ("a.edgelist", "a b\nb c 1\n", WEIGHT + " 'b c 1'"),
    ("a.edgelist", "a b 1 2\n", WEIGHT),
    ("a.edgelist", "source target weight\na b 1\n", "line 1: must be"),
    ("a.edgelist", "a b nan\n", WEIGHT),
    ("a.edgelist", "a b 1e999\n", WEIGHT),
    ("a.edgelist", "a b 0,5\n", "or save a CSV file with a line of names"),
    ("a.edgelist", "a,b,1\n", "line 1: must be"),
    ("a.edgelist", b"\xff\xfea b 1", "save it as UTF-8"),
    ("a.sdf", "", "Invalid input file a.sdf; write it again with RDKit"),
    ("a.sdf", "smiles,logD\nCC,1\n", "0 of 0 molecules"),
    ("a.sdf", SDF[:120], BAD_MOL + "not a mol block; correct them"),
    ("a.sdf", of(SDF, ("  2  1  0", "  9  1  0")), BAD_MOL),
    ("a.sdf", of(SDF, ("  2  1  0", "  x  1  0")), BAD_MOL),
    ("a.sdf", of(SDF, ("  2  1  0", "  0  0  0")), BAD_MOL),
    ("a.sdf", of(SDF, ("  1  2  1  0", "  1  7  1  0")), BAD_MOL),
    ("a.sdf", of(SDF, ("  1  2  1  0", "  1  2  3  0")), "Explicit valence"),
    ("a.sdf", of(SDF, (" C  ", " Qq ")), BAD_MOL),
    ("a.sdf", of(SDF, ("V2000", "V9000")), BAD_MOL),
    ("a.sdf", SDF + of(SDF, (" C  ", " Qq ")), "1 of 2 molecules cannot be used"),
    ("a.sdf", SDF.encode("utf-16"), "UnicodeDecodeError"),
    (
        "a.sdf",
        of(SDF, ("> <logD>\n1", "> <logD>\n\xff")).encode("latin-1"),
        "UnicodeDec",
    ),
    ("a.pt", "", SAVED),
    ("a.pt", "a,b\n1,2\n", SAVED),
    ("a.pt", Touches(), f"{os.name}.mkdir, which could run code"),
    ("a.pt", [drawn(), Touches()], "could run code"),
    ("a.pt", torch.ones(3), "got Tensor; " + PYG),
    ("a.pt", [drawn(), 3], "got int; " + PYG),
    ("a.pt", HeteroData(), "torch_geometric.data.storage.BaseStorage, which"),
    ("a.pt", {"x": torch.ones(3, 1)}, EDGES + " NoneType"),
    (
        "a.pt",
        graph(edge_index=torch.ones(2, 1)),
        "name nodes 0 to 3, got torch.float32",
    ),
    ("a.pt", graph(edge_index=torch.tensor([[0], [4]])), "from 0 to 4; correct it"),
    ("a.pt", graph(edge_index=torch.tensor([[0], [-1]])), "from -1 to 0; correct it"),
    ("a.pt", [graph(), graph(edge_index=torch.ones(3, 2))], "graph 1: edge_index must"),
    ("a.pt", [], "has no graph with a node"),
]


@pytest.mark.parametrize(("name", "content", "words"), MALFORMED)
def test_a_malformed_file_is_refused_by_name(
    typed, tmp_path, name, content, words, capsys
):
    path = tmp_path / name
    if isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    else:
        torch.save(content, path)
    assert typed(f"--edges {name}" if name.endswith("edgelist") else name) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert name in told
    assert words in told
    assert {*tmp_path.iterdir()} == {path}


def test_kinds_are_not_mixed_and_a_missing_package_is_named(typed, monkeypatch, capsys):
    nx.write_gexf(bank(), "a.gexf")
    nx.write_graphml(bank(), "a.graphml")
    assert typed("a.gexf a.graphml") == 2
    assert "of one kind, .graphml, .gexf, .pt, .sdf, got" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert typed("a.gexf") == 2
    assert "pip install networkx" in " ".join(capsys.readouterr().err.split())


def test_what_is_told_as_json(typed, capsys):
    nx.write_gexf(bank(), "a.gexf")
    assert typed("a.gexf --json") == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("label of nodes is left out" in note for note in notes)

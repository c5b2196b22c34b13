"""Malformed tables and schemas: each message names file, line, column or key, cure."""

import re

import own_files
import pytest

from datasets.own.graph_tables import build
from datasets.own.infer import infer_schema
from datasets.own.load import client_folder
from datasets.tabular.schema_file import (
    read_schema,
    write_schema,
)
from fedgraph_flwr.core.errors import DataError, FedGraphError, StorageError

G, N, E, S = own_files.GRAPHS, own_files.NODES, own_files.EDGES, own_files.SCHEMA


def read(folder, **how):
    return build(folder, read_schema(folder / "schema.toml"), **how)


# Rows ---------------------------------------------------------------------------------

WELL = [f"ok{k}" for k in range(40)]
ODD_GRAPHS = """a,maybe,train
b,yes,valid
b2,yes,
c,yes,train
c,no,train
,yes,train
d,no,train
"""
ODD_NODES = """a,1,1,x
b,1,1,x
b2,1,1,x
c,1,1,x
zz,1,1,x
e,1,old,x
f,1,inf,x
h,1,1e300,x
i,1,,x
j,1,3,
k,1,1_000,x
l,1,1,x
l,1,2,x
m,,1,x
n,NULL,1,x
o,1,1,x
p,1,1,x
"""
ODD_EDGES = "zz,1,1\no,9,1\np,1,9\np,8,\n"
# The graph that is left out, the row, and what is told of it but for the cure.
TOLD = """a graphs.csv, line 42, column 'label': 'maybe' is none of the schema's classes
b graphs.csv, line 43, column 'split': must be train, val or test, got 'valid'
b2 graphs.csv, line 44, column 'split': must be train, val or test, got ''
c graphs.csv, line 45, column 'graph': graph 'c' is there twice
c graphs.csv, line 46, column 'graph': graph 'c' is there twice
 graphs.csv, line 47, column 'graph': is empty
zz nodes.csv, line 86, column 'graph': graph 'zz' is not in graphs.csv
e nodes.csv, line 87, column 'age': must be a finite number, got 'old'
f nodes.csv, line 88, column 'age': must be a finite number, got 'inf'
h nodes.csv, line 89, column 'age': must be a finite number, got '1e300'
j nodes.csv, line 91, column 'kind': is empty
k nodes.csv, line 92, column 'age': must be a finite number, got '1_000', which may me
l nodes.csv, line 93, column 'node': the graph has another node of this name
l nodes.csv, line 94, column 'node': the graph has another node of this name
m nodes.csv, line 95, column 'node': is empty
n nodes.csv, line 96, column 'node': is 'NULL', no name
zz edges.csv, line 42, column 'graph': graph 'zz' is not in graphs.csv
o edges.csv, line 43, column 'source': node '9' is not in nodes.csv with this graph
p edges.csv, line 44, column 'target': node '9' is not in nodes.csv with this graph
p edges.csv, line 45, column 'source': node '8' is not in nodes.csv with this graph
p edges.csv, line 45, column 'target': node '' is not in nodes.csv with this graph
d graphs.csv, line 48, column 'graph': graph 'd' has no row in nodes.csv
"""
CURES = """correct it, or list it in the schema of all sites
correct it, or delete the column to have a split drawn
rename or delete one of them
give it a name
add it there, or delete this row
correct it, or make the column a category in the schema of all sites
complete it, or set missing = "indicator" in the schema of all sites
add its nodes, or delete this row
"""


def test_each_row_that_does_not_fit_is_told_with_its_graph_and_its_cure(tmp_path):
    graphs = [f"{g},no,{('train', 'val', 'test')[k % 3]}" for k, g in enumerate(WELL)]
    graphs = "\n".join(["graph,label,split", *graphs, ODD_GRAPHS])
    graphs += "".join(f"{g},no,train\n" for g in "efhijklmnop")
    nodes = "graph,node,age,kind\n" + "".join(f"{g},1,1,x\n{g},2,2,y\n" for g in WELL)
    edges = "graph,source,target\n" + "".join(f"{g},1,2\n" for g in WELL)
    folder = own_files.write(tmp_path, graphs, nodes + ODD_NODES, edges + ODD_EDGES)
    data, names, unfit = read(folder)
    assert names == [*WELL, "i"]  # whose missing number has an indicator
    told = [f"{graph} {text}".split("; ") for graph, text in unfit]
    for (text, _), wanted in zip(told, TOLD.splitlines(), strict=True):
        assert text.startswith(wanted)
    assert list(dict.fromkeys(cure for _, cure in told)) == CURES.splitlines()
    assert data.bad == [text for _, text in unfit]
    assert data.left_out == ["29 % of graphs", "10 % of nodes", "9.1 % of edges"]


def test_each_row_of_one_graph_that_does_not_fit_is_told(tmp_path):
    nodes = "".join(f"n{k},1,ok,train\n" for k in range(20))
    nodes = f"node,age,label,split\n{nodes}a,1,worse,train\nb,1,ok,val\nb,1,ok,test\n"
    edges = "source,target\n" + "n1,n2\n" * 9 + "n1,\n"
    *_, unfit = read(own_files.write_graph(tmp_path, f"{nodes}c,1,,val\n", edges))
    expected = [
        ("a", "nodes.csv, line 22, column 'label': 'worse' is none of"),
        ("b", "nodes.csv, line 23, column 'node': node 'b' is there twice"),
        ("b", "nodes.csv, line 24, column 'node': node 'b' is there twice"),
        ("c", "nodes.csv, line 25, column 'split': a node without label must have no"),
        ("", "edges.csv, line 11, column 'target': node '' is not in nodes.csv"),
    ]
    assert [n for n, _ in unfit] == [n for n, _ in expected]
    assert all(a[1].startswith(b[1]) for a, b in zip(unfit, expected, strict=True))


# Tables and schemas -------------------------------------------------------------------

# What is written, and what the message says: where, what is wrong, cure.
TABLES = [
    ({"graphs": None}, "has no graphs.csv.*write it"),
    ({"graphs": ""}, "graphs.csv, line 1: is empty.*must name"),
    (
        {"graphs": G.replace("label", "labels")},
        "graphs.csv, line 1: has no column 'label'. Did you mean 'labels'.*rename",
    ),
    (
        {"nodes": N.replace("age", "years")},
        "nodes.csv, line 1: has no column 'age'.*correct the schema",
    ),
    (
        {"edges": "source,target\na,b\n"},
        "edges.csv, line 1: has no column 'graph'.*add",
    ),
    (
        {"graphs": G.replace("label", "graph")},
        "graphs.csv, line 1: has two columns 'graph'.*rename",
    ),
    (
        {"graphs": G.replace(",", "|")},
        "graphs.csv, line 1: the column 'graph\\|label' has '\\|'.*separated by commas",
    ),
    ({"graphs": "sep=,\n" + G}, "graphs.csv, line 1: is 'sep=,'.*delete it"),
    (
        {"nodes": N.replace("g2,a,30", "g2,a,3,0")},
        r"nodes.csv, line 4: has 5 cells, the header has 4.*with commas in quotes",
    ),
    (
        {"graphs": G.encode() + b"\xff,no\n"},
        "graphs.csv, line 5: cannot be read as CSV.*UTF-8",
    ),
    ({"graphs": G.replace("g3", '"g3')}, r"graphs.csv, line \d+: cannot be.*save it"),
    (
        {"schema": S.replace("other = true", "")},
        "nodes.csv, line 5, column 'kind': 'z' is none of .*x, y.*set other = true",
    ),
    ({"nodes.parquet": "x"}, "has nodes.csv and nodes.parquet.*delete one"),
    (
        {"nodes": None, "nodes.parquet": "x"},
        "nodes.parquet, row 1: cannot be read as Parquet.*write it again",
    ),
]
SCHEMAS = [
    (S.replace("format = 1", "format = "), "not valid TOML.*line 1"),
    ("extra = 1\n" + S, "unknown key 'extra'.*delete it"),
    (
        S + 'outside = "drop"\n',
        r"\[\[feature\]\] 2: unknown key 'outside'.*above the first section",
    ),
    (
        S.replace('columns = ["label"]', "columns = []"),
        r"\[target\]: columns must be different names",
    ),
    (
        S.replace('["no", "yes"]', '["no"]'),
        r"\[target\] must have one column, and two classes or more",
    ),
    (
        S.replace('column = "age"', 'column = "node"'),
        r"\[\[feature\]\] 1: column must be .*none of graph, node, split",
    ),
    (
        S.replace('kind = "number"', 'kind = "float"'),
        r"\[\[feature\]\] 1: kind must be 'number', 'category' or 'date', got 'float'",
    ),
    (S.replace("scale = 10.0", "scale = 0"), "scale must be greater than 0, got 0"),
    (S.replace("shift = 20.0", "shift = -inf"), "shift must be a finite number"),
    (
        S.replace("format = 1", "format = 1\ndegree = 4"),
        "degree must be there, .* if and only if",
    ),
    (
        own_files.NODE_SCHEMA.replace('"classes"', '"regression"'),
        r"kind of \[target\] must be 'classes', .* got 'regression'",
    ),
]


def refused(folder, pattern):
    with pytest.raises(FedGraphError) as caught:
        read(folder, bad_rows="refuse")
    assert re.search(pattern, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize(("changes", "pattern"), TABLES)
def test_tables_that_cannot_be_read_are_refused(tmp_path, changes, pattern):
    named = {k: v for k, v in changes.items() if "." not in k}
    folder = own_files.write(tmp_path, **named)
    for name in set(changes) - {*named}:
        (folder / name).write_text(changes[name])
    refused(folder, pattern)


@pytest.mark.parametrize(("schema", "pattern"), SCHEMAS)
def test_schemas_that_cannot_be_read_are_refused(tmp_path, schema, pattern):
    folder = own_files.write(tmp_path, schema=schema)
    refused(folder, f"schema.toml.*{pattern}")
    refused(folder, "(correct|delete) it")


@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("binary", "0.5", r"0 or 1, or empty .*got '0.5'"),
        ("regression", '"3,633"', "a finite number, .*which may mean 3633 or 3.6"),
    ],
)
def test_targets_that_are_none_are_refused(tmp_path, kind, value, pattern):
    schema = S.replace('kind = "classes"', f'kind = "{kind}"')
    schema = schema.replace('classes = ["no", "yes"]', "")
    graphs = f"graph,label\ng1,1\ng2,{value}\ng3,0\n"
    folder = own_files.write(tmp_path, graphs, schema=schema)
    refused(folder, f"graphs.csv, line 3, column 'label': a label must be {pattern}")


@pytest.mark.parametrize(
    ("tail", "match"),
    [
        ("g3\n", r"graphs.csv, line 8: has 1 cells"),
        ('g3,"no', r"graphs.csv, line 8: cannot be read as CSV"),
        ("g3,maybe\n", r"graphs.csv, line 8, column 'label'"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_past_empty_ones_and_cells_of_several(
    tmp_path, tail, match, end
):
    text = 'graph,label\n\n"g\n1",no\n\n"g\n2",yes\n' + tail  # rows on 4 and 6, 7
    folder = own_files.write(tmp_path)
    (folder / "graphs.csv").write_text(text.replace("\n", end), newline="")
    refused(folder, match)


def test_the_hash_of_a_schema_is_of_what_it_says(tmp_path):
    one = read_schema(own_files.write(tmp_path / "a") / "schema.toml")
    commented = "# made by us\n" + S.replace("shift = 20.0", "shift = 20")
    two = read_schema(own_files.write(tmp_path / "b", schema=commented) / "schema.toml")
    other = S.replace("shift = 20.0", "shift = 21")
    three = read_schema(own_files.write(tmp_path / "c", schema=other) / "schema.toml")
    assert one.sha256 == two.sha256 != three.sha256


def test_a_schema_that_cannot_be_written_is_named(tmp_path):
    folder = own_files.write(tmp_path)
    schema = read_schema(folder / "schema.toml")
    with pytest.raises(StorageError, match=r"cannot write .*make the folder writable"):
        write_schema(schema, folder / "schema.toml" / "schema.toml")


@pytest.mark.parametrize("name", ["nodes.csv", "edges.csv"])
def test_tables_beside_folders_of_clients_hide_neither(tmp_path, name):
    own_files.write(tmp_path / "a")
    own_files.write(tmp_path / "b")
    (tmp_path / name).write_text("")
    (tmp_path / "_old").mkdir()
    with pytest.raises(DataError, match=r"folders with tables \(a, b\).*; move"):
        client_folder(str(tmp_path), 0, 2)
    (tmp_path / name).unlink()
    assert client_folder(str(tmp_path), 1, 2) == tmp_path / "b"


@pytest.mark.parametrize("read", [infer_schema, lambda p: client_folder(str(p), 0, 1)])
def test_tables_of_other_names_are_told_what_is_wanted(tmp_path, read):
    (tmp_path / "accounts.csv").write_text("id,fraud\n1,0\n")
    with pytest.raises(DataError, match=r"nodes.csv.*label.*source.*accounts.csv: ren"):
        read(tmp_path)

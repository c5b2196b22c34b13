"""Malformed tables and schemas: each message names file, line, column or key, cure."""

import re
from dataclasses import replace

import own_files
import pytest

from datasets.own.graph_tables import build
from datasets.own.infer import infer_schema
from datasets.own.load import client_folder
from datasets.tabular.encode import encode_features
from datasets.tabular.schema_file import (
    CATEGORY,
    Feature,
    Schema,
    read_schema,
    to_toml,
    write_schema,
)
from datasets.tabular.table import Rows
from fedgraph_flwr.core.errors import DataError, FedGraphError, StorageError

G, N, E, S = own_files.GRAPHS, own_files.NODES, own_files.EDGES, own_files.SCHEMA
# What is written, where the message must point, what it says, and words of the cure.
TABLES = {
    "no graphs": ({"graphs": None}, r"has no graphs.csv", "write it"),
    "empty graphs": ({"graphs": ""}, r"graphs.csv, line 1: is empty", "must name"),
    "only a header": (
        {"graphs": "graph,label\n"},
        r"nodes.csv, line 2, column 'graph': graph 'g1' is not in graphs.csv",
        "add it there",
    ),
    "no graph column": (
        {"graphs": G.replace("graph,", "Graph,")},
        r"graphs.csv, line 1: has no column 'graph'. Did you mean 'Graph'\?",
        "rename",
    ),
    "no node column": (
        {"nodes": N.replace("node", "atom", 1)},
        r"nodes.csv, line 1: has no column 'node'",
        "rename",
    ),
    "no target": (
        {"graphs": G.replace("label", "labels")},
        r"graphs.csv, line 1: has no column 'label'. Did you mean 'labels'",
        "rename",
    ),
    "no feature": (
        {"nodes": N.replace("age", "years")},
        r"nodes.csv, line 1: has no column 'age'",
        "correct the schema",
    ),
    "no source": (
        {"edges": E.replace("source", "from")},
        r"edges.csv, line 1: has no column 'source'",
        "rename",
    ),
    "no graph of edges": (
        {"edges": "source,target\na,b\n"},
        r"edges.csv, line 1: has no column 'graph'",
        "add",
    ),
    "column twice": (
        {"graphs": G.replace("label", "graph")},
        r"graphs.csv, line 1: has two columns 'graph'",
        "rename",
    ),
    "capital split": (
        {"graphs": "graph,label,Split\ng1,no,train\ng2,yes,val\ng3,no,test\n"},
        r"graphs.csv, line 1: column 'Split' is not read as 'split'",
        "call it so if",
    ),
    "column without name": (
        {"edges": E.replace("weight", "")},
        r"edges.csv, line 1: column 4 has the name ''",
        "give it a name",
    ),
    "semicolons": (
        {"graphs": G.replace(",", ";")},
        r"graphs.csv, line 1: the column 'graph;label' has ';'",
        "separated by commas",
    ),
    "a line for a spreadsheet": (
        {"graphs": "sep=,\n" + G},
        r"graphs.csv, line 1: is 'sep=,'",
        "delete it",
    ),
    "too few cells": (
        {"graphs": G.replace("g2,yes", "g2")},
        r"graphs.csv, line 3: has 1 cell\(s\), but line 1 has 2",
        "complete the line",
    ),
    "too many cells": (
        {"nodes": N.replace("g2,a,30", "g2,a,3,0")},
        r"nodes.csv, line 4: has 5 cell\(s\), but line 1 has 4",
        "put cells with commas in quotes",
    ),
    "not UTF-8": (
        {"graphs": G.encode() + b"\xff,no\n"},
        r"graphs.csv, line 5: cannot be read as CSV",
        "UTF-8",
    ),
    "a quote amid a cell": (
        {"graphs": G.replace("g2", '"g"2')},
        r"graphs.csv, line 3: cannot be read as CSV",
        "save it",
    ),
    "an open quote": (
        {"graphs": G.replace("g3", '"g3')},
        r"graphs.csv, line \d+: cannot be read as CSV",
        "save it",
    ),
    "a NUL": (
        {"nodes": N.replace("g2,a", "g2,\0a")},
        r"edges.csv, line 3, column 'source': node 'a' is not in nodes.csv",
        "add it there",
    ),
    "graph twice": (
        {"graphs": G + "g1,yes\n"},
        r"graphs.csv, line 5, column 'graph': graph 'g1' is there twice",
        "rename or delete",
    ),
    "graph without name": (
        {"graphs": G + ",yes\n"},
        r"graphs.csv, line 5, column 'graph': is empty",
        "give it a name",
    ),
    "graph without node": (
        {"graphs": G + "g4,yes\n"},
        r"graphs.csv, line 5, column 'graph': graph 'g4' has no row in nodes.csv",
        "add its nodes",
    ),
    "unknown class": (
        {"graphs": G.replace("yes", "Yes")},
        r"graphs.csv, line 3, column 'label': 'Yes' is none of .*'no', 'yes'",
        "correct it, or list it in the schema",
    ),
    "node named by a mark": (
        {"nodes": N + "g2,NULL,1,x\n"},
        r"nodes.csv, line 8, column 'node': is 'NULL', no name; give",
        "give it a name",
    ),
    "unknown split": (
        {"graphs": "graph,label,split\ng1,no,train\ng2,yes,valid\ng3,no,test\n"},
        r"graphs.csv, line 3, column 'split': must be train, val or test, got 'valid'",
        "delete the column",
    ),
    "no split": (
        {"graphs": "graph,label,split\ng1,no,train\ng2,yes,\ng3,no,test\n"},
        r"graphs.csv, line 3, column 'split': must be train, val or test, got ''",
        "delete the column",
    ),
    "node of no graph": (
        {"nodes": N + "g9,a,1,x\n"},
        r"nodes.csv, line 8, column 'graph': graph 'g9' is not in graphs.csv",
        "add it there",
    ),
    "node twice": (
        {"nodes": N + "g2,a,1,x\n"},
        r"nodes.csv, line 8, column 'node': the graph has another node of this name",
        "rename or delete",
    ),
    "node without name": (
        {"nodes": N + "g2,,1,x\n"},
        r"nodes.csv, line 8, column 'node': is empty",
        "give it a name",
    ),
    "a word for a number": (
        {"nodes": N.replace("30", "old")},
        r"nodes.csv, line 4, column 'age': must be a finite number, got 'old'",
        "correct it",
    ),
    "infinity": (
        {"nodes": N.replace("30", "inf")},
        r"nodes.csv, line 4, column 'age': must be a finite number, got 'inf'",
        "correct it",
    ),
    "beyond float32": (
        {"nodes": N.replace("30", "1e300")},
        r"nodes.csv, line 4, column 'age': must be a finite number, got '1e300'",
        "correct it",
    ),
    "missing number": (
        {"schema": S.replace('missing = "indicator"', "")},
        r"nodes.csv, line 5, column 'age': is empty",
        'missing = "indicator" in the schema of all sites',
    ),
    "missing category": (
        {"nodes": N.replace("20,y", "20,")},
        r"nodes.csv, line 3, column 'kind': is empty",
        "complete it",
    ),
    "unknown category": (
        {"schema": S.replace("other = true", "")},
        r"nodes.csv, line 5, column 'kind': 'z' is none of .*'x', 'y'",
        "set other = true in the schema of all sites",
    ),
    "edge of no graph": (
        {"edges": E + "g9,a,b,1\n"},
        r"edges.csv, line 6, column 'graph': graph 'g9' is not in graphs.csv",
        "add it there",
    ),
    "edge from no node": (
        {"edges": E + "g1,z,b,1\n"},
        r"edges.csv, line 6, column 'source': node 'z' is not in nodes.csv with this",
        "add it there",
    ),
    "edge to a node of another graph": (
        {"edges": E + "g1,a,c,1\n"},
        r"edges.csv, line 6, column 'target': node 'c' is not in nodes.csv with this",
        "add it there",
    ),
    "csv and parquet": (
        {"nodes.parquet": "x"},
        r"has nodes.csv and nodes.parquet",
        "delete one",
    ),
    "no parquet": (
        {"nodes": None, "nodes.parquet": "x"},
        r"nodes.parquet, row 1: cannot be read as Parquet",
        "write it again",
    ),
}
NODE_TABLES = {
    "no label": (
        {"nodes": own_files.NODE_NODES.replace("label", "class")},
        r"nodes.csv, line 1: has no column 'label'",
        "rename",
    ),
    "unknown class of a node": (
        {"nodes": own_files.NODE_NODES.replace("bad", "worse")},
        r"nodes.csv, line 4, column 'label': 'worse' is none of",
        "correct it",
    ),
    "node of the graph twice": (
        {"nodes": own_files.NODE_NODES + "a,1,ok\n"},
        r"nodes.csv, line 6, column 'node': node 'a' is there twice",
        "rename or delete",
    ),
    "split without label": (
        {"nodes": "node,age,label,split\na,1,ok,train\nb,2,,val\n"},
        r"nodes.csv, line 3, column 'split': a node without label must have no split",
        "empty one",
    ),
    "edge to nothing": (
        {"edges": own_files.NODE_EDGES + "a,\n"},
        r"edges.csv, line 5, column 'target': node '' is not in nodes.csv",
        "add it there",
    ),
}
TARGETS = {
    "binary": ("0.5", r"a label must be 0 or 1, or empty .*got '0.5'"),
    "regression": (
        '"3,633"',
        r"a label must be a finite number, .*got '3,633', which may mean 3633 or 3.6",
    ),
}
SCHEMAS = {
    "no TOML": (S.replace("format = 1", "format = "), r"not valid TOML.*line 1"),
    "binary file": (b"\x80\x04\x95", r"not valid TOML.*UTF-8"),
    "no format": (S.replace("format = 1", ""), r"format must be there"),
    "unknown key": ("extra = 1\n" + S, r"unknown key 'extra'.*delete it"),
    "a key of the file below all": (
        S + 'outside = "drop"\n',
        r"\[\[feature\]\] 2: unknown key 'outside'.*above the first section",
    ),
    "a key of the file in a section": (
        S.replace('dataset = "graphs-csv"\n', "").replace(
            "[target]", '[target]\ndataset = "graphs-csv"'
        ),
        r"\[target\]: unknown key 'dataset'.*above the first section",
    ),
    "no columns": (
        S.replace('columns = ["label"]', "columns = []"),
        r"\[target\]: columns must be different names",
    ),
    "one class": (
        S.replace('["no", "yes"]', '["no"]'),
        r"\[target\] must have one column, and two classes or more",
    ),
    "classes of regression": (
        S.replace('kind = "classes"', 'kind = "regression"'),
        r"classes of \[target\] must be left out if kind is 'regression'",
    ),
    "feature twice": (
        S.replace('column = "kind"', 'column = "age"'),
        r"column 'age' of \[\[feature\]\] 1 must be of no other",
    ),
    "a key as feature": (
        S.replace('column = "age"', 'column = "node"'),
        r"\[\[feature\]\] 1: column must be .*none of graph, node, split",
    ),
    "spaces around a name": (
        S.replace('"age"', '" age"'),
        r"\[\[feature\]\] 1: column must be",
    ),
    "unknown kind of feature": (
        S.replace('kind = "number"', 'kind = "float"'),
        r"\[\[feature\]\] 1: kind must be 'number', 'category' or 'date', got 'float'",
    ),
    "scale 0": (
        S.replace("scale = 10.0", "scale = 0"),
        r"\[\[feature\]\] 1: scale must be greater than 0, got 0",
    ),
    "infinite shift": (
        S.replace("shift = 20.0", "shift = -inf"),
        r"shift must be a finite number",
    ),
    "categories of a number": (
        S.replace("scale = 10.0", 'categories = ["x"]'),
        r"categories of \[\[feature\]\] 1 must be there, .* if and only if",
    ),
    "a scale of a category": (
        S.replace("other = true", "scale = 2.0"),
        r"\[\[feature\]\] 2 must be there, .*shift and scale must not",
    ),
    "no categories": (
        S.replace('categories = ["x", "y"]\n', ""),
        r"categories of \[\[feature\]\] 2 must be there, .* if and only if",
    ),
    "degree beside features": (
        S.replace("format = 1", "format = 1\ndegree = 4"),
        r"degree must be there, .* if and only if",
    ),
    "features as a table": (
        S.split("[[feature]]")[0] + "[feature]\nage = 1\n",
        r"the file: feature must be a valid array",
    ),
    "regression of nodes": (
        own_files.NODE_SCHEMA.replace('"classes"', '"regression"'),
        r"kind of \[target\] must be 'classes', .* got 'regression'",
    ),
    "another target of nodes": (
        own_files.NODE_SCHEMA.replace('["label"]', '["age"]'),
        r"columns \['label'\], for graph-csv, got 'classes' and \['age'\]",
    ),
    "the label as feature": (
        own_files.NODE_SCHEMA.replace('column = "age"', 'column = "label"'),
        r"column 'label' of \[\[feature\]\] 1 must be of no other",
    ),
}


def own_schema(folder):
    path = folder / "schema.toml"
    path.write_text(S)
    return read_schema(path)


def refused(folder, pattern, cure):
    with pytest.raises(FedGraphError) as caught:
        build(folder, read_schema(folder / "schema.toml"), bad_rows="refuse")
    error = caught.value
    assert re.search(pattern, str(error), re.DOTALL), str(error)
    assert cure in str(error)
    return error


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_whole_graphs(tmp_path, case):
    changes, pattern, cure = TABLES[case]
    named = {k: v for k, v in changes.items() if k in ("graphs", "nodes", "edges")}
    schema = changes.get("schema", S)
    folder = own_files.write(tmp_path, **named, schema=schema)
    for name in set(changes) - {*named, "schema"}:
        (folder / name).write_text(changes[name])
    refused(folder, pattern, cure)


@pytest.mark.parametrize("case", NODE_TABLES)
def test_tables_of_one_graph(tmp_path, case):
    changes, pattern, cure = NODE_TABLES[case]
    refused(own_files.write_graph(tmp_path, **changes), pattern, cure)


@pytest.mark.parametrize("kind", TARGETS)
def test_targets(tmp_path, kind):
    value, pattern = TARGETS[kind]
    schema = S.replace('kind = "classes"', f'kind = "{kind}"')
    schema = schema.replace('classes = ["no", "yes"]', "")
    graphs = f"graph,label\ng1,1\ng2,{value}\ng3,0\n"
    folder = own_files.write(tmp_path, graphs, schema=schema)
    refused(folder, r"graphs.csv, line 3, column 'label': " + pattern, "correct it")


@pytest.mark.parametrize("case", SCHEMAS)
def test_schemas(tmp_path, case):
    schema, pattern = SCHEMAS[case]
    folder = own_files.write(tmp_path, schema=schema)
    error = refused(folder, r"schema.toml.*" + pattern, "")
    assert re.search("(correct|delete) it", str(error))


def test_every_bad_row_is_listed_in_the_order_of_files(tmp_path):
    nodes = N.replace("30", "old").replace("60", "older")
    folder = own_files.write(
        tmp_path, G.replace("yes", "maybe"), nodes, E + "g1,a,q,1\n"
    )
    with pytest.raises(FedGraphError, match=r"no usable graph") as caught:
        build(folder, read_schema(folder / "schema.toml"))
    found = re.findall(r"(\w+.csv), line (\d+)", str(caught.value))
    assert found == [
        ("graphs.csv", "3"),
        ("nodes.csv", "4"),
        ("nodes.csv", "7"),
        ("edges.csv", "6"),
    ]


@pytest.mark.parametrize("cell", ["1_000", "\u0663", "1\u00a00"])
@pytest.mark.parametrize("column", ["age", "label"])
def test_numbers_that_python_alone_reads_are_refused(tmp_path, cell, column):
    """float() takes underscores and digits of every script."""
    nodes, graphs, schema = N, G, S
    if column == "age":
        nodes, where = N.replace("30", cell), "nodes.csv, line 4"
    else:
        graphs, where = f"graph,label\ng1,1\ng2,{cell}\ng3,0\n", "graphs.csv, line 3"
        schema = S.replace('kind = "classes"', 'kind = "regression"')
        schema = schema.replace('classes = ["no", "yes"]', "")
    folder = own_files.write(tmp_path, graphs, nodes, schema=schema)
    refused(folder, f"{where}, column '{column}'.*a finite number", "correct it")


def test_each_bad_row_names_the_graph_that_is_left_out(tmp_path):
    more = [f"h{k}" for k in range(6)]
    nodes = N.replace("30", "old") + "g3,a,1,x\n" * ("g3,a" in N)
    nodes += "".join(f"{g},a,1,x\n" for g in more)
    graphs = G + "g9,yes\n" + "".join(f"{g},no\n" for g in more)
    folder = own_files.write(tmp_path, graphs, nodes)
    *_, unfit = build(folder, read_schema(folder / "schema.toml"))
    named = dict(unfit)
    assert "nodes.csv, line 4" in named[N.splitlines()[3].split(",")[0]]
    assert "has no row in nodes.csv" in named["g9"]
    assert "another node of this name" in named.get("g3", "another node of this name")


def test_a_row_with_two_flaws_is_counted_once(tmp_path):
    edges = E + "g1,y,z,1\n"
    folder = own_files.write(tmp_path, edges=edges)
    refused(folder, r"^1 row\(s\) do not fit .*'source': node 'y'.*'target'", "add it")


def test_each_bad_row_names_the_node_whatever_a_column_graph_says(tmp_path):
    nodes = "node,graph,age,label\na,B,old,ok\nc,B,3,bad\nd,B,3,bad\n"
    edges = "source,target,graph\na,zz,B\n" + "c,d,B\n" * 3
    folder = own_files.write_graph(tmp_path, nodes, edges)
    *_, unfit = build(folder, read_schema(folder / "schema.toml"))
    assert [name for name, _ in unfit] == ["a", ""]


@pytest.mark.parametrize(
    ("tail", "match"),
    [
        ("g3\n", r"graphs.csv, line 8: has 1 cell"),
        ("g3,no\ng4\n", r"graphs.csv, line 9: has 1 cell"),
        ('g3,"no', r"graphs.csv, line 8: cannot be read as CSV"),
        ('g3\n"', r"graphs.csv, line 8: has 1 cell"),  # the first that is wrong
        ("g3,maybe\n", r"graphs.csv, line 8, column 'label'"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_past_empty_ones_and_cells_of_several(
    tmp_path, tail, match, end
):
    text = 'graph,label\n\n"g\n1",no\n\n" g2 ",yes\n' + tail  # rows on 4 and 6, 7
    text = text.replace('" g2 "', '"g\n2"').replace("\n", end)
    folder = own_files.write(tmp_path)
    (folder / "graphs.csv").write_text(text, newline="")
    with pytest.raises(FedGraphError, match=match):
        build(folder, read_schema(folder / "schema.toml"), bad_rows="refuse")


def test_a_long_cell_of_a_column_that_is_not_used_is_read(tmp_path):
    head, *rows = E.splitlines()
    text = "\n".join([f"{head},note", *(f"{row},{'x' * 140_000}" for row in rows)])
    folder = own_files.write(tmp_path, edges=text + "\n")
    data, *_ = build(folder, read_schema(folder / "schema.toml"), bad_rows="refuse")
    assert data.edge_index.shape[1] > 0


def test_tables_of_another_schema_are_given_up(tmp_path):
    rows = "".join(f"g1,n{i},old,x\n" for i in range(10_001))
    folder = own_files.write(tmp_path, nodes="graph,node,age,kind\n" + rows)
    with pytest.raises(FedGraphError, match=r"more than 10000 rows do not fit"):
        build(folder, read_schema(folder / "schema.toml"))


def test_a_schema_that_makes_too_many_numbers_is_refused_before_they_are(tmp_path):
    """A short file with many long lists: 400 columns of 10,000 categories each."""
    names = tuple(map(str, range(10_000)))
    wide = [
        Feature(column=f"c{k}", kind=CATEGORY, categories=names) for k in range(400)
    ]
    schema = replace(own_schema(tmp_path), features=tuple(wide))
    lines = range(2, 4002)
    rows = Rows(lines, {f.column: ["7"] * len(lines) for f in wide})
    with pytest.raises(DataError, match="4000 nodes with the schema's 4000000 columns"):
        encode_features(schema, rows)


def test_a_schema_survives_being_written(tmp_path):
    folder = own_files.write(tmp_path)
    first = read_schema(folder / "schema.toml")
    write_schema(first, tmp_path / "again.toml")
    assert read_schema(tmp_path / "again.toml") == first
    assert "shift = 20.0" in to_toml(first)


def test_the_hash_of_a_schema_is_of_what_it_says(tmp_path):
    one = read_schema(own_files.write(tmp_path / "a") / "schema.toml")
    commented = "# made by us\n" + S.replace("shift = 20.0", "shift = 20")
    two = read_schema(own_files.write(tmp_path / "b", schema=commented) / "schema.toml")
    other = S.replace("shift = 20.0", "shift = 21")
    three = read_schema(own_files.write(tmp_path / "c", schema=other) / "schema.toml")
    assert one.sha256 == two.sha256 != three.sha256


def test_odd_but_printable_names_survive(tmp_path):
    schema = Schema(
        dataset="graphs-csv",
        target_kind="classes",
        targets=('a "b" \\ c',),
        classes=("ja, nein", "ü # 😀", "\u202fx"[1:]),
        degree=3,
    )
    write_schema(schema, tmp_path / "schema.toml")
    assert read_schema(tmp_path / "schema.toml") == schema


def test_a_schema_is_not_written_over_another(tmp_path):
    folder = own_files.write(tmp_path)
    schema = read_schema(folder / "schema.toml")
    with pytest.raises(FedGraphError, match=r"is there already; sites may use it"):
        write_schema(schema, folder / "schema.toml")
    with pytest.raises(StorageError, match=r"cannot write .*make the folder writable"):
        write_schema(schema, folder / "schema.toml" / "schema.toml")


def test_a_schema_that_could_not_be_written_whole_leaves_its_place_free(
    tmp_path, monkeypatch
):
    schema = read_schema(own_files.write(tmp_path) / "schema.toml")
    place = tmp_path / "new" / "schema.toml"
    place.parent.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(
            "datasets.tabular.schema_file.to_toml", lambda _: "\ud800"
        )  # as a full disk
        with pytest.raises(UnicodeEncodeError):
            write_schema(schema, place)
    assert not list(place.parent.iterdir())
    write_schema(schema, place)
    assert read_schema(place) == schema


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
    (tmp_path / "X_graph_indicator.txt").write_text("1\n")
    with pytest.raises(DataError, match=r"into X/raw, and set dataset to 'tu:X' and"):
        read(tmp_path)

"""Rows of own tables that do not fit: which share is refused, what is told of it."""

import re
import unicodedata

import own_files
import pytest
import toys

from datasets import load_partition
from datasets.own.graph_tables import build
from datasets.own.infer import infer_schema
from datasets.tabular.schema_file import read_schema
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.node.introduce import introduce
from fedgraph_flwr.node.policy import Policy
from fedgraph_flwr.resolve import defaults, resolve

N = 60
SCHEMAS = {"graphs": own_files.SCHEMA, "graph": own_files.NODE_SCHEMA}
# What is written wrongly in some rows of a table: kind, table, column, another text.
KINDS = {
    "edges name unknown nodes": ("graph", "edges", 0, lambda c: f"q{c}"),
    "ids became floats": ("graph", "edges", 1, lambda c: f"{c}.0"),
    "labels are no classes": ("graph", "nodes", 2, lambda _: "maybe"),
    "numbers are texts": ("graph", "nodes", 1, lambda _: "old"),
    "nodes name unknown graphs": ("graphs", "nodes", 0, lambda c: f"{c}.0"),
    "edges name unknown graphs": ("graphs", "edges", 0, lambda c: f"x{c}"),
    "edges name other graphs' nodes": ("graphs", "edges", 2, lambda _: "99"),
    "graphs have no nodes": ("graphs", "graphs", 0, lambda c: f"0{c}1"),
    "an id is empty": ("graph", "edges", 0, lambda _: ""),
}
OUTSIDE = {name for name in KINDS if name.startswith(("edges name", "nodes name"))}


def tables(kind):
    """Rows by table: 60 graphs of two nodes, or one graph of 60 nodes on a ring."""
    ids = [f"{i}" for i in range(N)]
    if kind == "graph":
        nodes = [[i, f"{i}.5", ("ok", "bad")[int(i) % 2]] for i in ids]
        edges = [[a, b] for a, b in zip(ids, [*ids[1:], "0"], strict=True)]
        return {
            "nodes": (["node", "age", "label"], nodes),
            "edges": (["source", "target"], edges),
        }
    nodes = [[i, j, "3", "x"] for i in ids for j in "01"]
    return {
        "graphs": (["graph", "label"], [[i, ("no", "yes")[int(i) % 2]] for i in ids]),
        "nodes": (["graph", "node", "age", "kind"], nodes),
        "edges": (["graph", "source", "target"], [[i, "0", "1"] for i in ids]),
    }


def spoilt(folder, name, share, schema=""):
    """Write tables of which the first rows, as many as ``share``, are wrong."""
    kind, table, column, twist = KINDS.get(name, name)
    made = tables(kind)
    rows = made[table][1]
    for row in rows[: round(share * len(rows))]:
        row[column] = twist(row[column])
    folder.mkdir(exist_ok=True)
    for stem, (head, found) in made.items():
        text = "\n".join(",".join(row) for row in [head, *found])
        (folder / f"{stem}.csv").write_text(text + "\n")
    (folder / "schema.toml").write_text(schema + SCHEMAS[kind])
    return folder


def read(folder):
    return build(folder, read_schema(folder / "schema.toml"))


@pytest.mark.parametrize("name", KINDS)
def test_tables_that_mostly_do_not_fit_are_refused(tmp_path, name):
    what = KINDS[name][1]
    data, _, unfit = read(spoilt(tmp_path, name, 0.1))
    assert unfit
    assert any(text.endswith(f"% of {what}") for text in data.left_out)
    read(spoilt(tmp_path, name, 0.3))
    with pytest.raises(DataError, match=r"more than a third|joins two nodes") as error:
        read(spoilt(tmp_path, name, 0.35))
    assert 'outside = "drop" above [target]' in str(error.value)
    drop = 'outside = "drop"\n'
    if name in OUTSIDE and ".0" not in KINDS[name][3]("7"):
        data, _, unfit = read(spoilt(tmp_path, name, 0.8, drop))
        assert (unfit, len(data.left_out)) == ([], 1)
        assert data.left_out[0] == f"80 % of {what}"
    else:  # a name that looks alike is meant to be here
        with pytest.raises(DataError, match="more than a third"):
            read(spoilt(tmp_path, name, 0.8, drop))


@pytest.mark.parametrize("noise", [False, True])
def test_the_share_is_logged_and_told_unless_edges_are_hidden(tmp_path, caplog, noise):
    folder = spoilt(tmp_path / "own", "edges name unknown nodes", 0.1)
    config = {"method": "fedavg", "dataset": "graph-csv", "data-dir": str(folder)}
    config |= {"cache-dir": str(tmp_path)}
    config |= {"privacy.update-clip": 1.0, "privacy.update-noise": 1.0} if noise else {}
    run = resolve({**defaults(), **config})
    partition = load_partition(run.settings, 0)
    assert f"{folder}: left out, as rows do not fit or name what is " in caplog.text
    store = toys.ClientStore(tmp_path, "an-experiment", client_id=0)
    node = {"clients": "0"}
    facts = introduce(run, partition, store, node=node, policy=Policy()).facts
    assert facts.get("told/left-out") == (None if noise else "10 % of edges")


@pytest.mark.parametrize("refuse", [False, True])
@pytest.mark.parametrize("cell", ["", "NA"])
def test_graphs_without_a_class_are_left_out_and_are_no_misfits(tmp_path, cell, refuse):
    how = ("graphs", "graphs", 1, lambda _: cell)
    folder = spoilt(tmp_path, how, 0.4)
    schema = read_schema(folder / "schema.toml")
    data, names, unfit = build(folder, schema, bad_rows="refuse" if refuse else "skip")
    assert (len(names), unfit) == (36, [])
    assert data.left_out == ["40 % of graphs for want of a label"]


@pytest.mark.parametrize(("table", "at"), [("edges", 0), ("nodes", 0)])
def test_a_graph_that_some_rows_spell_otherwise_is_left_out(tmp_path, table, at):
    """It stayed, without these edges: a model learned that they are missing."""
    how = ("graphs", table, at, lambda c: f"{c}.0")
    data, names, unfit = read(spoilt(tmp_path, how, 0.2))
    assert names == [f"{i}" for i in range(12, N)]
    assert {name for name, _ in unfit} == {f"{i}" for i in range(12)}
    assert "20 % of graphs" in data.left_out


@pytest.mark.parametrize("cell", ["1,050", "<5", "low"])
@pytest.mark.parametrize("every", [3, 12])
def test_a_target_of_numbers_with_odd_cells_names_the_first(tmp_path, cell, every):
    """It had "0 classes"."""
    folder = spoilt(tmp_path, "edges name unknown graphs", 0)
    rows = [f'{k},"{cell}"' if k % every == 0 else f"{k},{k / 7:.3f}" for k in range(N)]
    (folder / "graphs.csv").write_text("\n".join(["graph,y", *rows]) + "\n")
    with pytest.raises(DataError, match=rf"line 2, column 'y': '{re.escape(cell)}'"):
        infer_schema(folder)


@pytest.mark.parametrize(
    ("kind", "key", "value"), [("graph", "held-out", 0.4), ("graphs", "split-seed", 9)]
)
def test_keys_beside_a_column_of_splits_are_named(tmp_path, caplog, kind, key, value):
    folder = spoilt(tmp_path / "own", (kind, "edges", 0, str), 0)
    path = folder / ("nodes.csv" if kind == "graph" else "graphs.csv")
    roles = ["split", *(["train", "val", "test"] * N)]
    rows = zip(path.read_text().splitlines(), roles, strict=False)
    path.write_text("".join(f"{row},{role}\n" for row, role in rows))
    config = {"method": "fedavg", "dataset": f"{kind}-csv", "data-dir": str(folder)}
    config |= {"cache-dir": str(tmp_path), key: value}
    load_partition(resolve({**defaults(), **config}).settings, 0)
    assert "column split decides; held-out and split-seed are not" in caplog.text


def test_names_that_look_alike_are_told(tmp_path):
    one, other = "Caf\xe9", unicodedata.normalize("NFD", "Caf\xe9")
    text = "".join(f"{name},1,ok\n" for name in (one, "b", other, "d", "7"))
    edges = f"source,target\n{one},b\n{other},d\n7.0,d\n" + "b,d\n" * 3
    folder = own_files.write_graph(tmp_path, f"node,age,label\n{text}", edges)
    data, names, unfit = read(folder)
    assert len(names) == 5
    (told,) = [doubt for doubt in data.remarks if "look like" in doubt]
    words = f"1 name(s) of nodes look like another's, such as {one!a} and {other!a}"
    assert words in told
    assert "('7' looks alike, '7.0' is not it)" in unfit[0][1]

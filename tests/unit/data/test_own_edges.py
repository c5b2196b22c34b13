"""Own edges: direction, repeats, features, weights, times, classes, strangers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import toys
from torch_geometric.utils import coalesce

from clients.graphs.node_data import NodeData
from datasets import load_partition
from datasets.own.graph_tables import build
from datasets.own.infer import infer_schema
from datasets.own.load import own_graph_client
from datasets.tabular.schema_file import read_schema
from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.resolve import defaults, resolve

HEAD = 'format = 1\ndataset = "graph-csv"\n'
TARGET = '[target]\nkind = "classes"\ncolumns = ["label"]\nclasses = ["no", "yes"]\n'
FEATURES = """
[[feature]]
column = "age"
kind = "number"
shift = 40.0
scale = 10.0

[[edge_feature]]
column = "amount"
kind = "number"
shift = 100.0
scale = 50.0

[[edge_feature]]
column = "kind"
kind = "category"
categories = ["card", "cash"]
other = true
"""


def bank(folder: Path, edges: str, *, rest: str = FEATURES, seed: int = 0) -> Path:
    """Write 20 accounts and 60 transfers, with loops and repeated pairs."""
    rng = np.random.default_rng(seed)
    names = [f"a{n:02}" for n in range(20)]
    nodes = pd.DataFrame(
        {
            "node": names,
            "age": rng.integers(20, 80, 20),
            "label": rng.choice(["no", "yes"], 20),
        }
    )
    source, target = rng.integers(0, 8, (2, 60))
    transfers = pd.DataFrame(
        {
            "source": [names[n] for n in source],
            "target": [names[n] for n in target],
            "amount": rng.integers(1, 300, 60),
            "kind": rng.choice(["card", "cash", "cheque"], 60),
            "share": rng.random(60).round(3),
            "ts": rng.permutation(60) + 1000,
            "fraud": rng.choice(["no", "yes"], 60),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    nodes.to_csv(folder / "nodes.csv", index=False)
    transfers.to_csv(folder / "edges.csv", index=False)
    (folder / "schema.toml").write_text(f"{HEAD}{TARGET}[edges]\n{edges}{rest}")
    return folder


def one_site(folder: Path, **more):
    """Settings of a run that reads the tables of one site."""
    own = {"dataset": "graph-csv", "num_clients": 1, "partition": "files"}
    own |= {"features": "schema", "held_out": 0.4, "data_dir": str(folder)}
    return toys.run_settings(**own | more)


def read(folder: Path, **more) -> GraphSet:
    return build(folder, read_schema(folder / "schema.toml"), **more)[0]


def plain(folder: Path, *, directed: bool, loops: bool):
    """The same by pandas: ends, encoded features, weight, time, class of each row."""
    rows = pd.read_csv(folder / "edges.csv")
    ends = np.stack([rows[c].str[1:].astype(int) for c in ("source", "target")])
    kinds = pd.get_dummies(rows.kind)[["card", "cash", "cheque"]].to_numpy(np.float32)
    amount = ((rows.amount - 100) / 50).to_numpy(np.float32)[:, None]
    of_rows = {
        "edge_attr": np.concatenate([amount, kinds], axis=1),
        "edge_weight": rows.share.to_numpy(np.float32),
        "edge_time": rows.ts.to_numpy(float),
        "edge_y": (rows.fraud == "yes").to_numpy(np.int64),
    }
    if not loops:
        keep = ends[0] != ends[1]
        ends, of_rows = ends[:, keep], {n: a[keep] for n, a in of_rows.items()}
    if not directed:
        back = ends[0] != ends[1]
        ends = np.concatenate([ends, ends[::-1, back]], axis=1)
        of_rows = {n: np.concatenate([a, a[back]]) for n, a in of_rows.items()}
    return ends, of_rows


COLUMNS = 'weight = "share"\ntime = "ts"\n'


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("directed", [True, False])
def test_repeated_edges_are_kept_as_pandas_and_pyg_read_them(tmp_path, directed, loops):
    folder = bank(
        tmp_path / "b",
        f'directed = {str(directed).lower()}\nrepeats = "keep"\nself-loops ='
        f' {str(loops).lower()}\nlabel = "fraud"\nclasses = ["no", "yes"]\n{COLUMNS}',
    )
    ours = read(folder)
    ends, of_rows = plain(folder, directed=directed, loops=loops)
    order = np.lexsort((np.arange(ends.shape[1]), ends[1], ends[0]))
    np.testing.assert_array_equal(ours.edge_index, ends[:, order])
    for name, array in of_rows.items():
        found = np.asarray(getattr(ours, name))
        if directed:
            np.testing.assert_allclose(found, array[order], rtol=1e-6)
        else:  # rows of one pair may stand in another order
            mine = pd.DataFrame(np.c_[ours.edge_index.T, found.reshape(len(found), -1)])
            other = pd.DataFrame(np.c_[ends.T, array.reshape(len(array), -1)])
            every = list(mine.columns)
            np.testing.assert_allclose(
                mine.sort_values(every), other.sort_values(every), rtol=1e-6
            )
    assert ours.is_undirected is not directed
    assert not ours.is_simple
    assert ours.edge_classes == ["no", "yes"]
    lines = pd.read_csv(folder / "edges.csv").iloc[np.asarray(ours.edge_row)]
    np.testing.assert_array_equal(lines.ts, ours.edge_time)


@pytest.mark.parametrize("directed", [True, False])
def test_merged_edges_are_those_that_pyg_coalesces(tmp_path, directed):
    folder = bank(tmp_path / "b", f"directed = {str(directed).lower()}\n{COLUMNS}")
    ours = read(folder)
    ends, of_rows = plain(folder, directed=directed, loops=False)
    index = torch.from_numpy(ends)

    def merged(values, reduce):
        given = torch.from_numpy(np.asarray(values, np.float64))
        return coalesce(index, given, num_nodes=20, reduce=reduce)

    expected, weight = merged(of_rows["edge_weight"], "sum")
    np.testing.assert_array_equal(ours.edge_index, expected)
    np.testing.assert_allclose(ours.edge_weight, weight, rtol=1e-6)
    time = merged(of_rows["edge_time"], "min")[1]
    np.testing.assert_allclose(ours.edge_time, time)
    attr = merged(of_rows["edge_attr"], "mean")[1]
    count = merged(np.ones(len(ends[0])), "sum")[1].numpy()
    np.testing.assert_allclose(ours.edge_attr[:, :4], attr, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        ours.edge_attr[:, 4], np.log(count), rtol=1e-6, atol=1e-7
    )
    assert ours.num_edge_features == 5
    assert ours.is_simple


@pytest.mark.parametrize("bad", [[], ["share"]])
def test_rows_in_both_directions_are_one_undirected_edge_each(tmp_path, bad):
    """Even if one of them does not fit."""
    folder = bank(tmp_path / "b", 'repeats = "keep"\nweight = "share"\n')
    rows = pd.read_csv(folder / "edges.csv").query("source < target")
    before = rows.to_csv(folder / "edges.csv", index=False) or read(folder)
    back = rows.rename(columns={"source": "target", "target": "source"})
    back.loc[back.index[0], bad] = -np.inf
    pd.concat([rows, back]).to_csv(folder / "edges.csv", index=False)
    after = read(folder)
    assert len(after.bad) == len(bad)
    np.testing.assert_array_equal(before.edge_index, after.edge_index)
    np.testing.assert_allclose(np.sort(before.edge_weight), np.sort(after.edge_weight))


def test_ends_in_no_table_become_nodes_that_say_so(tmp_path):
    folder = bank(tmp_path / "b", f'directed = true\noutside = "node"\n{COLUMNS}')
    with (folder / "edges.csv").open("a") as out:
        out.write("x9,a01,7,card,0.5,2000,no\na01,y1,8,cash,0.5,2001,no\n")
    ours = read(folder)
    assert ours.num_nodes == 22
    np.testing.assert_array_equal(np.asarray(ours.x)[-2:], [[0, 1], [0, 1]])
    assert not np.asarray(ours.x)[:-2, 1].any()
    assert ours.y[-2:].tolist() == [-1, -1]
    pairs = ours.edge_index.T.tolist()
    assert [20, 1] in pairs
    assert [1, 21] in pairs


def test_one_category_is_kept_as_numbers_of_columns(tmp_path):
    kind = (
        FEATURES[: FEATURES.index("\n[[edge_feature]]")]
        + FEATURES[FEATURES.rindex("\n[[edge_feature]]") :]
    )
    folder = bank(tmp_path / "b", 'directed = true\nrepeats = "keep"\n', rest=kind)
    ours = read(folder)
    assert ours.edge_attr.ndim == 1
    assert ours.num_edge_features == 3
    assert set(ours.edge_attr.tolist()) == {0, 1, 2}


def test_classes_of_edges_alone_are_learned(tmp_path):
    folder = bank(
        tmp_path / "b",
        'directed = true\nrepeats = "keep"\nlabel = "fraud"\nclasses = ["no","yes"]\n',
    )
    text = (folder / "schema.toml").read_text()
    (folder / "schema.toml").write_text(text.replace(TARGET, ""))
    settings = one_site(folder, task="edge-classification", encoder="gatv2")
    found = load_partition(settings, 0)
    assert len(found.graphs.y) == 60 - int(
        (pd.read_csv(folder / "edges.csv").eval("source == target")).sum()
    )
    of_nodes = settings.__class__(**{**vars(settings), "task": "node-classification"})
    with pytest.raises(DataError, match="has no classes of nodes"):
        own_graph_client(of_nodes, 0)


GOOD = "source,target,amount,kind,share,ts,fraud\na01,a02,5,card,0.5,3,no\n"
ROW = "line 3, column"
# what stands in edges.csv, and the words that must name place and cure
MALFORMED = [
    *(
        (GOOD + row, f"{ROW} '{column}': {words}")
        for row, column, words in (
            ("a01,a03,x,card,0.5,3,no", "amount", "must be a finite number, got 'x'"),
            ("a01,a03,,card,0.5,3,no", "amount", "is empty; complete it"),
            (
                "a01,a03,NA,card,0.5,3,no",
                "amount",
                "is 'NA', which counts as not known",
            ),
            ("a01,a03,inf,card,0.5,3,no", "amount", "must be a finite number"),
            (
                "a01,a03,nan,card,0.5,3,no",
                "amount",
                "is 'nan', which counts as not known",
            ),
            ("a01,a03,1e999,card,0.5,3,no", "amount", "must be a finite number"),
            ('a01,a03,"1,5",card,0.5,3,no', "amount", "must be a finite number"),
            ("a01,a03,5 EUR,card,0.5,3,no", "amount", "must be a finite number"),
            ("a01,a03,5,,0.5,3,no", "kind", "is empty; complete it"),
            ("a01,a03,-,card,0.5,3,no", "amount", "is '-', which counts as not known"),
            ("a01,a03,5,CARD,0.5,3,no", "kind", "'CARD' is none of the schema's"),
            ("a01,a03,5,card,half,3,no", "share", "a weight must be a finite number"),
            ("a01,a03,5,card,,3,no", "share", "a weight must be a finite number"),
            ("a01,a03,5,card,inf,3,no", "share", "a weight must be a finite number"),
            ("a01,a03,5,card,1e60,3,no", "share", "a weight must be a finite number"),
            ("a01,a03,5,card,50%,3,no", "share", "a weight must be a finite number"),
            ("a01,a03,5,card,0.5,,no", "ts", "a time must be a number, or a date"),
            ("a01,a03,5,card,0.5,soon,no", "ts", "a time must be a number, or a date"),
            ("a01,a03,5,card,0.5,31/01/2024,no", "ts", "a time must be a number"),
            ("a01,a03,5,card,0.5,2024-02-31,no", "ts", "a time must be a number"),
            ("a01,a03,5,card,0.5,inf,no", "ts", "a time must be a number"),
            ("a01,a03,5,card,0.5,2024-01-31,no", "ts", "times must all be numbers"),
            ("a01,a03,5,card,0.5,3,maybe", "fraud", "'maybe' is none of the schema's"),
            ("a01,a03,5,card,0.5,3,Yes", "fraud", "'Yes' is none of the schema's"),
            ("a01,zz,5,card,0.5,3,no", "target", "node 'zz' is not in nodes.csv"),
            ("zz,a01,5,card,0.5,3,no", "source", "node 'zz' is not in nodes.csv"),
            ("a01,,5,card,0.5,3,no", "target", "node '' is not in nodes.csv"),
            ("A01,a02,5,card,0.5,3,no", "source", "node 'A01' is not in nodes.csv"),
            ("a01,NA,5,card,0.5,3,no", "target", "node 'NA' is not in nodes.csv"),
        )
    ),
    *(
        (
            GOOD.replace(f",{column}", f",{column}2", 1),
            f"line 1: has no column {column!r}",
        )
        for column in ("amount", "kind", "share", "ts", "fraud", "target")
    ),
    (GOOD.replace("source,", "from,", 1), "line 1: has no column 'source'"),
    ("", "edges.csv"),
    (GOOD + "a01,a03,5,card,0.5,3\n", "line 3"),
    (GOOD + "a01,a03,5,card,0.5,3,no,more\n", "line 3"),
    (GOOD.replace("kind", "amount", 1), "two columns"),
    (GOOD + 'a01,a03,5,"card,0.5,3,no\n', "line 3"),
]


@pytest.mark.parametrize(("text", "words"), MALFORMED)
def test_malformed_tables_of_edges_are_refused_by_line_column_and_cure(
    tmp_path, text, words
):
    folder = bank(
        tmp_path / "b",
        'directed = true\nrepeats = "keep"\nlabel = "fraud"\nclasses = ["no", "yes"]\n'
        + COLUMNS,
    )
    (folder / "edges.csv").write_text(text)
    with pytest.raises(DataError) as error:
        read(folder, bad_rows="refuse")
    assert words in str(error.value)


def test_a_row_that_does_not_fit_is_no_edge_and_is_told(tmp_path):
    folder = bank(tmp_path / "b", 'directed = true\nrepeats = "keep"\n' + COLUMNS)
    before = read(folder)
    with (folder / "edges.csv").open("a") as out:
        out.write("a11,a12,dear,card,0.5,2000,no\n")
    after = read(folder)
    np.testing.assert_array_equal(after.edge_index, before.edge_index)
    assert after.left_out == ["1.6 % of edges"]
    assert "line 62, column 'amount'" in after.bad[0]


def test_edges_that_teach_nothing_or_too_much_are_told(tmp_path):
    """Times unlike those of nodes, bad cells in all rows, no rows, heavy weights."""
    folder, edges = bank(tmp_path / "b", COLUMNS), tmp_path / "b" / "edges.csv"
    rows = pd.read_csv(edges)
    rows.iloc[:0].to_csv(edges, index=False)
    assert read(folder).edge_index.shape == (2, 0)
    rows.assign(share=1000).to_csv(edges, index=False)
    told = "edges.csv: messages are multiplied by weights of mean size 1e+03"
    assert told in " ".join(read(folder).remarks)
    rows.assign(ts="31.01.2024").to_csv(edges, index=False)
    with pytest.raises(
        DataError, match=r"none of its 60 row\(s\) can be used, got: .*ts"
    ):
        read(folder)
    odd = rows.assign(ts="31.01.2024", label=rows.fraud)
    odd.to_csv(edges, index=False)
    notes = " ".join(infer_schema(folder, min_count=1)[1])
    assert "ts of edges.csv: 60 of 60 cells are no numbers" in notes
    odd.replace({"label": {"no": ""}}).to_csv(edges, index=False)
    gaps = (rows.fraud == "no").sum()
    with pytest.raises(DataError, match=f"write a class into the {gaps} cells without"):
        infer_schema(folder, min_count=1)
    rows.to_csv(edges, index=False)  # at 1000 to 1059; nodes by age
    schema = (folder / "schema.toml").read_text()
    head = f'{HEAD}time = "age"\ndegree = 8\n'
    of_time = schema.replace(FEATURES, "").replace(HEAD, head)
    (folder / "schema.toml").write_text(of_time)
    settings = one_site(folder, split="time")
    with pytest.raises(DataError, match="training would see none; write times"):
        load_partition(settings, 0)


def test_there_are_forty_malformed_tables():
    assert len(MALFORMED) >= 40


def test_graphs_have_features_and_times_and_the_newest_test(tmp_path):
    folder, rng = tmp_path / "g", np.random.default_rng(1)
    folder.mkdir()
    count = 30
    graphs = pd.DataFrame(
        {
            "graph": [f"g{k}" for k in range(count)],
            "label": rng.choice(["no", "yes"], count),
            "age": rng.integers(20, 80, count),
            "sex": rng.choice(["f", "m"], count),
            "seen": pd.date_range("2024-01-01", periods=count).strftime("%Y-%m-%d"),
        }
    ).sample(frac=1, random_state=0)
    graphs.to_csv(folder / "graphs.csv", index=False)
    nodes = [(g, n, n % 2) for g in graphs.graph for n in range(3)]
    pd.DataFrame(nodes, columns=["graph", "node", "x"]).to_csv(
        folder / "nodes.csv", index=False
    )
    edges = [(g, 0, 1, 0.5) for g in graphs.graph]
    pd.DataFrame(edges, columns=["graph", "source", "target", "weight"]).to_csv(
        folder / "edges.csv", index=False
    )
    (folder / "schema.toml").write_text(
        'format = 1\ndataset = "graphs-csv"\ntime = "seen"\n'
        + TARGET
        + '[edges]\nweight = "weight"\n[[feature]]\ncolumn = "x"\nkind = "number"\n'
        '[[graph_feature]]\ncolumn = "age"\nkind = "number"\nshift = 50.0\n'
        '[[graph_feature]]\ncolumn = "sex"\nkind = "category"\n'
        'categories = ["f", "m"]\n'
    )
    whole = {"dataset": "graphs-csv", "csv_label_kind": "classes"}
    settings = one_site(folder, split="time", **whole)
    found = load_partition(settings, 0)
    expected = np.stack(
        [graphs.age - 50, graphs.sex == "f", graphs.sex == "m"], axis=1
    ).astype(np.float32)
    np.testing.assert_array_equal(found.graphs.graph_x, expected)
    assert found.graphs.widths["num_graph_features"] == 3
    days = pd.to_datetime(graphs.seen).to_numpy()
    parts = [days[found.positions(name)] for name in ("train", "val", "test")]
    assert parts[0].max() < parts[1].min()
    assert parts[1].max() < parts[2].min()
    assert sum(map(len, parts)) == count


@pytest.mark.parametrize("edge_time", [True, False])
def test_the_newest_nodes_test_and_later_edges_are_not_seen_in_training(
    tmp_path, edge_time
):
    """An edge without a time came with the newer of its ends, as pandas says."""
    count = 30
    rng = np.random.default_rng(4)
    nodes = pd.DataFrame({"node": range(count), "x": 1, "label": "no"})
    nodes.loc[::3, "label"] = "yes"
    nodes["since"] = rng.permutation(count)
    ends = rng.integers(0, count, (200, 2))
    edges = pd.DataFrame(ends, columns=["source", "target"])
    edges["when"] = rng.integers(0, count, len(edges)) + 0.5
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    (tmp_path / "schema.toml").write_text(
        HEAD.replace("\n", '\ntime = "since"\n', 1)
        + TARGET
        + '[edges]\ndirected = true\nrepeats = "keep"\nself-loops = true\n'
        + 'time = "when"\n' * edge_time
        + '[[feature]]\ncolumn = "x"\nkind = "number"\n'
    )
    settings = one_site(tmp_path, split="time")
    found = load_partition(settings, 0)
    parts = [nodes.since[found.positions(name)] for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [18, 6, 6]
    assert parts[0].max() < parts[1].min()
    assert parts[1].max() < parts[2].min()
    newer = nodes.since.to_numpy()[ends].max(axis=1)
    when = edges.when.to_numpy() if edge_time else newer
    data = NodeData.collate(found, toys.CPU)
    for graph, kept in ((data.shown, when <= parts[0].max()), (data.whole, when < 99)):
        expected = sorted(map(tuple, ends[kept].tolist()))
        assert sorted(map(tuple, graph.edge_index.T.tolist())) == expected
    plain = load_partition(replace(settings, split="random"), 0)
    assert NodeData.collate(plain, toys.CPU).shown.edge_index.shape[1] == 200


def test_settings_that_mean_nothing_for_the_data_are_refused():
    for changes, words in (
        (
            {"method": "fedgkd", "dataset": "graph-csv", "split": "time"},
            "split must be 'random' for fedgkd",
        ),
        ({"split": "time"}, "split must be 'random' for dataset 'synthetic'"),
        ({"split": "scaffold"}, "got 'scaffold': only molecules of SMILES have"),
        (
            {"dataset": "BBBP", "features": "atoms+bonds", "split-noise-edges": 0.1},
            "split-noise-edges must be 0 with features 'atoms.bonds'",
        ),
        (
            {"dataset": "planted", "task": "link-prediction", "split-noise-edges": 0.1},
            "split-noise-edges must be 0 where edges are learned",
        ),
        (
            {
                "dataset": "planted",
                "task": "link-prediction",
                "split-noise-labels": 0.1,
            },
            "split-noise-labels must be 0 where edges are learned",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve({**defaults(), "method": "fedavg", **changes})

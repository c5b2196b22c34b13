"""Own graphs from tables: arrays by hand, what is left out, splits, the cache."""

import numpy as np
import own_files
import pytest
import toys

from datasets import load_partition
from datasets.own.graph_tables import build, load_folder
from datasets.tabular.schema_file import read_schema
from fedgraph_flwr.core.errors import ConfigError, DataError


def made(folder, **more):
    return build(folder, read_schema(folder / "schema.toml"), **more)[:2]


def settings(folder, cache, **changes):
    base = {"dataset": "graphs-csv", "partition": "auto", "num_clients": 1}
    places = {"data_dir": str(folder), "cache_dir": str(cache)}
    auto = {"features": "auto", "csv_label_kind": "auto"}
    return toys.run_settings(**{**base, **places, **auto, **changes})


def test_whole_graphs_by_hand(tmp_path):
    data, names = made(own_files.write(tmp_path))
    assert names == ["g1", "g2", "g3"]
    assert data.node_ptr.tolist() == [0, 2, 5, 6]
    # age as (v - 20) / 10, its indicator; x, y, other
    assert data.x.tolist() == [
        [-1, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [1, 0, 1, 0, 0],
        [0, 1, 0, 0, 1],
        [3, 0, 0, 1, 0],
        [4, 0, 1, 0, 0],
    ]
    assert data.x.dtype == np.float32
    # once in each direction, however often it is listed; no loop
    assert data.edge_index.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]
    assert data.edge_ptr.tolist() == [0, 2, 4, 4]
    assert data.y.tolist() == [0, 1, 0]
    assert data.classes == ["no", "yes"]
    assert data.tasks == []
    assert data.not_used == ["weight of edges.csv"]
    assert data.unused == "1 column(s) or file(s)"  # told to the server: no name
    assert data.num_dropped == 1  # from a node to itself
    assert data.bad == []


def test_one_graph_by_hand(tmp_path):
    data, names = made(own_files.write_graph(tmp_path))
    assert names == ["a", "b", "c", "d"]
    assert data.y.tolist() == [0, -1, 1, 0]
    assert data.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert data.node_ptr.tolist() == [0, 4]
    assert data.x[:, 0].tolist() == [1.5, 2, 3, 4]


@pytest.mark.parametrize(
    ("edges", "count"),
    [
        ("a,b\nb,a\nb,c\nc,b\n", 0),  # every edge in both directions
        ("a,b\nb,a\nb,c\nc,b\na,b\n", 1),
        ("a,b\nb,c\nc,d\nd,a\nc,zz\nc,zz\n", 0),  # left out as a row that does not fit
        ("", 0),
    ],
)
def test_rows_that_repeat_an_edge_are_counted(tmp_path, edges, count):
    folder = own_files.write_graph(tmp_path, edges=f"source,target\n{edges}")
    assert made(folder)[0].num_dropped == count


def test_degrees_stand_in_for_features(tmp_path):
    schema = own_files.SCHEMA.split("[[feature]]")[0]
    schema = schema.replace("format = 1", "format = 1\ndegree = 1")
    nodes = "graph,node\ng1,a\ng1,b\ng1,c\ng2,a\ng3,a\n"
    edges = "graph,source,target\ng1,a,b\ng1,b,c\n"
    data, _ = made(own_files.write(tmp_path, nodes=nodes, edges=edges, schema=schema))
    assert data.x.tolist() == [1, 1, 1, 0, 0]  # b has two, which count as one
    assert data.num_features == 2
    assert data.columns.startswith("degrees up to 1 by schema ")


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_several_targets_with_missing_values(tmp_path, kind):
    schema = own_files.SCHEMA.replace(
        'kind = "classes"\ncolumns = ["label"]\nclasses = ["no", "yes"]',
        f'kind = "{kind}"\ncolumns = ["t2", "t1"]',
    )
    graphs = "graph,t1,t2\ng1,1,0\ng2,,1\ng3,0,nan\n"
    data, _ = made(own_files.write(tmp_path, graphs, schema=schema))
    expected = [[0, 1], [1, np.nan], [np.nan, 0]]
    assert np.array_equal(data.y, np.array(expected, np.float32), equal_nan=True)
    assert data.tasks == ["t2", "t1"]
    assert data.num_classes == 2


def test_a_file_of_a_spreadsheet(tmp_path):
    """Byte order mark, CRLF, quotes, empty lines, spaces around cells."""
    graphs = '\ufeffgraph, label \r\n\r\n g1 ,no\r\n"g2","yes"\r\n\r\ng3,no\r\n'
    data, names = made(own_files.write(tmp_path, graphs))
    assert names == ["g1", "g2", "g3"]
    assert data.y.tolist() == [0, 1, 0]


def test_a_graph_with_a_bad_row_is_left_out_with_all_it_has(tmp_path):
    nodes = own_files.NODES.replace("g2,c,50", "g2,c,fifty")
    data, names = made(own_files.write(tmp_path, nodes=nodes))
    assert names == ["g1", "g3"]
    assert data.row.tolist() == [0, 2]
    assert data.node_ptr.tolist() == [0, 2, 3]
    assert data.x[:, 0].tolist() == [-1, 0, 4]
    assert data.edge_ptr.tolist() == [0, 2, 2]
    (text,) = data.bad
    assert text.startswith("nodes.csv, line 6, column 'age': must be a finite number")


def test_a_name_that_stands_twice_makes_both_rows_unusable(tmp_path):
    graphs = own_files.GRAPHS + "g4,no\ng5,no\ng1,yes\n"
    more = own_files.NODES + "g4,a,1,x\ng5,a,1,x\n"
    _, names = made(own_files.write(tmp_path, graphs, more))
    assert names == ["g2", "g3", "g4", "g5"]
    nodes = own_files.NODE_NODES + "e,5,\na,9,bad\n"
    edges = own_files.NODE_EDGES + "c,d\nd,c\nc,d\n"
    data, names = made(own_files.write_graph(tmp_path / "one", nodes, edges))
    assert names == ["b", "c", "d", "e"]
    assert data.edge_index.tolist() == [[1, 2], [2, 1]]


def test_a_bad_node_goes_with_its_edges_and_a_bad_edge_alone(tmp_path):
    nodes = own_files.NODE_NODES.replace("b,2,", "b,two,")
    edges = own_files.NODE_EDGES + "a,zz\nd,a\n" + "c,d\n" * 4
    data, names = made(own_files.write_graph(tmp_path, nodes, edges))
    assert names == ["a", "c", "d"]
    assert data.edge_index.tolist() == [[0, 1, 2, 2], [2, 2, 0, 1]]
    assert [text.split(":")[0] for text in data.bad] == [
        "nodes.csv, line 3, column 'age'",
        "edges.csv, line 5, column 'target'",
    ]


def test_edges_that_all_name_other_nodes_are_refused(tmp_path):
    """Whole numbers that a spreadsheet has written as "1.0"; a graph without edges."""
    edges = "source,target\na.0,b.0\nb.0,c.0\n"
    folder = own_files.write_graph(tmp_path, edges=edges)
    wanted = r"edges.csv: none of its 2 row\(s\) joins .*, got: .*'c.0' is not in nodes"
    with pytest.raises(DataError, match=wanted):
        made(folder)


def test_parquet_gives_what_csv_gives(tmp_path):
    import pyarrow
    from pyarrow import parquet

    folder = own_files.write(tmp_path)
    expected, _ = made(folder)
    (folder / "nodes.csv").unlink()
    table = pyarrow.table(
        {
            "graph": ["g1", "g1", "g2", "g2", "g2", "g3"],
            "node": ["a", "b", "a", "b", "c", "a"],
            "age": pyarrow.array([10, 20, 30, None, 50, 60], pyarrow.int32()),
            "kind": ["x", "y", "x", "z", "y", "x"],
        }
    )
    parquet.write_table(table, folder / "nodes.parquet")
    data, _ = made(folder)
    assert np.array_equal(data.x, expected.x)
    assert np.array_equal(data.edge_index, expected.edge_index)
    lists = pyarrow.array([[1.0, 2.0]] * 6)
    parquet.write_table(table.append_column("v w", lists), folder / "nodes.parquet")
    with pytest.raises(DataError, match=r"nodes.parquet, row 1, column 'v w': cannot"):
        made(folder)


def test_the_cache_knows_a_folder_by_content_and_schema(tmp_path):
    one = own_files.write(tmp_path / "one")
    two = own_files.write(tmp_path / "two")
    schema = read_schema(one / "schema.toml")
    cache = str(tmp_path / "cache")
    first = load_folder(one, schema, cache_dir=cache)
    load_folder(two, schema, cache_dir=cache)
    entries = lambda: len(list((tmp_path / "cache").glob("graphs-csv-????????????")))  # noqa: E731
    assert entries() == 1
    assert isinstance(first.x, np.memmap)
    (two / "nodes.csv").write_text(own_files.NODES.replace("60", "61"))
    again = load_folder(two, schema, cache_dir=cache)
    assert entries() == 2
    assert again.raw_sha256 != first.raw_sha256
    load_folder(two, schema, bad_rows="refuse", cache_dir=cache)
    assert entries() == 3


def many(count, start=0, split=""):
    """Tables of ``count`` graphs of two nodes."""
    roles = ["train", "train", "val", "test"]
    graphs = [
        f"g{i},{'yes' if i % 2 else 'no'}" + (f",{roles[i % 4]}" if split else "")
        for i in range(count)
    ]
    nodes = [f"g{i},{n},{i + n + start},x" for i in range(count) for n in (0, 1)]
    edges = [f"g{i},0,1" for i in range(count)]
    return (
        "\n".join([f"graph,label{split and ',split'}", *graphs]) + "\n",
        "\n".join(["graph,node,age,kind", *nodes]) + "\n",
        "\n".join(["graph,source,target", *edges]) + "\n",
    )


def test_a_client_of_a_folder_and_a_site_of_its_own_get_the_same(tmp_path):
    data = tmp_path / "data"
    for at, name in enumerate(("south", "north")):
        own_files.write(data / name, *many(20, at), schema=None)
    (data / "_notes").mkdir()
    (data / "schema.toml").write_text(own_files.SCHEMA)
    cache = tmp_path / "cache"
    parts = [
        load_partition(settings(data, cache, num_clients=2), client)
        for client in range(2)
    ]
    assert parts[0].graphs.x[0, 0] == (1 - 20) / 10  # "north" comes first
    assert [len(parts[0].positions(s)) for s in ("train", "val", "test")] == [16, 2, 2]
    own = own_files.write(tmp_path / "ward", *many(20, 1))
    alone = load_partition(settings(own, cache, num_clients=2), 0)
    assert alone.data_hash == parts[0].data_hash
    assert alone.split_hash == parts[0].split_hash
    assert parts[1].split_hash != parts[0].split_hash


def test_a_column_of_splits_is_obeyed(tmp_path):
    folder = own_files.write(tmp_path / "d", *many(12, split="split"))
    part = load_partition(settings(folder, tmp_path / "c"), 0)
    assert part.val.tolist() == [2, 6, 10]
    assert part.test.tolist() == [3, 7, 11]
    assert part.train.tolist() == [0, 1, 4, 5, 8, 9]


def test_nodes_without_label_have_no_role(tmp_path):
    nodes = ["node,age,label"]
    nodes += [
        f"{i},{i},{'' if i % 3 == 0 else 'ok' if i % 2 else 'bad'}" for i in range(30)
    ]
    edges = "source,target\n0,1\n1,2\n"
    folder = own_files.write_graph(tmp_path / "d", "\n".join(nodes) + "\n", edges)
    changes = {"dataset": "graph-csv", "method": "fedavg", "held_out": 0.2}
    part = load_partition(settings(folder, tmp_path / "c", **changes), 0)
    used = np.concatenate([part.train, part.val, part.test])
    assert len(part.train) == 16
    assert sorted(used.tolist()) == [i for i in range(30) if i % 3]
    assert (part.graphs.y[::3] == -1).all()


ONE_GRAPH = {"dataset": "graph-csv", "held_out": 0.2}
NO_TEST = "graph,label,split\ng1,no,train\ng2,yes,train\ng3,no,val\n"


@pytest.mark.parametrize(
    ("write", "where", "given", "changes", "message"),
    [
        (None, "", (), {}, r"there is no file .*correct data-dir"),
        (own_files.write, "a", (), {}, r"there is no schema .*fedgraph site schema"),
        (
            *(own_files.write, "a", (), {"num_clients": 2}),
            r"has 1 folder\(s\).*set num-clients to 1",
        ),
        (
            *(own_files.write_graph, "", (), {}),
            r"is for dataset 'graph-csv', but the run has 'graphs-csv'; set dataset",
        ),
        (
            *(own_files.write, "", (), {"csv_label_kind": "binary"}),
            r"has kind 'classes', but csv-label-kind is 'binary'; set csv-label-kind",
        ),
        (
            *(own_files.write, "", many(2), {}),
            r"client 0 has 2 usable graph\(s\).*at least 3; add some",
        ),
        (
            *(own_files.write, "", (NO_TEST,), {}),
            r"client 0: column 'split' of .* names nothing test; name at least one",
        ),
        (
            *(own_files.write_graph, "", ("node,age,label\na,1,\nb,2,\n",), ONE_GRAPH),
            r"^0 labelled nodes of client 0 in .*data with held-out 0.2 .*label more",
        ),
    ],
)
def test_what_a_client_cannot_use(tmp_path, write, where, given, changes, message):
    folder = tmp_path / "data"
    if write is not None:
        write(folder / where, *given)
    with pytest.raises((ConfigError, DataError), match=message):
        load_partition(settings(folder, tmp_path / "cache", **changes), 0)

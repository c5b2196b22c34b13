"""What a loader of a plug-in returns: joined, split, trained on, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import toys
from torch.utils.data import Subset
from torch_geometric.data import Data

from datasets.partition import load_partition
from datasets.plugged import from_pyg
from fedgraph_flwr import server_app
from fedgraph_flwr.core import plugins
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.resolve import defaults, resolve
from simulations.inline import run_inline


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr(server_app, "draw_all", lambda _: None)


DATA = """
import numpy as np
from torch_geometric.data import Data
from fedgraph_flwr.api import DataSet

def load(client, settings):
    rng = np.random.default_rng([settings.split_seed, client])
    found = []
    for g in range(1 if {nodes} else 12):
        n = 30 if {nodes} else 4
        path = np.stack([np.arange(n - 1), np.arange(1, n)])
        y = np.arange(n) % 2 if {nodes} else np.array([g % 2])
        both = np.concatenate([path, path[::-1]], axis=1)
        found.append(Data(x=rng.normal(size=(n, 5)), edge_index=both, y=y))
    return found

DATA = DataSet(load=load, num_classes=2, num_clients=2, of_nodes={nodes})
"""


@pytest.mark.parametrize("nodes", [False, True])
def test_a_data_set_of_your_own_is_trained_on_and_hashed(write_plugin, tmp_path, nodes):
    write_plugin("plugins/fgd.py", DATA.format(nodes=nodes))
    few = {k: toys.TINY[k] for k in ("hidden-dim", "num-layers", "device")}
    folders = {f"{k}-dir": str(tmp_path / k) for k in ("results", "state", "cache")}
    own = {"method": "fedavg", "dataset": "fgd:DATA", "num-server-rounds": 2}
    path = run_inline({**few, **folders, **own}, num_nodes=2)
    summary = toys.Run(path, {}).summary
    assert sum(summary["num_examples"].values()) == (2 * 10 if nodes else 2 * 2)
    assert summary["config"]["plugin.dataset-sha256"] == plugins.sha256("fgd")
    assert summary["num_clients"] == 2
    assert summary["task"] == f"{'node' if nodes else 'graph'} classification"


@pytest.mark.parametrize("variable", [False, True])
def test_other_files_are_another_split(write_plugin, tmp_path, monkeypatch, variable):
    """Else `compare` takes runs on them for one another's repetitions."""
    seed = "int(np.loadtxt(settings.data_dir))"
    source = DATA.format(nodes=False).replace("[settings.split_seed, client]", seed)
    source = source.replace("load=load", "load=load, reads_files=True")
    write_plugin("plugins/fgd.py", source)
    hashes = []
    for number in ("0", "1"):
        (tmp_path / number).write_text(number)
        run = {"method": "fedavg", "dataset": "fgd:DATA"}
        place = str(tmp_path / number)
        monkeypatch.setenv("FEDGRAPH_DATA", place if variable else "/not/to/be/read")
        run |= {} if variable else {"data-dir": place}
        settings = resolve({**defaults(), **run}).settings
        hashes.append(load_partition(settings, 0).split_hash)
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize("nodes", [False, True])
def test_a_loader_that_gives_all_clients_the_same_is_refused(
    write_plugin, tmp_path, nodes
):
    """Of one graph for all, each client draws roles: one trains on another's test."""
    source = DATA.format(nodes=nodes).replace("[settings.split_seed, client]", "1")
    write_plugin("plugins/fgd.py", source)
    folders = {f"{k}-dir": str(tmp_path / k) for k in ("results", "state", "cache")}
    with pytest.raises(
        ConfigError, match=r"0 and 1 have the same graphs.*, or let load"
    ):
        run_inline({**folders, "method": "fedavg", "dataset": "fgd:DATA"}, num_nodes=2)


def graph(**changes):
    whole = {"x": np.eye(3), "edge_index": np.array([[0, 1], [1, 0]]), "y": [1]}
    return Data(**{**whole, "y": np.array([1]), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": None}, "graph 1 has no x"),
        ({"y": None}, "graph 1 has no y"),
        ({"x": np.full((3, 3), np.nan)}, "x must be finite numbers"),
        ({"x": np.ones(3)}, r"x must be .* got shape \(3,\)"),
        ({"x": np.ones((3, 4))}, "graphs have 3 and 4 features"),
        (
            {"edge_index": np.array([[0, 3], [1, 0]])},
            r"number the 3 rows of x from 0, got 0 to 3",
        ),
        ({"edge_index": np.array([[0, -1], [1, 0]])}, "got -1 to 1"),
        (
            {"edge_index": np.array([0, 1])},
            r"must be ints of shape \(2, num",
        ),
        ({"edge_index": np.ones((2, 2))}, "edge_index must be ints"),
        ({"y": np.array([2])}, "y must be a class from 0 to 1, .*got 0 to 2"),
        ({"y": np.array([0.5])}, "y must be one int, got 1 of float64"),
        ({"y": np.array([0, 1])}, "y must be one int, got 2 of int64"),
    ],
)
def test_graphs_that_are_none_are_refused_by_number(changes, words):
    with pytest.raises(DataError, match=words):
        from_pyg("fgd:DATA", [graph(), graph(**changes)], num_classes=2)


def test_what_is_no_list_of_graphs_is_refused():
    """A loader that returns its one graph; a Subset is as good as a list."""
    with pytest.raises(DataError, match=r"^d: load must return a list .*got a Data"):
        from_pyg("d", Data(), num_classes=2, of_nodes=True)
    found = from_pyg("d", Subset([graph(), graph()], [1, 0]), num_classes=2)
    assert found.y.tolist() == [1, 1]


def test_what_is_not_used_of_a_graph_is_told(caplog):
    """A mask of test nodes that is passed over lets a run train on them."""
    given = [graph(num_nodes=3), graph(train_mask=np.ones(3), edge_attr=np.ones(2))]
    from_pyg("fgd:DATA", given, num_classes=2)
    (told,) = caplog.messages
    assert told.startswith("fgd:DATA: not used of its graphs: edge_attr, train_mask;")


def test_graphs_are_joined_with_sorted_edges_each_once():
    edges = np.array([[2, 0, 1, 0], [0, 2, 0, 1]])
    twice = np.concatenate([edges, edges], axis=1)
    no_edges = np.zeros((2, 0))
    found = from_pyg(
        "d", [graph(edge_index=twice), graph(edge_index=no_edges)], num_classes=2
    )
    assert found.edge_index.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert found.edge_ptr.tolist() == [0, 4, 4]
    assert found.is_undirected
    one_way = from_pyg("d", [graph(edge_index=edges[:, :1])], num_classes=2)
    assert not one_way.is_undirected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            DATA.replace("num_classes=2", "num_classes=1"),
            "num_classes of a DataSet",
        ),
        (
            DATA.replace("of_nodes={nodes}", "settings={{'seeds': 3}}"),
            "unknown key with default 'auto' 'seeds'",
        ),
        (
            DATA.replace("of_nodes={nodes}", "settings={{'learning-rate': 0.1}}"),
            "key with default 'auto' 'learning-rate'",
        ),
    ],
)
def test_a_faulty_data_set_is_refused(write_plugin, source, words):
    write_plugin("plugins/fgd.py", source.format(nodes=False))
    with pytest.raises(ConfigError, match=words):
        resolve({**defaults(), "method": "fedavg", "dataset": "fgd:DATA"})

"""All data in one place: the model of one client that holds the items of all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import toys
from commands import fedgraph
from torch_geometric.data import Batch

from fedgraph_flwr.core.data import GraphSet, join_training
from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.core.tasks import NODE_CLASSIFICATION
from fedgraph_flwr.resolve import defaults, resolve
from simulations.tiny_runs import OF_TASK

NODES = dict(OF_TASK[NODE_CLASSIFICATION.name])
CASES = {
    "centralized": {},
    "centralized multi-task": {},
    "centralized node-classification": NODES,
    "centralized graph-embedding": {},
}


def with_edges(part, client):
    """Give edges features, weights and times, which differ by client."""
    graphs = part.graphs
    count = graphs.edge_index.shape[1]
    rng = np.random.default_rng(client)
    more = {
        "edge_attr": rng.random((count, 2)).astype(np.float32),
        "edge_weight": rng.random(count).astype(np.float32),
        "edge_time": rng.random(count),
        "time": rng.random(len(graphs.y)),
    }
    return toys.renewed(part, graphs=replace(graphs, num_edge_features=2, **more))


@pytest.mark.parametrize("of_nodes", [True, False])
def test_items_of_all_are_joined_as_pyg_does(of_nodes):
    make = toys.make_node_partition if of_nodes else toys.make_partition
    parts = [with_edges(make(c), c) for c in range(3)]
    found = join_training(parts, of_nodes=of_nodes)
    chosen = [p.graphs if of_nodes else p.graphs.take(p.train) for p in parts]
    graphs = found.graphs
    assert len(graphs) == (1 if of_nodes else sum(map(len, chosen)))
    pieces = [d for g in chosen for d in toys.to_pyg(g)]
    expected = Batch.from_data_list(pieces)
    first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))
    np.testing.assert_array_equal(graphs.edge_index + first, expected.edge_index)
    x = np.eye(graphs.num_features)[graphs.x] if graphs.x.ndim == 1 else graphs.x
    np.testing.assert_array_equal(x, expected.x)
    for name in ("y", "edge_attr", "edge_weight", "edge_time", "time"):
        whole = np.concatenate([getattr(g, name) for g in chosen])
        np.testing.assert_array_equal(getattr(graphs, name), whole)
    if of_nodes:  # pairs of nodes, and the edges that they are, move with their graph
        items = []
        for part in parts:
            g, count = part.graphs, part.graphs.edge_index.shape[1]
            own = {"y": g.edge_index[0], "pairs": g.edge_index, "time": None}
            own["item_edge"] = np.arange(count)
            items.append(toys.renewed(part, graphs=replace(g, **own)))
        of_edges = join_training(items, of_nodes=True)
        whole = of_edges.graphs
        np.testing.assert_array_equal(whole.pairs, whole.edge_index)
        np.testing.assert_array_equal(whole.edge_index[:, whole.item_edge], whole.pairs)
        picked = np.concatenate([p.graphs.y[p.train] for p in items])
        np.testing.assert_array_equal(whole.y[of_edges.train], picked)
    labels = np.concatenate([p.graphs.y[p.train] for p in parts])
    np.testing.assert_array_equal(graphs.y[found.train], labels)
    assert not len(found.held_out)
    assert isinstance(graphs.take(np.array([0])), GraphSet)


@pytest.mark.parametrize("case", CASES)
def test_it_is_fedavg_of_one_client_that_holds_the_items_of_all(run, toy_data, case):
    finished = run(case, **CASES[case])
    settings = resolve({**defaults(), **finished.overrides}).settings
    of_nodes = "node" in case
    parts = [toys.federation(settings, c) for c in range(3)]
    whole = join_training(parts, of_nodes=of_nodes)
    if settings.held_out:  # something to measure
        whole = replace(whole, val=whole.train[:2], test=whole.train[2:4])
    other = case.replace("centralized", "fedavg")
    other = "fclg" if "embedding" in case else other
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", lambda *_: whole)
        one = run(other, **{**CASES[case], "num-clients": 1, "shared-group": "all"})
    for name, array in one.models["global"].items():
        np.testing.assert_array_equal(finished.models["global"][name], array)
    assert [*finished.summary["final"]["per_client"]] == ["0", "1", "2"]
    assert finished.summary["failures"] == []


def test_held_out_clients_do_not_train(run):
    held = run("centralized", **{"held-out-clients": "0"})
    rows = [
        r for r in held.ledger if r["record"] == "arrays" and r["direction"] == "up"
    ]
    assert {r["client"] for r in rows} == {"1"}


@pytest.mark.parametrize(
    ("config", "got"),
    [
        ({"shared-group": "convs"}, "got 'convs', 1 and none"),
        ({"privacy.update-clip": 1.0, "privacy.update-noise": 1.0}, "1 and some"),
        ({"client-fraction": 0.5}, "one client trains on the data of all"),
    ],
)
def test_what_would_not_be_the_ceiling_is_refused(config, got):
    with pytest.raises(ConfigError, match=got):
        resolve({**defaults(), **toys.tiny("centralized"), **config})


def test_no_site_takes_part(run, tmp_path):
    with pytest.raises(RunFailedError, match="ConfigError"):
        run("centralized", node_configs=toys.two_sites(tmp_path))


def test_compare_shows_it_as_the_last_row(run, capsys):
    paths = [run(m).path for m in ("centralized", "gcfl+", "local")]
    assert fedgraph(["compare", *map(str, paths), "--markdown"]) == 0
    rows = [line.split()[1] for line in capsys.readouterr().out.splitlines()
            if line.startswith(("| local", "| gcfl+", "| centralized"))]  # fmt: skip
    assert rows[:3] == ["local", "gcfl+", "centralized"]

"""What keeps clients from one stack, and what a stack keeps apart."""

from __future__ import annotations

import collections
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys

from clients.graphs import ops
from clients.stacking import masks
from clients.stacking.groups import practise_together, stack_of
from clients.stacking.stack import Stack
from clients.tasks.graph_classifier import GraphClassifierClient
from clients.tasks.node_classifier import NodeClassifierClient
from fedgraph_flwr.wire import STACKED

SMALL = {"hidden-dim": 8, "dropout": 0.5, "batch-size": 100}


def begun(root, partition, method="fedavg", **overrides):
    """Make a client at the start of round 1."""
    given = {**SMALL, **overrides}
    folder = root / str(partition.client_id)
    client = toys.make_client(folder, method, partition=partition, **given)
    return toys.begun(client)


def trained(client):
    return {n: t.detach().numpy() for n, t in client.tensors().items()}


def sizes(done):
    """Clients of each stack."""
    return {client: parcel.metrics[STACKED] for client, (_, parcel) in done.items()}


def whole(num_nodes, client=0):
    """Make a client's graphs, of so many nodes in all."""
    graphs = toys.random_graphs(20, seed=client)
    more = num_nodes - len(graphs.x)
    ptr = graphs.node_ptr.copy()
    ptr[-1] += more  # the last graph has them, and no edge touches them
    x = np.concatenate([graphs.x, np.zeros(more, graphs.x.dtype)])
    partition = toys.make_partition(client)
    return toys.renewed(partition, graphs=replace(graphs, x=x, node_ptr=ptr))


@pytest.mark.parametrize("task", [GraphClassifierClient, NodeClassifierClient])
@pytest.mark.parametrize(
    "name",
    [
        "hiding_failure",
        "tensors",
        "data",
        "model",
        "_set",
        "_state",
        "_start_of_model",
        "_privatised",
        "__new__",
        "__getattribute__",
        "__getattr__",
        "__setattr__",
    ],
)
def test_who_changes_anything_that_training_needs_trains_one_by_one(task, name):
    own = getattr(task, name, None)
    changed = type("Changed", (task,), {name: lambda *a: own(*a)})
    assert stack_of(changed) is None


@pytest.mark.parametrize("task", [GraphClassifierClient, NodeClassifierClient])
@pytest.mark.parametrize("name", ["num_epochs", "private_keys", "own", "__repr__"])
def test_what_a_stack_honours_or_never_meets_may_be_changed(task, name):
    own = getattr(task, name, None)
    changed = type("Changed", (task,), {name: lambda *a: own(*a), "MIN_BATCH": 2})
    assert stack_of(changed) is stack_of(task)


@pytest.mark.parametrize("change", ["hook", "dropout"])
def test_a_model_that_does_more_trains_by_itself(tmp_path, change):
    clients = [begun(tmp_path, toys.make_partition(k)) for k in range(3)]
    if change == "hook":
        clients[0].model.post.register_forward_hook(lambda _, __, out: 2 * out)
    else:
        clients[0].model.dropout = 0.25
    assert set(practise_together(clients)) == {1, 2}


def test_steps_and_epochs_of_nodes_end_as_those_of_graphs_do(tmp_path):
    class Counts(NodeClassifierClient):
        def end_step(self):
            seen.append("step")

        def end_epoch(self, epoch):
            seen.append(epoch)

    seen = []
    method = "fedavg node-classification"
    job = begun(tmp_path, toys.make_node_partition(), method).job
    client = toys.begun(Counts(job))
    client.practise(client.optimizer())
    assert seen == ["step", 0, "step", 1]


@pytest.mark.parametrize("bad", ["column", "edge"])
def test_bad_graphs_read_nothing_of_a_neighbour(tmp_path, bad):
    """Joined, the column after a client's last one is the first of the next client."""
    partitions = [toys.make_partition(k) for k in range(3)]
    graphs = partitions[0].graphs
    x, edges = graphs.x.copy(), graphs.edge_index.copy()
    if bad == "column":
        x[0] = graphs.num_features
    else:
        edges[1, -1] += 50
    spoilt = replace(graphs, x=x, edge_index=edges)
    ruined = begun(tmp_path, partitions[0])
    ruined.data = type(ruined.data).collate(
        toys.renewed(partitions[0], graphs=spoilt), toys.CPU
    )
    clients = [ruined, *(begun(tmp_path, p) for p in partitions[1:])]
    assert set(practise_together(clients)) == {1, 2}


def test_columns_and_real_rows_stack_apart(tmp_path):
    partitions = [toys.make_partition(k, dense=k > 2) for k in range(5)]
    clients = [begun(tmp_path, p) for p in partitions]
    assert sizes(practise_together(clients)) == {0: 3, 1: 3, 2: 3, 3: 2, 4: 2}


@pytest.mark.parametrize("method", ["fedavg", "fedavg node-classification"])
def test_dropout_of_a_gpu_is_that_of_clients_one_by_one(tmp_path, monkeypatch, method):
    """There two draws are not what one of both lengths is."""
    draws = collections.Counter()

    def as_on_a_gpu(words, generator):
        seed = generator.initial_seed()
        draws[seed] += 1
        own = torch.Generator().manual_seed(seed + draws[seed])
        words.random_(-(2**63), None, generator=own)

    monkeypatch.setattr(ops, "draw_words", as_on_a_gpu)
    monkeypatch.setattr(masks, "draw_words", as_on_a_gpu)
    make = toys.make_node_partition if "node" in method else toys.make_partition
    one, many = (
        [begun(tmp_path / how, make(k), method) for k in range(3)] for how in "ab"
    )
    for client in one:
        client.practise(client.optimizer())
    draws.clear()
    assert len(practise_together(many)) == 3
    for left, right in zip(one, many, strict=True):
        for name, array in trained(left).items():
            np.testing.assert_allclose(trained(right)[name], array, atol=1e-5)


def test_why_a_stack_failed_is_one_line_that_commands_no_terminal(
    tmp_path, monkeypatch, caplog
):
    def fails(*_):
        raise ValueError("no\n\x1b[2J")

    monkeypatch.setattr(Stack, "step", fails)
    caplog.set_level("WARNING", "flwr")
    assert not practise_together([begun(tmp_path, whole(100, k)) for k in range(2)])
    assert "as one, so one by one: ValueError: no\\n\\x1b[2J" in caplog.text

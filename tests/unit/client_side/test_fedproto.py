"""FedProto: local training without its pull, prototypes and means by hand."""

import numpy as np
import pytest
import torch
import toys
from torch.nn.functional import cross_entropy

from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.methods.fedproto import COUNTS, PROTOTYPES, FedProtoParams
from simulations.tiny_runs import OF_TASK
from strategies.fedproto import FedProto

NODES = {"task": "node-classification", "dropout": 0.0}
NODES |= OF_TASK[toys.row("fedavg node-classification").task.name]
FREE = {"fedproto.proximal-lambda": 0.0}


@pytest.mark.parametrize("config", [{}, NODES], ids=["graphs", "nodes"])
def test_without_pull_it_is_local(run, config):
    alone = run("local", **config)
    free, pulled = run("fedproto", **config, **FREE), run("fedproto", **config)
    assert free.rounds == alone.rounds
    assert pulled.values() != alone.values()
    first = [
        {k: v for k, v in r.values().items() if k[0] < "2"} for r in (pulled, free)
    ]
    assert first[0] == first[1]  # nobody has a prototype in round 1


def test_loss_and_prototypes_are_those_of_the_equations(tmp_path):
    part = toys.make_node_partition()
    part, least = toys.renewed(part, train=part.train[:-1]), 4  # one class has 3
    config = {"fedproto.min-count": least, "fedproto.proximal-lambda": 3.0}
    client = toys.make_client(tmp_path, "fedproto", partition=part, **NODES, **config)
    graph, model = client.graph, client.model
    classes = len(model.readout.weight)
    goal = np.random.default_rng(0).normal(size=(classes, 8)).astype(np.float32)
    goal[1:] = 0  # nobody has these classes
    toys.begun(client, extras={PROTOTYPES: goal})
    h = model.represent(graph.features, graph)[graph.train]
    y = graph.y[graph.train]
    far = (h[y == 0] - torch.from_numpy(goal[0])).square().mean()
    expected = cross_entropy(model.readout(h), y) + 3 * far
    torch.testing.assert_close(client.loss(graph, toys.seeded()), expected)
    sent = client.update({}).arrays
    for c in range(classes):
        count = int((y == c).sum())
        is_told = count >= least
        assert sent[COUNTS][c] == count * is_told
        mean = h[y == c].mean(0).detach().numpy() * is_told
        np.testing.assert_allclose(sent[PROTOTYPES][c], mean, atol=1e-6)


def test_the_server_weighs_by_items_of_a_class_and_keeps_what_is_absent():
    server = FedProto(toys.run_settings(), FedProtoParams(), experiment="e")
    server.clients = {c: toys.info(c) for c in (0, 1)}
    server.initialise({})
    told = {
        0: ([[1.0], [5.0], [0.0]], [3.0, 2.0, 0.0]),
        1: ([[5.0], [0.0], [0.0]], [1.0, 0.0, 0.0]),
    }
    replies = {
        c: Parcel(arrays={PROTOTYPES: np.float32(p), COUNTS: np.float32(n)})
        for c, (p, n) in told.items()
    }
    assert PROTOTYPES not in server.outgoing(1)[0]
    server.step(1, replies)
    assert server.outgoing(2)[1][PROTOTYPES].tolist() == [[2.0], [5.0], [0.0]]
    server.step(2, {1: replies[1]})
    assert server.outgoing(3)[0][PROTOTYPES].tolist() == [[5.0], [5.0], [0.0]]

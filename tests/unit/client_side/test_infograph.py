"""InfoGraph and the Jensen-Shannon loss against slow oracles and PyG's layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import toys
from oracles import infograph as oracle
from oracles.jsd import jsd
from torch_geometric.data import Batch as PygBatch

from clients.graphs.batching import CollatedGraphs
from clients.losses import jsd_loss
from clients.models.infograph import InfoGraph


def build(seed: int = 0, **widths) -> InfoGraph:
    generator = torch.Generator().manual_seed(seed)
    widths = {"hidden_dim": 6, "num_layers": 3, **widths}
    return InfoGraph(4, **widths, generator=generator)


def loss_of(model, batch):
    return jsd_loss(*model.project(batch), batch.graph_of_node)


@pytest.fixture
def model():
    """A model past its start: every normalisation differs from the identity."""
    model = build()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for layer in model.layers:
            for tensor in layer.norm.state_dict().values():
                tensor.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("num_graphs", [1, 2, 7])
def test_the_loss_is_the_double_loops(num_graphs, scale):
    draw = torch.Generator().manual_seed(num_graphs)
    of = torch.randint(num_graphs, (11,), generator=draw)
    nodes = torch.randn(11, 5, generator=draw) * scale
    graphs = torch.randn(num_graphs, 5, generator=draw) * scale
    expected = jsd(nodes.tolist(), graphs.tolist(), of.tolist())
    assert jsd_loss(nodes, graphs, of).item() == pytest.approx(expected, rel=1e-5)


def test_hand_checked_losses():
    of = torch.tensor([0, 1])
    zero = jsd_loss(torch.zeros(2, 3), torch.ones(2, 3), of)
    assert zero.item() == pytest.approx(0, abs=1e-7)
    # Scores of own graphs 1, of other graphs -1.
    vectors = torch.tensor([[1.0], [-1.0]])
    expected = 2 * math.log1p(math.exp(-1)) - 2 * math.log(2)
    got = jsd_loss(vectors, vectors, of)
    assert got.item() == pytest.approx(expected, rel=1e-6)
    # Both parts at their infimum, and far out no overflow.
    best = jsd_loss(1e10 * vectors, 1e10 * vectors, of)
    assert best.item() == pytest.approx(-2 * math.log(2))
    # One huge own score does not swallow another node's small scores.
    nodes = torch.tensor([[1e9, 0.0], [0.0, 1.0]])
    graphs = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    expected = math.log1p(math.exp(-1)) / 2 - math.log(2)
    assert jsd_loss(nodes, graphs, of).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dense", [True, False])
def test_loss_and_embeddings_equal_the_slow_oracles(model, dense, training):
    graphs = toys.random_graphs(7, dense=dense)
    model.train(training)
    expected = oracle.embed(model, graphs), oracle.loss(model, graphs)
    batch = toys.whole(graphs)
    got = model.embed(batch).detach().numpy()
    np.testing.assert_allclose(got, expected[0], rtol=1e-4, atol=1e-4)
    assert loss_of(model, batch).item() == pytest.approx(expected[1], rel=1e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dense", [True, False])
def test_outputs_gradients_and_running_values_equal_pygs(model, dense, training):
    graphs = toys.random_graphs(9, dense=dense)
    model.double().train(training)
    reference = oracle.twin(model, 4).train(training)
    data = PygBatch.from_data_list(toys.to_pyg(graphs))
    data.x = data.x.double()
    nodes, pooled = reference(data)
    heads = model.node_projection, model.graph_projection
    expected = jsd_loss(heads[0](nodes), heads[1](pooled), data.batch)
    expected.backward()
    projections = [p for head in heads for p in head.parameters()]
    theirs = [p.grad.clone() for p in projections]
    model.zero_grad()
    got = loss_of(model, toys.doubled(toys.whole(graphs)))
    torch.testing.assert_close(got, expected)
    got.backward()
    torch.testing.assert_close([p.grad for p in projections], theirs)
    named = model.state_dict(keep_vars=True)
    for name, tensor in reference.ours().items():
        torch.testing.assert_close(named[name], tensor)
        if tensor.requires_grad:
            torch.testing.assert_close(named[name].grad, tensor.grad)


def test_embedding_neither_uses_nor_moves_batch_statistics(model):
    graphs = toys.random_graphs(8)
    collated = CollatedGraphs(graphs, toys.CPU)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    together = model.train().embed(collated.batch(np.arange(8)))
    alone = [model.embed(collated.batch(np.array([g]))) for g in range(8)]
    torch.testing.assert_close(together, torch.cat(alone))
    torch.testing.assert_close(together, model.eval().embed(toys.whole(graphs)))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_one_graph_and_one_node(model):
    graphs = toys.random_graphs(8, dense=True)
    for g, num_nodes in ((0, 1), (7, graphs.node_ptr[8] - graphs.node_ptr[7])):
        one = graphs.take(np.array([g]))
        assert one.num_nodes == num_nodes
        before = {n: t.clone() for n, t in model.state_dict().items()}
        expected = oracle.loss(model, one)
        loss = loss_of(model, toys.whole(one))
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        loss.backward()
        grads = [p.grad for p in model.parameters()]
        assert all(g is not None and g.isfinite().all() for g in grads)
        moved = [n for n, t in model.state_dict().items() if not t.equal(before[n])]
        assert len(moved) == (0 if num_nodes == 1 else 6)

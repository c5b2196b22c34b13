"""InfoGraph and the Jensen-Shannon loss against slow oracles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from oracles import infograph as oracle
from oracles.jsd import jsd

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

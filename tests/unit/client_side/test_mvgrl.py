"""MVGRL and the weighted sum over edges against slow oracles and PyG's layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import toys
from oracles import mvgrl as oracle
from torch_geometric.data import Batch as PygBatch

from clients.graphs.csr import DiffusionView
from clients.graphs.ops import weighted_sum
from clients.losses import jsd_loss
from clients.models.mvgrl import MVGRL


def loss_of(model, batch, view):
    return sum(
        jsd_loss(*pair, batch.graph_of_node) for pair in model.project(batch, view)
    )


def build(seed: int = 0, **widths) -> MVGRL:
    widths = {"hidden_dim": 6, "num_layers": 3, **widths}
    return MVGRL(4, **widths, generator=torch.Generator().manual_seed(seed))


def diffusions(graphs, seed=0):
    """Draw per graph an asymmetric S with zeros; columns sum to 1."""
    rng = np.random.default_rng(seed)
    drawn = []
    for n in np.diff(graphs.node_ptr):
        s = rng.random((n, n)) * (rng.random((n, n)) < 0.6) + np.eye(n)
        drawn.append(s / s.sum(axis=0))
    return drawn


def make_view(matrices, dtype=torch.float32):
    """Block-diagonal view; ``matrices[g][u, v]`` weighs the message u -> v."""
    s = torch.block_diag(*(torch.from_numpy(m).to(dtype) for m in matrices))
    return DiffusionView(
        forward=s.t().contiguous().to_sparse_csr(), backward=s.to_sparse_csr()
    )


@pytest.fixture
def model():
    """A model past its start: biases are not 0 and slopes differ."""
    model = build()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias") or parameter.numel() == 1:
                parameter.uniform_(0.1, 0.6, generator=generator)
    return model


def test_the_weighted_sum_and_its_gradient():
    s = torch.tensor([[0.5, 0.0, 0.25], [0.5, 1.0, 0.0], [0.0, 0.0, 0.75]])
    view = make_view([s.numpy()])
    x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]], requires_grad=True)
    # Node 0 hears itself and node 1, node 1 itself, node 2 nodes 0 and itself.
    expected = torch.tensor([[1.5, 15.0], [2.0, 20.0], [3.25, 32.5]])
    got = weighted_sum(x, view)
    torch.testing.assert_close(got, expected)
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    (gradient,) = torch.autograd.grad((got * weights).sum(), x)
    torch.testing.assert_close(gradient, s @ weights)


@pytest.mark.parametrize("dense", [True, False])
def test_loss_and_embeddings_equal_the_slow_oracles(model, dense):
    graphs = toys.random_graphs(7, dense=dense)
    matrices = diffusions(graphs)
    batch, view = toys.whole(graphs), make_view(matrices)
    expected = oracle.embed(model, graphs, matrices)
    got = model.embed(batch, view).detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    expected = oracle.loss(model, graphs, matrices)
    assert loss_of(model, batch, view).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("dense", [True, False])
def test_outputs_and_gradients_equal_pygs(model, dense):
    graphs = toys.random_graphs(9, dense=dense)
    matrices = diffusions(graphs)
    model.double()
    batch, view = toys.doubled(toys.whole(graphs)), make_view(matrices, torch.double)
    data = PygBatch.from_data_list(toys.to_pyg(graphs))
    data.x = data.x.double()
    s = torch.block_diag(*(torch.from_numpy(m) for m in matrices))
    edges = s.nonzero().t()  # from u to v, S_uv
    one = oracle.twin(model.gcn1, 4, weighted=False)
    two = oracle.twin(model.gcn2, 4, weighted=True)
    nodes1, graphs1 = one(data, data.edge_index)
    nodes2, graphs2 = two(data, edges, s[edges[0], edges[1]])
    embedding = model.mlp2(graphs1) + model.mlp2(graphs2)
    torch.testing.assert_close(model.embed(batch, view), embedding)
    expected = jsd_loss(model.mlp1(nodes1), model.mlp2(graphs2), data.batch)
    expected = expected + jsd_loss(model.mlp1(nodes2), model.mlp2(graphs1), data.batch)
    expected.backward()
    heads = [*model.mlp1.parameters(), *model.mlp2.parameters()]
    theirs = [p.grad.clone() for p in heads]
    model.zero_grad()
    got = loss_of(model, batch, view)
    torch.testing.assert_close(got, expected)
    got.backward()
    torch.testing.assert_close([p.grad for p in heads], theirs)
    for encoder, reference in ((model.gcn1, one), (model.gcn2, two)):
        named = dict(encoder.named_parameters())
        for name, parameter in reference.ours().items():
            gradient = parameter.grad
            gradient = gradient.t() if gradient.dim() == 2 else gradient
            torch.testing.assert_close(named[name].grad, gradient)


def test_the_papers_start():
    model = MVGRL(7, generator=torch.Generator().manual_seed(0))
    start = {n: p.detach() for n, p in model.named_parameters()}
    bound = math.sqrt(6 / (7 + 512))
    assert start["gcn1.layers.0.weight"].abs().max() == pytest.approx(bound, rel=0.01)
    for encoder in ("gcn1", "gcn2"):
        for layer in range(4):
            assert not start[f"{encoder}.layers.{layer}.bias"].any()
            assert start[f"{encoder}.layers.{layer}.act.weight"].tolist() == [0.25]

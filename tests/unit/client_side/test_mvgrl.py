"""MVGRL and the weighted sum over edges against slow oracles and PyG's layers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles import mvgrl as oracle
from oracles.jsd import dense as dense_graph
from torch_geometric.data import Batch as PygBatch

from clients.graphs.batching import CollatedGraphs
from clients.graphs.csr import DiffusionView
from clients.graphs.ops import weighted_sum
from clients.losses import jsd_loss
from clients.models.mvgrl import MVGRL, normalised_sum

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


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


def test_a_gradient_that_is_not_contiguous():
    view = make_view(diffusions(toys.random_graphs(4)))
    x = torch.randn(len(view.forward), 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(weighted_sum(x, view).sum(), x)
    plain = view.backward.to_dense() @ torch.ones(len(x), 3)
    torch.testing.assert_close(gradient, plain)


def test_the_normalised_sum_is_the_dense_matrix():
    graphs = toys.random_graphs(8)
    batch = toys.whole(graphs)
    blocks = [oracle.normalised(dense_graph(graphs, g)[1]) for g in range(8)]
    expected = torch.block_diag(*(torch.from_numpy(b).float() for b in blocks))
    got = normalised_sum(batch.adjacency)(torch.eye(len(batch.x)))
    torch.testing.assert_close(got, expected)


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


def test_the_order_of_graphs_orders_the_rows_and_leaves_the_loss(model):
    graphs = toys.random_graphs(8)
    collated, matrices = CollatedGraphs(graphs, toys.CPU), diffusions(graphs)
    order = np.random.default_rng(0).permutation(8)
    one = collated.batch(np.arange(8)), make_view(matrices)
    other = collated.batch(order), make_view([matrices[g] for g in order])
    torch.testing.assert_close(model.embed(*other), model.embed(*one)[order], **CLOSE)
    torch.testing.assert_close(loss_of(model, *other), loss_of(model, *one), **CLOSE)


@pytest.mark.parametrize("dense", [True, False])
def test_renumbering_nodes_changes_nothing(model, dense):
    graphs = toys.random_graphs(8, dense=dense)
    matrices = diffusions(graphs)
    rng = np.random.default_rng(0)
    x, edges, moved = graphs.x.copy(), graphs.edge_index.copy(), []
    for g, s in enumerate(matrices):
        nodes = slice(graphs.node_ptr[g], graphs.node_ptr[g + 1])
        span = slice(graphs.edge_ptr[g], graphs.edge_ptr[g + 1])
        new = rng.permutation(len(s))  # node v becomes new[v]
        x[nodes][new] = graphs.x[nodes]
        ends = new[graphs.edge_index[:, span]]
        edges[:, span] = ends[:, np.lexsort((ends[1], ends[0]))]
        moved.append(np.empty_like(s))
        moved[-1][np.ix_(new, new)] = s
    one = toys.whole(graphs), make_view(matrices)
    other = toys.whole(replace(graphs, x=x, edge_index=edges)), make_view(moved)
    assert not torch.equal(one[0].x, other[0].x)
    torch.testing.assert_close(model.embed(*other), model.embed(*one), **CLOSE)
    torch.testing.assert_close(loss_of(model, *other), loss_of(model, *one), **CLOSE)


def test_column_numbers_equal_one_hot_rows(model):
    graphs = toys.random_graphs(8)
    batch, view = toys.whole(graphs), make_view(diffusions(graphs))
    rows = replace(batch, x=torch.nn.functional.one_hot(batch.x, 4).float())
    torch.testing.assert_close(model.embed(batch, view), model.embed(rows, view))
    torch.testing.assert_close(loss_of(model, batch, view), loss_of(model, rows, view))


def test_every_tensor_is_registered_and_trains():
    """The authors keep their encoders' layers in a list, which registers nothing."""
    model = build(seed=1)
    encoders, projections = 2 * 3 * 3, 2 * (4 * 2 + 3)
    assert len(list(model.parameters())) == encoders + projections
    assert len(model.state_dict()) == encoders + projections
    graphs = toys.random_graphs(12)
    batch, view = toys.whole(graphs), make_view(diffusions(graphs))
    toys.assert_every_tensor_trains(model, lambda: loss_of(model, batch, view))


def test_the_papers_widths_and_start():
    model = MVGRL(7, generator=torch.Generator().manual_seed(0))
    graphs = toys.random_graphs(3, num_features=7)
    view = make_view(diffusions(graphs))
    assert model.embed(toys.whole(graphs), view).shape == (3, 512)
    start = {n: p.detach() for n, p in model.named_parameters()}
    for name, shape in {
        "gcn1.layers.0.weight": (7, 512),
        "gcn2.layers.3.weight": (512, 512),
        "mlp1.block.0.weight": (512, 512),
        "mlp2.block.0.weight": (512, 2048),
        "mlp2.shortcut.weight": (512, 2048),
    }.items():
        assert tuple(start[name].shape) == shape, name
    bound = math.sqrt(6 / (7 + 512))
    assert start["gcn1.layers.0.weight"].abs().max() == pytest.approx(bound, rel=0.01)
    for encoder in ("gcn1", "gcn2"):
        for layer in range(4):
            assert not start[f"{encoder}.layers.{layer}.bias"].any()
            assert start[f"{encoder}.layers.{layer}.act.weight"].tolist() == [0.25]


def test_training_lowers_the_loss():
    model = build(hidden_dim=16)
    graphs = toys.random_graphs(12)
    batch, view = toys.whole(graphs), make_view(diffusions(graphs))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(model, batch, view)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert -4 * math.log(2) < losses[-1] < min(0, losses[0])


@pytest.mark.parametrize("graph", [0, 7])
def test_one_graph_has_a_finite_loss(model, graph):
    one = toys.random_graphs(8, dense=True).take(np.array([graph]))
    matrices = diffusions(one)
    loss = loss_of(model, toys.whole(one), make_view(matrices))
    assert loss.item() == pytest.approx(oracle.loss(model, one, matrices), rel=1e-4)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.usefixtures("global_rng_untouched")
def test_all_randomness_comes_from_the_generator():
    one, same, other = (build(seed=s).state_dict() for s in (3, 3, 4))
    assert all(torch.equal(one[n], same[n]) for n in one)
    for name in ("gcn1.layers.0.weight", "mlp2.shortcut.bias"):
        assert not torch.equal(one[name], other[name])
    graphs = toys.random_graphs(4)
    loss_of(build(), toys.whole(graphs), make_view(diffusions(graphs))).backward()

"""Encoders on dense views and clean graphs, against PyG and against loops."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import toys
from torch_geometric.nn import GCNConv, GraphConv, LGConv, TAGConv

from clients.graphs import noisy_view
from clients.graphs.node_rows import DistinctRows, NodeRows
from clients.graphs.noisy_view import NoisyView, buckets
from clients.graphs.structure import NoEdges, SparseStructure
from clients.models.weighted_encoders import (
    ENCODERS,
    GCNLayer,
    GraphModel,
    KGNNLayer,
    LightGCN,
    TAGLayer,
)
from clients.privacy.laplace import (
    GraphAdjacency,
    Triangles,
    add_noise,
    check_sizes,
    post_process,
)
from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.errors import DataError

NUM = 12
GRAPHS = toys.random_graphs(NUM, dense=True, seed=3)
COLUMNS = toys.random_graphs(NUM, seed=3)
SIZES = np.diff(GRAPHS.node_ptr)
EVERYONE = np.arange(NUM)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def clean(graphs=GRAPHS):
    sizes = np.diff(graphs.node_ptr)
    return toys.clean_triangles(GraphAdjacency(graphs), sizes, np.arange(len(graphs)))


def noisy(epsilon=1.0, post="clamp01", graphs=GRAPHS, seed=0):
    exact = clean(graphs)
    values = add_noise(exact.values, epsilon, np.random.default_rng(seed))
    raw = Triangles(values=values, num_nodes=exact.num_nodes, positions=exact.positions)
    return post_process(raw, epsilon, post)


def dense_batch(triangles, positions=EVERYONE, *, graphs=GRAPHS, post="clamp01"):
    nodes = NodeRows(graphs, toys.CPU).batch(positions)
    view = NoisyView(triangles, device=toys.CPU, post=post)
    return nodes, toys.cut(view, positions)


def plain(nodes):
    """Features, one row per node."""
    x = nodes.x
    return x.table[x.ids] if isinstance(x, DistinctRows) else x


def model(encoder, *, seed=0, dropout=0.3):
    return GraphModel(encoder, 4, 3, dropout=dropout, generator=toys.seeded(seed))


def complete(triangles, g):
    """Edge list of all ordered pairs of a graph and its weights, as PyG wants it."""
    w = torch.from_numpy(triangles.matrix(g))
    edge_index = (1 - torch.eye(len(w))).nonzero().t()
    return edge_index, w[edge_index[0], edge_index[1]]


# Layers against PyG ---------------------------------------------------------------


def pyg_gcn(layer):
    conv = GCNConv(4, 5)
    copy(conv, {"lin.weight": layer.weight, "bias": layer.bias})
    return conv


def pyg_tag(layer):
    conv = TAGConv(4, 5, K=3)
    hops = {f"lins.{k}.weight": layer.weight[k] for k in range(4)}
    copy(conv, {**hops, "bias": layer.bias})
    return conv


def pyg_kgnn(layer):
    conv = GraphConv(4, 5, aggr="add")
    copy(
        conv,
        {
            "lin_rel.weight": layer.weight,
            "lin_rel.bias": layer.bias,
            "lin_root.weight": layer.root,
        },
    )

    def run(x, edge_index, w):
        total = torch.zeros(len(x)).index_add(0, edge_index[1], w)
        return conv(x, edge_index, w / total.clamp(min=1e-30)[edge_index[1]])

    return run


def pyg_light(layer):
    conv = LGConv()

    def run(x, edge_index, w):
        h = x @ layer.linear.weight.t() + layer.linear.bias
        one = conv(h, edge_index, w)
        return (h + one + conv(one, edge_index, w)) / 3

    return run


def copy(module, tensors):
    with torch.no_grad():
        named = dict(module.named_parameters())
        assert set(named) == set(tensors)
        for name, tensor in tensors.items():
            named[name].copy_(tensor)


PYG = {
    GCNLayer: pyg_gcn,
    TAGLayer: pyg_tag,
    KGNNLayer: pyg_kgnn,
    LightGCN: pyg_light,
}


def apply(layer, x, structure):
    own = (None,) if isinstance(layer, LightGCN) else ()
    return layer(x, structure, *own)


@pytest.mark.parametrize("kind", PYG)
@pytest.mark.parametrize("epsilon", [0.5, 5.0])
@torch.no_grad()
def test_layers_are_pygs_on_the_complete_weighted_graph(kind, epsilon):
    layer = kind(4, 5, toys.seeded(1))
    view = noisy(epsilon)
    nodes, structure = dense_batch(view)
    found = apply(layer, plain(nodes), structure)
    other = PYG[kind](layer)
    for g in range(NUM):
        own = slice(GRAPHS.node_ptr[g], GRAPHS.node_ptr[g + 1])
        expected = other(plain(nodes)[own], *complete(view, g))
        torch.testing.assert_close(found[own], expected, **CLOSE)


@torch.no_grad()
def test_signed_weights_are_divided_by_one_plus_the_sum_of_their_sizes():
    view = noisy(0.5, "abs-degree")
    assert (view.values < 0).any()
    nodes, structure = dense_batch(view, post="abs-degree")
    layer = GCNLayer(4, 5, toys.seeded(1))
    found = layer(plain(nodes), structure)
    for g in range(NUM):
        own = slice(GRAPHS.node_ptr[g], GRAPHS.node_ptr[g + 1])
        w = torch.from_numpy(view.matrix(g))
        root = torch.diag((1 + w.abs().sum(1)) ** -0.5)
        propagated = root @ (w + torch.eye(len(w))) @ root
        expected = propagated @ plain(nodes)[own] @ layer.weight.t() + layer.bias
        torch.testing.assert_close(found[own], expected, **CLOSE)


# Models --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "post", "graphs"),
    [
        *((e, "round", GRAPHS) for e in ENCODERS),
        ("gcn", "clamp01", COLUMNS),  # each node also hears itself
    ],
)
def test_without_noise_the_view_is_the_clean_graph(encoder, post, graphs):
    """Epsilon 1e9: embeddings, and gradients with equal dropout masks."""
    own = model(encoder)
    batch = toys.whole(graphs)
    sparse = SparseStructure(batch)
    nodes, structure = dense_batch(
        noisy(1e9, post, graphs=graphs), graphs=graphs, post=post
    )
    tight = {"rtol": 0, "atol": 1e-4}
    with torch.no_grad():
        torch.testing.assert_close(
            own.embed(nodes, structure, None), own.embed(batch, sparse, None), **tight
        )
    gradients = []
    for rows, edges in ((nodes, structure), (batch, sparse)):
        own.zero_grad()
        own(rows, edges, toys.seeded(5)).square().sum().backward()
        gradients.append([p.grad.clone() for p in own.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("encoder", ENCODERS)
@torch.no_grad()
def test_padding_order_and_company_change_nothing(encoder, monkeypatch):
    own, view = model(encoder), noisy(1.0)
    alone = [own(*dense_batch(view, np.array([g])), None) for g in range(NUM)]
    backwards = EVERYONE[::-1].copy()
    for small in (1, 16, 1000):  # many buckets, or all graphs padded to the largest
        monkeypatch.setattr(noisy_view, "buckets", partial(buckets, small=small))
        monkeypatch.setattr(noisy_view, "_TOGETHER", small)
        found = own(*dense_batch(view, backwards), None)
        torch.testing.assert_close(found, torch.cat(alone[::-1]), **CLOSE)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_gradients_are_right(encoder):
    """Hand-written backward passes against finite differences, in doubles."""
    nodes, structure = dense_batch(noisy(2.0), np.array([1, 3, 5]))
    own = GraphModel(encoder, 4, 3, hidden_dim=3, generator=toys.seeded(0)).double()
    x = plain(nodes).double().requires_grad_()

    def embed(x):
        return own.encoder(x, structure, None)

    assert torch.autograd.gradcheck(embed, (x,), atol=1e-4)


@pytest.mark.parametrize("encoder", ENCODERS)
@torch.no_grad()
def test_no_edges_are_weights_of_zero(encoder):
    zero = Triangles(
        values=np.zeros_like(clean().values), num_nodes=SIZES, positions=EVERYONE
    )
    nodes, structure = dense_batch(zero)
    none = NoEdges(len(plain(nodes)), toys.CPU)
    own = model(encoder)
    torch.testing.assert_close(
        own(nodes, structure, None), own(nodes, none, None), **CLOSE
    )
    assert torch.isfinite(own(nodes, none, None)).all()


# Batches -------------------------------------------------------------------------


def test_rows_may_repeat_and_views_may_hold_some_graphs_only():
    view = noisy()
    some = Triangles(
        values=np.concatenate(
            [view.values[view.ptr[g] : view.ptr[g + 1]] for g in (4, 7)]
        ),
        num_nodes=SIZES[[4, 7]],
        positions=np.array([4, 7]),
    )
    own, twice = model("gcn"), np.array([7, 4, 7])
    nodes = NodeRows(GRAPHS, toys.CPU).batch(twice)
    part = NoisyView(some, device=toys.CPU)
    expected = own(*dense_batch(view, twice), None)
    torch.testing.assert_close(
        own(nodes, toys.cut(part, twice), None), expected, **CLOSE
    )
    by_row = own(nodes, part.rows(np.array([1, 0, 1])), None)
    torch.testing.assert_close(by_row, expected, **CLOSE)
    for missing in (5, 11, -1):
        with pytest.raises(DataError, match=f"no graph {missing}; it was drawn for 2"):
            part.places(np.array([4, missing]))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_alike_rows_change_neither_embeddings_nor_gradients(encoder):
    alike = GraphSet(**{**vars(GRAPHS), "x": np.sign(GRAPHS.x)})
    nodes, structure = dense_batch(noisy(), graphs=alike)
    assert isinstance(nodes.x, DistinctRows)
    assert len(nodes.x.table) < len(nodes.x)
    own, found = model(encoder), []
    for given in (nodes, replace(nodes, x=plain(nodes))):
        own.zero_grad()
        logits = own(given, structure, toys.seeded(1))
        logits.square().sum().backward()
        found.append([logits, *(p.grad.clone() for p in own.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    one = NodeRows(alike, toys.CPU).batch(EVERYONE[:1]).x
    assert isinstance(one, torch.Tensor)  # fewer nodes than different rows


def test_nodes_carry_no_edges():
    class NoEdgesToRead:
        def __getattr__(self, name):
            assert "edge" not in name, "edges were read"
            return getattr(GRAPHS, name)

    nodes = NodeRows(NoEdgesToRead(), toys.CPU).batch(EVERYONE)
    batch = toys.whole(GRAPHS)
    assert torch.equal(plain(nodes), batch.x)
    assert torch.equal(nodes.graph_of_node, batch.graph_of_node)
    assert torch.equal(nodes.membership.to_dense(), batch.membership.to_dense())


def test_what_would_not_fit_is_refused_before_memory_is_taken():
    check_sizes(np.array([4000, 1]), np.arange(2))
    for sizes, words in (
        (np.array([5, 4001]), "graph 7 has 4001 nodes, noisy views hold at"),
        (np.full(40, 4000), "noisy views of 40 graphs have"),
    ):
        with pytest.raises(DataError, match=words):
            check_sizes(sizes, 4 * np.arange(len(sizes)) + 3)


def test_graphs_are_cut_into_batches_that_fit_in_order(monkeypatch):
    view = NoisyView(noisy(), device=toys.CPU)
    assert [p.tolist() for p in view.parts(EVERYONE)] == [EVERYONE.tolist()]
    monkeypatch.setattr(noisy_view, "MAX_CELLS", 100)
    parts = view.parts(EVERYONE[::-1])
    assert np.concatenate(parts).tolist() == EVERYONE[::-1].tolist()
    assert max(int((SIZES[p] ** 2).sum()) for p in parts) <= 100

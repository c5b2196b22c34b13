"""GCN and GraphSAGE against PyTorch Geometric and against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from torch_geometric.nn import GCNConv as PygGCN
from torch_geometric.nn import SAGEConv as PygSAGE

from clients.graphs.node_data import NodeData
from clients.graphs.ops import SparseRows, dropout_mask, project_rows
from clients.models.node_gnn import GCNConv, NodeGNN, SAGEConv
from fedgraph_flwr.core.data import GraphPartition

CONVS = pytest.mark.parametrize("conv", [GCNConv, SAGEConv])


def whole_of(graph):
    nothing = np.arange(0)
    everyone = np.arange(graph.num_nodes)
    partition = GraphPartition(
        client_id=0,
        graphs=graph,
        graph_ids=everyone,
        train=everyone,
        val=nothing,
        test=nothing,
    )
    return NodeData.collate(partition, toys.CPU).whole


@pytest.fixture(params=[0.0, 0.2, 1.0], ids=["no edges", "sparse", "complete"])
def graph(request):
    """12 nodes, the last of them isolated."""
    return toys.make_whole_graph(12, density=request.param)


def pyg_twin(conv, layer):
    if conv is GCNConv:
        twin = PygGCN(6, 5)
        twin.lin.weight.data = layer.weight.data.clone()
        twin.bias.data = layer.bias.data.clone()
    else:
        twin = PygSAGE(6, 5)
        twin.lin_l.weight.data = layer.neighbours.weight.data.clone()
        twin.lin_l.bias.data = layer.neighbours.bias.data.clone()
        twin.lin_r.weight.data = layer.root.data.clone()
    return twin


@CONVS
def test_convolutions_equal_those_of_pyg_with_their_gradients(graph, conv):
    layer = conv(6, 5, toys.seeded())
    if conv is GCNConv:
        layer.bias.data.normal_(generator=toys.seeded(1))  # starts at 0
    twin, whole = pyg_twin(conv, layer), whole_of(graph)
    x, x_twin = (torch.from_numpy(graph.x).requires_grad_() for _ in range(2))
    ours = layer(x, whole)
    theirs = twin(x_twin, torch.from_numpy(graph.edge_index).long())
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    torch.testing.assert_close(x.grad, x_twin.grad, atol=1e-4, rtol=1e-4)
    grads = sorted(p.grad.norm().item() for p in layer.parameters())
    expected = sorted(p.grad.norm().item() for p in twin.parameters())
    assert grads == pytest.approx(expected, rel=1e-4)


def test_sparse_features_give_the_same_values_and_gradients():
    x = torch.where(torch.rand(30, 50, generator=toys.seeded()) < 0.05, 1.0, 0.0)
    weight = torch.randn(4, 50, generator=toys.seeded(1))
    ours, theirs = (weight.clone().requires_grad_() for _ in range(2))
    a, b = project_rows(SparseRows.of(x), ours), project_rows(x, theirs)
    torch.testing.assert_close(a, b)
    a.square().sum().backward()
    b.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize(("share", "is_sparse"), [(0.02, True), (0.6, False)])
def test_bags_of_words_are_kept_sparse_and_others_dense(share, is_sparse):
    graph = toys.make_whole_graph(40, num_features=30)
    graph.x[np.random.default_rng(0).random(graph.x.shape) > share] = 0
    whole = whole_of(graph)
    assert isinstance(whole.features, SparseRows) is is_sparse
    np.testing.assert_array_equal(whole.x.numpy(), graph.x)  # for layers of PyG
    np.testing.assert_array_equal(whole.edge_index.numpy(), graph.edge_index)


def test_no_matrix_is_dense_in_the_number_of_nodes():
    whole = whole_of(toys.make_whole_graph(50, density=0.05))
    for matrix in (whole.adjacency, whole.normalized):
        assert matrix.layout is torch.sparse_csr
        assert matrix.values().numel() <= 50 + whole.adjacency.values().numel()


def test_gcn2_is_two_convolutions_and_nothing_after_them(graph):
    sizes = {"hidden_dim": 5, "num_layers": 2, "dropout": 0.5}
    model = NodeGNN(6, 3, **sizes, generator=toys.seeded(), ends_in_conv=True)
    first, last = PygGCN(6, 5), PygGCN(5, 3)
    for twin, layer in ((first, model.convs[0]), (last, model.readout)):
        twin.lin.weight.data = layer.weight.data.clone()
    x, edges = torch.from_numpy(graph.x), torch.from_numpy(graph.edge_index).long()
    h = first(x, edges).relu()
    whole = whole_of(graph)
    torch.testing.assert_close(model(whole, None), last(h, edges), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.represent(whole.features, whole), h)
    assert sum(p.numel() for p in model.parameters()) == 6 * 5 + 5 + 5 * 3 + 3


def test_dropout_follows_every_relu():
    sizes = {"hidden_dim": 6, "num_layers": 3, "dropout": 0.5}
    model = NodeGNN(6, 3, **sizes, generator=toys.seeded())
    whole = whole_of(toys.make_whole_graph(12))
    h, drawn = whole.x, toys.seeded(4)
    for conv in model.convs:
        h = torch.relu(conv(h, whole))
        mask, _ = dropout_mask(h, 0.5, drawn)
        assert set(mask.unique().tolist()) == {0.0, 2.0}
        h = h * mask
    torch.testing.assert_close(model(whole, toys.seeded(4)), model.readout(h))

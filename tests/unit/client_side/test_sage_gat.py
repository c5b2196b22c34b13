"""GraphSAGE, GAT and their readout against PyTorch Geometric."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from torch import nn
from torch_geometric.nn import GATConv, SAGEConv, global_mean_pool

from clients.graphs.batching import CollatedGraphs
from clients.graphs.node_rows import DistinctRows, NodeBatch
from clients.graphs.structure import (
    OneGraph,
    SparseStructure,
    clean_structure,
)
from clients.models.sage_gat import ENCODERS, MultiTaskGNN

HIDDEN, TASKS = 6, 3
EITHER = pytest.mark.parametrize("encoder", ENCODERS)


def make(encoder, *, num_features=4, num_layers=2, dropout=0.3):
    return MultiTaskGNN(
        encoder,
        num_features,
        TASKS,
        hidden_dim=HIDDEN,
        num_layers=num_layers,
        dropout=dropout,
        generator=torch.Generator().manual_seed(3),
    ).double()


def batch_of(graphs, positions=None):
    collated = CollatedGraphs(graphs, toys.CPU)
    batch = collated.batch(np.arange(len(graphs)) if positions is None else positions)
    return toys.doubled(batch)


def with_pyg(model, encoder, batch):
    """Compute logits by PyG's layers with the model's weights."""
    x, edges = batch.x, batch.edge_index
    if x.dim() == 1:
        x = nn.functional.one_hot(x, 4).double()
    h = x
    if encoder == "sage":
        for weight in model.encoder.weight:
            root, mean = weight.chunk(2, 1)
            conv = SAGEConv(root.shape[1], HIDDEN, aggr="mean", bias=False).double()
            conv.load_state_dict({"lin_l.weight": mean, "lin_r.weight": root})
            h = conv(h, edges).relu()
    else:
        for layer in model.encoder.layers:
            conv = GATConv(layer._num_in, HIDDEN, heads=layer.num_heads).double()
            conv.load_state_dict(
                {
                    "att_src": layer.source[None],
                    "att_dst": layer.target[None],
                    "bias": layer.bias,
                    "lin.weight": layer.weight,
                }
            )
            h = nn.functional.elu(conv(h, edges))
    r = model.readout_in(torch.cat([x, h], 1)).relu()
    r = model.readout_out(r).relu()
    return global_mean_pool(model.head(r), batch.graph_of_node)  # mean of linear


@EITHER
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("dense", [False, True])
def test_logits_are_those_of_pygs_layers(encoder, num_layers, dense):
    batch = batch_of(toys.random_graphs(12, dense=dense))
    model = make(encoder, num_layers=num_layers)
    found = model(batch, SparseStructure(batch), None)
    torch.testing.assert_close(found, with_pyg(model, encoder, batch))


@EITHER
@pytest.mark.parametrize("is_training", [False, True])
def test_features_told_once_for_alike_nodes_change_nothing(encoder, is_training):
    batch = batch_of(toys.random_graphs(12, dense=True))
    kinds = torch.rand(5, 4, dtype=torch.float64)
    ids = torch.randint(5, (len(batch.x),))
    found = []
    for x in (kinds[ids], DistinctRows(kinds, ids)):
        model = make(encoder)
        nodes = NodeBatch(x, batch.membership, batch.graph_of_node, batch.positions)
        noise = torch.Generator().manual_seed(1) if is_training else None
        logits = model(nodes, SparseStructure(batch), noise)
        logits.square().sum().backward()
        found.append([logits, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(found[0], found[1])


@EITHER
def test_a_graph_alone_is_what_it_is_in_a_batch(encoder):
    graphs = toys.random_graphs(12, dense=True)
    model, together = make(encoder), batch_of(graphs)
    expected = model(together, clean_structure(together), None)
    model.zero_grad()
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for g in range(len(graphs)):
        alone = batch_of(graphs, np.array([g]))
        structure = clean_structure(alone)
        assert isinstance(structure, OneGraph)
        found = model(alone, structure, None)
        torch.testing.assert_close(found, expected[g : g + 1])
        found.square().sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_gat_drops_features_and_not_attention_alone():
    """Attention of a node alone is dropped as a whole: that leaves two outputs."""
    layer = make("gat", dropout=0.5).encoder.layers[0]
    graphs = toys.random_graphs(12)
    alone = int(np.flatnonzero(np.diff(graphs.node_ptr) == 1)[0])
    lonely = clean_structure(batch_of(graphs, np.array([alone])))
    outputs = {
        layer(torch.ones(1, 4).double(), lonely, torch.Generator().manual_seed(s))
        .squeeze()[0]
        .item()
        for s in range(30)
    }
    assert len(outputs) > 5


@pytest.mark.parametrize("one", [False, True], ids=["sparse", "one graph"])
def test_attention_is_dropped_on_average_to_itself(one):
    """Of GAT with dropout, the mean over draws is near what there is without."""
    graphs = toys.random_graphs(3, dense=True, seed=5).take(np.array([2]))
    batch = batch_of(graphs)
    structure = (OneGraph if one else SparseStructure)(batch)
    n = len(batch.x)
    value, score = torch.randn(n, 2).double(), torch.randn(2, n).double()
    plain = structure.attend(value, *score)
    generator = torch.Generator().manual_seed(0)

    def mask(a):
        return a * (torch.rand(a.shape, generator=generator) < 0.5) * 2

    draws = torch.stack([structure.attend(value, *score, mask) for _ in range(1500)])
    assert draws.std(0).max() > 0.1
    torch.testing.assert_close(draws.mean(0), plain, atol=0.15, rtol=0)

"""Hand-written operations against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys

from clients.graphs.batching import CollatedGraphs
from clients.graphs.csr import csr
from clients.graphs.ops import (
    dropout_mask,
    linear,
    project,
    relu_dropout,
    spread,
    sum_neighbours,
    sum_pool,
    sum_rows,
)


@pytest.fixture
def batch():
    graphs = toys.random_graphs(6)
    return CollatedGraphs(graphs, toys.CPU).batch(np.arange(6))


def gradient(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(output.numel(), dtype=output.dtype).view_as(output)
    return torch.autograd.grad((output * weights).sum(), x)[0]


def test_sum_over_neighbours(batch):
    x = torch.randn(len(batch.x), 3, requires_grad=True)
    source, target = batch.edge_index
    plain = torch.zeros(len(x), 3).index_add(0, target, x[source])
    ours = sum_neighbours(x, batch.adjacency)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(gradient(ours, x), gradient(plain, x))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 64, 129])
def test_sums_of_rows_equal_sparse_products(batch, width, kind):
    """Of nodes without neighbours, and of rows that are no piece of memory, as well."""
    x = torch.randn(width, len(batch.x), dtype=kind).t()
    for ones in (batch.adjacency, batch.membership):
        dense = ones.to_dense().to(kind) @ x
        torch.testing.assert_close(sum_rows(ones.to(kind), x), dense)
    none = csr(torch.zeros(5, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 3)
    assert torch.equal(sum_rows(none, torch.ones(3, width)), torch.zeros(4, width))


def test_spreading_weighs_neighbours(batch):
    x = torch.randn(len(batch.x), 3, requires_grad=True)
    ones, rows = batch.adjacency, batch.edge_index[0]
    degree = ones.crow_indices().diff().clamp(min=1).float()
    values = (degree[rows] * degree[batch.edge_index[1]]).rsqrt()
    matrix = csr(ones.crow_indices(), ones.col_indices(), len(x), values)
    ours, plain = spread(x, matrix), matrix.to_dense() @ x
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(gradient(ours, x), gradient(plain, x))


def test_sum_pooling(batch):
    x = torch.randn(len(batch.x), 3, requires_grad=True)
    plain = torch.zeros(6, 3).index_add(0, batch.graph_of_node, x)
    ours = sum_pool(x, batch.membership, batch.graph_of_node)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(gradient(ours, x), gradient(plain, x))


@pytest.mark.parametrize("p", [0.25, 0.5, 0.9])
def test_dropout_keeps_the_right_share_and_the_mean(p):
    x = torch.ones(400, 500)
    mask, scale = dropout_mask(x, p, torch.Generator().manual_seed(1))
    assert scale == pytest.approx(1 / (1 - p), rel=1e-4)
    assert mask.unique().tolist() == pytest.approx([0.0, scale])
    assert (mask > 0).float().mean() == pytest.approx(1 - p, abs=5e-3)
    for axis in (0, 1):  # no row or column is favoured
        kept = (mask > 0).float().mean(axis)
        assert (kept - (1 - p)).abs().max() < 0.15


def test_relu_dropout_is_relu_times_mask_with_its_gradient():
    x = torch.randn(30, 7, requires_grad=True)
    mask, _ = dropout_mask(x, 0.5, torch.Generator().manual_seed(2))
    plain = torch.relu(x) * mask
    ours = relu_dropout(x, 0.5, torch.Generator().manual_seed(2))
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(gradient(ours, x), gradient(plain, x))


@pytest.mark.usefixtures("global_rng_untouched")
def test_masks_and_layers_come_from_their_generator_alone():
    layers = [linear(9, 4, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert layers[0].weight.abs().max() <= 1 / 3
    assert layers[0].bias.abs().max() > 0
    masks = [
        dropout_mask(torch.ones(8, 8), 0.5, torch.Generator().manual_seed(3))[0]
        for _ in range(2)
    ]
    assert torch.equal(masks[0], masks[1])


def test_one_hot_columns_project_like_one_hot_rows():
    layer = linear(6, 4, torch.Generator().manual_seed(0))
    columns = torch.tensor([0, 5, 5, 2])
    rows = torch.nn.functional.one_hot(columns, 6).float()
    torch.testing.assert_close(project(columns, layer), layer(rows))

"""MVGRL against a slow oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import toys
from oracles import mvgrl as oracle

from clients.graphs.csr import DiffusionView
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


def test_the_papers_start():
    model = MVGRL(7, generator=torch.Generator().manual_seed(0))
    start = {n: p.detach() for n, p in model.named_parameters()}
    bound = math.sqrt(6 / (7 + 512))
    assert start["gcn1.layers.0.weight"].abs().max() == pytest.approx(bound, rel=0.01)
    for encoder in ("gcn1", "gcn2"):
        for layer in range(4):
            assert not start[f"{encoder}.layers.{layer}.bias"].any()
            assert start[f"{encoder}.layers.{layer}.act.weight"].tolist() == [0.25]

"""Views kept for many batches give what views cut anew give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys

from clients.graphs import noisy_view
from clients.graphs.node_rows import NodeRows, SpreadRows
from clients.graphs.noisy_view import KeptNoisyView, NoisyView, keep_view
from clients.models.weighted_encoders import ENCODERS, GraphModel
from clients.privacy.laplace import (
    GraphAdjacency,
    Triangles,
    add_noise,
    post_process,
)
from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.privacy_settings import EDGE_POSTS, NON_NEGATIVE_POSTS

NUM = 20
RANDOM = toys.random_graphs(NUM, dense=True, seed=5, max_nodes=140)
KINDS = np.random.default_rng(0).integers(0, 3, len(RANDOM.x))
FEATURES = np.eye(3, 4, dtype=np.float32) + 0.5  # of three kinds of nodes
GRAPHS = GraphSet(**{**vars(RANDOM), "x": FEATURES[KINDS]})
SIZES = np.diff(GRAPHS.node_ptr)
SEEN = np.arange(2, NUM)  # the views lack two graphs
NODES = NodeRows(GRAPHS, toys.CPU)


def noisy(seed, post="clamp01", epsilon=100.0):
    exact = toys.clean_triangles(GraphAdjacency(GRAPHS), SIZES, SEEN)
    rng = np.random.default_rng(seed)
    values = add_noise(exact.values, epsilon, rng)
    return post_process(replace(exact, values=values), epsilon, post)


def both(post="clamp01"):
    views = noisy(0, post), noisy(1, post)
    made = {"device": toys.CPU, "post": post, "nodes": NODES}
    return NoisyView(*views, **made), KeptNoisyView(*views, **made)


def rows_of(view):
    """Some of both views, in no order and twice."""
    batch = np.array([7, 2, 19, 7, 11])
    return np.concatenate([view.places(batch), view.places(batch[::-1], 1)])


def embeddings_and_gradients(encoder, view, rows, dropout=0.3):
    generator = torch.Generator().manual_seed(0)
    model = GraphModel(encoder, 4, 3, dropout=dropout, generator=generator)
    found = model.embed(view.nodes(rows), view.rows(rows), generator)
    found.square().sum().backward()
    return [found, *(p.grad for p in model.encoder.parameters())]


@pytest.mark.parametrize(
    ("encoder", "post"),
    [
        (encoder, post)
        for encoder in ENCODERS
        for post in EDGE_POSTS
        if encoder != "gat" or post in NON_NEGATIVE_POSTS
    ],
)
def test_embeddings_and_gradients_are_those_of_views_cut_anew(encoder, post):
    cut, kept = both(post)
    rows = rows_of(cut)
    assert len(kept._groups) > 5  # matrices of several sizes
    assert max(SIZES[SEEN]) > noisy_view._TOGETHER
    assert isinstance(kept.nodes(rows).x, SpreadRows)
    assert not isinstance(cut.nodes(rows).x, SpreadRows)
    expected = embeddings_and_gradients(encoder, cut, rows)
    for _ in range(2):  # made, then used again
        found = embeddings_and_gradients(encoder, kept, rows)
        for a, b in zip(found, expected, strict=True):
            size = b.abs().max() + 1e-9  # GIN's sums are large
            torch.testing.assert_close(a / size, b / size, rtol=1e-4, atol=1e-5)


def test_kept_are_matrices_and_features_once(monkeypatch):
    _, kept = both()
    rows = rows_of(kept)
    first = embeddings_and_gradients("gcn", kept, rows)[0]

    def forbidden(*_):
        raise AssertionError("cut again")

    monkeypatch.setattr(KeptNoisyView, "matrices", forbidden)
    monkeypatch.setattr(KeptNoisyView, "parts", forbidden)  # over all rows, to spread
    assert torch.equal(embeddings_and_gradients("gcn", kept, rows)[0], first)


def test_the_same_views_are_kept_and_others_take_their_place(monkeypatch):
    kept = {}
    made = {"device": toys.CPU, "nodes": NODES}
    first = keep_view(kept, "train", [noisy(0)], post="clamp01", **made)
    assert isinstance(first, KeptNoisyView)
    again = keep_view(kept, "train", [noisy(0)], post="clamp01", **made)
    assert again is first  # equal values, other arrays
    assert keep_view(kept, "held-out", [noisy(0)], post="clamp01", **made) is not first
    for views, post in (
        ([noisy(1)], "clamp01"),
        ([noisy(0), noisy(1)], "clamp01"),
        ([noisy(0)], "relu"),
        ([of_others(noisy(0))], "clamp01"),
    ):
        kept["train"] = first
        other = keep_view(kept, "train", views, post=post, **made)
        assert other is not first
        assert kept["train"] is other
    monkeypatch.setattr(noisy_view, "MAX_KEPT", 10)
    kept = {}
    large = keep_view(kept, "train", [noisy(0)], post="clamp01", **made)
    assert type(large) is NoisyView
    assert not kept


def of_others(view: Triangles) -> Triangles:
    return replace(view, positions=view.positions - 1)

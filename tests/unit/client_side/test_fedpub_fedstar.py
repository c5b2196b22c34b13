"""FED-PUB and FedStar: weights, masks, penalties, structure encoding, channels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import fedpub as pub_oracle
from oracles import fedstar as star_oracle
from toys import seeded

from clients.fedpub import proxy_graph
from clients.fedstar import STRUCTURE, StarGNN
from clients.graphs import structure
from clients.graphs.structure import encode_structure
from clients.graphs.whole_graph import DenseGraph
from clients.models.masked_gnn import MaskedGNN
from clients.models.node_gnn import NodeGNN
from strategies.personal import cosine_attention

seeds = st.integers(0, 2**32 - 1)


def random_graph(n=9, share=0.4, seed=0):
    upper = np.triu(np.random.default_rng(seed).random((n, n)) < share, 1)
    upper[:, -1] = False  # the last node is isolated
    return (upper | upper.T).astype(np.float32)


# FED-PUB's weights -----------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(0, 10))
def test_weights_agree_with_the_oracle_and_rows_sum_to_one(seed, alpha):
    e = np.random.default_rng(seed).normal(size=(4, 6)).astype(np.float32)
    e[0] *= 100  # only directions count
    q = cosine_attention(list(e), alpha)
    np.testing.assert_allclose(q, pub_oracle.weights(e.tolist(), alpha), atol=1e-6)
    np.testing.assert_allclose(q.sum(1), 1, atol=1e-12)


def test_a_client_without_an_embedding_is_related_to_nobody():
    q = cosine_attention([np.zeros(2), np.array([1.0, 0.0])], 3.0)
    np.testing.assert_allclose(q[0], [0.5, 0.5])
    assert np.isfinite(q).all()


# FED-PUB's model -------------------------------------------------------------------


def masked(threshold=0.5):
    return MaskedGNN(
        4, 3, hidden_dim=5, num_layers=2, dropout=0.0, generator=seeded(),
        threshold=threshold,
    )  # fmt: skip


def test_masks_of_one_leave_the_gcn_as_it_is():
    plain = NodeGNN(4, 3, hidden_dim=5, num_layers=2, dropout=0.0, generator=seeded())
    x, graph = (
        torch.randn(9, 4, generator=seeded(1)),
        DenseGraph(torch.from_numpy(random_graph())),
    )
    for ours in (masked().train(), masked().eval()):
        torch.testing.assert_close(ours.logits(x, graph), plain.logits(x, graph))
        torch.testing.assert_close(ours.convolve(x, graph), plain.convolve(x, graph))
    names = set(plain.state_dict())
    assert set(masked().state_dict()) - names == {"masks.0", "masks.1", "masks.2"}


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_a_mask_multiplies_its_weight_and_small_entries_count_only_in_training(layer):
    model = masked(threshold=0.5)
    with torch.no_grad():
        model.masks[layer].fill_(0.25)
    weight = model.readout.weight if layer == -1 else model.convs[layer].weight
    torch.testing.assert_close(model.train().masked(weight, layer), 0.25 * weight)
    assert not model.eval().masked(weight, layer).any()
    with torch.no_grad():
        model.masks[layer].fill_(-0.75)  # not small
    torch.testing.assert_close(model.eval().masked(weight, layer), -0.75 * weight)


def test_the_proxy_graph_is_five_blocks_alike_for_all():
    x, adjacency = proxy_graph(3, 7)
    again, _ = proxy_graph.__wrapped__(3, 7)
    assert torch.equal(x, again)
    assert not torch.equal(x, proxy_graph.__wrapped__(4, 7)[0])
    assert x.shape == (500, 7)
    assert abs(float(x.std()) - 1) < 0.05
    assert torch.equal(adjacency, adjacency.t())
    blocks = adjacency.view(5, 100, 5, 100)
    for i in range(5):
        for j in range(5):
            share = float(blocks[i, :, j].mean())
            assert share == pytest.approx(0.1 * (i == j), abs=0.02)
    assert not adjacency.diagonal().any()


# FedStar ---------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seeds, st.floats(0, 1))
def test_the_encoding_agrees_with_dense_powers(seed, share):
    adjacency = random_graph(seed=seed, share=share)
    edges = np.argwhere(adjacency).T
    found = encode_structure(edges, 9, walk_length=6, max_degree=4)
    want = star_oracle.encode(adjacency.astype(np.float64), 6, 4)
    np.testing.assert_allclose(found, want, atol=1e-6)
    assert not found[-1, :6].any()  # isolated


def test_the_encoding_does_not_depend_on_the_size_of_blocks(monkeypatch):
    edges = np.argwhere(random_graph(n=20)).T
    whole = encode_structure(edges, 20, walk_length=5, max_degree=4)
    monkeypatch.setattr(structure, "_CELLS", 60)  # three nodes at a time
    again = encode_structure(edges, 20, walk_length=5, max_degree=4)
    np.testing.assert_array_equal(again, whole)


def star():
    return StarGNN(4, 6, 3, hidden_dim=5, num_layers=2, dropout=0.0, generator=seeded())


def test_the_star_network_by_hand():
    model, a = star().double(), random_graph().astype(np.float64)
    x, e = np.random.default_rng(0).normal(size=(2, 9, 6))
    x = x[:, :4]
    w = {n: t.detach().numpy() for n, t in model.state_dict().items()}
    loops = a + np.eye(9)
    hat = loops / np.sqrt(np.outer(loops.sum(1), loops.sum(1)))
    s, h = (
        e @ w["embedding_s.weight"].T + w["embedding_s.bias"],
        x @ w["pre.weight"].T + w["pre.bias"],
    )
    for k in "01":
        both = np.hstack([h, s])
        h = hat @ both @ w[f"convs.{k}.weight"].T + w[f"convs.{k}.bias"]
        h = np.maximum(h, 0)
        s = np.tanh(hat @ s @ w[f"convs_s.{k}.weight"].T + w[f"convs_s.{k}.bias"])
    h = np.hstack([h, s]) @ w["whole.weight"].T + w["whole.bias"]
    want = h @ w["readout.weight"].T + w["readout.bias"]
    graph = DenseGraph(torch.from_numpy(a))
    found = model(torch.from_numpy(x), torch.from_numpy(e), graph)
    np.testing.assert_allclose(found.detach(), want, atol=1e-10)


def test_what_travels_is_the_structure_channel():
    names = [n for n in star().state_dict() if n.startswith(STRUCTURE)]
    assert names == [
        "embedding_s.weight", "embedding_s.bias", "convs_s.0.weight",
        "convs_s.0.bias", "convs_s.1.weight", "convs_s.1.bias",
    ]  # fmt: skip

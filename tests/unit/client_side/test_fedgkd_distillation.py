"""FedGKD's client: sampler, dense GCN and distillation (spec Sec. 5)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import mostly_slow
from oracles import fedgkd as oracle
from oracles import fedgkd_distil as distil_oracle
from scipy.special import expit
from scipy.stats import kstest
from torch import nn
from torch_geometric.nn import GCNConv

from clients import fedgkd_distillation as d
from clients.fedgkd_distillation import (
    gradient_distance,
    graph_gradients,
    match_gradients,
)
from clients.models.node_gnn import NodeGNN

D, HIDDEN, C, M = 6, 5, 3, 4
NODES = M * C
Y0 = torch.arange(C).repeat_interleave(M)
RECIPE = d.Recipe(steps=8, learning_rate=0.01, gamma=0.75, temperature=1.0)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_model(seed=0) -> NodeGNN:
    return NodeGNN(
        D, C, hidden_dim=HIDDEN, num_layers=2, dropout=0.5,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def run(x0=None, steps=8, **changes):
    recipe = replace(RECIPE, steps=steps, **changes)
    noise = d.gumbel_noise(3, steps, NODES)
    x0 = normal(NODES, D, seed=5) if x0 is None else x0
    return d.distil(make_model(), x0, Y0, noise, recipe)


# The sampler ---------------------------------------------------------------------


def test_samples_are_zero_or_one_with_the_gradient_of_the_sigmoid():
    scores = normal(400).requires_grad_(True)
    noise = d.gumbel_noise(1, 1, 41)[0][:400]
    edges = d.straight_through(scores, noise, 0.7)
    assert set(edges.tolist()) == {0.0, 1.0}
    edges.sum().backward()
    share = torch.sigmoid((scores.detach() + noise) / 0.7)
    torch.testing.assert_close(scores.grad, share * (1 - share) / 0.7)
    np.testing.assert_array_equal(edges.detach() == 1, share > 0.5)


@pytest.mark.parametrize("temperature", mostly_slow([0.01, 1.0], fast=[1.0]))
def test_an_edge_is_drawn_with_the_probability_of_equation_5(temperature):
    scores = torch.tensor([-2.0, 0.0, 1.5])
    noise = d.gumbel_noise(2, 40_000, 3)
    edges = torch.stack([d.straight_through(scores, n, temperature) for n in noise])
    np.testing.assert_allclose(edges.mean(0), torch.sigmoid(scores), atol=0.01)


def test_the_noise_is_logistic_and_the_relaxation_tends_to_bernoulli():
    noise = d.gumbel_noise(4, 2000, 3).numpy()
    assert kstest(noise.ravel(), "logistic").pvalue > 0.01
    relaxed = expit((0.4 + noise.astype(np.float64)) / 1e-3)
    # Almost all mass is at 0 and 1, with the weight of the sigmoid.
    assert np.mean((relaxed > 0.01) & (relaxed < 0.99)) < 0.01
    assert relaxed.mean() == pytest.approx(expit(0.4), abs=0.02)


def test_all_clients_with_one_seed_draw_the_same_noise():
    np.testing.assert_array_equal(d.gumbel_noise(7, 2, 5), d.gumbel_noise(7, 2, 5))
    assert not torch.equal(d.gumbel_noise(7, 2, 5), d.gumbel_noise(8, 2, 5))
    assert not torch.equal(*d.gumbel_noise(7, 2, 5))


def test_scores_agree_with_the_oracle():
    x, noise = normal(7, D), np.random.default_rng(0).logistic(size=(7, 7))
    rows, columns = np.triu_indices(7, 1)
    scores = d.edge_scores(x, 0.75)
    drawn = torch.from_numpy(noise[rows, columns].astype(np.float32))
    share = torch.sigmoid((scores + drawn) / 2.0)
    full = d.to_adjacency(share, 7).numpy()
    want = oracle.shares_of_edges(x.numpy(), 0.75, noise, 2.0)
    np.testing.assert_allclose(full, want, atol=1e-5)


# The model on the small graph ------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_the_dense_gcn_equals_gcnconv_on_the_edge_list(seed, share):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((9, 9)) < share, 1)
    adjacency = torch.from_numpy((upper | upper.T).astype(np.float32))
    model, x = make_model(seed=seed % 1000), normal(9, D, seed=seed % 997)
    edges, want = adjacency.nonzero().t(), x
    with torch.no_grad():
        for ours in model.convs:
            ours.bias.copy_(normal(HIDDEN, seed=seed % 991))
            conv = GCNConv(ours.weight.shape[1], HIDDEN)
            conv.lin.weight.copy_(ours.weight)
            conv.bias.copy_(ours.bias)
            want = torch.relu(conv(want, edges))
        found = model.represent(x, d.DenseGraph(adjacency))
        logits = model.logits(x, d.DenseGraph(adjacency))
        np.testing.assert_allclose(found, want, atol=1e-5)
        np.testing.assert_allclose(logits, model.readout(want), atol=1e-5)
        convs = [(c.weight.numpy(), c.bias.numpy()) for c in model.convs]
    by_hand = oracle.gcn(x.numpy(), adjacency.numpy(), convs)
    np.testing.assert_allclose(found, by_hand, atol=1e-4)


def test_the_dense_mean_is_that_over_neighbours():
    adjacency = torch.tensor([[0.0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    found = d.DenseGraph(adjacency).mean(x)
    np.testing.assert_allclose(found, [[3], [1], [1], [0]])


def test_soft_cross_entropy_agrees_with_the_oracle_and_with_torch_on_one_hot():
    logits, shares = normal(8, C), torch.softmax(normal(8, C, seed=1), 1)
    found = d.soft_cross_entropy(logits, shares)
    want = oracle.soft_cross_entropy(logits.tolist(), shares.tolist())
    assert float(found) == pytest.approx(want, abs=1e-5)
    one_hot = nn.functional.one_hot(torch.arange(8) % C, C).float()
    torch.testing.assert_close(
        d.soft_cross_entropy(logits, one_hot),
        nn.functional.cross_entropy(logits, torch.arange(8) % C),
    )


@pytest.mark.parametrize("num_classes", [2, 3, 40])
def test_learned_labels_start_with_nine_tenths_on_their_class(num_classes):
    y = torch.arange(num_classes)
    shares = torch.softmax(d.label_logits(y, num_classes), 1)
    np.testing.assert_allclose(torch.diag(shares), 0.9, atol=1e-6)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)


# Distillation ------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 8])
def test_the_final_graph_is_free_of_noise_and_has_no_loops(steps):
    found = run(steps=steps)
    if not steps:
        assert torch.equal(found.x, normal(NODES, D, seed=5))
    want = distil_oracle.noise_free(found.x.double().numpy(), 0.75)
    np.testing.assert_array_equal(found.adjacency, want)
    assert 0 < want.mean() < 1
    convs = [(c.weight, c.bias) for c in make_model().convs]
    convs = [[t.detach().numpy() for t in pair] for pair in convs]
    by_hand = oracle.gcn(found.x.numpy(), want, convs)
    np.testing.assert_allclose(found.h, by_hand, atol=1e-5)


def test_without_edges_the_loss_falls_in_every_step():
    losses = run(steps=30, gamma=1e9, learning_rate=1e-3).losses
    assert len(losses) == 30
    assert all(b < a for a, b in itertools.pairwise(losses))
    assert run(steps=30, gamma=1e9).adjacency.sum() == 0


def test_labels_are_learned():
    learned = run(steps=50, learning_rate=0.1)
    assert not torch.allclose(learned.y, torch.softmax(d.label_logits(Y0, C), 1))
    np.testing.assert_allclose(learned.y.sum(1), 1, atol=1e-6)


def test_the_model_is_left_alone(global_rng_untouched):
    model = make_model()
    before = [w.detach().clone() for w in model.parameters()]
    d.distil(model, normal(NODES, D), Y0, d.gumbel_noise(0, 8, NODES), RECIPE)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(w.grad is None and w.requires_grad for w in model.parameters())


def test_gradients_reach_the_features_through_the_edges():
    x0 = normal(NODES, D, seed=5)
    with_edges, without = run(x0, steps=1), run(x0, steps=1, gamma=1e9)
    assert not torch.allclose(with_edges.x, without.x)


def test_a_scale_changes_features_but_not_which_edges_there_are():
    x0 = normal(NODES, D, seed=5)
    plain, small = run(x0, steps=0), run(x0, steps=0, scale=0.01)
    torch.testing.assert_close(small.x, 0.01 * plain.x)
    assert torch.equal(small.adjacency, plain.adjacency)


def test_renumbering_nodes_within_a_class_renumbers_the_result():
    x0, order = normal(NODES, D, seed=5), torch.arange(NODES)
    order[:2] = torch.tensor([1, 0])
    silent = torch.zeros(5, NODES * (NODES - 1) // 2)
    plain, moved = (
        d.distil(make_model(), x, Y0, silent, replace(RECIPE, steps=5))
        for x in (x0, x0[order])
    )
    torch.testing.assert_close(moved.x, plain.x[order], atol=1e-5, rtol=0)
    torch.testing.assert_close(moved.h, plain.h[order], atol=1e-4, rtol=0)


# Gradient matching -----------------------------------------------------------------


def test_gradients_of_the_same_graph_match_and_those_of_another_do_not():
    model, x = make_model(seed=3), normal(NODES, D)
    graph = d.DenseGraph(torch.zeros(NODES, NODES))
    ours = graph_gradients(model, x, graph, Y0)
    assert len(ours) == 6
    target = [g.detach() for g in ours]
    # A neuron that is dead on all nodes has no direction: it counts 1 whatever we do.
    dead = sum(not row.any() for g in target for row in g.reshape(-1, g.shape[-1]))
    assert gradient_distance(ours, target).item() == pytest.approx(dead, abs=0.05)
    other = graph_gradients(model, -x, graph, Y0)
    assert gradient_distance(other, target).item() > dead + 1


def test_distances_by_hand():
    ours = [torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([3.0, 0.0])]
    target = [torch.tensor([[2.0, 0.0], [0.0, -1.0]]), torch.tensor([0.0, 1.0])]
    # Rows: same way (0), opposite (2); the bias at a right angle (1).
    assert float(gradient_distance(ours, target)) == pytest.approx(3, abs=1e-5)


def test_matching_brings_gradients_closer():
    def starts(steps):
        for _ in range(steps):
            model, graph = make_model(seed=3), d.DenseGraph(torch.zeros(NODES, NODES))
            real = graph_gradients(model, normal(NODES, D, seed=8), graph, Y0)
            yield model, [g.detach() for g in real]

    x0 = normal(NODES, D, seed=5)
    recipe = replace(RECIPE, steps=60, gamma=1e9, learning_rate=0.05)
    noise = d.gumbel_noise(1, 60, NODES)
    found = match_gradients(starts(60), make_model(), x0, Y0, noise, recipe)
    assert found.losses[-1] < 0.5 * found.losses[0]
    assert torch.equal(found.y, nn.functional.one_hot(Y0, C).float())

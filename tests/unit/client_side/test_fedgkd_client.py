"""Losses and penalties of FedGKD's client and its rivals'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from oracles import fedgkd as oracle
from oracles import fedpub as pub_oracle
from scipy.special import expit
from scipy.stats import kstest
from toys_fedgkd import make

from clients import fedgkd_distillation as d
from clients.fedpub import proxy_graph
from clients.models.node_gnn import NodeGNN
from clients.tasks.node_classifier import NodeClassifierClient

# The client's loss -----------------------------------------------------------------


def test_the_pull_is_lambda_times_the_squared_distance(tmp_path):
    weight = 0.3
    client = make(tmp_path, **{"fedgkd.proximal-lambda": weight, "dropout": 0.0})
    toys.begun(client)
    noise = torch.Generator().manual_seed(0)
    names = client.shared_keys

    def slope_of(loss):
        client.model.zero_grad()
        loss.backward()
        slopes = [p.grad.flatten().clone() for p in client.model.parameters()]
        return loss.item(), torch.cat(slopes)

    def both():
        plain = NodeClassifierClient.loss(client, client.graph, noise)
        ours = client.loss(client.graph, noise) + client.penalty()
        return slope_of(ours), slope_of(plain)

    (at_start, slope), (plain, plain_slope) = both()
    assert at_start == pytest.approx(plain, abs=1e-6)
    torch.testing.assert_close(slope, plain_slope)
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.add_(0.1)
    (moved, slope), (plain, plain_slope) = both()
    w = np.concatenate([client.tensors()[n].detach().numpy().ravel() for n in names])
    reference = np.concatenate(
        [client.round.received[n].numpy().ravel() for n in names]
    )
    value, gradient = oracle.proximal(
        w.astype(np.float64), reference.astype(np.float64), weight
    )
    assert moved - plain == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose((slope - plain_slope).numpy(), gradient, atol=1e-5)


def test_fedpub_sends_what_its_masked_gcn_makes_of_the_common_graph(
    tmp_path,
):
    options = {"dropout": 0.5, "num-layers": 2}
    client = make(tmp_path, method="fedpub", **options)
    with torch.no_grad():
        for mask in client.model.masks:
            mask.copy_(torch.rand(mask.shape, generator=torch.Generator()) * 2 - 1)
    client.model.threshold = 0.4
    client.model.train()  # dropout and small entries of masks must not count
    found = client.embedding()
    layers = [
        [t.detach().numpy() for t in (conv.weight, conv.bias, mask)]
        for conv, mask in zip(client.model.convs, client.model.masks, strict=False)
    ]
    assert len(layers) == 2
    num_features = client.job.data.partition.graphs.num_features
    x, adjacency = proxy_graph(client.job.settings.seed, num_features)
    expected = pub_oracle.embedding(x.numpy(), adjacency.numpy(), layers, 0.4)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert (found < 0).any()  # no ReLU at the end


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# The sampler and the distillation ----------------------------------------------------


def test_the_noise_is_logistic_and_the_relaxation_tends_to_bernoulli():
    noise = d.gumbel_noise(4, 2000, 3).numpy()
    assert kstest(noise.ravel(), "logistic").pvalue > 0.01
    relaxed = expit((0.4 + noise.astype(np.float64)) / 1e-3)
    # Almost all mass is at 0 and 1, with the weight of the sigmoid.
    assert np.mean((relaxed > 0.01) & (relaxed < 0.99)) < 0.01
    assert relaxed.mean() == pytest.approx(expit(0.4), abs=0.02)


def test_the_model_is_left_alone(global_rng_untouched):
    sizes = {"hidden_dim": 5, "num_layers": 2, "dropout": 0.5}
    model = NodeGNN(6, 3, **sizes, generator=torch.Generator().manual_seed(0))
    before = [w.detach().clone() for w in model.parameters()]
    recipe = d.Recipe(steps=8, learning_rate=0.01, gamma=0.75, temperature=1.0)
    noise, y = d.gumbel_noise(0, 8, 12), torch.arange(3).repeat_interleave(4)
    d.distil(model, normal(12, 6), y, noise, recipe)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(w.grad is None and w.requires_grad for w in model.parameters())

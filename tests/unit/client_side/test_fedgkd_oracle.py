"""FedGKD's distillation step by step against an independent one, and its settings."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from oracles import fedgkd_distil as oracle
from toys_fedgkd import fitted, make

from clients import fedgkd_distillation as d
from clients.models.node_gnn import NodeGNN
from fedgraph_flwr.methods.fedgkd import NOISE_SEED, X0, Y0

D, C, M = 6, 3, 2
Y = np.repeat(np.arange(C), M)
PAIRS = len(Y) * (len(Y) - 1) // 2
# By name: the recipe's, then the oracle's.
DEFAULT = {"gamma": 0.3, "temperature": 0.6}
OTHERS = {
    "as in the paper": {},
    "many edges": {"gamma": -0.2},
    "few edges, cold": {"gamma": 0.75, "temperature": 0.25},
}


def doubles_model(seed):
    generator = torch.Generator().manual_seed(seed)
    model = NodeGNN(
        D, C, hidden_dim=5, num_layers=2, dropout=0.5, generator=generator
    ).double()
    with torch.no_grad():
        for conv in model.convs:  # zeros at first
            conv.bias.uniform_(-0.3, 0.3, generator=generator)
    return model


def weights_of(model):
    named = [(c.weight, c.bias) for c in model.convs]
    named.append((model.readout.weight, model.readout.bias))
    return [[t.detach().numpy() for t in pair] for pair in named]


def draws(steps, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(Y), D)), rng.logistic(size=(steps, PAIRS))


def told(recipe):
    return {
        "rate": recipe.learning_rate,
        "gamma": recipe.gamma,
        "tau_g": recipe.temperature,
    }


def assert_equal(found, want, tolerance):
    for name in ("x", "h", "y", "adjacency"):
        ours, theirs = getattr(found, name).numpy(), getattr(want, name)
        np.testing.assert_allclose(ours, theirs, err_msg=name, **tolerance)
    np.testing.assert_allclose(found.losses, want.losses, **tolerance)


# The whole loop ----------------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
def test_three_steps_of_distillation_are_those_of_the_oracle(name):
    """Features, labels, edges, embeddings and losses; edges come and go meanwhile."""
    model, (x0, noise) = doubles_model(1), draws(3)
    recipe = d.Recipe(steps=3, learning_rate=0.1, **{**DEFAULT, **OTHERS[name]})
    start = (torch.from_numpy(x0), torch.from_numpy(Y), torch.from_numpy(noise))
    found = d.distil(model, *start, recipe)
    want = oracle.distil(weights_of(model), x0, Y, noise, **told(recipe))
    assert_equal(found, want, {"rtol": 0, "atol": 2e-6})
    assert 0 < want.adjacency.sum() < len(Y) * (len(Y) - 1)
    assert np.abs(want.x - x0).max() > 0.1
    assert len(want.losses) == 3


# What a client sends -----------------------------------------------------------------

SETTINGS = {"fedgkd.distil-steps": 3}


@pytest.fixture
def eager(monkeypatch):
    """Make steps that one sees, and edges that come and go."""
    quick = {"learning_rate": 0.05, "gamma": 0.1, "temperature": 0.5}
    monkeypatch.setattr("clients.fedgkd.Recipe", partial(d.Recipe, **quick))


def features_by_oracle(client, weights, *, steps=3, **changes):
    """Task features for ``SETTINGS`` and what the server sent, from ``weights``."""
    down = client.round.extras
    noise = d.gumbel_noise(int(down[NOISE_SEED][0]), steps, len(down[Y0]))
    settings = {"gamma": 0.1, "tau_g": 0.5, "rate": 0.05}
    return oracle.distil(
        weights, down[X0], down[Y0], noise.numpy(),
        **{**settings, **changes},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        ({"fedgkd.distil-steps": 13}, {"steps": 13}),
    ],
)
@pytest.mark.usefixtures("eager")
def test_a_client_sends_what_it_distils_from_its_trained_model(
    tmp_path, options, changes
):
    """... with the settings of the run, and not from the model that it received."""
    client = make(tmp_path, **{**SETTINGS, "learning-rate": 0.1, **options})
    received = [[t.copy() for t in pair] for pair in weights_of(client.model)]
    fitted(client)
    sent = client.features()
    want = features_by_oracle(client, weights_of(client.model), **changes)
    other = features_by_oracle(client, received, **changes)
    for part in ("x", "h"):
        ours = sent[f"fedgkd/features-{part}"]
        np.testing.assert_allclose(ours, getattr(want, part), rtol=0, atol=2e-3)
        assert np.abs(ours - getattr(other, part)).max() > 2e-2

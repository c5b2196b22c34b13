"""MOON: the contrast with the received model and the one of the last own round."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import toys
from sklearn.metrics import log_loss

MU, TEMPERATURE = 0.7, 0.5


def moon(root, group="all"):
    options = {"moon.mu": MU, "shared-group": group}
    options |= {"dropout": 0.0, "learning-rate": 0.05}
    return toys.make_client(root, "moon", **options)


def represented(client, batch):
    with torch.no_grad():
        return client.model.represent(batch, None).numpy().astype(float)


def cosine(a, b):
    return a @ b / math.sqrt((a @ a) * (b @ b))


@pytest.mark.parametrize("group", ["all", "convs"])
@pytest.mark.parametrize("asked", [2, 5])  # 5: the client missed three rounds
def test_the_loss_by_hand_in_a_later_round(tmp_path, asked, group):
    first = moon(tmp_path, group)
    batch = first.job.data.graphs.batch(first.job.data.partition.train)
    start = toys.shared_arrays(first)
    first.participate(toys.parcel(first), {"server-round": 1})
    previous = represented(first, batch)  # as trained in its round, and not averaged

    client = moon(tmp_path, group)
    others = np.random.default_rng(0)
    received = [a + others.normal(0, 0.3, a.shape).astype(a.dtype) for a in start]
    toys.begun(client, asked, received, facts={"last-round": 1})
    globally = represented(client, batch)
    client.freeze()
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.mul_(0.8)
    ours = represented(client, batch)
    with torch.no_grad():
        chances = torch.softmax(client.model(batch, None).double(), 1).numpy()
    terms = [
        math.log1p(math.exp((cosine(z, away) - cosine(z, near)) / TEMPERATURE))
        for z, near, away in zip(ours, globally, previous, strict=True)
    ]
    assert np.ptp(terms) > 1e-3
    y = batch.y.numpy()
    labels = range(chances.shape[1])
    expected = log_loss(y, chances, labels=labels) + MU * np.mean(terms)
    found = client.loss(batch, torch.Generator()).item()
    assert found == pytest.approx(expected, rel=1e-4)


def test_before_a_first_round_both_models_are_the_received_one(tmp_path):
    client = toys.begun(moon(tmp_path))
    batch = client.job.data.graphs.batch(client.job.data.partition.train)
    client.freeze()
    z = client.model.represent(batch, None)
    term = client.contrast(z, batch, TEMPERATURE)
    assert term.item() == pytest.approx(math.log(2))

"""Whole rounds of FGCL's client against an independent one, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from oracles import fgcl as oracle
from oracles.adam import Adam

from clients.fgcl import FGCLClient
from clients.privacy.negatives import NegativeQueue

RATE, DECAY, STORE, K = 0.05, 0.01, 9, 3
OPTIONS = {
    "fgcl.views": "two",
    "fgcl.num-negatives": K,
    "fgcl.contrast-weight": 0.7,
    "fgcl.temperature": 0.4,
    "hidden-dim": 6,
    "dropout": 0.0,
    "batch-size": 3,
    "local-epochs": 2,
    "learning-rate": RATE,
    "weight-decay": DECAY,
}


@pytest.fixture
def chance(monkeypatch):
    """What chance decided, epoch by epoch: [views, [(batch, negatives), ...]]."""
    epochs: list = []
    begin, loss, choose = (
        FGCLClient.look,
        FGCLClient.loss,
        NegativeQueue.choose,
    )

    def look(self, epoch):
        begin(self, epoch)
        views = [
            {
                int(p): view.values[view.ptr[g] : view.ptr[g + 1]]
                for g, p in enumerate(view.positions)
            }
            for view in self.triangles
        ]
        epochs.append((views, []))

    def loss_of(self, batch, generator):
        epochs[-1][1].append([batch.positions.tolist()])
        return loss(self, batch, generator)

    def choose_from(self, *arguments):
        chosen = choose(self, *arguments)
        rows = [[e for e in row if e >= 0] for row in chosen.tolist()]
        epochs[-1][1][-1].append(rows)
        return chosen

    monkeypatch.setattr("clients.fgcl.STORE_SIZE", STORE)
    monkeypatch.setattr(FGCLClient, "look", look)
    monkeypatch.setattr(FGCLClient, "loss", loss_of)
    monkeypatch.setattr(NegativeQueue, "choose", choose_from)
    return epochs


def partition():
    """Graphs of eight nodes at most, with two tasks, of which labels are missing."""
    found = toys.with_tasks(toys.make_partition(num_graphs=15))
    y = found.graphs.y.copy()
    y[found.train[4]] = np.nan  # of both: nothing to learn from
    y[found.train[6], 0] = np.nan
    return toys.replace(found, graphs=toys.replace(found.graphs, y=y))


@pytest.mark.parametrize(
    ("mode", "keeps_moments"),
    [("once", False), ("per_round", True), ("per_epoch", False)],
)
def test_two_rounds_are_those_of_the_oracle(
    tmp_path, doubles, chance, mode, keeps_moments
):
    """Weights and losses after eleven steps; the store overflows meanwhile."""
    options = {
        **OPTIONS,
        "privacy.noise-mode": mode,
        "persist-optimizer": keeps_moments,
        "optimizer": "amsgrad" if keeps_moments else "adam",
    }
    data = partition()
    x = torch.from_numpy(np.eye(data.graphs.num_features)[data.graphs.x])
    sizes = np.diff(data.graphs.node_ptr).tolist()
    theirs = oracle.Client(
        torch.split(x, sizes), data.graphs.y, size=STORE, k=K, gamma=0.7, tau=0.4
    )  # fmt: skip
    start, adams = None, {}
    for server_round in (1, 2):
        client = toys.make_client(tmp_path, "fgcl", partition=data, **options)
        arrays = toys.shared_arrays(client) if start is None else start
        named = dict(zip(client.shared_keys, arrays, strict=True))
        chance.clear()
        start, _, metrics = client.fit(arrays, {"server-round": server_round})
        assert len(chance) == 2
        assert len(chance[0][1]) == 3
        labelled = sorted(p for batch, _ in chance[0][1] for p in batch)
        assert labelled == sorted(set(data.train.tolist()) - {int(data.train[4])})
        if not (adams and keeps_moments):
            adams = {n: Adam(RATE, decay=DECAY, largest=keeps_moments) for n in named}
        want, loss = theirs.train(named, data.train.tolist(), chance, adams)
        assert metrics["eval/train/post_training/loss"] == pytest.approx(loss, abs=1e-6)
        for name, found in zip(client.shared_keys, start, strict=True):
            np.testing.assert_allclose(found, want[name], rtol=0, atol=2e-5)
            assert np.abs(found - named[name]).max() > 1e-3
        kept = [position for position, _ in theirs.store]
        assert client.queue.positions.tolist() == kept
    drawn = {
        tuple(v[int(data.train[1])].tolist()) for views, _ in chance for v in views
    }
    assert len(drawn) == (4 if mode == "per_epoch" else 2)

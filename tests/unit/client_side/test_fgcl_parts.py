"""The parts of FGCL in one local loop: views, queue, encoder, both losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import toys
from matrix import mostly_slow

from clients.graphs.node_rows import NodeRows
from clients.graphs.noisy_view import NoisyView
from clients.losses import info_nce, masked_bce
from clients.models.weighted_encoders import GraphModel
from clients.privacy.accounts import Ledger
from clients.privacy.laplace import GraphAdjacency
from clients.privacy.negatives import NegativeQueue
from clients.privacy.noisy_views import NoisyViews
from clients.tasks.scores import roc_auc
from fedgraph_flwr.core.seeding import numpy_rng

GRAPHS = toys.random_graphs(30, dense=True, seed=1)
SIZES = np.diff(GRAPHS.node_ptr)
TRAIN = np.arange(30)
LABELS = np.stack([TRAIN % 2, TRAIN % 3 == 0], 1).astype(float)
LABELS[::7, 1] = math.nan


class LocalClient:
    """Local training as FGCL's Algorithm 1 has it, without a federation."""

    def __init__(self, folder, *, mode="once", gamma=0.1, k=3):
        self.views = NoisyViews(
            GraphAdjacency(GRAPHS),
            num_nodes=SIZES,
            positions=TRAIN,
            name="train",
            epsilons=(2.0, 2.0),
            post="clamp01",
            mode=mode,
            ledger=Ledger(folder / "e" / "c", data="d", rows=np.arange(30)),
            folder=folder,
            seed=1,
            client_id=0,
        )
        self.mode, self.gamma, self.k = mode, gamma, k
        self.nodes = NodeRows(GRAPHS, toys.CPU)
        generator = torch.Generator().manual_seed(0)
        self.model = GraphModel("gcn", 4, 2, dropout=0.0, generator=generator)
        self.queue = NegativeQueue(10)
        self.rng = numpy_rng(1, 0, "negatives")
        self.losses = []

    def stored(self, second):
        """Embed the queue with the weights as they are now."""
        if self.mode == "once":  # the same cached views
            structure = toys.cut(second, self.queue.positions)
        else:
            kept = self.queue.views(SIZES)
            structure = NoisyView(kept, device=toys.CPU).rows(np.arange(len(kept)))
        nodes = self.nodes.batch(self.queue.positions)
        return self.model.embed(nodes, structure, None)

    def epoch(self, server_round, epoch):
        raw = self.views.views(server_round, epoch)
        first, second = (NoisyView(v, device=toys.CPU) for v in raw)
        keep = None if self.mode == "once" else raw[1]
        if not len(self.queue):
            last = TRAIN[-self.k :]
            self.queue.push(last, server_round, LABELS[last], keep)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        for part in np.array_split(TRAIN, 6):
            nodes = self.nodes.batch(part)
            h = [
                self.model.embed(nodes, toys.cut(v, part), None)
                for v in (first, second)
            ]
            y = torch.from_numpy(LABELS[part]).float()
            loss = sum(masked_bce(self.model.head(e), y) for e in h) / 2
            chosen = self.queue.choose(part, LABELS[part], self.k, self.rng)
            contrast = info_nce(*h, self.stored(second), torch.from_numpy(chosen), 0.5)
            optimizer.zero_grad()
            (loss + self.gamma * contrast).backward()
            optimizer.step()
            self.queue.push(part, server_round, LABELS[part], keep)
            self.losses.append(loss.item())
        return first


@pytest.mark.parametrize(
    ("mode", "total"),
    mostly_slow([("once", 4.0), ("per_epoch", 80.0)], fast=[("once", 4.0)]),
)
def test_parts_fit_together_and_learn(tmp_path, mode, total):
    client = LocalClient(tmp_path, mode=mode)
    for epoch in range(20):
        first = client.epoch(1, epoch)
    assert np.mean(client.losses[-6:]) < np.mean(client.losses[:6]) - 0.01
    assert client.views._ledger.read().edge.max() == total
    assert len(client.queue) == 10
    with torch.no_grad():
        logits = client.model(client.nodes.batch(TRAIN), toys.cut(first, TRAIN), None)
    scores = roc_auc(logits.numpy(), LABELS)
    assert scores.num_skipped == 0
    assert 0.5 < scores.mean <= 1


def test_the_same_twice_and_weight_zero_leaves_two_noisy_views(tmp_path):
    def train(folder, **kw):
        client = LocalClient(tmp_path / folder, **kw)
        client.epoch(1, 0)
        return torch.cat([p.detach().flatten() for p in client.model.parameters()])

    plain = train("a", gamma=0.0)
    assert torch.equal(train("b"), train("c"))
    assert not torch.equal(train("b"), plain)
    assert torch.equal(train("d", gamma=0.0, k=1), plain)  # negatives do not matter
    assert torch.equal(train("e", gamma=0.5, k=0), plain)

"""Training steps in which no single graph counts for more than noise hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.core.config import PAPER
from fedgraph_flwr.core.data import IntArray

from .models.encoders import EdgeGNN
from .models.gin import GIN
from .privacy.per_graph import (
    add_noise,
    by_book_keeping,
    check_model,
    one_by_one,
    recorded,
)

# Encoders all of whose tensors belong to linear maps of nodes or graphs.
_BOOK_KEPT = (PAPER, "gin", "gcn", "graphconv", "sage")


class NoisySteps:
    """Steps of one client in one round, charged before the first.

    A step takes each training graph with the same probability, by itself. Draws of
    graphs, noise and dropout follow from the site's secret. By dropout that others
    know, a graph would shift the masks of those after it.

    Parameters
    ----------
    num_epochs : int
        Of the round; n / B steps each, for n graphs and ``batch-size`` B.
    inputs : sequence of arrays
        All that the round begins with beside the data.
    """

    def __init__(self, client: Any, num_epochs: int, inputs: Sequence[Any]) -> None:
        check_model(client.model)
        self._client, settings = client, client.job.settings
        # Also graphs without a label: their number is told.
        self._train = client.data.partition.train
        n, size = len(self._train), settings.batch_size
        self._per_epoch = max(1, round(n / size))
        self._q = min(1.0, size / n)
        self._rng = client.job.site.noisy_steps(
            client.data.partition,
            server_round=client.round.number,
            inputs=inputs,
            q=self._q,
            times=num_epochs * self._per_epoch,
        )
        word = int(self._rng.random(1)[0] * 2**53)
        self._masks = torch.Generator(client.job.device).manual_seed(word)
        self._parameters = [p for p in client.model.parameters() if p.requires_grad]
        known = isinstance(client.model, GIN | EdgeGNN)
        self._is_kept = known and settings.encoder in _BOOK_KEPT

    def epoch(self) -> None:
        """Take the steps of an epoch."""
        for _ in range(self._per_epoch):
            taken = self._rng.random(len(self._train)) <= self._q
            self._step(self._train[taken])

    def _step(self, positions: IntArray) -> None:
        client, privacy = self._client, self._client.job.privacy
        clip = privacy.graph_clip
        keeps = self._is_kept and len(positions) > 1
        summed = self._kept if keeps else self._apart
        add_noise(
            summed(positions, clip),
            scale=privacy.graph_noise * clip,
            expected=self._q * len(self._train),
            rng=self._rng,
        )
        if (penalty := client.penalty()).requires_grad:  # of weights alone
            penalty.backward()
        client.optimizer.step()

    def _kept(self, positions: IntArray, clip: float) -> dict[Tensor, Tensor]:
        client = self._client
        batch = client.data.graphs.batch(positions)
        if batch.x.dim() == 1:  # columns of one-hot rows
            width = client.data.partition.graphs.num_features
            batch = replace(
                batch, x=torch.nn.functional.one_hot(batch.x, width).float()
            )
        with recorded(client.model, batch.graph_of_node) as found:
            loss = self._loss(batch)
        return by_book_keeping(loss, found, batch.num_graphs, clip)

    def _apart(self, positions: IntArray, clip: float) -> dict[Tensor, Tensor]:
        batch = self._client.data.graphs.batch
        losses = (self._loss(batch(positions[[k]])) for k in range(len(positions)))
        return one_by_one(losses, self._parameters, clip)

    def _loss(self, batch: Any) -> Tensor:
        """Sum of the losses of graphs, each by itself."""
        client = self._client
        return client.loss(batch, self._masks) * client.weight(batch)  # type: ignore[no-any-return]

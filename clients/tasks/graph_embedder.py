"""Clients that learn to embed graphs; labels serve the evaluation alone.

Only :meth:`EmbeddingClient.scores` reads labels; what it returns goes to the server and
to no other method here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from logging import WARNING
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.embedding_scores import all_scores, probe_scores
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.tasks import EmbeddingSettings
from fedgraph_flwr.core.wire import NamedArrays, Parcel, count_key, evaluation_key

from ..base import GraphClient, Metrics
from ..classic import Header
from ..graphs.batching import Batch
from ..graphs.csr import DiffusionView
from ..job import Job, ModelSpec, P


class EmbeddingClient(GraphClient[P]):
    """Evaluates the received model after chosen rounds, here or at the server.

    With ``embedding.evaluation = "local"`` this client clusters its own graphs and
    sends metrics. With "pooled" it hands over ``evaluation``: embeddings, labels and
    graph ids, which the server clusters together with the others'; a site must have
    agreed to that (``pooled-evaluation`` of its policy).
    """

    MIN_BATCH = 2  # a graph alone has no negatives
    WHY_NOT = ""
    EMBEDS_VIEW: ClassVar[bool] = False  # ``embed`` reads the second view, too
    MODEL: ClassVar[Callable[..., nn.Module]]

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[P]) -> nn.Module:
        return cls.MODEL(
            spec.num_features,
            hidden_dim=spec.settings.hidden_dim,
            num_layers=spec.settings.num_layers,
            generator=spec.common_generator(),
        )

    @classmethod
    def width(cls, settings: RunSettings) -> int:
        """Width of an embedding: here that of all layers."""
        return settings.num_layers * settings.hidden_dim

    def __init__(self, job: Job[P]) -> None:
        super().__init__(job)
        self._measured: NDArray[np.float32] | None = None

    @abstractmethod
    def embed(self, batch: Batch) -> Tensor:
        """Embeddings of the batch's graphs, shape (num_graphs, d)."""

    def second_view(self, batch: Batch) -> DiffusionView:
        """Diffusion view of the batch's graphs, which a client that diffuses has."""
        view = self.data.view
        assert view is not None
        return view.batch(batch.positions)

    def embed_all(self) -> NDArray[np.float32]:
        """Embeddings of all of the client's graphs, in order, without gradient.

        Raises
        ------
        DataError
            An embedding is not finite.
        """
        with torch.no_grad():
            found = torch.cat([self.embed(b) for b in self.data.batches()])
        embeddings: NDArray[np.float32] = found.float().cpu().numpy()
        num_bad = int((~np.isfinite(embeddings).all(axis=1)).sum())
        if num_bad:
            raise DataError(
                f"client {self.job.client_id}: embeddings of {num_bad} of"
                f" {len(embeddings)} graphs hold NaN or infinity; lower learning-rate"
            )
        return embeddings

    @override
    def scores(self, point: str) -> Parcel:
        """Evaluate the received model if its round is one of those chosen."""
        task, last = self._task(), self.job.settings.num_server_rounds
        received = self.round.number - 1
        chosen = received == last or received in task.evaluated_rounds()
        if point != "post_aggregation" or not chosen:
            return Parcel()
        self._measured = embeddings = self.embed_all()
        if task.evaluation == "pooled":
            return Parcel(evaluation=self._own(embeddings))
        return Parcel(metrics=self._scores_here(embeddings, point))

    def _scores_here(self, embeddings: NDArray[np.float32], point: str) -> Metrics:
        """Cluster the client's own graphs, and probe embeddings if that is due."""
        task, last = self._task(), self.job.settings.num_server_rounds
        graphs, received = self.data.partition.graphs, self.round.number - 1
        count, y, seed = graphs.num_classes, graphs.y, self.job.settings.seed
        if len(graphs) < count:
            words = "client %d has %d graphs of %d classes: too few to cluster"
            log(WARNING, f"{words}, not scored", self.job.client_id, len(graphs), count)
            return {}
        found = all_scores(embeddings, y, num_classes=count, seed=seed)
        if task.probe and received in (0, last):
            found |= probe_scores(embeddings, y, seed=seed)
        scores = {evaluation_key("all", point, k): v for k, v in found.items()}
        return {count_key("all"): len(graphs), **scores}

    @override
    def assess(self, parcel: Parcel, header: Header) -> Parcel:
        """Evaluate the last model; embeddings of the graphs stay on this disk."""
        reply = super().assess(parcel, header)
        with self.hiding_failure():
            embeddings = self.embed_all() if self._measured is None else self._measured
            self.job.store.keep("embeddings.npz", self._own(embeddings))
        return reply

    def _own(self, embeddings: NDArray[np.float32]) -> NamedArrays:
        partition = self.data.partition
        return {
            "embeddings": embeddings,
            "labels": np.asarray(partition.graphs.y, np.int64),
            "graph_ids": np.asarray(partition.graph_ids, np.int64),
        }

    def _task(self) -> EmbeddingSettings:
        assert isinstance(self.job.task, EmbeddingSettings)
        return self.job.task

"""Clients that learn to embed graphs; labels serve the evaluation alone.

Only :meth:`EmbeddingClient.scores` reads labels; what it returns goes to the server and
to no other method here.
"""

from __future__ import annotations

from abc import abstractmethod
from logging import WARNING

import numpy as np
import torch
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.embedding_scores import all_scores, probe_scores
from fedgraph_flwr.errors import DataError
from fedgraph_flwr.tasks import EmbeddingSettings
from fedgraph_flwr.wire import NamedArrays

from ..base import Array, Config, GraphClient, Metrics
from ..graphs.batching import Batch
from ..graphs.diffusion_view import DiffusionView


class EmbeddingClient(GraphClient):
    """Evaluates the received model after chosen rounds, here or at the server.

    With ``embedding.evaluation = "local"`` this client clusters its own graphs and
    sends metrics. With "pooled" it hands over ``evaluation``: embeddings, labels and
    graph ids, which the server clusters together with the others'; a site must have
    agreed to that (node-config ``share-embeddings``).
    """

    MIN_BATCH = 2  # a graph alone has no negatives

    @abstractmethod
    def embed(self, batch: Batch) -> Tensor:
        """Embeddings of the batch's graphs, shape (num_graphs, d)."""

    def second_view(self, batch: Batch) -> DiffusionView:
        """Diffusion view of the batch's graphs, where :meth:`diffusion` asks for it."""
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

    def scores(self, server_round: int, point: str) -> Metrics:
        """Evaluate the received model where its round is one of those chosen."""
        task, last = self._task(), self.job.settings.num_server_rounds
        received = server_round - 1
        chosen = received == last or received in task.evaluated_rounds()
        if point != "post_aggregation" or not chosen:
            return {}
        graphs = self.data.partition.graphs
        self.embeddings = embeddings = self.embed_all()
        if task.evaluation == "pooled":
            self.evaluation = self._own(embeddings)
            return {}
        if len(graphs) < graphs.num_classes:
            log(
                WARNING,
                "client %d has %d graphs of %d classes: too few to cluster, not scored",
                self.job.client_id,
                len(graphs),
                graphs.num_classes,
            )
            return {}
        seed = self.job.settings.seed
        found = all_scores(
            embeddings,
            graphs.y,
            num_classes=graphs.num_classes,
            seed=seed,
            headline=task.transform,
        )
        if task.probe and received in (0, last):
            found |= probe_scores(embeddings, graphs.y, seed=seed)
        return {
            "count/all": len(graphs),
            **{f"eval/all/{point}/{name}": value for name, value in found.items()},
        }

    def evaluate(
        self, parameters: list[Array], config: Config
    ) -> tuple[float, int, Metrics]:
        """Evaluate the last model; embeddings of the graphs stay on this disk."""
        answer = super().evaluate(parameters, config)
        self.job.store.keep("embeddings.npz", self._own(self.embeddings))
        return answer

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

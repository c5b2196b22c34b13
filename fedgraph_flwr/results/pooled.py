"""Evaluates the embeddings of all clients together, at the server.

For simulation and for consortia whose sites agree to it: the published protocols
cluster the graphs of all clients at once, which needs their embeddings and labels in
one place. Nothing here reaches training: strategies never see what arrives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from logging import WARNING
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.common.logger import log
from typing_extensions import override

from strategies.evaluator import Evaluator
from strategies.report import ClientInfo, Evaluation

from ..embedding_scores import all_scores, probe_scores
from ..errors import DataError
from ..resolve import Resolved
from ..tasks import EMBEDDINGS, POOLED, EmbeddingSettings
from ..wire import NamedArrays, Parcel
from ..wording import shortened

if TYPE_CHECKING:
    from clients.tasks.graph_embedder import EmbeddingClient


class PooledEvaluation(Evaluator):
    """Clusters what the clients hand over, kept as ``embeddings/round-<t>.npz``.

    Parameters
    ----------
    resolved : Resolved
    """

    def __init__(self, resolved: Resolved) -> None:
        super().__init__()
        assert isinstance(resolved.task, EmbeddingSettings)
        self._resolved = resolved
        self._task, self._settings = resolved.task, resolved.settings
        self.num_classes = self.num_clients = 0
        self._sizes: dict[int, int] = {}  # graphs of each client
        self._width = 0  # of embeddings

    @override
    def expect(self, clients: Mapping[int, ClientInfo]) -> None:
        """Learn from the roll call who will take part.

        Raises
        ------
        DataError
            All clients together have fewer graphs than there are classes.
        """
        self.num_clients = len(clients)
        self._sizes = {
            c: i.num_train + i.num_val + i.num_test for c, i in clients.items()
        }
        self.num_classes = max(i.num_classes for i in clients.values())
        num_graphs = sum(i.num_train for i in clients.values())
        if num_graphs < self.num_classes:
            raise DataError(
                f"cannot cluster {num_graphs} graphs of all clients into"
                f" {self.num_classes} clusters, one for each class: more clusters than"
                " graphs; take a larger data set"
            )
        client = cast("type[EmbeddingClient[Any]]", self._resolved.method.client)
        self._width = client.width(self._settings)

    @override
    def misfits(
        self,
        measured_round: int,
        parcels: Mapping[int, Parcel],
        names: Collection[str],
    ) -> dict[int, str]:
        """Say who sent anything but finite embeddings and labels of all graphs."""
        rounds = self._task.evaluated_rounds() | {self._settings.num_server_rounds}
        if measured_round not in rounds:
            return super().misfits(measured_round, parcels, names)
        found = {c: self._misfit(c, p.evaluation) for c, p in parcels.items()}
        return {c: words for c, words in found.items() if words}

    def _misfit(self, client: int, arrays: NamedArrays) -> str:
        count = self._sizes[client]
        expected = {
            "embeddings": ("float32", (count, self._width)),
            "graph_ids": ("int64", (count,)),
            "labels": ("int64", (count,)),
        }
        found = {n: (a.dtype.name, a.shape) for n, a in sorted(arrays.items())}
        if found != expected:
            return (
                f"it sent arrays {shortened(found)} to evaluate, expected {expected};"
                " server and site run different settings or versions"
            )
        if not np.isfinite(arrays["embeddings"]).all():
            return "embeddings that it sent to evaluate hold NaN or infinity"
        labels = arrays["labels"]
        if count and not 0 <= labels.min() <= labels.max() < self.num_classes:
            return (
                f"labels that it sent to evaluate are not in range({self.num_classes})"
            )
        return ""

    @override
    def __call__(
        self, measured_round: int, parcels: Mapping[int, Parcel]
    ) -> list[Evaluation]:
        """Scores of the model after ``measured_round``; none if too little arrived.

        Their split is "all" only if every client answered: scores of other sets of
        graphs are "answered", kept in ``rounds.csv`` and not compared.
        """
        given = {c: p.evaluation for c, p in sorted(parcels.items()) if p.evaluation}
        self.files = {}
        if not given:
            return []
        pool = _join(given)
        task, settings = self._task, self._settings
        labels = pool["labels"].astype(np.int64)
        self.files = {f"{EMBEDDINGS}/round-{measured_round:06d}.npz": pool}
        if len(labels) < self.num_classes:
            log(
                WARNING,
                "%d graphs of %d classes were handed over after round %d: too few to"
                " cluster, not scored",
                len(labels),
                self.num_classes,
                measured_round,
            )
            return []
        scores = all_scores(
            pool["embeddings"],
            labels,
            num_classes=self.num_classes,
            seed=settings.seed,
            headline=task.transform,
        )
        if task.probe and measured_round in (0, settings.num_server_rounds):
            scores |= probe_scores(pool["embeddings"], labels, seed=settings.seed)
        return [
            Evaluation(
                server_round=measured_round,
                client=POOLED,
                split="all" if len(given) == self.num_clients else "answered",
                point="post_aggregation",
                metric=metric,
                value=value,
                num_examples=len(labels),
            )
            for metric, value in scores.items()
        ]


def _join(given: Mapping[int, NamedArrays]) -> NamedArrays:
    """Concatenate in ascending client order; say which client each row is from."""
    pool = {
        name: np.concatenate([arrays[name] for arrays in given.values()])
        for name in ("embeddings", "labels", "graph_ids")
    }
    sizes = [len(arrays["labels"]) for arrays in given.values()]
    pool["clients"] = np.repeat(np.array(list(given), np.int64), sizes)
    return pool

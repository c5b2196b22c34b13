"""Evaluation of embeddings of all clients together, at the server.

For simulation and for consortia whose sites agree to it: the published protocols
cluster the graphs of all clients at once, which needs their embeddings and labels in
one place. Nothing here reaches training: strategies never see what arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from strategies.report import ClientInfo, Evaluation

from .clustering import all_scores, probe_scores
from .errors import DataError, WireError
from .registry import Resolved
from .tasks import EMBEDDINGS, POOLED, EmbeddingSettings
from .wire import NamedArrays, Parcel


class PooledEvaluation:
    """Clusters what the clients hand over, and keeps it in the results folder.

    Parameters
    ----------
    resolved : Resolved
    folder : path
        Results folder; ``embeddings/round-<t>.npz`` is written there.
    """

    def __init__(self, resolved: Resolved, folder: Path) -> None:
        self._resolved, self._folder = resolved, folder / EMBEDDINGS
        self.num_classes = self.num_clients = 0

    def expect(self, clients: Mapping[int, ClientInfo]) -> None:
        """Learn from the roll call who will take part.

        Raises
        ------
        DataError
            All clients together have fewer graphs than there are classes.
        """
        self.num_clients = len(clients)
        self.num_classes = max(i.num_classes for i in clients.values())
        task = self._resolved.task
        if not isinstance(task, EmbeddingSettings) or task.evaluation == "local":
            return
        num_graphs = sum(i.num_train for i in clients.values())
        if num_graphs < self.num_classes:
            raise DataError(
                f"cannot cluster {num_graphs} graphs of all clients into"
                f" {self.num_classes} clusters, one for each class: more clusters than"
                " graphs; take a larger data set"
            )

    def __call__(
        self, measured_round: int, parcels: Mapping[int, Parcel]
    ) -> list[Evaluation]:
        """Scores of the model after ``measured_round``; none where nothing arrived.

        Their split is "all" only if every client answered: scores of other sets of
        graphs are "answered", kept in ``rounds.csv`` and not compared.
        """
        given = {c: p.evaluation for c, p in sorted(parcels.items()) if p.evaluation}
        if not given:
            return []
        pool = _join(given)
        task, settings = self._resolved.task, self._resolved.settings
        assert isinstance(task, EmbeddingSettings)
        labels = pool["labels"].astype(np.int64)
        self._folder.mkdir(exist_ok=True)
        np.savez(self._folder / f"round-{measured_round:06d}.npz", **pool)  # type: ignore[arg-type]
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
    """Concatenate in ascending client order; say which client each row is from.

    Raises
    ------
    WireError
        A client's arrays are missing, or their shapes do not fit together.
    """
    width = next(iter(given.values())).get("embeddings", np.empty((0, 0))).shape[-1]
    for client, arrays in given.items():
        shapes = {name: a.shape for name, a in sorted(arrays.items())}
        count = len(arrays.get("labels", ()))
        expected = {
            "embeddings": (count, width),
            "graph_ids": (count,),
            "labels": (count,),
        }
        if shapes != expected:
            raise WireError(
                f"client {client} sent arrays {shapes} to evaluate, expected"
                f" {expected}; server and site run different settings or versions"
            )
    pool = {
        name: np.concatenate([arrays[name] for arrays in given.values()])
        for name in ("embeddings", "labels", "graph_ids")
    }
    sizes = [len(arrays["labels"]) for arrays in given.values()]
    pool["clients"] = np.repeat(np.array(list(given), np.int64), sizes)
    return pool

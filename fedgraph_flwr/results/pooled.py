"""Evaluation at the server: embeddings of all clients, and how tasks relate.

For simulation and for consortia whose sites agree to it: the published protocols
cluster the graphs of all clients at once, which needs their embeddings and labels in
one place. Nothing here reaches training: strategies never see what arrives.

Methods that learn a covariance of tasks hand it over as an evaluation record; nothing
here reaches training. :mod:`fedgraph_flwr.view.matrices` draws what is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from strategies.paper import Evaluator
from strategies.replies import Layout, find_misfit
from strategies.round_report import ClientInfo, Evaluation

from ..core.embedding_scores import all_scores, probe_scores
from ..core.errors import DataError
from ..core.logs import log
from ..core.tasks import EMBEDDINGS, POOLED, EmbeddingSettings
from ..core.wire import NamedArrays, Parcel
from ..core.words import shortened
from ..methods.multitask import RECORD, RECORD_IDS
from ..resolve import Resolved
from .reader import read_npz, round_files

if TYPE_CHECKING:
    from clients.tasks.graph_embedder import EmbeddingClient


class PooledEvaluation(Evaluator):
    """Clusters what the clients hand over, kept as ``embeddings/round-<t>.npz``."""

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
    def misfit(
        self,
        measured_round: int,
        client: int,
        arrays: NamedArrays,
        names: Collection[str],
    ) -> str:
        """Refuse anything but finite embeddings and labels of all graphs."""
        rounds = self._task.evaluated_rounds() | {self._settings.num_server_rounds}
        if measured_round not in rounds:
            return super().misfit(measured_round, client, arrays, names)
        count = self._sizes[client]
        layout: Layout = {
            "embeddings": ("float32", (count, self._width)),
            "graph_ids": ("int64", (count,)),
            "labels": ("int64", (count,)),
        }
        if problem := find_misfit(arrays, layout):
            return problem
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


FOLDER = "task-covariance"  # in a run's folder: a file per round
Omega = tuple[tuple[int, ...], NDArray[np.float64]]  # tasks, and their covariance


class TaskRelations(Evaluator):
    """Keeps what clients hand over, ``task-covariance/round-<t>.npz``."""

    def __init__(self) -> None:
        super().__init__()
        self._num_tasks = 0

    @override
    def expect(self, clients: Mapping[int, ClientInfo]) -> None:
        self._num_tasks = max(i.num_classes for i in clients.values())

    @override
    def __call__(
        self, measured_round: int, parcels: Mapping[int, Parcel]
    ) -> list[Evaluation]:
        """Keep Omega of each client after training in the round that has just ended."""
        kept: dict[str, NDArray[np.generic]] = {}
        for client, parcel in sorted(parcels.items()):
            if RECORD in parcel.evaluation:
                omega, ids = (parcel.evaluation[k] for k in (RECORD, RECORD_IDS))
                kept |= {f"omega-{client}": omega, f"tasks-{client}": ids}
        name = f"{FOLDER}/round-{measured_round + 1:06d}.npz"
        self.files = {name: kept} if kept else {}
        return []

    @override
    def misfit(
        self,
        measured_round: int,
        client: int,
        arrays: NamedArrays,
        names: Collection[str],
    ) -> str:
        """Refuse anything but a covariance of tasks, if there should be one."""
        count = np.size(arrays.get(RECORD_IDS, ()))
        layout: Layout = {
            RECORD: ("float32", (count, count)),
            RECORD_IDS: ("int64", (count,)),
        }
        if problem := find_misfit(arrays, {n: layout[n] for n in names}):
            return problem
        tasks = arrays[RECORD_IDS].tolist() if names else []
        if tasks != sorted(set(tasks) & set(range(self._num_tasks))):
            return (
                f"it handed over a covariance of tasks {shortened(tasks)}, expected"
                f" ascending ones below {self._num_tasks}; server and site run"
                " different versions"
            )
        return ""


def read_rounds(run_dir: Path) -> list[int]:
    """List rounds whose Omega was kept, ascending."""
    return [*round_files(run_dir / FOLDER)]


def read_covariances(run_dir: Path, server_round: int) -> dict[int, Omega]:
    """Read Omega of each client after a round; nothing if none was kept.

    Raises
    ------
    DataError
        The file is damaged.
    """
    path = run_dir / FOLDER / f"round-{server_round:06d}.npz"
    arrays = read_npz(path) if path.exists() else {}
    clients = sorted(int(n.partition("-")[2]) for n in arrays if n.startswith("omega"))
    return {
        c: (tuple(arrays[f"tasks-{c}"].tolist()), arrays[f"omega-{c}"].astype(float))
        for c in clients
    }


def correlation(omega: NDArray[np.float64]) -> NDArray[np.float64]:
    """Omega_st / sqrt(Omega_ss Omega_tt), in [-1, 1]; NaN if a variance is 0."""
    scale = np.sqrt(np.clip(np.diag(omega), 0, None))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = omega / np.outer(scale, scale)
    return np.asarray(np.clip(found, -1, 1))

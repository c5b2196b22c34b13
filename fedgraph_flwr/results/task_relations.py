"""How clients' tasks relate, in the results folder: Omega, and who taught whom.

Methods that learn a covariance of tasks hand it over as an evaluation record; nothing
here reaches training. :mod:`fedgraph_flwr.figures.tasks` draws what is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray
from typing_extensions import override

from strategies.base import AbstractGraphStrategy
from strategies.evaluator import Evaluator
from strategies.report import ClientInfo, Evaluation

from ..errors import DataError
from ..files import write_csv
from ..methods.multitask import RECORD, RECORD_IDS
from ..wire import NamedArrays, Parcel
from ..wording import shortened
from .reader import blaming, read_npz, round_files

FOLDER = "task-covariance"  # in a run's folder: a file per round
SOURCES = "task-sources.csv"
Omega = tuple[tuple[int, ...], NDArray[np.float64]]  # tasks, and their covariance


class TaskRelations(Evaluator):
    """Keeps what clients hand over, ``task-covariance/round-<t>.npz``."""

    def __init__(self) -> None:
        super().__init__()
        self._num_tasks = 0

    @override
    def expect(self, clients: Mapping[int, ClientInfo]) -> None:
        """Learn from the roll call how many tasks there are."""
        self._num_tasks = max(i.num_classes for i in clients.values())

    @override
    def misfits(
        self,
        measured_round: int,
        parcels: Mapping[int, Parcel],
        names: Collection[str],
    ) -> dict[int, str]:
        """Say who should have handed over a covariance of tasks, and did not."""
        found = {c: self._misfit(p.evaluation, names) for c, p in parcels.items()}
        return {c: words for c, words in found.items() if words}

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
    def after_run(self, run_dir: Path, strategy: AbstractGraphStrategy) -> None:
        """Write and log which tasks each client learned from which neighbour.

        Nothing if the method relates no tasks. If letters are sealed, the server has no
        Omega, but knows who has which tasks.
        """
        rounds = read_rounds(run_dir)
        if not rounds and not strategy.HAS_NEIGHBOURS:
            return
        infos = strategy.clients
        sources = task_sources(
            {c: i.task_ids for c, i in infos.items()},
            strategy.peers(),
            infos[min(infos)].tasks,
            read_covariances(run_dir, rounds[-1]) if rounds else None,
        )
        write_task_sources(run_dir, sources)
        for line in describe_sources(sources):
            log(INFO, "%s", line)

    def _misfit(self, arrays: NamedArrays, names: Collection[str]) -> str:
        if set(arrays) != set(names):
            return (
                f"it handed over {shortened(sorted(arrays))}, expected {sorted(names)};"
                " server and site run different versions"
            )
        if not arrays:
            return ""
        omega, ids = arrays[RECORD], arrays[RECORD_IDS]
        fits = (
            ids.dtype == np.int64
            and ids.ndim == 1
            and omega.dtype == np.float32
            and omega.shape == (len(ids), len(ids))
        )
        if fits:
            tasks = ids.tolist()
            in_range = all(0 <= t < self._num_tasks for t in tasks)
            fits = in_range and tasks == sorted(set(tasks))
        if not fits or not np.isfinite(omega).all():
            return (
                f"it handed over a covariance, {omega.dtype} of shape {omega.shape},"
                f" for tasks {shortened(ids.tolist())}, expected a square one, finite,"
                f" of ascending tasks below {self._num_tasks}; server and site run"
                " different versions"
            )
        return ""


def read_rounds(run_dir: Path) -> list[int]:
    """List rounds whose Omega was kept, ascending."""
    return [*round_files(run_dir / FOLDER)]


def read_covariances(run_dir: Path, server_round: int) -> dict[int, Omega]:
    """Read Omega of each client after a round; empty if the file is unreadable."""
    path = run_dir / FOLDER / f"round-{server_round:06d}.npz"
    found: dict[int, Omega] = {}
    try:
        with blaming(path):
            arrays = read_npz(path)
            for name in arrays:
                kind, _, client = name.partition("-")
                if kind == "omega":
                    ids = arrays[f"tasks-{client}"]
                    found[int(client)] = as_omega(ids, arrays[name])
    except DataError:
        return {}
    return dict(sorted(found.items()))


def as_omega(ids: NDArray[Any], values: NDArray[Any]) -> Omega:
    """Join tasks and their covariance.

    Raises
    ------
    ValueError
        There is not a row and a column for each task.
    """
    if values.shape != (len(ids), len(ids)):
        raise ValueError(f"{len(ids)} tasks have a covariance of shape {values.shape}")
    return tuple(ids.tolist()), values.astype(np.float64)


def correlation(omega: NDArray[np.float64]) -> NDArray[np.float64]:
    """Omega_st / sqrt(Omega_ss Omega_tt), in [-1, 1]; NaN if a variance is 0."""
    scale = np.sqrt(np.clip(np.diag(omega), 0, None))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = omega / np.outer(scale, scale)
    return np.asarray(np.clip(found, -1, 1))


@dataclass(frozen=True, kw_only=True)
class TaskSource:
    """A task that a client has no labels of, and a neighbour that has.

    ``neighbour`` is -1 where none has: the task then comes from further away.
    ``related`` is the client's own task with which it correlates most in the client's
    Omega, positively or not; -1 and NaN where that is not known.
    """

    client: int
    task: int
    task_name: str
    neighbour: int
    related: int
    related_name: str
    correlation: float


def task_sources(
    owned: Mapping[int, Sequence[int]],
    neighbours: Mapping[int, Sequence[int]],
    names: Sequence[str],
    covariances: Mapping[int, Omega] | None = None,
) -> list[TaskSource]:
    """Say which tasks each client learned from which neighbour.

    Parameters
    ----------
    owned : mapping
        Tasks of which each client has labels.
    neighbours : mapping
        Clients whose models reach each client directly; all others with a server.
    names : sequence of str
        Of all tasks.
    covariances : mapping, optional
        Omega of clients, as of :func:`read_covariances`.

    Returns
    -------
    list of TaskSource
        By client, task, neighbour. Tasks that a client has labels of are left out.
    """
    found = []
    for client in sorted(owned):
        mine = sorted(owned[client])
        for task in sorted(set(range(len(names))) - set(mine)):
            related, strength = _most_related(
                task, mine, (covariances or {}).get(client)
            )
            teachers = [n for n in sorted(neighbours[client]) if task in owned[n]]
            found += [
                TaskSource(
                    client=client,
                    task=task,
                    task_name=names[task],
                    neighbour=neighbour,
                    related=related,
                    related_name=names[related] if related >= 0 else "",
                    correlation=strength,
                )
                for neighbour in teachers or [-1]
            ]
    return found


def _most_related(
    task: int, mine: Sequence[int], omega: Omega | None
) -> tuple[int, float]:
    if omega is None or task not in omega[0]:
        return -1, float("nan")
    ids, related = omega[0], correlation(omega[1])
    row = {s: related[ids.index(task), ids.index(s)] for s in mine if s in ids}
    row = {s: float(r) for s, r in row.items() if not np.isnan(r)}
    if not row:
        return -1, float("nan")
    best = max(row, key=lambda s: (abs(row[s]), -s))
    return best, row[best]


def write_task_sources(run_dir: Path, sources: Sequence[TaskSource]) -> None:
    """Write them to ``task-sources.csv`` of a results folder."""
    names = tuple(f.name for f in fields(TaskSource))
    write_csv(run_dir / SOURCES, [names, *map(astuple, sources)], "\r\n")


def describe_sources(sources: Sequence[TaskSource]) -> list[str]:
    """Give one line per client: how many tasks it took from which neighbour."""
    lines = []
    for client in sorted({s.client for s in sources}):
        mine = [s for s in sources if s.client == client]
        parts = []
        for neighbour in sorted({s.neighbour for s in mine} - {-1}):
            tasks = [str(s.task) for s in mine if s.neighbour == neighbour]
            parts.append(f"tasks {', '.join(tasks)} from client {neighbour}")
        if far := [str(s.task) for s in mine if s.neighbour == -1]:
            parts.append(f"tasks {', '.join(far)} from no neighbour")
        lines.append(f"client {client}: {'; '.join(parts)}")
    return lines

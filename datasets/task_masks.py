"""Which client has training labels of which tasks.

SpreadGNN's setting: in the worst case every task belongs to one client, and each client
is to predict all of them. Validation and test graphs keep their labels of all tasks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.data import GraphPartition
from fedgraph_flwr.errors import ConfigError, DataError
from fedgraph_flwr.seeding import numpy_rng

TaskIds = tuple[int, ...]
ALL, EXCLUSIVE, OVERLAPPING = "all", "exclusive", "overlapping"
NUM_OWNERS = 2  # of a task that is "overlapping"
MAX_DRAWS = 100_000  # of masks that leave nobody without a task
_CURE = "set task-masks in the run config"


def assign_tasks(
    masks: str, num_tasks: int, num_clients: int, *, seed: int
) -> list[TaskIds]:
    """Give each client its tasks.

    Parameters
    ----------
    masks : str
        "all": every task to everyone. "exclusive": every task to one client, drawn
        uniformly; "overlapping": to two different ones; both are drawn anew
        until every client has a task. Otherwise the clients' tasks one after the other,
        numbered from 0: ``"0-2;3,5;4"``.
    num_tasks, num_clients : int
    seed : int
        Split seed.

    Returns
    -------
    list of tuple of int
        One per client, ascending; together every task.

    Raises
    ------
    ConfigError
        A task that nobody has, one that does not exist, a client without any, or
        another number of clients.
    DataError
        No draw gives every client a task.

    Source
    ------
    SpreadGNN (He et al. 2021, arXiv:2106.02743), Sec. 4 and code
    ``data_loader.py:load_partition_data``; "overlapping" is ours.
    """
    if masks == ALL:
        return [tuple(range(num_tasks))] * num_clients
    if masks not in (EXCLUSIVE, OVERLAPPING):
        return _listed(masks, num_tasks, num_clients)
    count = 1 if masks == EXCLUSIVE else NUM_OWNERS
    if count > num_clients:
        raise ConfigError(
            f"task-masks {masks!r} gives every task to {count} clients, but num-clients"
            f" is {num_clients}; set num-clients to {count} or more, or task-masks to"
            f" {EXCLUSIVE!r}"
        )
    if num_tasks * count < num_clients:
        raise ConfigError(
            f"task-masks {masks!r} gives each of {num_tasks} task(s) to {count}"
            f" client(s), which leaves some of {num_clients} clients without any; set"
            f" num-clients to {num_tasks * count} or less, or task-masks to {ALL!r}"
        )
    rng = numpy_rng(seed, "task-masks", masks)
    for _ in range(MAX_DRAWS):
        owners = _draw(rng, num_tasks, num_clients, count)
        if owners.any(axis=0).all():
            return [tuple(np.flatnonzero(mine).tolist()) for mine in owners.T]
    raise DataError(
        f"{MAX_DRAWS} draws of task-masks {masks!r} all left one of {num_clients}"
        f" clients without any of {num_tasks} tasks; lower num-clients, or list the"
        " tasks of each client in task-masks"
    )


def _draw(
    rng: np.random.Generator, num_tasks: int, num_clients: int, count: int
) -> np.ndarray:
    """Boolean, (num_tasks, num_clients): ``count`` different owners of every task."""
    order = rng.random((num_tasks, num_clients)).argsort(axis=1)
    return np.asarray(order < count)


def _listed(masks: str, num_tasks: int, num_clients: int) -> list[TaskIds]:
    """Read and check an explicit list."""
    given = [_numbers(part) for part in masks.split(";")]
    if len(given) != num_clients:
        raise ConfigError(
            f"task-masks {masks!r} lists tasks of {len(given)} client(s), but"
            f" num-clients is {num_clients}; separate clients by ';' and {_CURE}"
        )
    named = set().union(*given)
    if strange := sorted(named - set(range(num_tasks))):
        raise ConfigError(
            f"task-masks {masks!r} names task(s) {_spell(strange)}, but the data set"
            f" has tasks 0-{num_tasks - 1}; {_CURE}"
        )
    if missing := sorted(set(range(num_tasks)) - named):
        raise ConfigError(
            f"task-masks {masks!r} leaves task(s) {_spell(missing)} to nobody: no"
            f" client could learn them; give every task to a client and {_CURE}"
        )
    for client, tasks in enumerate(given):
        if not tasks:
            raise ConfigError(
                f"task-masks {masks!r} gives client {client} no task, as a range runs"
                f" backwards; write ranges as 2-5 and {_CURE}"
            )
    return [tuple(sorted(tasks)) for tasks in given]


def _numbers(part: str) -> set[int]:
    """Read ``"0-2,5"`` as {0, 1, 2, 5}."""
    found: set[int] = set()
    for piece in part.split(","):
        first, _, last = piece.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _spell(tasks: list[int]) -> str:
    return ", ".join(map(str, tasks))


def mask_tasks(partition: GraphPartition, settings: RunSettings) -> GraphPartition:
    """Take the training labels of other clients' tasks out of a client's graphs.

    Parameters
    ----------
    partition : GraphPartition
        With labels for tasks.
    settings : RunSettings
        ``task_masks``, ``num_clients`` and ``split_seed`` are read.

    Raises
    ------
    ConfigError, DataError
        As :func:`assign_tasks`.
    """
    if settings.task_masks == ALL:
        return partition
    num_tasks = len(partition.tasks)
    own = assign_tasks(
        settings.task_masks,
        num_tasks,
        settings.num_clients,
        seed=settings.split_seed,
    )[partition.client_id]
    y = partition.graphs.y.copy()
    foreign = np.setdiff1d(np.arange(num_tasks), own)
    y[np.ix_(partition.train, foreign)] = np.nan
    return replace(partition, graphs=replace(partition.graphs, y=y), task_ids=own)

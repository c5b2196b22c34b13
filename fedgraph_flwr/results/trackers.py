"""Trackers of experiments: what a run measures, written where a team looks at it.

A run writes while it goes on; :func:`import_run` writes a finished run. Both give the
same names and numbers. A tracker that breaks down ends with a warning, not the run.
Packages are imported when they are used; none is required.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from strategies.round_report import RoundReport

from ..core.errors import ConfigError, DataError, FedGraphError
from ..core.logs import log
from ..trained.model_folder import PLACES
from .reader import LEDGER, ROUNDS, blaming, read_config, read_rows, read_times

NONE = "none"
PROJECT = "fedgraph-flwr"
_BATCH, _LONGEST = 100, 500  # MLflow takes no more values, characters at once
_MOST_CLIENTS = 100  # that have curves of their own
_Row = tuple[int, int, str, str, str, float]  # as the columns of rounds.csv
_Steps = dict[int, dict[str, float]]


class Tracker(Protocol):
    """One run in a tracker."""

    place: str  # where the numbers went, for the user

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a round."""

    def close(self) -> None:
        """Write what is held, and end the run there."""


class TensorBoard:
    """Event files in the folder ``tensorboard`` of the results folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any], first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.place = str(folder / "tensorboard")
        # Of rounds that a resumed run repeats, readers drop the older values.
        make: Any = SummaryWriter
        self._writer = make(self.place, purge_step=first)
        self._writer.add_text("config", _as_table(config), 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """As the protocol says."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """As the protocol says."""
        self._writer.close()


class Wandb:
    """Weights & Biases, as its environment variables say (``WANDB_MODE``, ...)."""

    def __init__(self, folder: Path, config: Mapping[str, Any], first: int) -> None:  # noqa: ARG002
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run: Any = wandb.init(
            project=project,
            id=re.sub(r"[^\w-]", "-", folder.name),
            name=folder.name,
            config=dict(config),
            dir=str(folder),
            resume="allow",
        )
        # A score of round t arrives with round t + 1; W&B's own steps only ascend.
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        self.place = f"project {project}, run {folder.name}"
        self.close: Callable[[], None] = self._run.finish

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """As the protocol says."""
        self._run.log({**values, "round": step})


class MLflow:
    """``MLFLOW_TRACKING_URI``; else the database ``mlflow.db`` beside the runs."""

    def __init__(self, folder: Path, config: Mapping[str, Any], first: int) -> None:  # noqa: ARG002
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        beside = f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"
        self.place = os.environ.get("MLFLOW_TRACKING_URI") or beside
        self._client: Any = MlflowClient(tracking_uri=self.place)
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = (
            found.experiment_id if found else self._client.create_experiment(PROJECT)
        )
        name = folder.name.replace("'", "")
        query = f"attributes.run_name = '{name}'"
        runs = self._client.search_runs([experiment], query)
        run = runs[0] if runs else self._client.create_run(experiment, run_name=name)
        self._id = run.info.run_id
        if runs:
            self._client.update_run(self._id, status="RUNNING")
        params = [Param(key, str(value)[:_LONGEST]) for key, value in config.items()]
        for i in range(0, len(params), _BATCH):
            self._client.log_batch(self._id, params=params[i : i + _BATCH])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """As the protocol says."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        found = [Metric(name, value, now, step) for name, value in values.items()]
        for i in range(0, len(found), _BATCH):
            self._client.log_batch(self._id, metrics=found[i : i + _BATCH])

    def close(self) -> None:
        """As the protocol says."""
        self._client.set_terminated(self._id)


# Name -> what makes it, and the module that has to be installed.
TRACKERS: Mapping[str, tuple[Callable[[Path, Mapping[str, Any], int], Tracker], str]]
TRACKERS = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (Wandb, "wandb"),
    "mlflow": (MLflow, "mlflow"),
}


def check_installed(name: str) -> None:
    """Refuse a tracker whose package is missing.

    Raises
    ------
    ConfigError
        It is not installed.
    """
    if name != NONE and importlib.util.find_spec(TRACKERS[name][1]) is None:
        package = "mlflow-skinny sqlalchemy alembic" if name == "mlflow" else name
        raise ConfigError(
            f"tracker is {name!r}, but the package {TRACKERS[name][1]!r} is not"
            f" installed where the ServerApp runs; pip install {package} there, or"
            ' set tracker="none"'
        )


class Tracking:
    """The tracker of a run that goes on; begins with its first round.

    Parameters
    ----------
    name : str
        Value of the key ``tracker``.
    config : mapping
        The resolved config; folders are left out of what the tracker gets.

    ``is_on`` says whether there is one, and it has not broken down.
    """

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        self._name, self._folder, self._config = name, folder, config
        self._tracker: Tracker | None = None
        self.is_on = name != NONE

    def add(self, report: RoundReport) -> None:
        """Write a round."""
        self._guarded(lambda: self._add(report))

    def close(self) -> None:
        """End the run in the tracker."""
        if self._tracker is not None and self.is_on:
            self._guarded(self._tracker.close)
            log(INFO, "%s: %s", self._name, self._tracker.place)

    def _add(self, report: RoundReport) -> None:
        if self._tracker is None:
            make = TRACKERS[self._name][0]
            settings = _without_places(self._config)
            self._tracker = make(self._folder, settings, report.server_round)
        for step, values in steps_of_report(report).items():
            self._tracker.log(step, values)

    def _guarded(self, act: Callable[[], None]) -> None:
        """Act; after the first failure warn and do no more."""
        try:
            act()
        except Exception as error:
            self.is_on = False
            log(
                WARNING,
                "tracker %s broke down (%s: %s); the run goes on without it. When it"
                " has ended: fedgraph track %s --to %s",
                self._name,
                type(error).__name__,
                error,
                self._folder,
                self._name,
            )


def import_run(folder: Path, name: str) -> str:
    """Write a run's results folder to a tracker; returns where.

    Raises
    ------
    ConfigError
        The folder is no results folder, or the tracker is not installed.
    DataError
        A row is not as a run writes it, or the folder has event files already.
    FedGraphError
        The tracker refused.
    """
    check_installed(name)
    config = _without_places(read_config(folder))
    if name == "tensorboard" and (folder / name).exists():
        raise DataError(
            f"{folder / name} exists: TensorBoard would show each value twice; delete"
            " it first, or look at what is there"
        )
    with blaming(folder):
        steps = steps_of_folder(folder)
    if not steps:
        raise DataError(f"{folder} has no round yet; import it when it has")
    try:
        tracker = TRACKERS[name][0](folder, config, min(steps))
        for step, values in sorted(steps.items()):
            tracker.log(step, values)
        tracker.close()
    except Exception as error:
        raise FedGraphError(
            f"{name} refused {folder}: {type(error).__name__}: {error}; correct its"
            " settings (docs/results-folder.md)"
        ) from error
    return tracker.place


def steps_of_report(report: RoundReport) -> _Steps:
    """Values of a round by step; a received model counts for the round before."""
    rows = (
        (e.server_round, e.client, e.split, e.point, e.metric, e.value)
        for e in report.evaluations
    )
    now = report.server_round
    sizes = ((now, e.direction, e.bytes) for e in report.ledger)
    return _steps(rows, sizes, [(now, report.wall_s)])


def steps_of_folder(folder: Path) -> _Steps:
    """Values of all rounds of a results folder by step."""
    rows = (
        (int(number), int(client), split, point, metric, float(value))
        for number, client, split, point, metric, value, _ in read_rows(folder / ROUNDS)
    )
    sizes = (
        (int(number), direction, int(size))
        for number, _, direction, _, size in read_rows(folder / LEDGER)
    )
    times = ((row.round, row.wall_s) for row in read_times(folder))
    return _steps(rows, sizes, times)


def _steps(
    rows: Iterable[_Row],
    sizes: Iterable[tuple[int, str, int]],
    seconds: Iterable[tuple[int, float]],
) -> _Steps:
    """Name the values: means over clients, clients, bytes and seconds."""
    groups: dict[tuple[int, str], dict[int, float]] = {}
    for step, client, split, point, metric, value in rows:
        if math.isfinite(value):
            name = re.sub(r"[^\w./ -]", "_", f"{split}/{metric}/{point}")
            groups.setdefault((step, name), {})[client] = value
    steps: _Steps = {}
    for (step, name), values in groups.items():
        found = steps.setdefault(step, {})
        found[f"{name}/mean"] = fmean(values.values())
        if len(values) <= _MOST_CLIENTS:
            found |= {f"{name}/client-{c}": v for c, v in sorted(values.items())}
    for step, direction, size in sizes:
        found = steps.setdefault(step, {})
        found[f"bytes/{direction}"] = found.get(f"bytes/{direction}", 0.0) + size
    for step, wall_s in seconds:
        found = steps.setdefault(step, {})
        found["seconds/wall"] = found.get("seconds/wall", 0.0) + wall_s
    return steps


def _without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out folders: a tracker may be somebody else's machine."""
    return {k: v for k, v in config.items() if k not in PLACES}


def _as_table(config: Mapping[str, Any]) -> str:
    lines = (f"| {k} | `{v}` |" for k, v in sorted(config.items()))
    return "\n".join(["| key | value |", "|---|---|", *lines])

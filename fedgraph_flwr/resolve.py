"""A run config, checked and made definite, against the table of methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import datasets
from clients.graphs.batching import ClientData
from clients.job import Job, ModelSpec
from clients.privacy.site import PrivateSite
from clients.store import ClientStore

from .config import AUTO, RunSettings, Settings, Value, build, check_tables
from .errors import ConfigError, unknown_name
from .privacy import PrivacySettings, check_privacy, private_features
from .registry import METHODS, MethodOnTask
from .retired import METHODS as RETIRED_METHODS
from .tasks import TASKS, TaskSettings

if not hasattr(datasets, "load_partition"):
    raise ConfigError(
        f"the package 'datasets' was imported from {datasets.__file__}, which is not"
        " this project's; run from the project folder (`. ./env.sh`) and keep other"
        " packages of that name out of its environment"
    )


def tables() -> list[type[Settings]]:
    """Every configuration table, shared settings first, then tasks', then methods'."""
    of_tasks = (task.settings for task in TASKS)
    of_methods = (method.params for method in METHODS.values())
    return [RunSettings, PrivacySettings, *dict.fromkeys((*of_tasks, *of_methods))]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A checked run configuration with every ``"auto"`` replaced."""

    settings: RunSettings
    params: Settings
    task: TaskSettings
    privacy: PrivacySettings
    unread: tuple[str, ...] = ()  # warnings of keys that are set and not read

    @property
    def method(self) -> MethodOnTask:
        """The method, on the run's data and task."""
        kind = datasets.label_kind(self.settings)
        return METHODS[self.settings.method].on(kind, self.settings.task)

    def site(
        self, store: ClientStore, *, is_secret: bool, edge_budget: float = math.inf
    ) -> PrivateSite:
        """Privacy of the client whose state ``store`` keeps."""
        return PrivateSite(
            privacy=self.privacy,
            folder=store.folder,
            seed=self.settings.seed,
            is_secret=is_secret,
            edge_budget=edge_budget,
        )

    def job(
        self,
        data: ClientData,
        store: ClientStore,
        site: PrivateSite,
        device: torch.device,
    ) -> Job[Any]:
        """Everything a client of this run needs to answer a message."""
        return Job(
            settings=self.settings,
            params=self.params,
            task=self.task,
            learning=self.method.task,
            data=data,
            store=store,
            site=site,
            device=device,
        )

    def spec(self, *, num_features: int, num_classes: int) -> ModelSpec[Any]:
        """Say what a model of this run is built from, given the widths of the data."""
        return ModelSpec(
            settings=self.settings,
            params=self.params,
            task=self.task,
            num_features=num_features,
            num_classes=num_classes,
        )

    def to_config(self) -> dict[str, Value]:
        """Flat run-config keys and values: shared, of the task, of the method."""
        return {
            **self.settings.to_config(),
            **self.privacy.to_config(),
            **self.task.to_config(),
            **self.params.to_config(),
        }


def resolve(run_config: Mapping[str, Any]) -> Resolved:
    """Check a flat run config and fill in what is ``"auto"``.

    Raises
    ------
    ConfigError
        Unknown key, method or data set; wrong type; value out of range; no published
        value for an ``"auto"``; settings that contradict each other.
    """
    check_tables(tables(), run_config)
    name = str(run_config["method"])
    if name in RETIRED_METHODS:
        raise ConfigError(
            f"method {name!r} has gone; in the run config, {RETIRED_METHODS[name]}"
        )
    if name not in METHODS:
        raise ConfigError(
            unknown_name("method", name, METHODS, "Set method in the run config.")
        )
    info = datasets.find_dataset(str(run_config["dataset"]))
    kind = info.kind or str(run_config["csv-label-kind"])
    method = METHODS[name].on(kind, str(run_config.get("task", AUTO)))
    published = getattr(method.params, "AUTO", {}).get(info.name, {})
    automatic = _automatic(method, info)
    takes_weights = method.client.TAKES_WEIGHTS
    post = "clamp01" if takes_weights else "round"
    privacy = build(PrivacySettings, run_config, {"privacy.edge-post": post})
    automatic["features"] = private_features(str(automatic["features"]), privacy)
    settings = build(RunSettings, run_config, automatic)
    params = build(method.params, run_config, published)
    task = build(method.task.settings, run_config, {})
    datasets.check_settings(settings)
    method.task.check(settings, kind)
    task.check_run(settings, privacy, has_server_model=method.has_server_model)
    check_privacy(
        privacy,
        settings,
        takes_weights=takes_weights,
        takes_noise=method.task.takes_edge_noise,
    )
    params.check(privacy)
    if params.NEEDS_ALL and settings.is_sampled:
        raise ConfigError(
            f"client-fraction must be 1 for {name}, got {settings.client_fraction:g}:"
            f" {params.NEEDS_ALL}; set client-fraction to 1 in the run config"
        )
    return Resolved(
        settings=settings,
        params=params,
        task=task,
        privacy=privacy,
        unread=_unread(run_config, name, (settings, privacy, task, params)),
    )


def _unread(
    run_config: Mapping[str, Any], method: str, read: Iterable[Settings]
) -> tuple[str, ...]:
    """Say which keys are set that neither the method nor its task reads."""
    known = {key for table in read for key in table.config_fields()}
    return tuple(
        f"{key} is set to {run_config[key]!r}, but method {method!r} does not read it"
        for key, default in defaults().items()
        if key not in known and run_config.get(key, default) != default
    )


def _automatic(method: MethodOnTask, info: datasets.DatasetInfo) -> dict[str, Value]:
    """Say what ``"auto"`` means for shared settings; a later line wins.

    A value in the run config or in a preset is not ``"auto"`` and is taken as it is. If
    it contradicts ``info.fixed``, ``datasets.check_settings`` refuses it. A method's
    own parameters have values per data set (``AUTO``).
    """
    return {
        "task": method.task.key,
        **method.task.automatic,  # the kind of learning
        **info.automatic,  # the protocol published for the data set
        **method.params.RUN,  # the method's paper
        **info.fixed,  # the data set, in what is no paper's choice
    }


def defaults() -> dict[str, Value]:
    """Every run-config key with its default, as in ``pyproject.toml``."""
    return {k: v for table in tables() for k, v in table.defaults().items()}

"""The one table of methods, and the run configuration resolved against it.

A new paper adds a row to ``METHODS`` and its table to ``pyproject.toml``; nothing else
asks for a method's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from clients.base import GraphClient
from clients.fedavg import FedAvgClient, FedProxClient, LocalClient
from clients.gcfl import GCFLClient
from strategies.base import AbstractGraphStrategy
from strategies.fedavg import FedAvg, Local
from strategies.gcfl import GCFL

from .config import RunSettings, Settings, Value, build, check_tables
from .errors import ConfigError, unknown_name
from .methods.fedavg import FedAvgParams, FedProxParams, LocalParams
from .methods.gcfl import GCFLParams

if not hasattr(datasets, "load_partition"):
    raise ConfigError(
        f"the package 'datasets' was imported from {datasets.__file__}, which is not"
        " this project's; run from the project folder (`. ./env.sh`) and keep other"
        " packages of that name out of its environment"
    )

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table: what makes a method.

    ``options`` are fixed keyword arguments of the strategy that tell variants apart.
    """

    params: type[Settings]
    strategy: type[AbstractGraphStrategy]
    client: type[GraphClient]
    options: Mapping[str, Any] = field(default_factory=dict)

    def make_strategy(
        self, settings: RunSettings, params: Settings, **kwargs: Any
    ) -> AbstractGraphStrategy:
        """Build the strategy."""
        make: Callable[..., AbstractGraphStrategy] = self.strategy
        return make(settings, params, **self.options, **kwargs)


METHODS: Mapping[str, Method] = {
    "local": Method(params=LocalParams, strategy=Local, client=LocalClient),
    "fedavg": Method(params=FedAvgParams, strategy=FedAvg, client=FedAvgClient),
    "fedprox": Method(params=FedProxParams, strategy=FedAvg, client=FedProxClient),
    "gcfl": Method(
        params=GCFLParams,
        strategy=GCFL,
        client=GCFLClient,
        options={"use_dtw": False},
    ),
    "gcfl+": Method(
        params=GCFLParams, strategy=GCFL, client=GCFLClient, options={"use_dtw": True}
    ),
}


def tables() -> list[type[Settings]]:
    """Every configuration table, shared settings first."""
    return [RunSettings, *dict.fromkeys(m.params for m in METHODS.values())]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A checked run configuration with every ``"auto"`` replaced."""

    settings: RunSettings
    params: Settings

    @property
    def method(self) -> Method:
        """Row of the method."""
        return METHODS[self.settings.method]

    def to_config(self) -> dict[str, Value]:
        """Flat run-config keys and values, shared and of the method."""
        return {**self.settings.to_config(), **self.params.to_config()}


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
    if name not in METHODS:
        raise ConfigError(
            unknown_name("method", name, METHODS, "Set method in the run config.")
        )
    info = datasets.find_dataset(str(run_config["dataset"]))
    params_type = METHODS[name].params
    published = getattr(params_type, "AUTO", {}).get(info.name, {})
    settings = build(RunSettings, run_config, info.automatic)
    params = build(params_type, run_config, published)
    datasets.check_settings(settings)
    return Resolved(settings=settings, params=params)


def defaults() -> dict[str, Value]:
    """Every run-config key with its default, as in ``pyproject.toml``."""
    return {k: v for table in tables() for k, v in table.defaults().items()}


def project_root() -> Path:
    """Folder that holds this project's top-level packages."""
    return _ROOT


__all__ = [
    "METHODS",
    "Method",
    "Resolved",
    "defaults",
    "project_root",
    "resolve",
    "tables",
]

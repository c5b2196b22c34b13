"""Checks a run config against the table of methods and fills in "auto"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import datasets

from .core import plugins
from .core.attack_settings import AttackSettings, check_attack
from .core.config import (
    AUTO,
    GCN2,
    OF_PAPERS,
    PAPER,
    RunSettings,
    Settings,
    build,
    check_tables,
)
from .core.errors import ConfigError
from .core.plugins import PluginSettings
from .core.privacy_settings import PrivacySettings, check_privacy, private_features
from .core.robust_settings import RobustSettings, check_robust, describe_noisy
from .core.rules import Value
from .core.secure_aggregation import (
    SecureAggregation,
    check_shared_noise,
    check_sums,
    share_of_noise,
)
from .core.tasks import OF_EDGES, TASKS, TaskSettings
from .registry import METHODS, MethodOnTask, find_method, on_data

if TYPE_CHECKING:  # clients are imported when a run needs one: torch takes a second
    import torch

    from clients.graphs.batching import ClientData
    from clients.job import Job, ModelSpec
    from clients.privacy.site import PrivateSite
    from clients.store import ClientStore

_MANY_CLIENTS, _SELDOM = 1000, 5  # from so many on, some things every so many rounds

if not hasattr(datasets, "load_partition"):
    raise ConfigError(
        f"the package 'datasets' was imported from {datasets.__file__}, which is not"
        " this project's; run from the project folder (`. ./env.sh`) and keep other"
        " packages of that name out of its environment"
    )


def tables() -> list[type[Settings]]:
    """Every configuration table, shared settings first, then tasks', then methods'.

    Parameters of a method without a ``TABLE`` are in ``plugin.params``.
    """
    of_tasks = (task.settings for task in TASKS)
    of_methods = (m.params for m in METHODS.values() if m.params.TABLE)
    own = dict.fromkeys((*of_tasks, *of_methods))
    common = [RunSettings, PrivacySettings, RobustSettings, SecureAggregation]
    return [*common, AttackSettings, PluginSettings, *own]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A checked run configuration with every ``"auto"`` replaced."""

    settings: RunSettings
    params: Settings
    task: TaskSettings
    privacy: PrivacySettings
    robust: RobustSettings
    secagg: SecureAggregation
    attack: AttackSettings
    plugin: PluginSettings | None = None  # where method or data set are plug-ins
    warnings: tuple[str, ...] = ()  # what is set and means nothing, to be warned of

    @cached_property  # asked for at every message
    def method(self) -> MethodOnTask:
        """The method, on the run's data and task."""
        kind = datasets.label_kind(self.settings)
        return on_data(find_method(self.settings.method), kind, self.settings.task)

    def site(
        self, store: ClientStore, *, is_secret: bool, **budgets: Any
    ) -> PrivateSite:
        """Privacy of the client whose state ``store`` keeps, with a site's budgets."""
        from clients.privacy.site import PrivateSite

        return PrivateSite(
            privacy=self.privacy,
            folder=store.folder,
            seed=self.settings.seed,
            is_secret=is_secret,
            share=self.noise_share,
            **budgets,
        )

    @property
    def noise_share(self) -> float:
        """Part of ``update-noise`` that a client adds."""
        count = self.privacy.update_noise_shared
        return share_of_noise(self.secagg, self.settings, count)

    def job(
        self,
        data: ClientData,
        store: ClientStore,
        site: PrivateSite,
        device: torch.device,
    ) -> Job[Any]:
        """Everything a client of this run needs to answer a message."""
        from clients.job import Job

        return Job(
            settings=self.settings,
            params=self.params,
            task=self.task,
            learning=self.method.task,
            data=data,
            store=store,
            site=site,
            device=device,
            is_summed=self.secagg.on,
        )

    def spec(self, **widths: int) -> ModelSpec[Any]:
        """Say what a model of this run is built from, given the widths of the data."""
        from clients.job import ModelSpec

        return ModelSpec(
            settings=self.settings,
            params=self.params,
            task=self.task,
            **widths,
        )

    def to_config(self) -> dict[str, Value]:
        """Flat run-config keys and values: shared, of the task, of the method."""
        is_known = type(self.params) in tables()  # else they are in plugin.params
        return {
            **self.settings.to_config(),
            **self.privacy.to_config(),
            **self.robust.to_config(),
            **self.secagg.to_config(),
            **self.attack.to_config(),
            **self.task.to_config(),
            **(self.params.to_config() if is_known else {}),
            **(self.plugin.to_config() if self.plugin else {}),
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
    method, info, kind = _method_on_data(run_config)
    published = getattr(method.params, "AUTO", {}).get(info.name, {})
    automatic = _automatic(method, info, published, run_config["num-clients"])
    takes_weights = method.params.TAKES_WEIGHTS
    post = "clamp01" if takes_weights else "round"
    privacy = build(PrivacySettings, run_config, {"privacy.edge-post": post})
    automatic["features"] = private_features(str(automatic["features"]), privacy)
    settings = build(RunSettings, run_config, automatic)
    params, plugin = _with_plugins(method.params, run_config, published)
    task = build(method.task.settings, run_config, {})
    method.task.check(settings, kind)  # first: its "auto" values are those of the task
    datasets.check_settings(settings)
    task.check_run(settings, has_server_model=method.has_server_model)
    check_privacy(
        privacy,
        settings,
        takes_weights=takes_weights,
        takes_noise=method.task.takes_edge_noise,
    )
    if privacy.graph_clip > 0 and not method.client.is_per_graph():
        raise ConfigError(
            "privacy.graph-clip needs a loss that is a mean over graphs, each by"
            f" itself, which method {settings.method!r} has not on dataset"
            f" {settings.dataset!r}; set it to 0, or take one that averages, e.g."
            " fedavg, on data of many graphs"
        )
    for f in (*task.sends(), *params.sends()):
        if privacy.hides_labels and not f.is_clean:
            name = "update_clip" if privacy.update_clip > 0 else "graph_clip"
            raise ConfigError(
                f"{privacy.key(name)} is {getattr(privacy, name)!r}, but clients send"
                f" {f.what}, which its noise does not protect; set it to 0, or"
                " switch that off, or set method to another"
            )
    _check_together(name, method, settings, params, privacy)
    robust = build(RobustSettings, run_config, {})
    check_robust(robust, settings, method.strategy.NO_RULE)
    secagg = build(SecureAggregation, run_config, {})
    server = method.strategy
    why_no_sums = server.why_no_sums(robust, settings, **method.options)
    check_sums(secagg, settings, why_no_sums, (*task.sends(), *params.sends()))
    clusters = params.CLUSTERS
    check_shared_noise(secagg, settings, privacy, has_clusters=clusters)
    attack = build(AttackSettings, run_config, {})
    averages = server.HAS_MODEL and not server.IN_ONE_PLACE and not secagg.on
    check_attack(attack, settings, method.task.key, averages=averages)
    read = settings, privacy, robust, secagg, attack, task, params
    return Resolved(
        settings=settings,
        params=params,
        task=task,
        privacy=privacy,
        robust=robust,
        secagg=secagg,
        attack=attack,
        plugin=plugin,
        warnings=(
            *_unread(
                run_config,
                settings,
                (*read, *((plugin,) if plugin else ())),
            ),
            *params.warnings(settings.num_server_rounds),
            *describe_noisy(robust, privacy.update_clip),
        ),
    )


def fits(run_config: Mapping[str, Any]) -> bool:
    """Whether the method can learn from the kind of labels that the data set has."""
    method, _, kind = _method_on_data(run_config)
    return method.task.fits(kind)


def _method_on_data(
    run_config: Mapping[str, Any],
) -> tuple[MethodOnTask, datasets.DatasetInfo, str]:
    """Find the method, the data set, and what is known of a graph there."""
    row = find_method(str(run_config["method"]))
    info = datasets.find_dataset(str(run_config["dataset"]))
    given = str(run_config["csv-label-kind"])
    csv_kind = given if given != AUTO else str(info.automatic["csv-label-kind"])
    task = str(run_config.get("task", AUTO))
    kind = datasets.kind_of(info, csv_kind, task)
    return on_data(row, kind, task), info, kind


def _check_together(
    name: str,
    method: MethodOnTask,
    settings: RunSettings,
    params: Settings,
    privacy: PrivacySettings,
) -> None:
    """Refuse settings that are sound alone and contradict each other."""
    if settings.tell_statistics and privacy.is_on:
        raise ConfigError(
            "tell-statistics must be false in a run with noise, got true: exact counts"
            " and means of a site's graphs would be sent beside it; set tell-statistics"
            " to false in the run config, or compare sites in a run of its own before"
        )
    if settings.class_weights != "none" and (why := params.NO_CLASS_WEIGHTS):
        raise ConfigError(
            f"class-weights must be 'none' for {name}, got {settings.class_weights!r}:"
            f" {why}; leave class-weights out of the run config, or take another method"
        )
    if settings.class_weights == "federation" and privacy.update_clip > 0:
        raise ConfigError(
            "class-weights must not be 'federation' with noise on updates"
            f" (privacy.update-clip {privacy.update_clip:g}): exact counts of labels"
            " would be sent beside it; set class-weights to 'balanced'"
        )
    params.check(privacy)
    params.check_shared(settings)
    _check_encoder(name, method, settings, privacy)
    _check_fanout(name, method, settings)
    if params.NEEDS_ALL and settings.is_sampled:
        raise ConfigError(
            f"client-fraction must be 1 for {name}, got {settings.client_fraction:g}:"
            f" {params.NEEDS_ALL}; set client-fraction to 1 in the run config"
        )
    is_apart = settings.shared_group != "all" or settings.is_sampled or privacy.is_on
    if method.strategy.IN_ONE_PLACE and is_apart:
        raise ConfigError(
            f"method {name!r} trains one model on the data of all clients: it needs"
            f" shared-group 'all', client-fraction 1 and no privacy keys, got"
            f" {settings.shared_group!r}, {settings.client_fraction:g} and"
            f" {'some' if privacy.is_on else 'none'}; correct the run config"
        )
    if settings.evaluate_on == "all" and privacy.edge_epsilon > 0:
        raise ConfigError(
            "evaluate-on must be 'own' in a run with noise on edges"
            f" (privacy.edge-epsilon {privacy.edge_epsilon:g}), got 'all': every client"
            " would need other clients' graphs, whose noise is theirs to draw; set it"
            " to 'own' in the run config"
        )
    if settings.held_out_clients and (why := method.strategy.NO_HOLD_OUT):
        raise ConfigError(
            f"held-out-clients must be empty for {name}, got"
            f" {settings.held_out_clients!r}: {why}; leave held-out-clients out of the"
            " run config, or take a method with a common model, e.g. fedavg"
        )


def _check_fanout(name: str, method: MethodOnTask, settings: RunSettings) -> None:
    """Refuse samples of a graph for a method that sees all of it."""
    counts = settings.fanouts()
    if not counts or method.task.labels[0] not in ("nodes", *OF_EDGES.values()):
        return
    if not method.client.takes_samples():
        raise ConfigError(
            f"fanout must be empty for {name}, got {settings.fanout!r}: its training"
            " reads the whole graph; leave fanout out of the run config, or take"
            " another method, e.g. fedavg"
        )
    if settings.encoder == "gcn":
        raise ConfigError(
            "encoder must not be 'gcn' with fanout: its layers divide by degrees, which"
            " a sample does not have; set encoder to 'paper', 'sage' or 'gatv2'"
        )
    if len(counts) != settings.num_layers:
        raise ConfigError(
            f"fanout must be one number, or one for each of the {settings.num_layers}"
            f" layers (num-layers), got {settings.fanout!r}; correct one of the two"
        )


def _check_encoder(
    name: str, method: MethodOnTask, settings: RunSettings, privacy: PrivacySettings
) -> None:
    """Refuse an encoder that the method, the task or its noise cannot take."""
    encoder, is_own = settings.encoder, settings.encoder == PAPER
    is_of_edges = method.task.key in OF_EDGES
    fits = not is_of_edges if is_own else method.client.TAKES_ENCODER
    if encoder == GCN2:
        fits = not is_of_edges and GCN2 in method.client.ENCODERS
    if not fits:
        must = "not be 'paper'" if is_of_edges else "be 'paper'"
        raise ConfigError(
            f"encoder must {must} for {name} on {method.task.name}, got {encoder!r};"
            " leave it out of the run config, or take another method"
        )
    if settings.split == "time" and not method.client.TAKES_ENCODER:
        raise ConfigError(
            f"split must be 'random' for {name} on {method.task.name}, got 'time': its"
            " training sees all edges, also later ones; set split in the run config, or"
            " take another method"
        )
    if encoder != "pna":
        return
    if not (settings.pna_degree or settings.tell_statistics):
        raise ConfigError(
            "pna-degree must be above 0, got 0: pna scales by the mean number of edges"
            " that end at a node; set it, or set tell-statistics to true, so that"
            " clients tell it"
        )
    if privacy.update_clip:
        raise ConfigError(
            "encoder must not be 'pna' with privacy.update-clip, got"
            f" {privacy.update_clip:g}: noise would change the constants that its"
            " layers share; set encoder to 'gatv2' or 'gine'"
        )


def _with_plugins(
    table: type[Settings], run_config: Mapping[str, Any], automatic: Mapping[str, Value]
) -> tuple[Settings, PluginSettings | None]:
    """Build a method's parameters, and the settings of plug-ins if the run has any."""
    given = build(PluginSettings, run_config, {})
    plugin = plugins.check_pins(given, run_config)
    if table.config_fields() and table not in tables():
        params = plugins.build_params(table, given.params, automatic)
        return params, replace(plugin, params=plugins.write_params(params))
    names = plugins.named_in(run_config)
    if "method" in names:  # and has no parameters of its own
        plugins.build_params(Settings, given.params, {})
    return build(table, run_config, automatic), plugin if names else None


def _unread(
    run_config: Mapping[str, Any], settings: RunSettings, read: Iterable[Settings]
) -> tuple[str, ...]:
    """Say which keys are set that the method, its task or the data do not read.

    A config without "auto" is written out by :meth:`Resolved.to_config`, with all keys:
    there nothing is said of the data.
    """
    known = {key for table in read for key in table.config_fields()}
    usual = defaults()
    who = {key: f"method {settings.method!r}" for key in usual if key not in known}
    encoder = settings.encoder
    of_encoder = {"direction": encoder in OF_PAPERS, "pna-degree": encoder != "pna"}
    who |= {k: f"encoder {encoder!r}" for k, holds in of_encoder.items() if holds}
    fields = RunSettings.config_fields()
    if any(run_config[k] == AUTO for k, f in fields.items() if f.metadata["rule"].auto):
        data = f"dataset {settings.dataset!r} with partition {settings.partition!r}"
        who |= dict.fromkeys(datasets.list_unread(settings), data)
    return tuple(
        f"{key} is set to {run_config[key]!r}, but {what} does not read it"
        for key, what in who.items()
        if run_config.get(key, usual[key]) != usual[key]
    )


def _automatic(
    method: MethodOnTask,
    info: datasets.DatasetInfo,
    published: Mapping[str, Value],
    num_clients: Value,
) -> dict[str, Value]:
    """Say what ``"auto"`` means for shared settings; a later line wins.

    A value in the run config or in a preset is not ``"auto"`` and is taken as it is. If
    it contradicts ``info.fixed``, ``datasets.check_settings`` refuses it. A method's
    own parameters have values per data set (``AUTO``).
    """
    found: dict[str, Value] = {
        "task": method.task.key,
        "encoder": PAPER,
        **method.task.automatic,  # the kind of learning
        **info.automatic,  # the protocol published for the data set
        **({"held-out": 0.2} if method.task.key in OF_EDGES else {}),  # of edges
        **method.params.RUN,  # the method's paper
        **published,  # the same, for this data set
        **info.fixed,  # the data set, in what is no paper's choice
    }
    if num_clients == AUTO:
        num_clients = found.get("num-clients", 0)
    every = _SELDOM if int(num_clients) >= _MANY_CLIENTS else 1
    return {"checkpoint-every": every, "evaluate-every": every, **found}


def defaults() -> dict[str, Value]:
    """Every run-config key with its default, as in ``pyproject.toml``."""
    return {k: v for table in tables() for k, v in table.defaults().items()}

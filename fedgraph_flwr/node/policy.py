"""What a site allows any run to do: the file that node-config ``policy`` names.

It is read anew for every message, before the run's own configuration, and wins. A file
that is named and cannot be used refuses everything. A site without one has the defaults
of :class:`Policy`; simulation, whose nodes nobody operates, has ``OPEN``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import datasets

from ..core.config import Settings
from ..core.data import GraphPartition, GraphSet
from ..core.errors import ConfigError, FedGraphError, PolicyError, unknown_name
from ..core.plugins import is_plugin, split
from ..core.privacy_settings import PrivacySettings
from ..core.rules import Rule, choice, flag, integer, number, read_toml, setting, shown
from ..registry import METHODS
from ..resolve import Resolved, resolve
from .node_config import (
    POLICY,
    NodeConfig,
    check_identity,
    check_node,
    check_plugins,
    hosted_clients,
    is_site,
    own_folders,
    trusted_peers,
)

_MOST_BYTES = 2**40
# Keys of a run config that say how long a client computes in a round.
_WORK = re.compile(r"local-epochs|.+(-epochs|[.-]steps)|.+\.rounds")


@dataclass(frozen=True)
class _Names(Rule):
    """A list of names, of which TOML has no type of its own."""

    def describe(self) -> str:
        return "a list of at least one name, or left out"

    def allows(self, value: object) -> bool:
        return isinstance(value, tuple) and all(isinstance(v, str) for v in value)


def _names() -> Any:
    return setting((), _Names(tuple))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Policy(Settings):
    """What a site allows; docs/privacy-details.md says what each key means.

    Of numbers, 0 sets no limit; of lists, an empty one allows every name.
    """

    methods: tuple[str, ...] = _names()
    datasets: tuple[str, ...] = _names()
    min_examples: int = integer(0, 0, 2**31)
    update_clip_max: float = number(0.0, 0)
    update_noise_min: float = number(0.0, 0)
    update_epsilon_max: float = number(0.0, 0)
    update_delta: float = number(1e-5, 0, 1, low_open=True, high_open=True)
    graph_clip_max: float = number(0.0, 0)
    graph_noise_min: float = number(0.0, 0)
    graph_epsilon_max: float = number(0.0, 0)
    edge_epsilon_max: float = number(0.0, 0)
    reply_bytes_max: int = integer(0, 0, _MOST_BYTES)
    model_bytes_max: int = integer(0, 0, _MOST_BYTES)
    epochs_max: int = integer(0, 0, 10**9)
    sealed_only: bool = flag(False)
    pooled_evaluation: bool = flag(False)
    raw_features: bool = flag(False)
    statistics: bool = flag(False)
    scores: bool = flag(True)
    secure_aggregation: str = choice("allowed", "allowed", "first-seen", "required")
    least_in_sum: int = integer(3, 2, 2**8)
    shared_noise: bool = flag(False)

    @property
    def needs_clip(self) -> bool:
        """Whether updates may leave only clipped and with noise."""
        return self.update_clip_max > 0

    def check_names(self, run_config: Mapping[str, Any]) -> None:
        """Refuse a method or data set, before anything else of a run is looked at."""
        for key, allowed in (("method", self.methods), ("dataset", self.datasets)):
            given = run_config.get(key)
            if allowed and given not in allowed:
                raise _forbidden(
                    f"{key} {shown(given)}",
                    f"{key}s",
                    f"it allows {', '.join(allowed)}",
                )

    def check_run(self, resolved: Resolved) -> None:
        """Refuse a run that would let out more than this site allows."""
        self.check_names(resolved.settings.to_config())
        params, privacy = resolved.params, resolved.privacy
        config = resolved.to_config()
        for key in filter(_WORK.fullmatch, config):
            if 0 < (most := self.epochs_max) < (asked := int(config[key])):
                cure = f"set it to at most {most}"
                raise _forbidden(f"{key} {asked}", "epochs-max", cure)
        if self.sealed_only and not params.is_sealed:
            raise _forbidden(
                f"method {resolved.settings.method!r}, as this site hands its model to"
                " nobody but neighbours, sealed",
                "sealed-only",
                "run a method whose letters are sealed (docs/privacy.md)",
            )
        if self.secure_aggregation != "allowed" and not resolved.secagg.on:
            raise _forbidden(
                "updates that the server sees one by one (secure-aggregation.on is"
                " false)",
                "secure-aggregation",
                "set secure-aggregation.on to true in the run config",
            )
        share = 1.0 if self.shared_noise else resolved.noise_share
        own = replace(privacy, update_noise=privacy.update_noise * share)
        self._check_noise(own, "update", "updates", "sends them as they are")
        self._check_noise(privacy, "graph", "training", "trains without noise")
        if self.edge_epsilon_max and not resolved.method.task.takes_edge_noise:
            raise _forbidden(
                f"dataset {resolved.settings.dataset!r}, as no noise covers edges of"
                " one graph whose nodes are classified",
                "edge-epsilon-max",
                "take data of many graphs; update-clip-max of a policy bounds what"
                " updates tell of one",
            )
        if self.edge_epsilon_max and not privacy.edge_epsilon:
            raise _forbidden(
                "a run without noise on edges (privacy.edge-epsilon is 0), of which"
                " nothing bounds what it tells of them",
                "edge-epsilon-max",
                "set privacy.edge-epsilon in the run config",
            )
        if self.edge_epsilon_max and privacy.keep_edge_features:
            raise _forbidden(
                "features that tell edges (privacy.keep-edge-features is true), which"
                " no noise covers",
                "edge-epsilon-max",
                "leave privacy.keep-edge-features out of the run config",
            )
        for table in (resolved.task, params):
            for f in table.sends():
                if f.consent and not getattr(self, f.consent):
                    raise _forbidden(
                        f"{f.what} (table {table.TABLE!r} of the run config)",
                        self.key(f.consent),
                        "switch that off, or set method to another",
                    )
        settings = resolved.settings
        if settings.class_weights == "federation" and not self.scores:
            raise _forbidden(
                "class-weights 'federation', for which each client tells its training"
                " labels by class",
                "scores",
                "set class-weights to 'balanced' or 'none'",
            )
        may_count = self.scores or self.pooled_evaluation
        if datasets.tells_class_sizes(settings) and not may_count:
            raise _forbidden(
                f"partition {settings.partition!r}, by which numbers of graphs tell how"
                " many there are of each class",
                "scores",
                'set partition to "files" or "iid"',
            )

    def _check_noise(
        self, privacy: PrivacySettings, kind: str, what: str, bare: str
    ) -> None:
        """Refuse a kind of noise that is less than this site asks for.

        ``bare`` says what a run does that has none.
        """
        clip, noise = (getattr(privacy, f"{kind}_{k}") for k in ("clip", "noise"))
        most = getattr(self, f"{kind}_clip_max")
        least = getattr(self, f"{kind}_noise_min")
        if most and not 0 < clip <= most:
            raise _forbidden(
                f"{what} with privacy.{kind}-clip {clip:g}, where 0 {bare}",
                f"{kind}-clip-max",
                f"set it to a number > 0 and <= {most:g}",
            )
        if most and noise < least:
            raise _forbidden(
                f"{what} with privacy.{kind}-noise {noise:g}",
                f"{kind}-noise-min",
                f"set it to at least {least:g}",
            )

    def check_data(self, resolved: Resolved, partition: GraphPartition) -> None:
        """Refuse too few training examples, and too large a model for these data."""
        # What one client alone has trained would be its own in the sum.
        least = max(self.min_examples, self.secure_aggregation != "allowed")
        if (count := _num_labelled(partition)) < least:
            raise _forbidden(
                f"client {partition.client_id} with {count} labelled training examples",
                "min-examples",
                f"it needs {least}; run without that client",
            )

        size = _model_bytes(resolved, partition.graphs) if self.model_bytes_max else 0
        if size > self.model_bytes_max:
            cure = f"make it at most {self.model_bytes_max} (hidden-dim, num-layers)"
            raise _forbidden(f"a model of {size} bytes", "model-bytes-max", cure)


def _model_bytes(resolved: Resolved, graphs: GraphSet) -> int:
    """Bytes of a model's tensors, which take no memory here if that can be avoided."""
    import torch

    from clients.base import start_of

    spec = resolved.spec(**graphs.widths)
    try:
        with torch.device("meta"):
            return start_of(resolved.method.client, spec).nbytes
    except Exception:  # it draws numbers elsewhere, as a plug-in's model may
        return start_of(resolved.method.client, spec).nbytes


def _num_labelled(partition: GraphPartition) -> int:
    """Count the training examples that have a label; a run chooses which labels."""
    y = partition.graphs.y
    if not partition.graphs.has_tasks:
        return len(partition.train)
    return int((~np.isnan(y[partition.train])).any(axis=1).sum())


OPEN = Policy(
    pooled_evaluation=True, raw_features=True, statistics=True, least_in_sum=2
)


def _forbidden(what: str, key: str, cure: str) -> PolicyError:
    return PolicyError(
        f"this site's policy ({key}) does not allow {what}; {cure}, or ask its operator"
    )


def resolve_at(
    node: NodeConfig, policy: Policy, run_config: Mapping[str, Any]
) -> Resolved:
    """Check a run config at a node, which imports no module before it may.

    Raises
    ------
    PolicyError
        The method or data set is not allowed.
    ConfigError
        As :func:`check_plugins` and :func:`~fedgraph_flwr.resolve.resolve`.
    """
    policy.check_names(run_config)
    check_plugins(run_config, node)
    return resolve(run_config)


def agree_at(
    node: NodeConfig, policy: Policy, run_config: Mapping[str, Any]
) -> tuple[Resolved, list[int]]:
    """Check a run at a node, before data are read, as for every message.

    Return it with the node's own folders, and the ids of the clients hosted there.

    Raises
    ------
    PolicyError
        The policy does not allow the run.
    ConfigError
        Run config or node-config are wrong, or do not fit together.
    """
    resolved = resolve_at(node, policy, run_config)
    policy.check_run(resolved)
    check_node(node)
    if is_site(node) and resolved.method.strategy.IN_ONE_PLACE:
        raise ConfigError(
            f"method {resolved.settings.method!r} trains on the data of all clients in"
            " one place, which no site has: it is for simulation; set method to"
            " another, e.g. fedavg"
        )
    if is_site(node) and resolved.attack.clients:
        raise ConfigError(
            f"attack.kind must be 'none' at sites, got {resolved.attack.kind!r}: no"
            " site is made to lie, and attacks are for simulation; leave attack.kind"
            " out of the run config"
        )
    check_identity(resolved, node)
    if policy.secure_aggregation == "required" and trusted_peers(node) is None:
        raise PolicyError(
            "this site's policy (secure-aggregation) requires the fingerprints of all"
            " other clients; start the SuperNode with them as node-config peers, or set"
            ' it to "first-seen"'
        )
    hosted = hosted_clients(node, resolved.settings.num_clients)
    settings = own_folders(resolved.settings, node)
    datasets.check_hosted(settings, hosted)
    return replace(resolved, settings=settings), hosted


def read_policy(node: NodeConfig) -> tuple[Policy, str]:
    """Read the policy of a node, and SHA-256 of the very bytes that it was made of.

    The hash is "" if no file is named.

    Raises
    ------
    PolicyError
        The file is missing, unreadable, has unknown keys or wrong values, or asks for
        what no run can give.
    """
    if not is_site(node):
        return OPEN, ""
    if POLICY not in node:
        return Policy(), ""
    path = Path(str(node[POLICY]))
    try:
        if not path.is_absolute():
            raise ConfigError(
                f"node-config {POLICY} must be an absolute path; start the SuperNode"
                f" with --node-config '{POLICY}=\"/etc/fedgraph/policy.toml\"'"
            )
        content = path.read_bytes()
        found = _read(read_toml(path, content))
        budgets = {k for k, v in found.to_config().items() if "epsilon" in k and v}
        if budgets and not node.get("state-dir"):
            raise ConfigError(
                f"{min(budgets)} needs node-config state-dir, where what was spent is"
                " kept; start the SuperNode with --node-config"
                " 'state-dir=\"/abs/path\"'"
            )
    except OSError as error:
        raise PolicyError(
            f"policy {path} cannot be read: {error.strerror}; correct {POLICY} of"
            " --node-config, or let the user of the SuperNode enter the folders above"
            f" it, and read it: chmod 644 {path}"
        ) from error
    except (FedGraphError, ValueError) as error:
        raise PolicyError(f"policy {path}: {error}") from error
    return found, hashlib.sha256(content).hexdigest()


def _read(content: Mapping[str, Any]) -> Policy:
    known = Policy.config_fields()
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            cure = "docs/privacy-details.md says what each key means."
            raise ConfigError(unknown_name("policy key", key, known, cure))
        rule: Rule = known[key].metadata["rule"]
        given: Any = tuple(value) if isinstance(value, list) and value else value
        if not rule.allows(given):
            raise ConfigError(f"{key} must be {rule.describe()}, got {shown(value)}")
        values[known[key].name] = float(given) if rule.kind is float else given
    found = Policy(**values)
    # Of plug-ins the spelling: others may not be there, and none is imported here.
    for name in found.methods:
        if not (is_plugin(name) and split(name)) and name not in METHODS:
            raise ConfigError(unknown_name("method", name, METHODS, "Correct methods."))
    for name in found.datasets:
        if not (is_plugin(name) and split(name)):
            datasets.find_dataset(name)
    _check_sense(found)
    return found


def _check_sense(policy: Policy) -> None:
    """Refuse what would not protect what it seems to, or what no run can meet."""
    for of, what in (("update", "updates"), ("graph", "gradients")):
        names = (f"{of}_noise_min", f"{of}_epsilon_max")
        noise = [policy.key(name) for name in names if getattr(policy, name)]
        has_clip = getattr(policy, f"{of}_clip_max") > 0
        if noise and not has_clip:
            raise ConfigError(
                f"{noise[0]} is set without {of}-clip-max: noise on {what} that"
                " nobody clips bounds nothing; set both"
            )
        if has_clip and not noise:
            raise ConfigError(
                f"{of}-clip-max is set without {of}-noise-min and {of}-epsilon-max: a"
                " run may then take next to no noise; set one of the two, or both"
            )
    if policy.shared_noise and policy.secure_aggregation != "required":
        raise ConfigError(
            f"{policy.key('shared_noise')} = true without secure-aggregation ="
            ' "required": a server could add members of its own, who add no noise; set'
            " both, or neither"
        )
    if not policy.needs_clip:
        return
    for name in ("sealed_only", "pooled_evaluation", "raw_features", "statistics"):
        if getattr(policy, name):
            raise ConfigError(
                f"{policy.key(name)} = true contradicts update-clip-max: with that"
                " nothing leaves but clipped updates with noise; leave one of them out"
            )

"""How a client introduces itself at roll call, and on what else it scores models."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING
from typing import TYPE_CHECKING, Any

import numpy as np

import datasets
from clients.privacy.noisy_views import site_secret
from clients.sealing import KeyRing
from clients.store import ClientStore

from ..agreement import tell_data, tell_plugins
from ..core.attack_settings import SUCCESS, UNTRIGGERED, AttackSettings
from ..core.data import (
    TELLS,
    GraphPartition,
    IntArray,
    hash_federation,
    hash_split,
    measure,
    training_counts,
)
from ..core.errors import ConfigError, DataError
from ..core.logs import log
from ..core.secure_aggregation import KNOWN_BY, MASK_KEY
from ..core.wire import (
    CLASS_COUNT,
    IDENTITY,
    LEFT_OUT,
    RAW_HASH,
    SITE,
    SPLIT_HASH,
    TOLD,
    TRAIN_COUNT,
    WEIGHTS_HASH,
    Parcel,
    Scalar,
    evaluation_key,
)
from ..resolve import Resolved
from .node_config import NodeConfig, is_site, known_by, site_name
from .policy import Policy

if TYPE_CHECKING:
    from clients.base import GraphClient
    from clients.graphs.batching import ClientData


def score_elsewhere(
    resolved: Resolved,
    client: GraphClient[Any],
    reply: Parcel,
    expected: Scalar | None,
    *,
    load: Callable[[int], ClientData],
    is_own: bool,
) -> Parcel:
    """Add the score of the last model on all clients' test sets, if the run wants it.

    Of a model that all clients have, the server knows it from their own scores. There
    is none if the data of a client cannot be loaded, or have changed: that is no
    failure of the others.

    Parameters
    ----------
    client : GraphClient
        Right after the closing evaluation.
    reply : Parcel
        Its answer.
    expected : str, optional
        Hash of all clients' identities, from the server.
    load : callable
        Loads the data of a client.
    is_own : bool
        An operator configured this node, which has no other clients' data.
    """
    partition = client.data.partition
    if is_own:
        check_elsewhere(resolved, partition)
    graphs = partition.graphs
    if not scores_elsewhere(resolved, graphs.widths):
        return reply
    from clients.elsewhere import score_on_all

    identities: dict[int, str] = {}

    def checked(client_id: int) -> ClientData:
        data = load(client_id)
        known = "" if resolved.privacy.is_on else data.partition.data_hash
        identities[client_id] = known
        return data

    try:
        everyone = range(resolved.settings.num_clients)
        found = score_on_all(client, map(checked, everyone))
        if hash_federation(identities) != expected:
            raise DataError("the data of a client are not those that it had before")
    except DataError as error:
        own = client.job.client_id
        log(WARNING, "no score of client %d on all test sets: %s", own, error)
        return reply
    return replace(reply, metrics={**reply.metrics, **found.metrics})


def score_trigger(
    attack: AttackSettings, client: GraphClient[Any], reply: Parcel
) -> Parcel:
    """Add the shares of test graphs that are called target, with and without trigger.

    None if all test graphs are of the target class.
    """
    from clients.elsewhere import score_on_all

    found = {}
    for name, is_in in ((SUCCESS, True), (UNTRIGGERED, False)):
        part = datasets.triggered_test(client.data.partition, attack, is_in=is_in)
        if len(part.test):
            data = client.DATA.collate(part, client.job.device)
            (share,) = score_on_all(client, [data]).metrics.values()
            found[evaluation_key("test", "post_aggregation", name)] = share
    return replace(reply, metrics={**reply.metrics, **found})


def scores_elsewhere(resolved: Resolved, widths: Mapping[str, int]) -> bool:
    """Whether clients score their models on the test sets of all after the last round.

    If all have one whole model, the mean of their own scores says the same.
    """
    if resolved.settings.evaluate_on == "own":
        return False
    from clients.base import start_of  # here: it takes a second

    method = resolved.method
    spec = resolved.spec(**widths)
    return not method.strategy.ONE_MODEL or bool(
        start_of(method.client, spec).private()
    )


def check_elsewhere(resolved: Resolved, partition: GraphPartition) -> None:
    """Refuse, at a site, to evaluate models of single clients or clusters elsewhere."""
    settings, graphs = resolved.settings, partition.graphs
    if not scores_elsewhere(resolved, graphs.widths):
        return
    raise ConfigError(
        f"evaluate-on must be 'own' at sites for method {settings.method!r} with"
        f" shared-group {settings.shared_group!r}, got 'all': models of single clients"
        " or clusters, or the clients' test data, would have to travel to other sites;"
        " set it to 'own', or use a method with one common model and shared-group 'all'"
    )


def identity(
    resolved: Resolved, partition: GraphPartition, store: ClientStore, *, is_own: bool
) -> str:
    """Fingerprint of a client's data; at a private site no guess can be checked by it.

    "" in a private simulation, which has no secret for that.
    """
    if not resolved.privacy.is_on:
        return partition.data_hash
    if not is_own:
        return ""
    return keyed(store, partition.data_hash)


def keyed(store: ClientStore, text: str) -> str:
    """Hash what a client tells with a secret of its site."""
    key = site_secret(store.folder).encode()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def guarded(reply: Parcel, policy: Policy) -> Parcel:
    """Send no hash of a model if only noisy updates may reveal anything of the data.

    A random number stands in its place. Of a hash under a key of the site a server
    would learn whether two are equal, and so whether training has changed a model.
    """
    if WEIGHTS_HASH not in reply.facts or not policy.needs_clip:
        return reply
    return replace(reply, facts={**reply.facts, WEIGHTS_HASH: secrets.token_hex(32)})


def introduce(
    resolved: Resolved,
    partition: GraphPartition,
    store: ClientStore,
    *,
    node: NodeConfig,
    policy: Policy,
) -> Parcel:
    """Say what a client's data look like, as far as its site and the run allow.

    Parameters
    ----------
    partition : GraphPartition
        Of the client.
    store : ClientStore
        Of its private state.
    node : mapping
        Configuration of the node; a site has data of its own.
    policy : Policy
        Of the site.

    Raises
    ------
    PolicyError, DataError
        The site's policy or the run cannot take these data.
    """
    policy.check_data(resolved, partition)
    is_own = is_site(node)
    if is_own:
        check_elsewhere(resolved, partition)
    graphs = partition.graphs
    # A hash of the files would confirm a guess of every edge and label.
    is_private = resolved.privacy.is_on and is_own
    facts = resolved.method.client.introduction(resolved.params, store)
    if resolved.secagg.on:
        ring = KeyRing(store.folder, client_id=store.client_id)
        facts = {**facts, MASK_KEY: ring.public_key, KNOWN_BY: known_by(node)}
    is_summed = resolved.secagg.scores == "sum"
    hides = is_summed or resolved.privacy.hides_labels
    is_hidden = hides and is_own
    facts = {**facts, **tell_data(partition, tells_labels=not is_hidden)}
    facts |= tell_plugins(resolved.plugin)
    if is_private:  # edges that are left out are edges
        facts.pop(LEFT_OUT, None)
    kind, settings = datasets.label_kind(resolved.settings), resolved.settings
    # In a simulation nothing leaves the machine, and units can be compared unasked.
    is_free = not (is_own or resolved.privacy.is_on) and datasets.is_users(settings)
    asks = settings.tell_statistics or (is_free and kind == "regression")
    if asks and policy.statistics:
        is_binary = kind in ("binary", "links")
        facts[TELLS] = measure(partition, is_binary=is_binary).to_json()
    split = hash_split(partition, with_files=not is_private)
    if is_hidden:  # splits keep shares of classes: it would confirm a guess of labels
        split = keyed(store, split)
    by_class: dict[str, int] = {}
    tasks: dict[str, str] = {}
    if partition.tasks:
        tasks["tasks"] = json.dumps(partition.tasks)
        tasks["task-ids"] = json.dumps(partition.owned_tasks)
    weighs = settings.class_weights == "federation" and kind == "binary"
    is_classified = resolved.method.task.has_classes and not graphs.has_tasks
    tells_none = graphs.has_tasks or resolved.privacy.is_on or is_summed
    if policy.pooled_evaluation and not tells_none:
        known = graphs.y[graphs.y >= 0]
        counts = np.bincount(known, minlength=graphs.num_classes)
        by_class = _count(CLASS_COUNT, counts)
    # Scores tell about as much; noise on updates hides labels.
    if weighs or (is_classified and not hides):
        by_class |= _count(TRAIN_COUNT, training_counts(partition))
    return Parcel(
        metrics={
            **by_class,
            "num-train": len(partition.train),
            "num-val": len(partition.val),
            "num-test": len(partition.test),
            **{k.replace("_", "-"): n for k, n in graphs.widths.items() if n},
            "group": partition.group,
        },
        facts={
            SPLIT_HASH: split,
            IDENTITY: identity(resolved, partition, store, is_own=is_own),
            RAW_HASH: "" if is_private else graphs.raw_sha256,
            **tasks,
            **own_name(node),
            **{TOLD + name: text for name, text in facts.items()},
        },
    )


def _count(prefix: str, counts: IntArray) -> dict[str, int]:
    """Name counts by class; of targets those of 0, then those of 1."""
    return {f"{prefix}{k}": int(n) for k, n in enumerate(counts.ravel())}


def own_name(node: NodeConfig) -> dict[str, Scalar]:
    """Name of this site, for the coordinator; nothing if it has none, or a bad one."""
    try:
        name = site_name(node)
    except ConfigError:
        return {}
    return {SITE: name} if name else {}

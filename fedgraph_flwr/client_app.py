"""Flower ClientApp: one message in, one client per parcel of it, one reply.

The node's configuration says which clients it hosts; see ``node_config``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, lru_cache
from logging import WARNING
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log

import datasets
from clients.base import GraphClient
from clients.binding import bind_config, bind_run, check_run
from clients.classic import Header
from clients.graphs.batching import ClientData
from clients.graphs.diffusion_view import CollatedDiffusion
from clients.privacy.noisy_views import site_secret
from clients.privacy.site import PrivateSite, check_features, noisy_partition
from clients.protocols import Diffuses, Introduces, Opens
from clients.store import ClientStore, default_state_dir

from .agreement import tell_data
from .config import MOST_ROUNDS
from .data import GraphPartition, hash_split
from .device import choose_device
from .disclosure import full_reason, public_reason
from .errors import DataError, RunFailedError, WireError
from .node_config import (
    FRESH_START,
    SHARE_EMBEDDINGS,
    NodeConfig,
    agrees,
    check_consent,
    check_identity,
    check_keys,
    edge_budget,
    hosted_clients,
    hosts_any,
    ignored_folders,
    is_site,
    own_folders,
    trusted_peers,
)
from .resolve import Resolved, resolve
from .terminal import log_failure
from .watch import watch
from .wire import (
    CLASS_COUNT,
    LAST_ROUND,
    NO_CLIENTS,
    OPENING,
    SAME_DATA,
    SPENT,
    TOLD,
    Parcel,
    Scalar,
    pack,
    select,
    shortened,
    unpack,
)
from .wording import client_ranges, group_reasons

app = ClientApp(mods=[watch])
_ROUNDS = ("server-round", "keep-from")  # in the header of every message but queries
Answer = Callable[[int, Parcel], Parcel]
Action = Callable[[GraphClient[Any], Parcel, Header], Parcel]
# Node-config of the message being answered; before that is known, as at a site.
_NODE: ContextVar[NodeConfig] = ContextVar("node", default=MappingProxyType({"": ""}))


@app.query()
def query(message: Message, context: Context) -> Message:
    """Roll call: say which clients this node hosts, and what their data look like."""
    if not hosts_any(context.node_config):
        return Message(pack({}, {NO_CLIENTS: True}), reply_to=message)
    try:
        resolved, hosted = _prepare(context)
        experiment = str(unpack(message.content)[1].get("experiment", ""))
        root, config = _root(resolved), resolved.to_config()
        bind_run(root, context.run_id, experiment, config)
        bind_config(root, experiment, config)
    except Exception as error:  # reported to the server, which names the node
        log_failure("this node refused the roll call", error)
        return Message(pack({}, {"error": _reason(error)}), reply_to=message)
    for key in check_keys(context.node_config):
        log(WARNING, "node-config key %r means nothing here, it is ignored", key)
    if ignored := ignored_folders(context.run_config, context.node_config):
        log(
            WARNING,
            "the run sets %s, which mean nothing at this site: its folders come from"
            " its node-config alone",
            ", ".join(ignored),
        )
    tells = agrees(context.node_config, SHARE_EMBEDDINGS)
    parcels = _answer_all(
        hosted,
        {},
        lambda c, _: _introduce(
            resolved,
            c,
            experiment,
            with_classes=tells,
            is_own=is_site(context.node_config),
        ),
    )
    return Message(pack(parcels), reply_to=message)


@app.query(OPENING)
def opening(message: Message, context: Context) -> Message:
    """Before round 1: give what every hosted client's method has others need."""
    return _serve(message, context, _open)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train every hosted client that the message has a parcel for."""
    return _serve(message, context, lambda client, *mail: client.train(*mail))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate every hosted client that the message has a parcel for."""
    return _serve(message, context, lambda client, *mail: client.assess(*mail))


@lru_cache(maxsize=512)
def load_data(
    resolved: Resolved,
    client_id: int,
    device: torch.device,
    site: PrivateSite | None,
) -> ClientData:
    """Load and collate a client's graphs, with the views it needs, once per process.

    Features that tell edges are refused where edges are noisy.

    With ``site`` the graphs are noisy, and those of its experiment. Without it batches
    of a private run have no edges: its method draws noisy views itself.
    """
    settings = resolved.settings
    partition = datasets.load_partition(settings, client_id)
    check_features(partition.graphs, resolved.privacy)
    collate = resolved.method.client.DATA.collate
    if site is not None:
        partition = noisy_partition(partition, site)
    elif resolved.privacy.edge_epsilon > 0:
        bare = replace(partition, graphs=partition.graphs.without_edges())
        return replace(collate(bare, device), partition=partition)
    data = collate(partition, device)
    client = resolved.method.client
    if not issubclass(client, Diffuses):
        return data
    graphs, spec = partition.graphs, client.diffusion(resolved.params)
    edges = datasets.load_diffusion(graphs, spec, cache_dir=settings.cache_dir)
    return replace(data, view=CollatedDiffusion(edges, graphs.node_ptr, device))


def _prepare(context: Context) -> tuple[Resolved, list[int]]:
    _NODE.set(context.node_config)
    resolved, node = resolve(context.run_config), context.node_config
    check_keys(node)
    check_consent(resolved, node)
    check_identity(resolved, node)
    settings = own_folders(resolved.settings, node)
    torch.set_num_threads(settings.torch_threads)
    hosted = hosted_clients(node, settings.num_clients)
    datasets.check_hosted(settings, hosted)
    return replace(resolved, settings=settings), hosted


def _serve(
    message: Message,
    context: Context,
    action: Action,
) -> Message:
    try:
        return _serve_all(message, context, action)
    except Exception as error:  # Flower sends the server its text, whatever it says
        log_failure("this node cannot answer", error)
        raise RunFailedError(_reason(error)) from None


def _serve_all(
    message: Message,
    context: Context,
    action: Action,
) -> Message:
    resolved, hosted = _prepare(context)
    parcels, header = unpack(message.content)
    for name in _ROUNDS:
        _check_round(name, header.get(name))
    if strangers := sorted(set(parcels) - set(hosted)):
        raise WireError(
            f"node hosts clients {hosted}, but got parcels for {strangers}; node-config"
            " changed during the run"
        )

    @cache  # once per message; what is refused is refused to every client
    def bound() -> str:
        # A site that lost its disk, and may begin afresh, has no roll call to remember.
        check = bind_run if _may_restart(context.node_config) else check_run
        root, experiment = _root(resolved), str(header["experiment"])
        check(root, context.run_id, experiment)
        bind_config(root, experiment, resolved.to_config())
        return experiment

    def answer(client_id: int, parcel: Parcel) -> Parcel:
        experiment = bound()
        store = _store(resolved, client_id, experiment)
        is_own = is_site(context.node_config)
        site = resolved.site(
            store, is_secret=is_own, edge_budget=edge_budget(context.node_config)
        )
        _check_memory(resolved, client_id, store, site, parcel)
        client = _make_client(resolved, client_id, store, site, context.node_config)
        try:
            return action(client, parcel, header)
        except Exception as error:  # what it drew before is paid for all the same
            raise _FailedAfterDrawing(client.spent()) from error

    return Message(
        pack(_answer_all(sorted(parcels), parcels, answer)), reply_to=message
    )


def _check_round(name: str, value: Scalar | None) -> None:
    """Refuse what is no round: it names files, and says which are dropped."""
    if type(value) is not int or not 0 <= value <= MOST_ROUNDS + 1:
        raise WireError(
            f"{name} must be a round, from 0 to {MOST_ROUNDS + 1}, got"
            f" {shortened(value)} from the server; both ends must run the same version"
            " of fedgraph_flwr"
        )


def _answer_all(
    ids: list[int], parcels: Mapping[int, Parcel], answer: Answer
) -> dict[int, Parcel]:
    """Answer for each client; one that raises is reported and the others go on."""
    replies: dict[int, Parcel] = {}
    failed: dict[int, Exception] = {}
    # Vanishing gradients become denormal numbers, which CPUs compute 10x slower.
    torch.set_flush_denormal(True)
    for client_id in ids:
        started_at, begin = time.time(), time.perf_counter()
        try:
            reply = answer(client_id, parcels.get(client_id, Parcel()))
        except _FailedAfterDrawing as drawn:
            failed[client_id] = error = drawn.why()
            reply = Parcel(error=_reason(error), metrics=drawn.spent)
        except Exception as error:  # one client's failure is not its neighbours'
            failed[client_id] = error
            reply = Parcel(error=_reason(error))
        timing = {"started-at": started_at, "compute-s": time.perf_counter() - begin}
        replies[client_id] = replace(reply, metrics={**reply.metrics, **timing})
    torch.set_flush_denormal(False)
    reasons = {c: full_reason(error) for c, error in failed.items()}
    for clients, _ in group_reasons(reasons):  # in full, and each reason once
        whose = f"client{'s' * (len(clients) > 1)} {client_ranges(clients)} failed"
        log_failure(whose, failed[clients[0]])
    return replies


class _FailedAfterDrawing(Exception):
    """A client failed, and the server must know what it had spent of its privacy."""

    def __init__(self, spent: Mapping[str, float]) -> None:
        super().__init__()
        self.spent = dict(spent)

    def why(self) -> Exception:
        """Return what was raised."""
        assert isinstance(self.__cause__, Exception)
        return self.__cause__


def _may_restart(node: NodeConfig) -> bool:
    return node.get(FRESH_START) is True


def _make_client(
    resolved: Resolved,
    client_id: int,
    store: ClientStore,
    site: PrivateSite,
    node: NodeConfig,
) -> GraphClient[Any]:
    device = choose_device(resolved.settings.device)
    takes_weights = resolved.method.client.TAKES_WEIGHTS
    is_private = resolved.privacy.edge_epsilon > 0 and not takes_weights
    data = load_data(resolved, client_id, device, site if is_private else None)
    job = resolved.job(data, store, site, device)
    job = replace(job, may_restart=_may_restart(node), trusted=trusted_peers(node))
    return resolved.method.client(job)


def _store(resolved: Resolved, client_id: int, experiment: str) -> ClientStore:
    return ClientStore(_root(resolved), experiment, client_id=client_id)


def _root(resolved: Resolved) -> Path:
    configured = resolved.settings.state_dir
    return Path(configured) if configured else default_state_dir()


def _open(client: GraphClient[Any], _: Parcel, __: Header) -> Parcel:
    if not isinstance(client, Opens):
        raise WireError(
            f"client {client.job.client_id} is asked for an opening, which its method"
            " does not have; both ends must run the same version of fedgraph_flwr"
        )
    return Parcel(arrays=client.opening())


def _check_memory(
    resolved: Resolved,
    client_id: int,
    store: ClientStore,
    site: PrivateSite,
    parcel: Parcel,
) -> None:
    """Refuse to go on with other data, or with less memory, than the server was told.

    Before anything is drawn: an account that was lost and charged anew may say the
    same.
    """
    device = choose_device(resolved.settings.device)
    partition = load_data(resolved, client_id, device, None).partition
    told = parcel.facts.get(SAME_DATA)
    if told and told != _identity(resolved, partition, store, is_own=site.is_secret):
        words = (
            f"data of client {client_id} are not those that it had at roll call, or its"
            " state folder is another: restore both, or start a new run"
        )
        raise DataError(words, public=words)
    if resolved.privacy.is_on:
        site.check_told(
            {name: float(v) for name, v in select(SPENT, parcel.facts).items()},
            partition,
            last_round=int(parcel.facts.get(LAST_ROUND, 0)),
            sends_updates=resolved.method.client.SENDS_UPDATES,
        )


def _identity(
    resolved: Resolved, partition: GraphPartition, store: ClientStore, *, is_own: bool
) -> str:
    """Tell data from others; where they are private, without confirming a guess.

    "" in a private simulation, which has no secret for that.
    """
    if not resolved.privacy.is_on:
        return partition.data_hash
    if not is_own:
        return ""
    return _keyed(store, partition.data_hash)


def _keyed(store: ClientStore, told: str) -> str:
    """Hash what a client tells with a secret of its site."""
    key = site_secret(store.folder).encode()
    return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()


def _introduce(
    resolved: Resolved,
    client_id: int,
    experiment: str,
    *,
    with_classes: bool,
    is_own: bool,
) -> Parcel:
    device = choose_device(resolved.settings.device)
    partition = load_data(resolved, client_id, device, None).partition
    graphs = partition.graphs
    # A hash of the files would confirm a guess of every edge and label.
    is_private = resolved.privacy.is_on and is_own
    store = _store(resolved, client_id, experiment)
    client, told = resolved.method.client, {}
    if issubclass(client, Introduces):
        told = client.introduction(resolved.params, store)
    is_hidden = resolved.privacy.update_clip > 0 and is_site(_NODE.get())
    told = {**told, **tell_data(partition, tells_labels=not is_hidden)}
    split = hash_split(partition, with_files=not is_private)
    if is_hidden:  # splits keep shares of classes: it would confirm a guess of labels
        split = _keyed(store, split)
    by_class: dict[str, int] = {}
    tasks: dict[str, str] = {}
    if partition.tasks:
        tasks["tasks"] = json.dumps(partition.tasks)
        tasks["task-ids"] = json.dumps(partition.owned_tasks)
    if with_classes and not graphs.has_tasks and not resolved.privacy.is_on:
        counts = np.bincount(graphs.y, minlength=graphs.num_classes)
        by_class = {f"{CLASS_COUNT}{k}": int(n) for k, n in enumerate(counts)}
    return Parcel(
        metrics={
            **by_class,
            "num-train": len(partition.train),
            "num-val": len(partition.val),
            "num-test": len(partition.test),
            "num-features": graphs.num_features,
            "num-classes": graphs.num_classes,
            "group": partition.group,
        },
        facts={
            "split-hash": split,
            "identity": _identity(resolved, partition, store, is_own=is_own),
            "raw-sha256": "" if is_private else graphs.raw_sha256,
            **tasks,
            **{TOLD + name: text for name, text in told.items()},
        },
    )


def _reason(error: Exception) -> str:
    """Word an error for the server; at a site without what it says of data."""
    node = _NODE.get()
    if not is_site(node):
        return full_reason(error)
    own = [str(node.get(key, "")) for key in ("data-path", "state-dir", "cache-dir")]
    home = [str(default_state_dir()), str(datasets.cache_root())]
    return public_reason(error, [*own, *home])

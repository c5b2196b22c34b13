"""Flower ClientApp: one message in, one ``NumPyClient`` per hosted client, one reply.

The node's configuration says which clients it hosts; see ``node_config``.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log

import datasets
from clients.base import GraphClient
from clients.batching import ClientData
from clients.privacy.graphs import PrivateSite, check_features, noisy_partition
from clients.store import ClientStore, default_state_dir
from clients.views import CollatedView

from .device import choose_device
from .errors import WireError
from .methods.fedavg import SHARED
from .node_config import (
    SHARE_EMBEDDINGS,
    agrees,
    check_consent,
    check_keys,
    edge_budget,
    hosted_clients,
    is_site,
    own_folders,
)
from .registry import Resolved, resolve
from .wire import (
    CLASS_COUNT,
    OPENING,
    TOLD,
    NamedArrays,
    Parcel,
    Scalar,
    pack,
    select,
    unpack,
    with_prefix,
)

app = ClientApp()
Answer = Callable[[int, Parcel], Parcel]


@app.query()
def query(message: Message, context: Context) -> Message:
    """Roll call: say which clients this node hosts, and what their data look like."""
    try:
        resolved, hosted = _prepare(context)
    except Exception as error:  # reported to the server, which names the node
        log(ERROR, "%s", traceback.format_exc())
        return Message(pack({}, {"error": _reason(error)}), reply_to=message)
    for key in check_keys(context.node_config):
        log(WARNING, "node-config key %r means nothing here, it is ignored", key)
    tells = agrees(context.node_config, SHARE_EMBEDDINGS)
    experiment = str(unpack(message.content)[1].get("experiment", ""))
    parcels = _answer_all(
        hosted,
        {},
        lambda c, _: _introduce(resolved, c, experiment, with_classes=tells),
    )
    return Message(pack(parcels), reply_to=message)


@app.query(OPENING)
def opening(message: Message, context: Context) -> Message:
    """Before round 1: give what every hosted client's method has others need."""
    return _serve(message, context, _open)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run ``fit`` of every hosted client that the message has a parcel for."""
    return _serve(message, context, _fit)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Run ``evaluate`` of every hosted client that the message has a parcel for."""
    return _serve(message, context, _evaluate)


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
    spec = resolved.method.client.diffusion(resolved.params)
    if spec is None:
        return data
    graphs = partition.graphs
    edges = datasets.load_diffusion(graphs, spec, cache_dir=settings.cache_dir)
    return replace(data, view=CollatedView(edges, graphs.node_ptr, device))


def _prepare(context: Context) -> tuple[Resolved, list[int]]:
    resolved, node = resolve(context.run_config), context.node_config
    check_keys(node)
    check_consent(resolved, node)
    settings = own_folders(resolved.settings, node)
    torch.set_num_threads(settings.torch_threads)
    hosted = hosted_clients(node, settings.num_clients)
    datasets.check_hosted(settings, hosted)
    return replace(resolved, settings=settings), hosted


def _serve(
    message: Message,
    context: Context,
    action: Callable[[GraphClient, Parcel, dict[str, Scalar]], Parcel],
) -> Message:
    resolved, hosted = _prepare(context)
    parcels, header = unpack(message.content)
    if strangers := sorted(set(parcels) - set(hosted)):
        raise WireError(
            f"node hosts clients {hosted}, but got parcels for {strangers}; node-config"
            " changed during the run"
        )

    def answer(client_id: int, parcel: Parcel) -> Parcel:
        client = _make_client(
            resolved,
            client_id,
            str(header["experiment"]),
            is_secret=is_site(context.node_config),
            edge_budget=edge_budget(context.node_config),
        )
        try:
            return action(client, parcel, header)
        except Exception as error:  # what it drew before is paid for all the same
            return replace(_failure(client_id, error), metrics=client.spent())

    return Message(
        pack(_answer_all(sorted(parcels), parcels, answer)), reply_to=message
    )


def _answer_all(
    ids: list[int], parcels: Mapping[int, Parcel], answer: Answer
) -> dict[int, Parcel]:
    """Answer for each client; one that raises is reported and the others go on."""
    replies: dict[int, Parcel] = {}
    # Vanishing gradients become denormal numbers, which CPUs compute 10x slower.
    torch.set_flush_denormal(True)
    for client_id in ids:
        started_at, begin = time.time(), time.perf_counter()
        try:
            reply = answer(client_id, parcels.get(client_id, Parcel()))
        except Exception as error:  # one client's failure is not its neighbours'
            reply = _failure(client_id, error)
        timing = {"started-at": started_at, "compute-s": time.perf_counter() - begin}
        replies[client_id] = replace(reply, metrics={**reply.metrics, **timing})
    torch.set_flush_denormal(False)
    return replies


def _failure(client_id: int, error: Exception) -> Parcel:
    """Log what went wrong in full, and tell the reason."""
    log(ERROR, "client %d failed:\n%s", client_id, traceback.format_exc())
    return Parcel(error=_reason(error))


def _make_client(
    resolved: Resolved,
    client_id: int,
    experiment: str,
    *,
    is_secret: bool,
    edge_budget: float = math.inf,
) -> GraphClient:
    device = choose_device(resolved.settings.device)
    store = _store(resolved, client_id, experiment)
    site = resolved.site(store, is_secret=is_secret, edge_budget=edge_budget)
    takes_weights = resolved.method.client.TAKES_WEIGHTS
    is_private = resolved.privacy.edge_epsilon > 0 and not takes_weights
    data = load_data(resolved, client_id, device, site if is_private else None)
    return resolved.method.client(resolved.job(data, store, site, device))


def _store(resolved: Resolved, client_id: int, experiment: str) -> ClientStore:
    configured = resolved.settings.state_dir
    root = Path(configured) if configured else default_state_dir()
    return ClientStore(root, experiment, client_id=client_id)


def _open(client: GraphClient, _: Parcel, __: dict[str, Scalar]) -> Parcel:
    return Parcel(arrays=client.opening())


def _fit(client: GraphClient, parcel: Parcel, header: dict[str, Scalar]) -> Parcel:
    arrays, num_examples, metrics = client.fit(_ordered(client, parcel), dict(header))
    up: NamedArrays = with_prefix(
        client.UPLINK, dict(zip(client.shared_keys, arrays, strict=bool(arrays)))
    )
    up |= client.extra_uplink()
    return _reply(client, up, {"num-examples": num_examples, **metrics})


def _evaluate(client: GraphClient, parcel: Parcel, header: dict[str, Scalar]) -> Parcel:
    _, num_examples, metrics = client.evaluate(_ordered(client, parcel), dict(header))
    return _reply(client, {}, {"num-examples": num_examples, **metrics})


def _ordered(client: GraphClient, parcel: Parcel) -> list[Any]:
    """Shared arrays in the order that the client expects; none at all is allowed."""
    arrays = select(SHARED, parcel.arrays)
    client.extra_downlink = {
        n: a for n, a in parcel.arrays.items() if not n.startswith(SHARED)
    }
    client.notes = parcel.facts
    if arrays and set(arrays) != set(client.shared_keys):
        raise WireError(
            f"got shared arrays {sorted(arrays)}, this model shares"
            f" {sorted(client.shared_keys)}; server and site run different settings"
        )
    return [arrays[n] for n in client.shared_keys] if arrays else []


def _reply(
    client: GraphClient, arrays: NamedArrays, values: Mapping[str, Any]
) -> Parcel:
    numbers = {k: v for k, v in values.items() if not isinstance(v, str | bytes)}
    texts = {k: v for k, v in values.items() if isinstance(v, str)}
    return Parcel(
        arrays=arrays, metrics=numbers, facts=texts, evaluation=client.evaluation
    )


def _introduce(
    resolved: Resolved, client_id: int, experiment: str, *, with_classes: bool
) -> Parcel:
    device = choose_device(resolved.settings.device)
    partition = load_data(resolved, client_id, device, None).partition
    graphs = partition.graphs
    # A hash of the files would confirm a guess of every edge and label.
    is_private = resolved.privacy.is_on
    store = _store(resolved, client_id, experiment)
    told = resolved.method.client.introduction(resolved.params, store)
    by_class: dict[str, int] = {}
    tasks: dict[str, str] = {}
    if partition.tasks:
        tasks["tasks"] = json.dumps(partition.tasks)
        tasks["task-ids"] = json.dumps(partition.owned_tasks)
    if with_classes and not graphs.has_tasks and not is_private:
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
            "split-hash": partition.split_hash,
            "raw-sha256": "" if is_private else graphs.raw_sha256,
            **tasks,
            **{TOLD + name: text for name, text in told.items()},
        },
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

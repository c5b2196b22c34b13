"""Answers a message in five steps: read, ask the clients, gate, write down, send.

The node's configuration says which clients it hosts; see ``node_config``. Each client
is asked for one reply (``node.serve``): it trains, noise covers its update if the run
says so, and its state is stored.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from logging import WARNING

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from typing_extensions import override

from clients.store import bind_config, bind_run, forget

from .core.audit_log import config_hash
from .core.errors import ConfigError, WireError, full_reason
from .core.files import locked, make_folder
from .core.logs import log
from .core.process import choose_device
from .core.secure_aggregation import HAND_IN
from .core.wire import (
    COMPUTE_S,
    EXPERIMENT,
    KEEP_FROM,
    NO_CLIENTS,
    SERVER_ROUND,
    STARTED_AT,
    Parcel,
    pack,
    unpack,
)
from .core.words import shortened
from .node.covering import Cover
from .node.gate import Visit
from .node.introduce import own_name
from .node.message import Watch
from .node.node_config import (
    NodeConfig,
    check_keys,
    hosted_clients,
    hosts_any,
    ignored_folders,
    is_site,
)
from .node.serve import (
    agree,
    bound_to,
    check_round,
    serve,
    settle,
    state_root,
)

_LOCK = "one-message.lock"
_ROUNDS = (SERVER_ROUND, KEEP_FROM)  # in the header of every message but roll call


class SiteApp(ClientApp):
    """A ClientApp all of whose replies pass the gate of their site."""

    @override
    def __call__(self, message: Message, context: Context) -> Message:
        watch, kind = Watch(message, context), message.metadata.message_type
        with watch.warned_once(), ExitStack() as held:
            try:
                visit = watch.read()
                if kind == MessageType.QUERY:
                    return watch.let_out(_roll_call(visit, message, context))
                is_hand_in = kind == HAND_IN
                resolved, hosted = agree(
                    visit, context.run_config, computes=not is_hand_in
                )
                parcels, header = unpack(message.content)
                for name in _ROUNDS:
                    check_round(name, header.get(name))
                if strangers := sorted(set(parcels) - set(hosted)):
                    raise WireError(
                        f"node hosts clients {hosted}, but got parcels for"
                        f" {shortened(strangers)}; node-config changed during the run"
                    )
                if resolved.secagg.on:
                    if is_site(visit.node):  # a past is noted, and covered, in one go
                        make_folder(root := state_root(resolved), is_private=True)
                        held.enter_context(locked(root / _LOCK))
                    # As all ends have it: without a site's own folders.
                    config = (visit.resolved or resolved).to_config()
                    cover = visit.cover = Cover(
                        visit=visit,
                        resolved=resolved,
                        run=context.run_id,
                        config_sha256=config_hash(config),
                        root=state_root(resolved),
                        hosted=hosted,
                    )
                    # In a simulation noise is repeatable, in a resumed run too.
                    if resolved.privacy.update_noise_shared and is_site(visit.node):
                        visit.sum_name = cover.sum_name
                if is_hand_in:  # which pads cover, if there is anything
                    bound_to(kind, context, resolved, header)
                    now = {STARTED_AT: time.time(), COMPUTE_S: 0.0}
                    replies = {c: Parcel(metrics=now) for c in parcels}
                else:
                    replies = serve(visit, kind, context, resolved, parcels, header)
                # What a dry run drew of privacy is spent: its account stays.
                is_dry = resolved.settings.dry_run and not resolved.privacy.is_on
                if kind == MessageType.EVALUATE and is_dry:
                    root, experiment = state_root(resolved), str(header[EXPERIMENT])
                    config = resolved.to_config()
                    forget(root, context.run_id, experiment, config, parcels)
                return watch.let_out(pack(replies))
            except Exception as error:  # Flower sends the text of what is raised
                return watch.refuse(error)


app = SiteApp()


def _roll_call(visit: Visit, message: Message, context: Context) -> RecordDict:
    """Say which clients this node hosts, and what their data look like."""
    named = own_name(visit.node)
    if not hosts_any(visit.node):
        return pack({}, {NO_CLIENTS: _why_none(visit.node), **named})
    resolved, hosted = agree(visit, context.run_config)
    header = unpack(message.content)[1]
    root, experiment = state_root(resolved), str(header.get(EXPERIMENT, ""))
    config = resolved.to_config()
    choose_device(resolved.settings.device)
    bind_run(root, context.run_id, experiment, config)
    bind_config(root, experiment, config)
    for key in check_keys(visit.node):
        log(WARNING, "node-config key %r is ignored: it means nothing here", key)
    if ignored := ignored_folders(context.run_config, visit.node):
        log(
            WARNING,
            "the run sets %s, which mean nothing at this site: its folders come from"
            " its node-config alone",
            ", ".join(ignored),
        )
    parcels = dict.fromkeys(hosted, Parcel())
    replies = serve(visit, MessageType.QUERY, context, resolved, parcels, header)
    settle(hosted)
    return pack(replies, named)


def _why_none(node: NodeConfig) -> str:
    """Say why a node hosts no client, and log it; it may be there for other apps."""
    try:
        check_keys(node)
        hosted_clients(node, 0)
    except ConfigError as error:
        log(WARNING, "this node hosts no client: %s", error)
        return full_reason(error)
    raise AssertionError("this node hosts clients")

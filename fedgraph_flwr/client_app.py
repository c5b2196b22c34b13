"""Answers a message: one client per parcel of it, one reply.

The node's configuration says which clients it hosts; see ``node_config``.
"""

from __future__ import annotations

from functools import lru_cache
from logging import WARNING
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from typing_extensions import override

from clients.store import ClientStore, begin_folder, bind_config, bind_run, forget
from datasets import is_cut

from .core import plugins
from .core.errors import ConfigError, RunFailedError, WireError, full_reason
from .core.process import choose_device, log_failure
from .core.wire import (
    EXPERIMENT,
    KEEP_FROM,
    NO_CLIENTS,
    OPENING,
    SERVER_ROUND,
    Parcel,
    pack,
    unpack,
)
from .core.words import shortened
from .node.gate import visit
from .node.introduce import introduce, own_name
from .node.message import watch
from .node.node_config import (
    NodeConfig,
    check_keys,
    hosted_clients,
    hosts_any,
    ignored_folders,
    is_site,
)
from .node.policy import Policy, agree_at
from .node.serve import (
    Action,
    Asked,
    answer_all,
    assess_one,
    check_round,
    load_data,
    open_one,
    settle,
    state_root,
    train_one,
)
from .resolve import Resolved


class SiteApp(ClientApp):
    """A ClientApp all of whose replies pass the gate of their site."""

    @override
    def __call__(self, message: Message, context: Context) -> Message:
        return watch(message, context, super().__call__)


app = SiteApp()
_ROUNDS = (SERVER_ROUND, KEEP_FROM)  # in the header of every message but queries


@app.query()
def query(message: Message, context: Context) -> Message:
    """Roll call: say which clients this node hosts, and what their data look like."""
    named = own_name(context.node_config)
    if not hosts_any(context.node_config):
        words = {NO_CLIENTS: _why_none(context.node_config), **named}
        return Message(pack({}, words), reply_to=message)
    try:
        resolved, hosted = _prepare(context)
        experiment = str(unpack(message.content)[1].get(EXPERIMENT, ""))
        root, config = state_root(resolved), resolved.to_config()
        device = choose_device(resolved.settings.device)
        bind_run(root, context.run_id, experiment, config)
        bind_config(root, experiment, config)
    except Exception as error:  # reported to the server, which names the node
        log_failure("this node refused the roll call", error)
        words = {"error": full_reason(error), **named}
        return Message(pack({}, words), reply_to=message)
    for key in check_keys(context.node_config):
        log(WARNING, "node-config key %r is ignored: it means nothing here", key)
    if ignored := ignored_folders(context.run_config, context.node_config):
        log(
            WARNING,
            "the run sets %s, which mean nothing at this site: its folders come from"
            " its node-config alone",
            ", ".join(ignored),
        )
    refused: list[ConfigError] = []

    def answer(client_id: int, _: Parcel) -> Parcel:
        if refused:
            raise refused[0].with_traceback(None)
        try:
            data = load_data(resolved, client_id, device, None)
        except ConfigError as error:
            if is_cut(resolved.settings):  # each would load all data, and say the same
                refused.append(error)
            raise
        if resolved.params.is_sealed:
            begin_folder(root, experiment, client_id)
        return introduce(
            resolved,
            data.partition,
            ClientStore(root, experiment, client_id=client_id),
            with_classes=visit().policy.pooled_evaluation,
            is_own=is_site(context.node_config),
        )

    parcels = answer_all(hosted, {}, answer)
    settle(hosted)
    return Message(pack(parcels, named), reply_to=message)


@app.query(OPENING)
def opening(message: Message, context: Context) -> Message:
    """Before round 1: send what each hosted client gives to other clients."""
    return _serve(message, context, open_one)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train every hosted client that the message has a parcel for."""
    return _serve(message, context, train_one)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate every hosted client that the message has a parcel for."""
    reply = _serve(message, context, assess_one)
    resolved, _ = _prepare(context)
    # What a dry run drew of privacy is spent: its account stays.
    if resolved.settings.dry_run and not resolved.privacy.is_on:
        parcels, header = unpack(message.content)
        root, experiment = state_root(resolved), str(header.get(EXPERIMENT, ""))
        forget(root, context.run_id, experiment, resolved.to_config(), parcels)
    return reply


def _why_none(node: NodeConfig) -> str:
    """Say why a node hosts no client, and log it; it may be there for other apps."""
    try:
        check_keys(node)
        hosted_clients(node, 0)
    except ConfigError as error:
        log(WARNING, "this node hosts no client: %s", error)
        return full_reason(error)
    raise AssertionError("this node hosts clients")


@lru_cache(maxsize=8)
def _agreed(
    node: tuple[tuple[str, Any], ...],
    policy: Policy,
    config: tuple[tuple[str, Any], ...],
) -> tuple[Resolved, list[int]]:
    return agree_at(dict(node), policy, dict(config))


def _prepare(context: Context) -> tuple[Resolved, list[int]]:
    node, policy, config = context.node_config, visit().policy, context.run_config
    if plugins.named_in(config):  # whose files are compared with their pins each time
        resolved, hosted = agree_at(node, policy, config)
    else:
        resolved, hosted = _agreed(tuple(node.items()), policy, tuple(config.items()))
    import torch  # here: a message that is refused needs none

    torch.set_num_threads(resolved.settings.torch_threads)
    return resolved, hosted


def _serve(
    message: Message,
    context: Context,
    action: Action,
) -> Message:
    try:
        return _serve_all(message, context, action)
    except Exception as error:  # Flower sends the server its text, whatever it says
        log_failure("this node cannot answer", error)
        raise RunFailedError(full_reason(error)) from None


def _serve_all(
    message: Message,
    context: Context,
    action: Action,
) -> Message:
    resolved, hosted = _prepare(context)
    parcels, header = unpack(message.content)
    for name in _ROUNDS:
        check_round(name, header.get(name))
    if strangers := sorted(set(parcels) - set(hosted)):
        raise WireError(
            f"node hosts clients {hosted}, but got parcels for {shortened(strangers)};"
            " node-config changed during the run"
        )
    replies = Asked(context, resolved, parcels, header, action).replies()
    return Message(pack(replies), reply_to=message)

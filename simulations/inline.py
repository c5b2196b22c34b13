"""The same ServerApp and ClientApp in one process: no Ray, no SuperLink.

For sweeps, breakpoints and tests. Messages are those of a real run, down to the
serialised records; only the transport between the two apps is a function call.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedgraph_flwr.client_entry import app
from fedgraph_flwr.core import flower_names
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.node.resident import RESIDENT
from fedgraph_flwr.node.serve import clear_kept
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.server_app import run

_CLIENT_APP_RAISED = 2  # Flower's error code


def _without_worker(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node-config that lets this process answer, unless it says otherwise."""
    return {RESIDENT: False, **node} if "clients" in node else dict(node)


class InlineGrid(Grid):
    """A Grid whose nodes are contexts in this process.

    The one place that touches what Flower sets on messages in transit.

    Parameters
    ----------
    node_configs : sequence of mapping
        One node-config per node.
    run_config : mapping
        Complete flat run config, as Flower would hand it to the apps.
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: Iterable[Mapping[str, Any]],
        *,
        run_config: Mapping[str, Value],
        run_id: int,
    ) -> None:
        self._app = app
        self._run_id = run_id
        self._contexts = {
            (node := secrets.randbits(63)): Context(
                run_id=run_id,
                node_id=node,
                node_config=_without_worker(config),
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for config in node_configs
        }
        self._replies: dict[str, Message] = {}
        flower_names.pose_as_task(run_id)

    def set_run(self, run: Any) -> None:
        """Do nothing: the run is given to the constructor."""

    @property
    def run(self) -> Any:
        """Do nothing: nothing asks for the run here."""
        raise AttributeError("InlineGrid has no Run")

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Refuse: deprecated in Flower and not offered here."""
        raise AttributeError("use Message(...) instead of grid.create_message")

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the nodes, random as in Flower."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer, one after the other."""
        ids = []
        for message in messages:
            ids.append(flower_names.name_message(message))
            self._replies[ids[-1]] = self.deliver(message)
        return ids

    def deliver(self, message: Message) -> Message:
        """Let a node answer; what it raises becomes an error, as in Flower."""
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._app(message, context)
        except Exception as error:  # as Flower reports it
            text = f"{type(error)}:<'{error}'>\n{traceback.format_exc()}"
            return Message(Error(_CLIENT_APP_RAISED, text), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out the replies that are ready, each once."""
        ready = [i for i in message_ids if i in self._replies]
        return [self._replies.pop(i) for i in ready]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002  calls return at once
    ) -> Iterable[Message]:
        """Push, then pull."""
        return self.pull_messages(self.push_messages(messages))


def run_inline(
    overrides: Mapping[str, Value],
    *,
    num_nodes: int = 1,
    node_configs: Iterable[Mapping[str, Any]] | None = None,
    only: Collection[int] | None = None,
    keep: bool = False,
) -> Path:
    """Run one experiment in this process and return its results folder.

    Parameters
    ----------
    overrides : mapping
        Run-config keys that differ from the defaults.
    num_nodes : int
        Number of simulated nodes.
    node_configs : iterable of mapping, optional
        Node-configs instead of the simulated ones, e.g. ``{"clients": "3,4"}``.
    only : collection of int, optional
        As of :func:`fedgraph_flwr.server_app.run`.
    keep : bool
        Leave in memory what this process keeps of clients.
    """
    run_config = {**defaults(), **overrides}
    resolved = resolve(run_config)
    run_id = secrets.randbits(63)
    nodes = node_configs or [  # as Flower's simulation gives them
        {"partition-id": p, "num-partitions": num_nodes} for p in range(num_nodes)
    ]
    grid = InlineGrid(app, nodes, run_config=run_config, run_id=run_id)
    try:
        return run(grid, resolved, run_id=run_id, only=only)
    finally:  # a later run has other seeds, and would only add to what is kept
        if not keep:
            clear_kept()

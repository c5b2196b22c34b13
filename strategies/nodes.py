"""Which node hosts which client; sending to nodes and waiting for their replies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from logging import INFO

from flwr.app import Error, Message, MessageType
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.errors import DataError, RunFailedError
from fedgraph_flwr.wire import CLASS_COUNT, TOLD, Parcel, pack, unpack

from .report import ClientInfo

_POLL_SHARE = 0.01  # waiting adds at most this share to a round ...
_POLL_S = (0.002, 1.0)  # ... within these bounds


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    timeout_s: float,
    *,
    head_start_s: float = 0.0,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Message]:
    """Send messages and collect replies until all are in or the time is up.

    The first message goes out ``head_start_s`` before the others. ``meanwhile`` is
    called once, when all are out.

    Flower's ``send_and_receive`` sleeps a fixed 0.1 s (simulation) or 3 s
    (deployment) between polls, which dominates short rounds.
    """
    queue = list(messages)
    begin = time.monotonic()
    waiting: set[str] = set()
    if head_start_s:
        waiting |= {i for i in grid.push_messages(queue[:1]) if i}
        queue = queue[1:]
        time.sleep(head_start_s)
    waiting |= {i for i in grid.push_messages(queue) if i}
    meanwhile()
    replies: list[Message] = []
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            replies.append(reply)
        elapsed = time.monotonic() - begin
        if not waiting or elapsed > timeout_s:
            break
        time.sleep(min(max(_POLL_SHARE * elapsed, _POLL_S[0]), _POLL_S[1]))
    return replies


class Directory:
    """The server's table of nodes and clients, filled by roll call.

    Node ids are random numbers that mean nothing across runs; only clients know who
    they are, so the server asks.
    """

    def __init__(self, settings: RunSettings, *, experiment: str = "") -> None:
        self._settings = settings
        self._header = {"experiment": experiment}
        self._infos: dict[int, ClientInfo] = {}
        self._asked: set[int] = set()
        self._known: dict[int, ClientInfo] = {}

    def expect(self, known: dict[int, ClientInfo]) -> None:
        """Refuse clients whose data are not those of a run that is resumed."""
        self._known = known

    def call(self, grid: Grid) -> dict[int, ClientInfo]:
        """Ask nodes until every client is found; see ``AbstractGraphStrategy``."""
        wanted = self._settings.num_clients
        deadline = time.monotonic() + self._settings.roll_call_timeout_s
        while True:
            self._ask_new_nodes(grid)
            missing = sorted(set(range(wanted)) - set(self._infos))
            if not missing:
                break
            if time.monotonic() > deadline:
                raise RunFailedError(
                    f"clients {missing} of {wanted} answered no roll call within"
                    f" {self._settings.roll_call_timeout_s:g} s; {len(self._asked)}"
                    " nodes are connected. Start the missing SuperNodes (node-config"
                    ' clients="..."), set num-supernodes, or lower num-clients'
                )
            time.sleep(0.1)
        log(
            INFO,
            "roll call: %d clients on %d nodes",
            wanted,
            len({i.node_id for i in self._infos.values()}),
        )
        return dict(sorted(self._infos.items()))

    def hosts(self, grid: Grid, clients: Iterable[int]) -> dict[int, list[int]]:
        """Online nodes and, in ascending order, the ``clients`` each of them hosts.

        A client whose node has gone is looked for on nodes that appeared since.
        """
        online = set(grid.get_node_ids())
        if any(self._infos[c].node_id not in online for c in self._infos):
            self._ask_new_nodes(grid)
        table: dict[int, list[int]] = {}
        for client in sorted(clients):
            if (node := self._infos[client].node_id) in online:
                table.setdefault(node, []).append(client)
        return table

    def hosted(self) -> dict[int, list[int]]:
        """Nodes and their clients, ascending."""
        return {n: self.members(n) for n in {i.node_id for i in self._infos.values()}}

    def members(self, node: int) -> list[int]:
        """Clients hosted by a node, ascending."""
        return sorted(c for c, i in self._infos.items() if i.node_id == node)

    def fail(self, node: int, error: Error) -> None:
        """Stop at once where going on cannot succeed: a dead Ray actor.

        The dead actor stays in Ray's pool and fails most later messages.
        """
        if "ActorDied" in str(error.reason):
            raise RunFailedError(
                f"the Ray actor serving node {node} died (clients"
                f" {self.members(node)}): {error.reason}. Most often memory ran out:"
                " raise client-resources-num-cpus so that fewer actors run, or lower"
                " batch-size; then start again with resume set to the results folder"
            )

    def _ask_new_nodes(self, grid: Grid) -> None:
        online = set(grid.get_node_ids())
        new = sorted(online - self._asked)
        if not new:
            return
        self._asked.update(new)
        messages = [
            Message(pack({}, self._header), node, MessageType.QUERY) for node in new
        ]
        replies = exchange(grid, messages, self._settings.roll_call_timeout_s)
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        by_node = {asked[r.metadata.reply_to_message_id]: r for r in replies}
        for node in sorted(by_node):
            self._register(node, by_node[node], online)

    def _register(self, node: int, reply: Message, online: set[int]) -> None:
        if reply.has_error():
            self.fail(node, reply.error)
            raise RunFailedError(
                f"node {node} failed at roll call: {reply.error.reason}"
            )
        parcels, header = unpack(reply.content)
        if error := header.get("error"):
            raise RunFailedError(f"node {node} refused the roll call: {error}")
        for client, parcel in parcels.items():
            if parcel.error:
                raise DataError(f"client {client} is not ready: {parcel.error}")
            known = self._infos.get(client)
            if known is not None and known.node_id in online:
                raise RunFailedError(
                    f"client {client} is claimed by two nodes, {known.node_id} and"
                    f' {node}; give every SuperNode its own clients="..."'
                )
            info = _client_info(client, node, parcel)
            before = self._known.setdefault(client, info)
            if before.to_json() != info.to_json():
                raise DataError(f"client {client} came back with other data")
            self._infos[client] = info


def _client_info(client: int, node: int, parcel: Parcel) -> ClientInfo:
    counts = parcel.metrics
    return ClientInfo(
        client=client,
        node_id=node,
        num_train=int(counts["num-train"]),
        num_val=int(counts["num-val"]),
        num_test=int(counts["num-test"]),
        num_features=int(counts["num-features"]),
        num_classes=int(counts["num-classes"]),
        group=int(counts["group"]),
        split_hash=str(parcel.facts["split-hash"]),
        raw_sha256=str(parcel.facts["raw-sha256"]),
        identity=str(parcel.facts.get("identity", "")),
        tasks=tuple(json.loads(str(parcel.facts.get("tasks", "[]")))),
        task_ids=tuple(json.loads(str(parcel.facts.get("task-ids", "[]")))),
        class_counts=tuple(
            int(n) for k, n in counts.items() if k.startswith(CLASS_COUNT)
        ),
        told={
            k.removeprefix(TOLD): str(v)
            for k, v in parcel.facts.items()
            if k.startswith(TOLD)
        },
    )

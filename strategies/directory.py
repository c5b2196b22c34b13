"""Which node hosts which client: the server's table, filled by roll call."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from typing import Annotated, TypeAlias

from flwr.app import Error, Message, MessageType
from flwr.serverapp import Grid

from fedgraph_flwr.common_fields import COMMON
from fedgraph_flwr.core.checked import at_most, checked
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.errors import (
    DataError,
    FedGraphError,
    RunFailedError,
    WireError,
)
from fedgraph_flwr.core.fields import Field, Kind, Phase, find
from fedgraph_flwr.core.flower_names import simulation
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.process import check_stop
from fedgraph_flwr.core.wire import (
    CLASS_COUNT,
    EXPERIMENT,
    IDENTITY,
    NO_CLIENTS,
    RAW_HASH,
    SITE,
    SPLIT_HASH,
    TOLD,
    TRAIN_COUNT,
    Parcel,
    Records,
    Scalar,
    pack,
    read_header,
    read_parcel,
    records_by_client,
    select,
)
from fedgraph_flwr.core.words import is_site_name, shortened, visible, with_sites

from .round_report import NOWHERE, ClientInfo
from .sending import pause_s

_COUNTS = "num-train", "num-val", "num-test", "num-features", "num-classes", "group"
_SELDOM = "num-edge-features", "num-graph-features"
_Names: TypeAlias = list[Annotated[str, at_most(1000)]]  # of tasks
_MOST_TEXT = 2**20  # characters of all names and texts: every checkpoint holds them
_LASTING = (  # what a client must not change within a run
    *("split_hash", "raw_sha256", "identity", "tasks", "task_ids"),
    *("num_train", "num_val", "num_test", "widths"),
)


def difference(
    known: ClientInfo, now: ClientInfo, fields: tuple[Field, ...] = ()
) -> str:
    """Say how the data of a client that came back differ; "" if they do not.

    An identity that either side does not tell is not compared. ``fields`` are those of
    the method.
    """
    changed = [
        f"{name.replace('_', ' ')} was {shortened(before)}, is {shortened(found)}"
        for name in _LASTING
        if (before := getattr(known, name)) != (found := getattr(now, name))
        and not (name == "identity" and "" in (before, found))
    ]
    declared = (*fields, *COMMON)
    names = {
        name
        for name in {*known.introduced, *now.introduced}
        if not (f := find(declared, Kind.TEXT, TOLD + name)) or f.is_lasting
    }
    if names := {k for k in names if known.introduced.get(k) != now.introduced.get(k)}:
        # Who differs from all others in these would stop them, too.
        both = [
            {k: i.introduced.get(k, "") for k in sorted(names)} for i in (known, now)
        ]
        changed.append(
            f"what it tells was {shortened(both[0])}, is {shortened(both[1])}"
        )
    if not changed:
        return ""
    return (
        f"client {known.client} on node {now.node_id} came back with other data:"
        f" {', '.join(changed)}; restore the data, or start a new run"
    )


def read_introduction(client: int, node: int, parcel: Parcel) -> ClientInfo:
    """Read what a client says of itself.

    Raises
    ------
    WireError
        A number or text is missing, strange, or no such thing.
    """
    counts, facts = parcel.metrics, parcel.facts
    if (length := sum(len(k) + len(str(v)) for k, v in facts.items())) > _MOST_TEXT:
        raise WireError(
            f"its texts and their names have {length} characters, expected at most"
            f" {_MOST_TEXT}"
        )
    if parcel.arrays or parcel.evaluation or len(facts) > 100:
        raise WireError("it sent arrays, or more than 100 facts")
    for kind, named in ((Kind.NUMBER, counts), (Kind.TEXT, facts)):
        for name, value in named.items():
            _check_declared(kind, name, value)
    needed = {*_COUNTS, SPLIT_HASH, RAW_HASH}
    if missing := needed - counts.keys() - facts.keys():
        raise WireError(f"it lacks {sorted(missing)}")
    try:
        tasks = checked(_Names, json.loads(str(facts.get("tasks", "[]"))))
        ids = checked(list[int], json.loads(str(facts.get("task-ids", "[]"))))
    except (ValueError, RecursionError) as error:
        raise WireError(f"its tasks are no lists: {shortened(str(error))}") from error
    if ids != sorted({*ids} & {*range(len(tasks))}):
        raise WireError(f"its task ids are {shortened(ids)}, expected ascending ones")
    by_class = _by_class(counts, CLASS_COUNT, 1)
    trained = _by_class(counts, TRAIN_COUNT, 2 if tasks else 1)
    texts = {name: visible(str(value)) for name, value in facts.items()}
    return ClientInfo(
        client=client,
        node_id=node,
        **{k.replace("-", "_"): int(counts[k]) for k in _COUNTS},
        **{k.replace("-", "_"): int(counts.get(k, 0)) for k in _SELDOM},
        split_hash=texts[SPLIT_HASH],
        raw_sha256=texts[RAW_HASH],
        identity=texts.get(IDENTITY, ""),
        site=texts.get(SITE, ""),
        tasks=tuple(map(visible, tasks)),
        task_ids=tuple(ids),
        class_counts=by_class,
        train_counts=trained,
        introduced=select(TOLD, texts),
    )


def _check_declared(kind: Kind, name: str, value: Scalar) -> None:
    """Refuse a number or text that no client sends at roll call."""
    f = find(COMMON, kind, name)
    if f is None or Phase.ROLL_CALL not in f.phases:
        raise WireError(f"it sent {shortened([name])}")
    is_count = kind is Kind.NUMBER and f.phases == (Phase.ROLL_CALL,)
    if words := f.wrong(value) or (is_count and type(value) is not int and "an int"):
        raise WireError(f"{name} is {shortened(value)}, expected {words}")


def _by_class(
    counts: Mapping[str, int | float], prefix: str, labels: int
) -> tuple[int, ...]:
    """Read counts by class, or of each of the ``labels`` of targets; none if none."""
    found = {k for k in counts if k.startswith(prefix)}
    expected = [f"{prefix}{k}" for k in range(labels * int(counts["num-classes"]))]
    if found and found != {*expected}:
        raise WireError(f"it counts the classes {shortened(sorted(found))}")
    return tuple(int(counts[k]) for k in expected) if found else ()


_PROBE_POLL_S, _ROLL_CALL_POLL_S = 0.05, 0.3
_GRACE_S = 10.0  # how long answers are waited for that may change nothing
_LEAVE_S = 75.0  # until Flower has found that a node is gone: 60 s after a sign of life
_RETRY_S = 1.0  # before a node that gave no answer at roll call is asked again
_MOST_NOTES = 10
_UNKNOWN, _APP_RAISED = 0, 2  # Flower's error codes
_ACTOR_DIED = "<class 'ray.exceptions.ActorDied"


class Directory:
    """The server's table of nodes and clients, filled by roll call.

    Node ids are random numbers that mean nothing across runs; only clients know who
    they are, so the server asks. Until every client of a new run is found, whatever is
    wrong stops the run; later on, and in a resumed run, it is the failure of the
    clients it concerns, and their ``reason``.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        experiment: str = "",
        fields: tuple[Field, ...] = (),
    ) -> None:
        self._settings, self._fields = settings, fields
        self._header = {EXPERIMENT: experiment}
        self._wanted = frozenset(range(settings.num_clients))
        self._infos: dict[int, ClientInfo] = {}  # written by `_enter_client` alone
        self._homes: dict[int, set[int]] = {}  # node -> its clients
        self._is_strict = True
        self._present: set[int] = set()  # nodes that answered and did not vanish since
        self._probes: dict[str, tuple[int, float]] = {}  # unanswered: node, asked when
        self._asked_at: dict[int, float] = {}
        self._refused: set[int] = set()  # nodes whose answer was of no use
        self._rivals: dict[int, ClientInfo] = {}  # of clients that are online elsewhere
        self._late: dict[str, tuple[int, int]] = {}  # unanswered message: node, round
        self._notes: dict[int, str] = {}  # what else nodes answered
        self.refusals: dict[int, str] = {}  # why a client is not let in

    def expect(self, known: Mapping[int, ClientInfo]) -> None:
        """Go on with the clients of a checkpoint; others are refused."""
        self._is_strict = self._is_strict and not known
        self._infos, self._homes = {}, {}
        for client, info in known.items():
            self._enter_client(client, replace(info, node_id=NOWHERE))

    def await_only(self, clients: Iterable[int]) -> None:
        """Wait for these clients alone, as a site does that tries a run by itself."""
        self._wanted &= frozenset(clients)

    def call(self, grid: Grid) -> dict[int, ClientInfo]:
        """Ask nodes until every client is found; see ``AbstractGraphStrategy``."""
        wanted = len(self._wanted)
        begin = time.monotonic()
        deadline = begin + self._settings.roll_call_timeout_s
        grace: float | None = None
        rivals_since: float | None = None
        while True:
            check_stop()
            online = self._look(grid)
            self._probe(grid, self._unasked(online), online)
            missing = self._missing()
            now = time.monotonic()
            rivals_since = (rivals_since or now) if self._open_rivalry() else None
            # Refused clients are waited for too: anybody may claim what is another's.
            if rivals_since is not None:  # by a node that was restarted, perhaps
                if now > min(rivals_since + _LEAVE_S, deadline):
                    raise RunFailedError(self._open_rivalry())
            elif not missing:
                # Others may claim the same clients: wait for what is on its way.
                grace = grace or min(now + _GRACE_S, deadline)
                if not self._probes or now > grace:
                    break
            elif now > deadline:
                break
            time.sleep(pause_s(now - begin, longest_s=_ROLL_CALL_POLL_S))
        if missing:
            self._go_on_without(missing)
        self._is_strict = False
        log(
            INFO,
            "roll call: %d clients on %d nodes",
            wanted - len(missing),
            len({i.node_id for i in self._infos.values()} - {NOWHERE}),
        )
        return dict(sorted(self._infos.items()))

    def hosts(self, grid: Grid, clients: Iterable[int]) -> dict[int, list[int]]:
        """Nodes that are there and, ascending, the ``clients`` each of them hosts.

        A client whose node is not is looked for on nodes that have not answered yet.
        New ones are waited for a while; others give their answer in a later round.
        """
        online = self._look(grid)
        if self._missing():
            # A question as old as a round may be is asked again.
            too_old = time.monotonic() - self._settings.round_timeout_s
            self._probes = {k: p for k, p in self._probes.items() if p[1] > too_old}
            asked = {node for node, _ in self._probes.values()}
            nodes = (online - self._present | online & self._refused) - asked
            new = nodes - set(self._asked_at)
            self._probe(grid, nodes, online)
            until = time.monotonic() + min(_GRACE_S, self._settings.roll_call_timeout_s)
            while self._missing() and time.monotonic() < until:
                if not new & {node for node, _ in self._probes.values()}:
                    break
                time.sleep(_PROBE_POLL_S)
                self._poll(grid, online)
        table: dict[int, list[int]] = {}
        ready = self._present - {node for node, _ in self._late.values()}
        for client in sorted(clients):
            if (node := self._infos[client].node_id) in ready:
                table.setdefault(node, []).append(client)
        return table

    def hosted(self) -> dict[int, list[int]]:
        """Nodes and their clients, ascending."""
        return {node: sorted(c) for node, c in self._homes.items() if c}

    def progress(self) -> str:
        """Say how many of the clients that are waited for are there."""
        found = sum(map(len, self._homes.values()))
        return f"{found} of {len(self._wanted)} clients are there"

    def reason(self, client: int) -> str:
        """Why no message went out to a client."""
        node, refusal = self._infos[client].node_id, self.refusals.get(client, "")
        if since := [number for late, number in self._late.values() if late == node]:
            return f"has not answered since round {since[0]}"
        if refusal:
            return f"{refusal}; no other node answers for it"
        return "its node is offline"

    def leave_out(self, node: int, message: str, server_round: int) -> None:
        """Send a node nothing until it has answered this message of a round."""
        self._late[message] = node, server_round

    def fail(self, node: int, error: Error) -> None:
        """Stop at once if going on cannot succeed: after the death of a Ray actor.

        The dead actor stays in Ray's pool and fails most later messages. Flower tells
        of it with code 0; what apps raise has others, whatever their text. Between
        sites there are no actors, and a node may send any code.
        """
        reason = str(error.reason)
        is_dead = error.code == _UNKNOWN and reason.startswith(_ACTOR_DIED)
        if is_dead and simulation.runs:
            raise RunFailedError(
                f"the Ray actor serving node {node} died (clients"
                f" {sorted(self._homes.get(node, ()))}): {shortened(reason, 2000)}."
                " Most often memory ran out: raise client-resources-num-cpus so that"
                " fewer actors run, or lower batch-size; then start again with resume"
                " set to the results folder"
            )

    # Asking ---------------------------------------------------------------------------

    def _missing(self) -> set[int]:
        """Clients whose node is not online."""
        there = {c for c, i in self._infos.items() if i.node_id in self._present}
        return set(self._wanted - there)

    def _look(self, grid: Grid) -> set[int]:
        """Nodes online; nodes that left are asked again when they come back."""
        online = set(grid.get_node_ids())
        self._present &= online
        # Who comes back may have been mended; nothing that a late reply holds is used.
        self._late = {k: v for k, v in self._late.items() if v[0] in online}
        for reply in grid.pull_messages(list(self._late)) if self._late else ():
            self._late.pop(reply.metadata.reply_to_message_id, None)
        for node in set(self._asked_at) - online:
            del self._asked_at[node]
            self._refused.discard(node)
        self._probes = {k: p for k, p in self._probes.items() if p[0] in online}
        self._poll(grid, online)
        return online

    def _unasked(self, online: set[int]) -> set[int]:
        """Nodes to ask at roll call; without an answer they are asked again later."""
        asked = {node for node, _ in self._probes.values()}
        late = time.monotonic() - _RETRY_S
        return {
            node
            for node in online - self._present - asked - self._refused
            if self._asked_at.get(node, late) <= late
        }

    def _probe(self, grid: Grid, nodes: set[int], online: set[int]) -> None:
        """Ask nodes which clients they host, and take answers that are in at once."""
        if not nodes:
            return
        now = time.monotonic()
        messages = [
            Message(pack({}, self._header), node, MessageType.QUERY)
            for node in sorted(nodes)
        ]
        sent = list(grid.push_messages(messages))
        for message, key in zip(messages, sent, strict=True):
            node = message.metadata.dst_node_id
            self._asked_at[node] = now
            if key:
                self._probes[key] = (node, now)
        self._poll(grid, online)

    def _poll(self, grid: Grid, online: set[int]) -> None:
        """Take in the answers that have come."""
        if self._probes:
            answers: dict[int, Message] = {}
            for reply in grid.pull_messages(list(self._probes)):
                asked = self._probes.pop(reply.metadata.reply_to_message_id, None)
                if asked is not None:
                    answers[asked[0]] = reply
            for node in sorted(answers):
                self._read_answer(node, answers[node], online)
        for client, rival in list(self._rivals.items()):
            home = self._infos[client].node_id
            if home not in online and rival.node_id in self._present:
                del self._rivals[client]
                self._accept(rival, online)

    # Answers --------------------------------------------------------------------------

    def _read_answer(self, node: int, reply: Message, online: set[int]) -> None:
        if reply.has_error():
            self.fail(node, reply.error)
            reason = shortened(str(reply.error.reason), 2000)
            if reply.error.code == _APP_RAISED:
                self._refuse(node, f"node {node} failed at roll call: {reason}")
            else:  # Flower's own, e.g. that the node has just gone: no answer
                self._note(node, f"node {node}: error {reply.error.code}: {reason}")
            return
        try:
            header = read_header(reply.content)
            records_of = records_by_client(reply.content)
        except WireError as error:
            self._refuse(node, f"node {node} answered the roll call strangely: {error}")
            return
        name = str(header.get(SITE, ""))
        place = f"node {node} ({name})" if is_site_name(name) else f"node {node}"
        if "error" in header:
            reason = shortened(header["error"], 2000)
            self._refuse(node, f"{place} refused the roll call: {reason}")
            return
        wanted = range(self._settings.num_clients)
        if strangers := sorted(set(records_of) - set(wanted)):
            self._refuse(
                node,
                f"{place} hosts clients {shortened(strangers)}, but the run has"
                f" num-clients = {len(wanted)}",
            )
            return
        self._present.add(node)
        self._refused.discard(node)
        if not records_of:
            why = header.get(NO_CLIENTS, "")
            self._note(
                node,
                f"{place} hosts no client{f' ({shortened(why, 2000)})' if why else ''}",
            )
        for client, records in records_of.items():
            self._register(client, node, place, records, online)
        for client in sorted(self._homes.get(node, set()) - set(records_of)):
            self._refuse_client(client, f"{place} no longer hosts it", node)

    def _register(
        self, client: int, node: int, place: str, records: Records, online: set[int]
    ) -> None:
        who = f"client {client} on {place}"
        error: FedGraphError
        try:
            parcel = read_parcel(client, records)
            if not parcel.error:
                self._accept(read_introduction(client, node, parcel), online)
                return
            error = DataError(f"{who} is not ready: {parcel.error}")
        except WireError as found:
            error = WireError(
                f"{who} sent a malformed answer to the roll call: {found}; both ends"
                " must run the same version of fedgraph_flwr"
            )
        if self._is_strict:
            raise error
        self._refuse_client(client, str(error), node)

    def _accept(self, info: ClientInfo, online: set[int]) -> None:
        """Take a client in, unless it is online elsewhere or its data have changed."""
        client, known = info.client, self._infos.get(info.client)
        if known is not None:
            if known.node_id not in (NOWHERE, info.node_id) and known.node_id in online:
                self._add_rival(info)
                return
            if words := difference(known, info, self._fields):
                self._refuse_client(client, words, info.node_id)
                return
        self._enter_client(client, info)
        self.refusals.pop(client, None)

    def _enter_client(self, client: int, info: ClientInfo) -> None:
        """Enter a client's data and its node."""
        if (before := self._infos.get(client)) is not None:
            self._homes.get(before.node_id, set()).discard(client)
        self._infos[client] = info
        if info.node_id != NOWHERE:
            self._homes.setdefault(info.node_id, set()).add(client)

    def _add_rival(self, info: ClientInfo) -> None:
        """Keep a claim: the site may be back before its old node was found gone."""
        is_new = info.client not in self._rivals
        self._rivals[info.client] = info
        if is_new:
            words = self._name_rivals(info)
            log(WARNING, "%s; the first counts while it is online", words)

    def _name_rivals(self, info: ClientInfo) -> str:
        homes = [
            with_sites(f"{i.node_id}", [i.client], {i.client: i.site})
            for i in (self._infos[info.client], info)
        ]
        return (
            f"client {info.client} is claimed by two nodes, {' and '.join(homes)};"
            ' give every SuperNode its own clients="..."'
        )

    def _open_rivalry(self) -> str:
        """Say which client of a new run two nodes claim that are both there, or ""."""
        rivals = [i for i in self._rivals.values() if i.node_id in self._present]
        return self._name_rivals(rivals[0]) if self._is_strict and rivals else ""

    def _refuse_client(self, client: int, reason: str, node: int) -> None:
        """Refuse a client, and say so once."""
        known = self._infos.get(client)
        if self.refusals.get(client) != reason:
            sites = {client: known.site} if known else {}
            place = with_sites(f"client {client}", [client], sites)
            log(WARNING, "node %d is refused as %s: %s", node, place, reason)
        self.refusals[client] = reason
        self._refused.add(node)
        if known is not None and known.node_id == node:
            self._enter_client(client, replace(known, node_id=NOWHERE))

    def _refuse(self, node: int, reason: str) -> None:
        """Let no client of a node in, as nothing that it said is of use."""
        if self._is_strict:
            raise RunFailedError(reason)
        self._note(node, reason)
        self._refused.add(node)
        for client in sorted(self._homes.get(node, ())):
            self._refuse_client(client, reason, node)

    def _note(self, node: int, words: str) -> None:
        if self._notes.get(node) != words:
            log(WARNING, "%s", words)
        self._notes[node] = words

    def _go_on_without(self, missing: set[int]) -> None:
        """Go on without clients in a resumed run; fail in a new one."""
        s = self._settings
        wanted = s.num_clients
        reasons = {
            c: self.reason(c) if c in self.refusals else "" for c in sorted(missing)
        }
        sites = {c: i.site for c, i in self._infos.items()}
        enough = math.ceil(s.min_fit_replies * wanted - 1e-9)
        if not self._is_strict and wanted - len(missing) >= enough:
            for client, reason in reasons.items():
                place = with_sites(f"client {client}", [client], sites)
                log(WARNING, "%s is missing: %s", place, reason or "no answer")
            return
        said = [r for r in reasons.values() if r] + list(self._notes.values())
        raise RunFailedError(
            f"{with_sites(f'clients {sorted(missing)}', missing, sites)} of {wanted}"
            " answered no roll call within"
            f" {s.roll_call_timeout_s:g} s; {len(self._asked_at)} nodes are connected."
            f"{''.join(f' {words}.' for words in said[:_MOST_NOTES])} Start the missing"
            ' SuperNodes (node-config clients="..."), restart those that are silent,'
            " set num-supernodes, or lower num-clients"
        )

"""Every message to a site: its policy, its answer, the gate, the audit log, the log.

Simulation has none of them: nobody operates its nodes. Warnings are logged once per
run, at a site even though a new process answers each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from logging import INFO, WARNING, LogRecord, getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType, RecordDict

from clients.store import default_state_dir

from ..core.audit_log import (
    ASKED,
    FILE,
    WARNED,
    AuditLog,
    Entry,
    code_hash,
    config_hash,
    digests,
    name_message,
    now,
    plain,
    read_leniently,
    record_bytes,
    round_of,
)
from ..core.errors import FedGraphError, RunFailedError, StorageError, full_reason
from ..core.logs import log
from ..core.privacy_settings import METRIC as PRIVACY
from ..core.process import log_failure
from ..core.wire import (
    AUDIT_HEAD,
    COMPUTE_S,
    EXPERIMENT,
    NUM_EXAMPLES,
    TRAIN_LOSS,
    Parcel,
    evaluation_key,
    pack,
    select,
    unpack,
)
from .gate import Visit, check_kind, check_size, for_others, let_out
from .introduce import own_name
from .node_config import hosts_any, is_site
from .policy import OPEN, Policy, read_policy, resolve_at

_COUNTS = (NUM_EXAMPLES, "num-train")  # metrics of a reply: to a round, to roll call
_LOGGERS = (getLogger("flwr"), getLogger("flwr.fedgraph"))


# Warnings that this process has let through: of which log and run, and their text.
_given: set[tuple[Path | None, int, str]] = set()


class Watch:
    """One message at a node: its policy is read; a site writes down what is done."""

    def __init__(self, message: Message, context: Context) -> None:
        self._message, self._context = message, context
        self._kind = message.metadata.message_type
        node = context.node_config
        self._is_site, self._policy_sha256 = is_site(node), ""
        # A node that hosts no client of this app serves others, and keeps no log.
        self._audit = None
        if self._is_site and hosts_any(node):
            root = Path(str(node.get("state-dir", "")) or default_state_dir())
            self._audit = AuditLog(root / FILE)
        policy = Policy() if self._is_site else OPEN  # until it is read
        self.visit = Visit(node=node, policy=policy)

    @contextmanager
    def warned_once(self) -> Iterator[None]:
        """Let a warning through if this run has not had it yet, and write it down."""
        audit, run = self._audit, self._context.run_id

        def is_new(record: LogRecord) -> bool:
            if record.levelno != WARNING:
                return True
            note = plain(record.getMessage())
            key = (audit.path if audit else None, run, note)
            if key in _given:
                return False
            _given.add(key)
            line = {"event": WARNED, "run": run, "note": note}
            with suppress(OSError, StorageError):  # rather twice than never
                if audit and any(line.items() <= r.items() for r in audit.records()):
                    return False
                if audit:
                    audit.add([{"time_utc": now(), **line}])
            return True

        for logger in _LOGGERS:
            logger.addFilter(is_new)
        try:
            yield
        finally:
            for logger in _LOGGERS:
                logger.removeFilter(is_new)

    def read(self) -> Visit:
        """Read the policy and, at a site, write down what is asked.

        Raises
        ------
        PolicyError, StorageError
            The policy cannot be used, no policy knows this kind of message, or the
            audit log cannot be written.
        """
        visit = self.visit
        try:
            if self._is_site:
                visit.policy, self._policy_sha256 = read_policy(visit.node)
            check_kind(self._kind)
            if self._is_site:
                with suppress(FedGraphError):  # for which it is refused later
                    config = self._context.run_config
                    visit.resolved = resolve_at(visit.node, visit.policy, config)
        finally:  # what is refused was asked too
            if self._audit:
                self._audit.add([self._asked()])
        return visit

    def let_out(self, made: RecordDict) -> Message:
        """Make the reply of what may leave, once the audit log has it.

        Raises
        ------
        PolicyError, StorageError
            The policy lets nothing out, or the audit log cannot be written.
        """
        content, asked, cover = made, self._message.content, self.visit.cover
        if self._is_site:
            content = let_out(self.visit, self._kind, asked, made)
        if cover:
            content = cover(self._kind, asked, content)
        check_size(self.visit.policy, content)
        if self._audit:
            entries = list(self._entries(made, content))
            head = self._audit.add(entry.to_json() for entry in entries)
            self._tell(entries)
            content.config_records["header"][AUDIT_HEAD] = head
        return Message(content, reply_to=self._message)

    def refuse(self, error: Exception) -> Message:
        """Write down why the whole message is refused; tell others what they may know.

        Raises
        ------
        RunFailedError
            Always, but at roll call: then the reply says why.
        """
        is_call = self._kind == MessageType.QUERY
        what = "refused the roll call" if is_call else "cannot answer"
        log_failure(f"this node {what}", error)
        reason, about = full_reason(error), own_name(self._context.node_config)
        if self._audit:
            entry = Entry(**self._common(), outcome="refused", note=reason)
            self._tell([entry])
            try:
                refused = [e.to_json() for e in self._refused(entry)]
                about[AUDIT_HEAD] = self._audit.add(refused)
            except StorageError as second:
                log(WARNING, "%s", second)
        if self._is_site:
            reason = for_others(reason)
        if is_call:
            return Message(pack({}, {"error": reason, **about}), reply_to=self._message)
        raise RunFailedError(reason) from None

    def _refused(self, entry: Entry) -> list[Entry]:
        """Entries of a refusal: for each client that has an account, what it spent."""
        found = []
        for client, spent in sorted(self.visit.spent.items()):
            before, note = self.visit.before[client], entry.note
            after: Mapping[str, float] = {}
            try:
                after = spent()
            except FedGraphError as error:
                note = f"{note}; what was spent cannot be read: {full_reason(error)}"
            if not (before or after) and note == entry.note:
                continue
            of_client = replace(
                entry,
                client=client,
                spent_before=select(PRIVACY, before),
                spent_after=select(PRIVACY, after),
                note=note,
            )
            found.append(of_client)
        return found or [entry]

    def _tell(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            log(INFO, "%s", plain(entry.line()))

    def _common(self) -> dict[str, Any]:
        header = read_leniently(self._message.content)
        return {
            "time_utc": now(),
            "run": self._context.run_id,
            "experiment": str(header.get(EXPERIMENT, "")),
            "method": str(self._context.run_config.get("method", "")),
            "message": name_message(self._kind),
            "round": round_of(header),
        }

    def _asked(self) -> dict[str, Any]:
        """Line that is written before the message is answered."""
        resolved, received = self.visit.resolved, record_bytes(self._message.content)
        found = {
            "event": ASKED,
            **self._common(),
            "node": self._context.node_id,
            "clients": sorted(set(received) - {-1}),
            "bytes": sum(sum(records.values()) for records in received.values()),
            "config_sha256": config_hash(resolved.to_config()) if resolved else "",
            "code_sha256": code_hash(),
            "policy_sha256": self._policy_sha256,
        }
        return {k: v for k, v in found.items() if v not in (None, "")}

    def _entries(self, made: RecordDict, content: RecordDict) -> Iterator[Entry]:
        """One entry for each client of the reply.

        Scores are those of the reply that was made, before any were withheld.
        """
        measured, _ = unpack(made)
        parcels, _ = unpack(content)
        common = self._common()
        received, sent = record_bytes(self._message.content), record_bytes(content)
        remark = self._remarks()
        hashes = digests(content)
        for client, parcel in parcels.items():
            yield Entry(
                **common,
                client=client,
                received=received.get(client, {}),
                sent=sent.get(client, {}),
                sha256=hashes[client],
                spent_before=select(PRIVACY, self.visit.before.get(client, {})),
                spent_after=select(PRIVACY, parcel.metrics),
                consents=self.visit.consents.get(client, []),
                withheld=self.visit.withheld.get(client, []),
                sum_of=self.visit.sums.get(client, {}),
                seconds=round(parcel.metrics.get(COMPUTE_S, 0.0), 3),
                **self._outcome(parcel, measured[client].metrics),
                note=self.visit.failures.get(client) or remark(client, parcel),
            )

    def _outcome(
        self, parcel: Parcel, metrics: Mapping[str, int | float]
    ) -> dict[str, Any]:
        """Outcome, examples, loss and score of one client."""
        if parcel.error:
            return {"outcome": "failed"}
        resolved = self.visit.resolved
        counts = [int(metrics[name]) for name in _COUNTS if name in metrics]
        found = {
            "outcome": "ok",
            "examples": counts[0] if counts else None,
            "loss": metrics.get(TRAIN_LOSS),
        }
        if resolved is None:
            return found
        metric, split = resolved.method.task.metric, resolved.method.task.headline
        score = metrics.get(evaluation_key(split, "post_aggregation", metric))
        if score is None:
            return found
        return {**found, "metric": metric, "split": split, "score": score}

    def _remarks(self) -> Callable[[int, Parcel], str]:
        """Return what says, of a client and its reply, what the method remarks."""
        resolved = self.visit.resolved
        has_mail = self._kind in (MessageType.TRAIN, MessageType.EVALUATE)
        if not has_mail or resolved is None:
            return lambda *_: ""
        remark, mail = resolved.method.client.remark, unpack(self._message.content)[0]
        return lambda c, sent: remark(mail.get(c, Parcel()).arrays, sent.arrays)

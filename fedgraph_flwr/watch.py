"""What a site's operator sees: a line per message in the log, and the journal.

Simulation has neither: nobody operates its nodes. Warnings are logged once per run, at
a site even though a new process answers each message.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging import INFO, WARNING, Filter, LogRecord, getLogger
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log
from typing_extensions import override

from clients.protocols import Remarks
from clients.store import default_state_dir

from .errors import FedGraphError
from .journal import FILE, WARNED, Entry, Journal, plain
from .node_config import hosts_any, is_site
from .resolve import Resolved, resolve
from .wire import Parcel, read_header, record_sizes, unpack

_NAMES = {"query": "roll call", "query.opening": "opening"}  # of types of messages
_LOSS = "eval/train/post_training/loss"
_COUNTS = ("num-examples", "num-train")  # metrics of a reply: to a round, to roll call
_LOGGERS = (getLogger("flwr"), getLogger("flwr.fedgraph"))


class _OncePerRun(Filter):
    """Lets a warning through if this run has not had it yet."""

    _said: ClassVar[set[tuple[Path | None, int, str]]] = set()  # by this process

    def __init__(self, run: int, journal: Journal | None) -> None:
        super().__init__()
        self._run, self._journal = run, journal

    @override
    def filter(self, record: LogRecord) -> bool:
        """Refuse to repeat a warning; write a new one down."""
        if record.levelno != WARNING:
            return True
        text = record.getMessage()
        key = (self._journal.path if self._journal else None, self._run, text)
        if key in self._said:
            return False
        self._said.add(key)
        return self._journal is None or self._is_new(plain(text), self._journal)

    def _is_new(self, note: str, journal: Journal) -> bool:
        entry = Entry(time_utc=_now(), run=self._run, message=WARNED, note=note)
        try:
            if journal.has_warned(self._run, note):
                return False
            journal.add([entry])
        except (OSError, csv.Error, KeyError):  # rather twice than never
            pass
        return True


@contextmanager
def _warned_once(run: int, journal: Journal | None) -> Iterator[None]:
    once = _OncePerRun(run, journal)
    for logger in _LOGGERS:
        logger.addFilter(once)
    try:
        yield
    finally:
        for logger in _LOGGERS:
            logger.removeFilter(once)


def watch(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """Answer a message, and let the site's operator know: a mod of the ClientApp.

    Parameters
    ----------
    message : Message
    context : Context
    answer : callable
        The rest of the app.
    """
    node = context.node_config
    if not (is_site(node) and hosts_any(node)):
        with _warned_once(context.run_id, None):
            return answer(message, context)
    root = str(node.get("state-dir", "")) or default_state_dir()
    journal = Journal(Path(root) / FILE)
    with _warned_once(context.run_id, journal):
        try:
            reply = answer(message, context)
        except Exception as error:
            _tell(journal, message, context, refusal=str(error))
            raise
        _tell(journal, message, context, reply=reply)
        return reply


def _tell(
    journal: Journal,
    message: Message,
    context: Context,
    *,
    reply: Message | None = None,
    refusal: str = "",
) -> None:
    """Log and write down; what goes wrong here must not cost the server a reply."""
    try:
        entries = list(_entries(message, context, reply, refusal))
        for entry in entries:
            log(INFO, "%s", plain(entry.line()))
        journal.add(entries)
    except Exception as error:
        log(
            WARNING,
            "%s has no line of this message: %s: %s; mend the file or its folder, the"
            " run goes on",
            journal.path,
            type(error).__name__,
            error,
        )


def _entries(
    message: Message, context: Context, reply: Message | None, refusal: str
) -> Iterator[Entry]:
    """One entry for each client of the reply, or one for a message that is refused."""
    header = _header(message.content)
    number = header.get("server-round")
    common: dict[str, Any] = {
        "time_utc": _now(),
        "run": context.run_id,
        "experiment": str(header.get("experiment", "")),
        "method": str(context.run_config.get("method", "")),
        "message": _NAMES.get(message.metadata.message_type)
        or message.metadata.message_type,
        "round": number if type(number) is int else None,
    }
    parcels, about = ({}, {}) if reply is None else unpack(reply.content)
    if reason := refusal or str(about.get("error", "")):
        yield Entry(**common, outcome="refused", note=reason)
        return
    assert reply is not None
    resolved = _resolved(context)
    received, sent = _bytes(message.content), _bytes(reply.content)
    for client, parcel in parcels.items():
        yield Entry(
            **common,
            client=client,
            bytes_received=received.get(client, 0),
            bytes_sent=sent.get(client, 0),
            seconds=round(parcel.metrics.get("compute-s", 0.0), 3),
            **_outcome(resolved, parcel),
            note=parcel.error or _remark(resolved, client, message, parcel),
        )


def _header(content: RecordDict) -> dict[str, Any]:
    try:
        return dict(read_header(content))
    except FedGraphError:  # of a message that was refused for that
        return {}


def _resolved(context: Context) -> Resolved | None:
    try:
        return resolve(context.run_config)
    except FedGraphError:  # each client has failed for that reason, and says so
        return None


def _outcome(resolved: Resolved | None, parcel: Parcel) -> dict[str, Any]:
    """Outcome, examples, loss and score of one client."""
    if parcel.error:
        return {"outcome": "failed"}
    metrics = parcel.metrics
    counts = [int(metrics[name]) for name in _COUNTS if name in metrics]
    found = {
        "outcome": "ok",
        "examples": counts[0] if counts else None,
        "loss": metrics.get(_LOSS),
    }
    if resolved is None:
        return found
    metric, split = resolved.method.task.metric, resolved.method.task.headline
    score = metrics.get(f"eval/{split}/post_aggregation/{metric}")
    if score is None:
        return found
    return {**found, "metric": metric, "split": split, "score": score}


def _remark(
    resolved: Resolved | None, client: int, message: Message, sent: Parcel
) -> str:
    has_mail = message.metadata.message_type in (
        MessageType.TRAIN,
        MessageType.EVALUATE,
    )
    if not has_mail or resolved is None:
        return ""
    if not issubclass(resolved.method.client, Remarks):
        return ""
    parcels, _ = unpack(message.content)
    received = parcels.get(client, Parcel())
    return resolved.method.client.remark(received.arrays, sent.arrays)


def _bytes(content: RecordDict) -> dict[int, int]:
    """Bytes of each client's records."""
    found: dict[int, int] = {}
    for client, _, size in record_sizes(content):
        found[client] = found.get(client, 0) + size
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

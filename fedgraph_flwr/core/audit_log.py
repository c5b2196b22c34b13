"""The audit log of a site or of a server: JSON lines, each with the hash of the last.

A file grows at its end only, by whole lines that are on the disk before a reply leaves.
Every line holds its number (``line``) and, in ``prev``, the SHA-256 of the line before
it; the first one holds ``START``. The hash of the last line is the head of the log.
Whoever knows a head can tell whether anything up to that line was changed since. A line
also holds a random ``salt``: its hash confirms no guess of what else it says.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import math
import os
import secrets
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import FedGraphError, StorageError
from .files import is_there, make_private, project_root, sync
from .wire import SERVER_ROUND, read_header, record_sizes, records_by_client
from .words import shortened

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

FILE = "audit.jsonl"  # of a site's state folder, and of a server's results folder
START = hashlib.sha256(b"fedgraph audit log, version 1").hexdigest()
REPAIR = "repair"  # event of the line that follows one which was cut short
CODE = ("clients", "datasets", "examples", "fedgraph_flwr", "plugins", "strategies")
_LONGEST = 1000  # characters of a text
_TAIL = 2**18  # bytes at the end of a file in which its last line mostly begins
_MOST_TAIL = 2**27  # and in which it must begin
_MOST_LINE = 2**25  # bytes of a line, and one that is cut short may follow
_MOST_PROBLEMS = 50


class AuditLog:
    """A file of chained lines, for the owner's eyes only.

    It is made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, records: Iterable[Mapping[str, Any]]) -> str:
        """Write lines at the end, all of them or none, and return the new head.

        They are on the disk when this returns. Several processes may write at once. A
        line that a crash has cut short is left as it is; the next one says so.

        Raises
        ------
        StorageError
            The file cannot be written, or does not end like an audit log.
        """
        try:
            return self._add(list(records))
        except OSError as error:
            raise StorageError(
                f"the audit log {self.path} cannot be written: {error}; mend the disk"
                " or the folder; a link is not followed. Nothing is answered that is"
                " not written down"
            ) from error

    def _add(self, records: list[Mapping[str, Any]]) -> str:
        make_private(self.path.parent)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(self.path, flags, 0o600), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            number, head, torn, block = _last_line(self.path, file, end)
            if torn:
                number += torn.count(b"\n") + 1
                cut = {"event": REPAIR, "bytes": len(torn), "sha256": _sha256(torn)}
                records = [cut, *records]
            for record in records:
                number += 1
                about = {"line": number, "prev": head, "salt": secrets.token_hex(16)}
                line = _encode({**about, **record})
                if len(line) > _MOST_LINE:
                    raise OSError(f"a line of {len(line)} bytes is too long")
                head = _sha256(line)
                block += line + b"\n"
            try:
                _write_all(file, block)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
            if not end:
                sync(self.path.parent)
        return head

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield what its lines hold, checked by nobody; none if there is no file."""
        if not is_there(self.path):
            return
        with self.path.open("rb") as file:
            for line in file:
                if (record := _parse(line)) is not None:
                    yield record


def _last_line(
    path: Path, file: io.FileIO, end: int, length: int = _TAIL
) -> tuple[int, str, bytes, bytes]:
    """Find number and hash of the last whole line, what follows, how to go on."""
    begin = max(0, end - length)
    file.seek(begin)
    tail = file.readall()
    ending = b"\n" if tail and not tail.endswith(b"\n") else b""
    lines = tail.split(b"\n")
    for at in reversed(range(len(lines))):
        record = _parse(lines[at])
        if record is not None and (at or not begin):
            torn = b"\n".join(lines[at + 1 :]).removesuffix(b"\n")
            return record["line"], _sha256(lines[at]), torn, ending
    if begin and length < _MOST_TAIL:
        return _last_line(path, file, end, 8 * length)
    if end > _TAIL:
        raise StorageError(
            f"{path} does not end like an audit log: its last {end - begin} bytes hold"
            " no line of one; move it away and keep it, a new log begins by itself"
        )
    return 0, START, tail.removesuffix(b"\n"), ending


def _write_all(file: io.FileIO, content: bytes) -> None:
    while content:
        content = content[file.write(content) :]


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(_clean(record), allow_nan=False).encode()


def _clean(value: Any) -> Any:
    """JSON of a value: short texts without control characters, no NaN."""
    if isinstance(value, Mapping):
        return {plain(str(k)): _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return plain(value) if isinstance(value, str) else value


def _parse(line: bytes) -> dict[str, Any] | None:
    """Read a line; None if it is none of an audit log."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or type(record.get("line")) is not int:
        return None
    return record if isinstance(record.get("prev"), str) else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def plain(text: str) -> str:
    """One line without control characters, cut if it is too long for one."""
    line = " ".join(text.split())
    return shortened("".join(c for c in line if c.isprintable()), _LONGEST)


# Reading ----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Checked:
    """An audit log, read and checked.

    Parameters
    ----------
    records : list of dict
        Its lines in order; those that cannot be read are left out.
    hashes : list of str
        SHA-256 of each of them.
    problems : list of str
        What is wrong with the chain, by line.
    notices : list of str
        Lines that a crash cut short, and that the log itself tells of.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self.hashes[-1] if self.hashes else START


def check_log(content: bytes) -> Checked:
    """Check the chain of a log and say which lines are broken.

    It cannot show that the last lines were removed, or that all lines were written
    anew: only somebody who knows a later head can.
    """
    found = Checked()
    *lines, rest = content.split(b"\n")
    head, due, unread = START, 1, []
    for line in lines:
        record = _parse(line)
        if record is None:
            unread.append(line)
            continue
        number = record["line"]
        if problem := _broken(record, head, due, unread, found):
            found.problems.append(problem)
        head, due, unread = _sha256(line), number + 1, []
        found.records.append(record)
        found.hashes.append(head)
        if len(found.problems) == _MOST_PROBLEMS:
            found.problems.append("more is broken; only the first problems are listed")
            return found
    if unread:
        found.problems.append(f"{_lines(due, len(unread))} cannot be read")
    if rest:
        found.problems.append(
            f"line {due + len(unread)} is cut short at the end of the file: by a crash,"
            " or by someone; after a crash the next message adds a line that says so"
        )
    return found


def _broken(
    record: Mapping[str, Any], head: str, due: int, unread: list[bytes], found: Checked
) -> str:
    """Say what is wrong where a line joins those before it; "" if nothing is."""
    number, links = record["line"], record["prev"] == head
    if record.get("event") == REPAIR:
        torn = b"\n".join(unread)
        is_announced = _sha256(torn) == record.get("sha256")
        if unread and is_announced and links and number == due + len(unread):
            found.notices.append(
                f"{_lines(due, len(unread), 'was', 'were')} cut short, by a crash or by"
                f" someone; line {number} says so"
            )
            return ""
        return f"line {number} tells of a line cut short, which does not stand there"
    if unread:
        return f"{_lines(due, len(unread))} cannot be read: changed"
    if links and number == due:
        return ""
    if number > due:
        return f"{_lines(due, number - due, 'is', 'are')} missing before line {number}"
    if number < due:
        return f"line {number} stands after line {due - 1}: moved, or put in"
    if due == 1:
        return "line 1 is not the beginning of a log: it was changed"
    return (
        f"line {due - 1} was changed after it was written: line {number} holds another"
        " hash of it"
    )


def _lines(first: int, count: int, one: str = "", more: str = "") -> str:
    if count == 1:
        return f"line {first} {one}".rstrip()
    return f"lines {first} to {first + count - 1} {more}".rstrip()


# What lines say of messages, runs and code ------------------------------------------


def digests(content: RecordDict, *, of: Container[int] | None = None) -> dict[int, str]:
    """SHA-256 of each client's records in a message, alike before and after travel.

    With ``of``, those of these clients.
    """
    return {
        client: _sha256(
            json.dumps([(k, _identity(records[k])) for k in sorted(records)]).encode()
        )
        for client, records in records_by_client(content).items()
        if of is None or client in of
    }


def _identity(record: ArrayRecord | ConfigRecord | MetricRecord) -> str:
    """Flower's hash of a record: of its type, and of all that is in it."""
    try:
        return record.object_id
    except ValueError:  # an integer too large to travel; only in one process
        return repr(record)


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of a run's definite configuration, as ``config.json`` holds it."""
    return _sha256(json.dumps(dict(config), sort_keys=True).encode())


@lru_cache(maxsize=1)
def code_hash() -> str:
    """SHA-256 of the code that runs: all modules of this app, by name."""
    return hash_modules(CODE)


def hash_modules(folders: Iterable[str], *, without: str = "") -> str:
    """SHA-256 of all modules in folders of this app but one, by name."""
    root, digest = project_root(), hashlib.sha256()
    for path in sorted(p for name in folders for p in (root / name).rglob("*.py")):
        if without and path.is_relative_to(root / without):
            continue
        if not path.exists():  # a link to nothing, by which editors lock a file
            continue
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(root)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


_NAMES = {  # of types of messages
    "query": "roll call",
    "query.opening": "opening",
    "train.hand_in": "hand-in",
}


def name_message(kind: str) -> str:
    """Name a type of message as logs do."""
    return _NAMES.get(kind, kind)


def read_leniently(content: RecordDict) -> dict[str, Any]:
    """Read the header of a message; one that cannot be read is empty."""
    try:
        return dict(read_header(content))
    except FedGraphError:
        return {}


def round_of(header: Mapping[str, Any]) -> int | None:
    """Return the round of a header; None if it names none."""
    number = header.get(SERVER_ROUND)
    return number if type(number) is int else None


def record_bytes(content: RecordDict) -> dict[int, dict[str, int]]:
    """Bytes of each client's records, by kind."""
    found: dict[int, dict[str, int]] = {}
    for client, kind, size in record_sizes(content):
        found.setdefault(client, {})[kind] = size
    return found


def now() -> str:
    """Return the time of a line, in UTC and to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


WARNED, ASKED, ANSWERED = "warning", "asked", "answered"  # events of a site's log
_DONE = {
    "roll call": "answered the roll call with {} training examples",
    "train": "trained on {} examples",
    "evaluate": "evaluated on {} test examples",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line: what a message did with one client.

    Parameters
    ----------
    run : int
        Flower's number of the run, as ``flwr ls`` lists it.
    message : str
        "roll call", "opening", "train", "hand-in" or "evaluate".
    client, round : int, optional
        No client if the whole message was refused; no round at roll call.
    outcome : str
        "ok"; "failed": this client; "refused": the whole message.
    examples : int, optional
        Graphs, or nodes of a graph: of training, of "evaluate" those of the test.
    loss : float, optional
        Mean over the last local epoch.
    metric, split : str
        What ``score`` is stated in, and of which split.
    score : float, optional
        Of the received model, before training.
    received, sent : dict of str to int
        Bytes of the client's records by kind, as in ``ledger.csv`` of the run's
        results.
    sha256 : str
        Of the records that were sent.
    spent_before, spent_after : dict of str to float
        Privacy that the client had spent before and after.
    consents : list of str
        What left that the site had to agree to.
    withheld : list of str
        What the policy kept back.
    sum_of : dict
        Of what sum the update was a part: its members, its label, and how their keys
        were known.
    seconds : float
        Work of the client.
    note : str
        Why it failed; how letters travelled.
    """

    time_utc: str
    run: int
    experiment: str = ""
    method: str = ""
    message: str
    client: int | None = None
    round: int | None = None
    outcome: str = ""
    examples: int | None = None
    loss: float | None = None
    metric: str = ""
    split: str = ""
    score: float | None = None
    received: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    sha256: str = ""
    spent_before: Mapping[str, float] = field(default_factory=dict)
    spent_after: Mapping[str, float] = field(default_factory=dict)
    consents: list[str] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)
    sum_of: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the event for the audit log, without empty fields."""
        found = {
            k: v
            for k, v in asdict(self).items()
            if v or isinstance(v, int | float)  # 0 is told; NumPy's numbers are floats
        }
        return {"event": ANSWERED, **found}

    def line(self) -> str:
        """Describe the event in words, for the log."""
        words = [f"run {self.run}", self.method]
        words += [] if self.client is None else [f"client {self.client}"]
        words += [] if self.round is None else [f"round {self.round}"]
        if self.outcome != "ok":
            return f"{', '.join(words)}: {self.message} {self.outcome}: {self.note}"
        done = _DONE.get(self.message, self.message).format(self.examples)
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        score = f", {self.split} {self.metric} {self.score:.4f}" if self.metric else ""
        received, sent = map(_kilobytes, (self.received, self.sent))
        kept = f"withheld {', '.join(self.withheld)}" if self.withheld else ""
        parts = [
            f"{', '.join(words)}: {done}{loss}{score}",
            *filter(None, [self.note, kept]),
            f"received {received}, sent {sent}",
        ]
        return "; ".join(parts) + f"; {self.seconds:.1f} s"


def _kilobytes(records: Mapping[str, int]) -> str:
    return f"{sum(records.values()) / 1000:.1f} kB"

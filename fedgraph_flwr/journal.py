"""The journal of a site: a row for each message to each of its clients.

It is a CSV file in the site's state folder, which is written to at its end only, whole
lines at a time.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .wire import shortened

FILE = "journal.csv"  # of the state folder
WARNED = "warning"  # in the column "message": what was logged as a warning
_DONE = {
    "roll call": "answered the roll call with {} training examples",
    "train": "trained on {} examples",
    "evaluate": "evaluated on {} test examples",
}
_LONGEST = 1000  # characters of a note


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row: what a message did with one client, or a warning.

    Parameters
    ----------
    time_utc, experiment, method : str
    run : int
        Flower's number of the run, as ``flwr ls`` lists it.
    message : str
        "roll call", "opening", "train" or "evaluate"; or "warning".
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
    bytes_received, bytes_sent : int
        Of the client's parcels, as in ``ledger.csv`` of the run's results.
    seconds : float
        Work of the client.
    note : str
        Why it failed; how letters travelled; the text of a warning.
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
    bytes_received: int = 0
    bytes_sent: int = 0
    seconds: float = 0.0
    note: str = ""

    def line(self) -> str:
        """Say the same in words, for the log."""
        words = [f"run {self.run}", self.method]
        words += [] if self.client is None else [f"client {self.client}"]
        words += [] if self.round is None else [f"round {self.round}"]
        if self.outcome != "ok":
            return f"{', '.join(words)}: {self.message} {self.outcome}: {self.note}"
        done = _DONE.get(self.message, self.message).format(self.examples)
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        score = f", {self.split} {self.metric} {self.score:.4f}" if self.metric else ""
        received, sent = _kilobytes(self.bytes_received), _kilobytes(self.bytes_sent)
        parts = [
            f"{', '.join(words)}: {done}{loss}{score}",
            *filter(None, [self.note]),
            f"received {received}, sent {sent}",
        ]
        return "; ".join(parts) + f"; {self.seconds:.1f} s"


class Journal:
    """A CSV file that grows by whole lines.

    Parameters
    ----------
    path : path
        Made, for the owner's eyes only, with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, entries: Iterable[Entry]) -> None:
        """Write entries at the end: all of them, or none.

        Raises
        ------
        OSError
            A full disk, a read-only folder.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with os.fdopen(os.open(self.path, flags, 0o600), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            try:
                _write_all(file, _start(file, end) + _rows(entries))
            except OSError:
                file.truncate(end)
                raise

    def has_warned(self, run: int, note: str) -> bool:
        """Whether this warning of this run is written down."""
        if not self.path.is_file():
            return False
        with self.path.open(newline="", errors="replace") as file:
            return any(
                row["message"] == WARNED and row["note"] == note
                for row in csv.DictReader(file)
                if row["run"] == str(run)
            )


def _start(file: io.FileIO, end: int) -> bytes:
    """Begin with the names of columns, or on a new line where one was cut short."""
    if not end:
        return (",".join(f.name for f in fields(Entry)) + "\n").encode()
    file.seek(end - 1)
    return b"" if file.read(1) == b"\n" else b"\n"


def _rows(entries: Iterable[Entry]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for entry in entries:
        writer.writerow(
            "" if value is None else plain(value) if isinstance(value, str) else value
            for value in asdict(entry).values()
        )
    return text.getvalue().encode()


def _write_all(file: io.FileIO, content: bytes) -> None:
    while content:
        content = content[file.write(content) :]


def plain(text: str) -> str:
    """One line without control characters, cut where it is too long for one."""
    line = " ".join(text.split())
    return shortened("".join(c for c in line if c.isprintable()), _LONGEST)


def _kilobytes(count: int) -> str:
    return f"{count / 1000:.1f} kB"

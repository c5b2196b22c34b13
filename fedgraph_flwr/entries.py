"""Records what one message did with one client, for the log and the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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
    time_utc, experiment, method : str
    run : int
        Flower's number of the run, as ``flwr ls`` lists it.
    message : str
        "roll call", "opening", "train" or "evaluate".
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

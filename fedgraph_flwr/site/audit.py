"""``fedgraph site audit``: is a log whole, and does it agree with the server's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pandas as pd
import typer

from fedgraph_flwr.core.audit_log import (
    ANSWERED,
    ASKED,
    REPAIR,
    START,
    Checked,
    check_log,
    name_message,
)
from fedgraph_flwr.core.checked import Wrong
from fedgraph_flwr.core.checked import checked as as_written
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import at_most
from fedgraph_flwr.results.progress import ENDED, RECEIVED, RUN

from .findings import AsJson

ROLL_CALL = name_message("query")
_RESTORE = "restore the log from a copy; if there is none, ask who can write to it"
_ASK = "both operators look at that message; each keeps a copy of both logs"
_MOST = 20  # differences of a kind that are listed


def _printable(text: str) -> str:
    if not text.isprintable():  # it could forge a line where it is printed
        raise ValueError("must be printable")
    return text


Text = Annotated[str, _printable]


@dataclass(frozen=True)
class _Sent:
    """What the server got from a client."""

    OPEN: ClassVar[bool] = True

    bytes: int
    sha256: Text


@dataclass(frozen=True)
class Line:
    """What is read of a line of a log; the log may be a stranger's."""

    OPEN: ClassVar[bool] = True

    event: Text = ""
    run: int | None = None
    message: Text = ""
    round: int | None = None
    node: int | None = None
    client: int | None = None
    method: Text = ""
    outcome: Text = ""
    head: Text | None = None
    sha256: Text = ""
    config_sha256: Text = ""
    code_sha256: Text = ""
    sent: Mapping[Text, _Sent | int] = field(default_factory=dict)
    spent_after: Mapping[Text, float] = field(default_factory=dict)
    consents: tuple[Text, ...] = ()

    def is_ours(self) -> bool:
        """Whether this version writes such lines."""
        kind = _Sent if self.event == RECEIVED else int
        has_run = self.run is not None or self.event == REPAIR
        can_be = has_run and 0 <= self.size < 2**63  # sums of others may not print
        return can_be and all(isinstance(v, kind) for v in self.sent.values())

    @property
    def size(self) -> int:
        """Bytes that left a site."""
        return sum(v for v in self.sent.values() if isinstance(v, int))

    def __str__(self) -> str:
        """Say which message it is about."""
        number = "" if self.round is None else f", round {self.round}"
        return f"run {self.run}, {self.message}{number}"


def audit(
    log: Annotated[
        list[Path],
        typer.Argument(
            help="audit.jsonl of a site's state-dir, or of a server's results folder;"
            " of one that was moved away in parts all parts, the oldest first."
        ),
    ],
    *,
    server: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="A copy of the server's audit.jsonl, to compare the site's with.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check that an audit log is whole, and that it agrees with the server's.

    Each line of a log holds the hash of the line before it, so that a line that was
    changed, removed or moved is named. The chain cannot show that the last lines were
    cut off, or that the owner wrote the whole log anew: the server's log can, which
    holds the head that the site told with every reply.
    """
    read = {path: _read(path) for path in log}
    lines = [line for _, found in read.values() for line in found]
    heads = {START}.union(*(checked.hashes for checked, _ in read.values()))
    runs, differences, notices = _runs(lines), list[str](), list[str]()
    if server:
        read[server] = _read(server)
        differences, notices = compare(lines, heads, read[server][1])
    problems = [
        (f"{path}: {words}", _RESTORE)
        for path, (checked, _) in read.items()
        for words in checked.problems
    ]
    problems += [(words, _ASK) for words in differences]
    told = [
        f"{path}: {n}" for path, (checked, _) in read.items() for n in checked.notices
    ]
    told += notices
    if as_json:
        logs = {
            str(path): {"lines": len(read[path][1]), "head": read[path][0].head}
            for path in log
        }
        cured = [{"problem": p, "how_to_fix": cure} for p, cure in problems]
        facts = {"logs": logs, "runs": runs, "problems": cured, "notices": told}
        print(json.dumps(facts, indent=2))
        return 1 if problems else 0
    for path in log:
        checked, found = read[path]
        state = (
            "broken" if checked.problems else "every line holds the hash of the last"
        )
        print(f"{path}: {len(found)} lines, {state}\nhead {checked.head}\n")
    if runs:
        print(f"{_table(runs)}\n")
    for notice in told:
        print(f"note: {notice}")
    for cure in dict.fromkeys(cure for _, cure in problems):
        print(*(f"problem: {words}" for words, of in problems if of == cure), sep="\n")
        print(f"how to fix it: {cure}")
    if not problems:
        print(f"no problem found{f', and agrees with {server}' if server else ''}")
    return 1 if problems else 0


def _read(path: Path) -> tuple[Checked, list[Line]]:
    try:
        checked = check_log(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; name an audit.jsonl"
        ) from error
    lines = []
    for record in checked.records:
        try:
            line = as_written(Line, record)
        except (Wrong, RecursionError):
            line = None
        if line is not None and line.is_ours():
            lines.append(line)
        else:
            strange = f"line {record['line']} holds what this version never writes"
            checked.problems.append(strange)
    return checked, lines


# Two logs ---------------------------------------------------------------------------


def compare(
    site: Sequence[Line], heads: set[str], server: Sequence[Line]
) -> tuple[list[str], list[str]]:
    """Say where a site's lines and the server's differ, and what was not compared.

    Runs and nodes that one log alone knows may be of another server, or other sites.
    Nor is a roll call of a run compared that was refused: the server does not wait for
    further answers. ``heads`` are the hashes of all lines of the site.
    """
    here, there = _runs_of(site, ASKED), _runs_of(server, RUN)
    own, known = _nodes_of(site, ASKED), _nodes_of(server, RECEIVED)
    notices = [
        f"the {whose} log has no line of the {what} {', '.join(map(str, sorted(of)))}:"
        " they were not compared, and are of another server or site, or lines are gone"
        for whose, what, of in (
            ("server's", "runs", here - there),
            ("site's", "nodes", known - own),
        )
        if of
    ]
    refused = {r.run for r in server if r.event == ENDED and r.outcome == "refused"}
    ours, theirs = (
        [r for r in lines if r.message != ROLL_CALL or r.run not in refused]
        for lines in ([r for r in site if r.run in there], server)
    )
    theirs = [r for r in theirs if r.node in own]
    if known and not known & own:
        lost = (
            "the server's log knows none of the nodes that the site's log names: both"
            " are of different sites, or the site's log was written anew"
        )
        return [lost], notices
    found = (
        _unknown_heads(heads, theirs),
        _differing_messages(ours, theirs),
        _differing_replies(ours, theirs),
        _differing_runs(ours, {r.run: r for r in server if r.event == RUN}),
    )
    return [words for of in found for words in _shortened(of)], notices


def _runs_of(lines: Iterable[Line], event: str) -> set[int]:
    return {r.run for r in lines if r.event == event and r.run is not None}


def _nodes_of(lines: Iterable[Line], event: str) -> set[int]:
    return {r.node for r in lines if r.event == event and r.node is not None}


def _shortened(found: Iterable[str]) -> list[str]:
    words = list(found)
    more = len(words) - _MOST
    return words[:_MOST] + ([f"and {more} more of this kind"] if more > 0 else [])


def _unknown_heads(heads: set[str], theirs: Iterable[Line]) -> Iterator[str]:
    for line in theirs:
        if line.head is not None and line.head not in heads:
            yield (
                f"{line}: the site told the server the head {line.head[:12]}, which no"
                " line of its log has: lines were cut off, or the log was written anew"
            )


def _differing_messages(ours: Sequence[Line], theirs: Sequence[Line]) -> Iterator[str]:
    """Name messages that one side writes down and the other does not."""
    known = Counter(str(r) for r in ours if r.event == ASKED)
    asked = Counter(str(r) for r in theirs if r.event == ASKED)
    # The first roll call is known by its answer alone.
    of_site = asked | Counter(str(r) for r in theirs if r.event == RECEIVED)
    no = "log has no such message"
    for message in sorted(of_site - known):
        yield f"{message}: the server asked, the site's {no}"
    for message in sorted(known - of_site):
        yield f"{message}: the site was asked, the server's {no}"


def _differing_replies(ours: Sequence[Line], theirs: Sequence[Line]) -> Iterator[str]:
    """Name replies that are not the same, or that one side alone knows."""
    sent = Counter(
        (str(r), str(r.client), r.size, r.sha256[:12])
        for r in ours
        if r.event == ANSWERED and r.sent
    )
    got = Counter(
        (str(r), client, about.bytes, about.sha256[:12])
        for r in theirs
        for client, about in r.sent.items()
        if isinstance(about, _Sent)
    )
    for one, other, did, whose in (
        (sent, got, "the site sent", "the server's"),
        (got, sent, "the server got", "the site's"),
    ):
        for message, client, size, digest in sorted(one - other):
            yield (
                f"{message}, client {client}: {did} {size} bytes, {digest}, and {whose}"
                " log has no such reply"
            )


def _differing_runs(
    ours: Sequence[Line], stated: dict[int | None, Line]
) -> Iterator[str]:
    asked = [r for r in ours if r.event == ASKED]
    for name, what in (("config_sha256", "configuration"), ("code_sha256", "code")):
        pairs = {(r.run, getattr(r, name), getattr(stated[r.run], name)) for r in asked}
        for run, found, expected in sorted(pairs, key=str):
            if found and found != expected:  # a site that refuses may not have read it
                yield (
                    f"run {run}: the {what} was {found[:12]} at the site and"
                    f" {expected[:12]} at the server"
                )


# What is printed --------------------------------------------------------------------


def _runs(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """One row per run: how often it asked, what left, what it cost."""
    of_run: dict[int | None, list[Line]] = {}
    for line in lines:
        if line.event in (ASKED, ANSWERED):
            of_run.setdefault(line.run, []).append(line)
    rows = []
    for run, found in of_run.items():
        answers = [r for r in found if r.event == ANSWERED]
        spent: dict[str, float] = {}
        for name, value in (item for r in answers for item in r.spent_after.items()):
            if name in ("edge-epsilon", "update-epsilon", "graph-epsilon"):
                spent[name] = max(value, spent.get(name, 0.0))
        row = {
            "run": run,
            "method": found[0].method,
            "messages": len(found) - len(answers),
            "refused_or_failed": sum(r.outcome != "ok" for r in answers),
            "bytes_sent": sum(r.size for r in answers),
            "epsilon": spent,
            "consents": sorted({name for r in answers for name in r.consents}),
        }
        rows.append(row)
    return rows


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    """One line per run, under names of columns."""
    table = pd.DataFrame(runs)
    table["epsilon"] = [
        ", ".join(f"{n.removesuffix('-epsilon')} {at_most(v)}" for n, v in e.items())
        for e in table["epsilon"]
    ]
    table["consents"] = table["consents"].map(", ".join)
    return str(table.replace("", "-").to_string(index=False))

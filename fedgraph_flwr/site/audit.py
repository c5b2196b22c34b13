"""``fedgraph site audit``: is a log whole, and does it agree with the server's."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

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
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import inert
from fedgraph_flwr.core.words import at_most
from fedgraph_flwr.results.progress import ENDED, RECEIVED, RUN

from .findings import AsJson

Key = tuple[Any, ...]
Lines = Sequence[Mapping[str, Any]]
ROLL_CALL = name_message("query")
_RESTORE = "restore the log from a copy; if there is none, ask who can write to it"
_ASK = "both operators look at that message; each keeps a copy of both logs"
_MOST = 20  # differences of a kind that are listed
_DEEPEST = 5  # of tables and lists in a line, one in another
_TABLES = ("received", "sent", "spent_before", "spent_after")
_TYPES: Mapping[type, Iterable[str]] = {
    int: ("run", "round", "node", "client"),
    str: (
        *("event", "message", "method", "head"),
        *("sha256", "config_sha256", "code_sha256"),
    ),
    dict: _TABLES,
    list: ("consents", "withheld"),
}
_COLUMNS = (
    *("time_utc", "run", "experiment", "method", "message", "client", "round"),
    *("outcome", "examples", "loss", "metric", "split", "score"),
    *("received", "sent", "seconds", "consents", "withheld", "note"),
)


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
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Write the site's answers as CSV instead.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check that an audit log is whole, and that it agrees with the server's.

    Each line of a log holds the hash of the line before it, so that a line that was
    changed, removed or moved is named. The chain cannot show that the last lines were
    cut off, or that the owner wrote the whole log anew: the server's log can, which
    holds the head that the site told with every reply.
    """
    logs = {path: _read(path) for path in log}
    read = [*logs.items()]
    if server:
        read.append((server, _read(server)))
    problems = [(f"{path}: {p}", _RESTORE) for path, one in read for p in one.problems]
    notices = [f"{path}: {n}" for path, one in read for n in one.notices]
    if server:
        differences, missing = compare(list(logs.values()), read[-1][1])
        problems += [(words, _ASK) for words in differences]
        notices += missing
    if as_csv:
        _write_csv(logs.values())
    elif as_json:
        print(json.dumps(_summary(logs, problems, notices), indent=2))
    else:
        _print_all(logs, problems, notices, server)
    return 1 if problems else 0


def _read(path: Path) -> Checked:
    try:
        found = check_log(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; name an audit.jsonl"
        ) from error
    strange = [r["line"] for r in found.records if not _is_ours(r)]
    found.records = [r for r in found.records if _is_ours(r)]
    found.problems += [
        f"line {number} holds what this version never writes" for number in strange
    ]
    return found


def _is_ours(record: Mapping[str, Any]) -> bool:
    """Whether what is read of a line has the types that it is written with."""
    if not _is_printable(record) or not all(
        type(record.get(name, kind())) is kind
        for kind, names in _TYPES.items()
        for name in names
    ):
        return False
    if record.get("event") == RECEIVED:
        return all(
            type(v) is dict
            and type(v.get("bytes")) is int
            and type(v.get("sha256")) is str
            for v in record.get("sent", {}).values()
        )
    numbers = [v for k in _TABLES for v in record.get(k, {}).values()]
    has_run = "run" in record or record.get("event") == REPAIR
    return has_run and all(type(v) in (int, float) for v in numbers)


def _is_printable(value: object, depth: int = _DEEPEST) -> bool:
    """Whether no text in it could forge a line where it is printed; or end a reader."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return depth > 0 and all(_is_printable(v, depth - 1) for v in value)
    return not isinstance(value, str) or value.isprintable()


# Two logs ---------------------------------------------------------------------------


def compare(site: list[Checked], server: Checked) -> tuple[list[str], list[str]]:
    """Say where a site's logs and the server's differ, and what was not compared.

    Runs and nodes that one log alone knows may be of another server, or other sites.
    Nor is a roll call compared whose answer the server did not wait for.
    """
    lines = [r for log in site for r in log.records]
    here, there = _named("run", lines, ASKED), _named("run", server.records, RUN)
    own, known = _named("node", lines, ASKED), _named("node", server.records, RECEIVED)
    ours = [r for r in lines if r.get("run") in there]
    theirs = [r for r in server.records if r.get("node") in own]
    ended = [r for r in server.records if r.get("event") == ENDED]
    # The server's log has nothing of the site in these, the site's the roll call alone.
    unreceived = {r["run"] for r in ended if r.get("outcome") == "refused"}
    unreceived &= here & there - {r.get("run") for r in theirs}
    unreceived -= {r["run"] for r in ours if r.get("message", ROLL_CALL) != ROLL_CALL}
    missing = {
        "the server's log has no line of the runs {}: they were not compared, and are"
        " of another server, or their lines are gone": here - there,
        "the site's log has no line of the nodes {}: they were not compared, and are"
        " other sites, or lines of this one are gone": known - own,
        "the server refused the runs {} before this site's answer to the roll call had"
        " come: it was not compared": unreceived,
    }
    notices = [
        words.format(", ".join(map(str, sorted(of))))
        for words, of in missing.items()
        if of
    ]
    if known and not theirs:
        lost = (
            "the server's log knows none of the nodes that the site's log names: both"
            " are of different sites, or the site's log was written anew"
        )
        return [lost], notices
    received = [r for r in ours if r.get("run") not in unreceived]
    found = (
        _unknown_heads(site, theirs),
        _differing_messages(received, theirs),
        _differing_replies(received, theirs),
        _differing_runs(ours, server.records),
    )
    return [words for of in found for words in _shortened(of)], notices


def _named(name: str, records: Lines, event: str) -> set[int]:
    """Return the runs, or nodes, that lines of an event name."""
    return {r[name] for r in records if r.get("event") == event and name in r}


def _shortened(found: Iterable[str]) -> list[str]:
    words = list(found)
    more = len(words) - _MOST
    return words[:_MOST] + ([f"and {more} more of this kind"] if more > 0 else [])


def _unknown_heads(site: list[Checked], theirs: Lines) -> Iterator[str]:
    known = {START, *(h for log in site for h in log.hashes)}
    for line in theirs:
        if (head := line.get("head")) is not None and head not in known:
            yield (
                f"{_words(_key(line))}: the site told the server the head"
                f" {str(head)[:12]}, which no line of its log has: lines were cut off,"
                " or the log was written anew"
            )


def _differing_messages(ours: Lines, theirs: Lines) -> Iterator[str]:
    """Name messages that one side writes down and the other does not."""
    known = Counter(_key(r) for r in ours if r.get("event") == ASKED)
    asked = Counter(_key(r) for r in theirs if r.get("event") == ASKED)
    answered = Counter(_key(r) for r in theirs if r.get("event") == RECEIVED)
    of_site = asked | answered  # the first roll call is known by its answer alone
    no = "log has no such message"
    yield from _only_in(of_site - known, f": the server asked, the site's {no}")
    yield from _only_in(known - of_site, f": the site was asked, the server's {no}")


def _differing_replies(ours: Lines, theirs: Lines) -> Iterator[str]:
    """Name replies that are not the same, or that one side alone knows."""
    sent = Counter(
        (*_key(r), str(r.get("client")), str(r.get("sha256")), sum(r["sent"].values()))
        for r in ours
        if r.get("event") == ANSWERED and "sent" in r
    )
    got = Counter(
        (*_key(r), client, str(about.get("sha256")), about.get("bytes"))
        for r in theirs
        if r.get("event") == RECEIVED
        for client, about in r.get("sent", {}).items()
    )
    yield from _only_in(
        sent - got,
        ", client {0}: the site sent {2} bytes, {1:.12}, and the server's log has no"
        " such reply",
    )
    yield from _only_in(
        got - sent,
        ", client {0}: the server got {2} bytes, {1:.12}, and the site's log has no"
        " such reply",
    )


def _only_in(found: Counter[Key], words: str) -> Iterator[str]:
    for run_id, message, number, *more in sorted(found, key=str):
        yield _words((run_id, message, number)) + words.format(*more)


def _differing_runs(ours: Lines, records: list[dict[str, Any]]) -> Iterator[str]:
    stated = {r["run"]: r for r in records if r.get("event") == RUN}
    seen: set[Key] = set()
    for line in (r for r in ours if r.get("event") == ASKED):
        for name, what in (("config_sha256", "configuration"), ("code_sha256", "code")):
            found, expected = line.get(name), stated[line["run"]].get(name)
            key = (line["run"], name, found)
            # A site that must refuse has not read the configuration.
            if found not in (None, expected) and key not in seen:
                seen.add(key)
                yield (
                    f"run {line['run']}: the {what} was {str(found)[:12]} at the site"
                    f" and {str(expected)[:12]} at the server"
                )


def _key(line: Mapping[str, Any]) -> Key:
    return line.get("run"), line.get("message"), line.get("round")


def _words(key: Key) -> str:
    run_id, message, number = key
    return f"run {run_id}, {message}{'' if number is None else f', round {number}'}"


# What is printed: for people, as JSON and as CSV --------------------------------------


def _summary(
    logs: Mapping[Path, Checked], problems: list[tuple[str, str]], notices: list[str]
) -> dict[str, Any]:
    """Write it all as JSON can."""
    return {
        "logs": {
            str(path): {"lines": len(log.records), "head": log.head}
            for path, log in logs.items()
        },
        "runs": _runs(logs.values()),
        "problems": [{"problem": p, "how_to_fix": cure} for p, cure in problems],
        "notices": notices,
    }


def _runs(logs: Iterable[Checked]) -> list[dict[str, Any]]:
    """One row per run: how often it asked, what left, what it cost."""
    found: dict[Any, dict[str, Any]] = {}
    for line in (r for log in logs for r in log.records):
        if line.get("event") not in (ASKED, ANSWERED):
            continue
        row = found.setdefault(
            line["run"],
            {
                "run": line["run"],
                "method": line.get("method", ""),
                "messages": 0,
                "refused_or_failed": 0,
                "bytes_sent": 0,
                "epsilon": {},
                "consents": [],
            },
        )
        if line["event"] == ASKED:
            row["messages"] += 1
            continue
        row["refused_or_failed"] += line.get("outcome") != "ok"
        row["bytes_sent"] += sum(line.get("sent", {}).values())
        row["consents"] = sorted({*row["consents"], *line.get("consents", [])})
        for name, value in line.get("spent_after", {}).items():
            if name in ("edge-epsilon", "update-epsilon"):
                row["epsilon"][name] = max(value, row["epsilon"].get(name, 0.0))
    return list(found.values())


def _print_all(
    logs: Mapping[Path, Checked],
    problems: list[tuple[str, str]],
    notices: list[str],
    server: Path | None,
) -> None:
    """Print for people and for grep: no line is broken."""
    for path, log in logs.items():
        state = "broken" if log.problems else "every line holds the hash of the last"
        print(f"{path}: {len(log.records)} lines, {state}\nhead {log.head}\n")
    if runs := _runs(logs.values()):
        print(f"{_table(runs)}\n")
    for notice in notices:
        print(f"note: {notice}")
    for cure in dict.fromkeys(cure for _, cure in problems):
        for problem in (words for words, of in problems if of == cure):
            print(f"problem: {problem}")
        print(f"how to fix it: {cure}")
    if not problems:
        agrees = f", and agrees with {server}" if server else ""
        print(f"no problem found{agrees}")


def _table(runs: list[dict[str, Any]]) -> str:
    """One line per run, under names of columns."""
    rows = [
        {
            "run": row["run"],
            "method": row["method"],
            "messages": row["messages"],
            "not ok": row["refused_or_failed"],
            "kB sent": f"{row['bytes_sent'] / 1000:.1f}",
            "epsilon": ", ".join(
                f"{name.removesuffix('-epsilon')} {at_most(value)}"
                for name, value in row["epsilon"].items()
            )
            or "-",
            "consents": ", ".join(row["consents"]) or "-",
        }
        for row in runs
    ]
    return str(pd.DataFrame(rows).to_string(index=False))


def _write_csv(logs: Iterable[Checked]) -> None:
    """Write the answers of a site to stdout, one per row."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for line in (r for log in logs for r in log.records):
        if line.get("event") == ANSWERED:
            writer.writerow(_cell(line.get(name, "")) for name in _COLUMNS)


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return sum(value.values())
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return inert(value)

"""What the command ``audit`` prints: for people, as JSON and as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.audit_log import Checked
from fedgraph_flwr.entries import ANSWERED, ASKED
from fedgraph_flwr.files import inert
from fedgraph_flwr.wording import at_most

_COLUMNS = (
    *("time_utc", "run", "experiment", "method", "message", "client", "round"),
    *("outcome", "examples", "loss", "metric", "split", "score"),
    *("received", "sent", "seconds", "consents", "withheld", "note"),
)


def summary(
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


def print_all(
    logs: Mapping[Path, Checked],
    problems: list[tuple[str, str]],
    notices: list[str],
    server: Path | None,
) -> None:
    """Print for people and for grep: no line is broken."""
    for path, log in logs.items():
        state = "broken" if log.problems else "every line holds the hash of the last"
        print(f"{path}: {len(log.records)} lines, {state}\nhead {log.head}\n")
    for line in _table(_runs(logs.values())):
        print(line)
    for notice in notices:
        print(f"note: {notice}")
    for cure in dict.fromkeys(cure for _, cure in problems):
        for problem in (words for words, of in problems if of == cure):
            print(f"problem: {problem}")
        print(f"how to fix it: {cure}")
    if not problems:
        agrees = f", and agrees with {server}" if server else ""
        print(f"no problem found{agrees}")


def _table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """One line per run, under names of columns; none without runs."""
    rows = [("run", "method", "messages", "not ok", "kB sent", "epsilon", "consents")]
    for row in runs:
        epsilon = ", ".join(
            f"{name.removesuffix('-epsilon')} {at_most(value)}"
            for name, value in row["epsilon"].items()
        )
        counts = (row["messages"], row["refused_or_failed"])
        rows.append(
            (
                *(str(row["run"]), row["method"], *map(str, counts)),
                f"{row['bytes_sent'] / 1000:.1f}",
                epsilon or "-",
                ", ".join(row["consents"]) or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows if runs else []:
        padded = (c.ljust(w) for c, w in zip(cells, widths, strict=True))
        yield "  ".join(padded).rstrip()
    if runs:
        yield ""


def write_csv(logs: Iterable[Checked]) -> None:
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

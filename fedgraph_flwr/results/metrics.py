"""Numbers of a run for monitoring: ``metrics.prom``, in Prometheus's text format.

The textfile collector of node_exporter reads such files. Only sites that have a name
(node-config ``site-name``) have samples of their own.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strategies.base import AbstractGraphStrategy
from strategies.report import RoundReport

from ..wording import clients_by_site

if TYPE_CHECKING:
    from .folder import RunFolder

METRICS = "metrics.prom"
RUNNING, COMPLETED, FAILED = 0, 1, 2
_Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True)
class _Family:
    """One metric, without its prefix, and its samples."""

    name: str
    kind: str  # "gauge" or "counter"
    words: str
    samples: Sequence[_Sample]


def metrics_text(
    folder: RunFolder,
    strategy: AbstractGraphStrategy,
    report: RoundReport | None,
    *,
    status: int = RUNNING,
) -> str:
    """Write the numbers of a run after a round, or at its end.

    Parameters
    ----------
    folder : RunFolder
    strategy : AbstractGraphStrategy
    report : RoundReport or None
        The last round; None if there was none.
    status : int
        ``RUNNING``, ``COMPLETED`` or ``FAILED``.
    """
    s, so_far = folder.resolved.settings, folder.so_far
    run = {"run": folder.run_id}
    about = {**run, "method": s.method, "dataset": s.dataset}
    about["experiment"] = folder.experiment
    moved = [({**run, "direction": d}, so_far.bytes[d]) for d in ("up", "down")]

    def family(name: str, words: str, value: float, kind: str = "gauge") -> _Family:
        return _Family(name, kind, words, [(run, value)])

    states = "0 while the run goes on, 1 completed, 2 failed"
    written = "Unix time at which this file was written"
    lost, lost_now = (
        "Clients that failed, over all rounds",
        "Clients that failed in the",
    )
    families = [
        _Family("run_info", "gauge", "Always 1, with names as labels", [(about, 1)]),
        family("run_status", states, status),
        family("round", "Last completed round", so_far.last_round),
        family("rounds", "Rounds planned", s.num_server_rounds),
        family("updated_timestamp_seconds", written, round(time.time(), 3)),
        family("clients", "Clients of the run", s.num_clients),
        _Family("bytes_total", "counter", "Bytes of messages", moved),
        family("failures_total", lost, len(so_far.failures), "counter"),
        _Family("score", "gauge", "Last mean over clients", _scores(folder, run)),
    ]
    if report is not None:
        families += [
            family("round_seconds", "Wall time of the last round", report.wall_s),
            family("round_failures", f"{lost_now} last round", len(report.failures)),
            *_of_sites(folder, strategy, report, run),
        ]
    return "".join(map(_written, families))


def _scores(folder: RunFolder, run: Mapping[str, str]) -> list[_Sample]:
    """Last mean score on each split, and the one by which rounds are chosen."""
    so_far = folder.so_far
    found: list[_Sample] = []
    tables = dict.fromkeys(so_far.task.splits, so_far.task.metric)
    if so_far.by:
        tables["val" + so_far.by] = so_far.chosen_by()
    for table, metric in tables.items():
        if measured := so_far.tables[table]:
            labels = {**run, "split": table.partition("/")[0], "metric": metric}
            found.append((labels, so_far.mean_score(table, max(measured))))
    return found


def _of_sites(
    folder: RunFolder,
    strategy: AbstractGraphStrategy,
    report: RoundReport,
    run: Mapping[str, str],
) -> Iterable[_Family]:
    failures = Counter(f["client"] for f in folder.so_far.failures)
    rows = {
        site: (
            len(members),
            sum(c in report.failures for c in members),
            sum(failures[c] for c in members),
            max(strategy.last_rounds.get(c, 0) for c in members),
            strategy.load(members),
        )
        for site, members in clients_by_site(strategy.sites).items()
    }
    for column, (name, kind, words) in enumerate(
        (
            ("site_clients", "gauge", "Clients that a site hosts"),
            ("site_round_failures", "gauge", "Its clients that failed in the round"),
            ("site_failures_total", "counter", "Failures of its clients, all rounds"),
            ("site_last_round", "gauge", "Last round in which a site replied"),
            ("site_seconds", "gauge", "Seconds of work of a site's last replies"),
        )
    ):
        samples = [({**run, "site": site}, row[column]) for site, row in rows.items()]
        yield _Family(name, kind, words, samples)


def _written(family: _Family) -> str:
    if not family.samples:
        return ""
    name = f"fedgraph_{family.name}"
    lines = [f"# HELP {name} {family.words}.", f"# TYPE {name} {family.kind}"]
    for labels, value in family.samples:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Escape what would end a label's value: a data set's name is the user's."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)

"""``fedgraph compare``: put runs side by side.

Makes a study of the runs it finds: one table per data set and split, rows paired by
seed, the paper's scores beside ours. Failed and repeated runs are listed on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import click
import typer

from fedgraph_flwr.core.config import RESUME_MAY_CHANGE
from fedgraph_flwr.core.errors import DataError, FedGraphError
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.tasks import (
    AVERAGE_PRECISION,
    CLASS_SCORES,
    OF_COMMONEST,
    OF_MEAN,
)
from fedgraph_flwr.results.reader import blaming
from fedgraph_flwr.results.selection import PROTOCOLS
from fedgraph_flwr.view.gain import draw_gain

from .markup import Report, consoles, markdown, print_terminal, tell_unused
from .tables.captions import make_report
from .tables.frame import (
    HELD_OUT,
    METRICS,
    ON_ALL,
    RULES,
    START,
    at_metric,
    by_row,
    from_run,
    table,
)
from .tables.groups import Group, baseline, group_runs, shared_differences
from .tables.runs import Found, Run, find_runs, nearest_preset, with_settings
from .tables.studies import (
    FOLDER,
    OWN_START,
    Study,
    StudyTable,
    Target,
    load_study,
)

ANY_TASK = "any"
_ALSO = {
    **CLASS_SCORES,
    f"accuracy{OF_COMMONEST}": "commonest class",
    f"mae{OF_MEAN}": "predicted mean",
}


def compare_runs(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="A run's folder, or any above runs."),
    ],
    *,
    rule: Annotated[
        str | None,
        typer.Option(
            click_type=click.Choice(RULES),
            help="Round at which gains and differences are read (else the headline of"
            " the task: best_val for nodes, final for others).",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            click_type=click.Choice(METRICS),
            help="What is compared (else the headline of the task); rounds are chosen"
            " as without it.",
        ),
    ] = None,
    in_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print GitHub tables for docs/.")
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw the gain over self-train per client."),
    ] = None,
) -> int:
    """Compare runs: one table per data set, paired by seed."""
    out, err = consoles()
    rule, metric = rule or "", metric or ""
    runs, problems = usable_runs(find_runs(folders), metric)
    tell_unused(problems, err)
    if not runs:
        raise FedGraphError(
            f"none of the {len(problems)} runs found was completed"
            f"{metric and f' and states {metric}'}; there is nothing to compare"
        )
    with blaming(*(run.path for run in runs)):
        groups = group_runs(runs)
        for group in groups:
            report = compare(group, rule or group.headline, metric)
            if in_markdown:
                out.out(markdown(report), end="\n\n")
            else:
                print_terminal(report, out)
        for path in _draw(groups, figure, rule, metric) if figure else ():
            err.out(f"drawn: {path}")
    return 0


def usable_runs(found: Found, metric: str = "") -> tuple[list[Run], list[str]]:
    """Separate the runs whose scores can be used from the reasons for all others.

    ``metric`` is what they must state; "" is each run's headline.
    """
    runs, problems = [], list(found.left_out)
    for run in found.runs:
        try:
            result, partial = from_run(run, run.method, per_client=True)
            at_metric(result, metric or result["metric"])
        except DataError as error:
            problems.append(str(error))
        else:
            runs.append(run)
            problems += partial
    return runs, problems


def compare(group: Group, rule: str, metric: str = "") -> Report:
    """Word the table of a group of runs.

    Columns and targets are those of a model, the study that names the task of the
    runs, or else any task. Each row is compared with self-train, with FedAvg and, if it
    is known, with its own round 0. ``metric`` is one beside the headline's; "" is the
    headline, and the only one that papers state.
    """
    measured = [
        from_run(run, label, per_client=True)[0]
        for label, runs in group.rows.items()
        for run in runs
    ]
    results = table(at_metric(r, metric or r["metric"]) for r in measured)
    is_headline = all(r["metric"] == metric or not metric for r in measured)
    model = model_of(str(group.runs[0].summary.get("task")))
    targets = {
        # The paper's score stands beside the rule by which runs are compared.
        label: replace(
            target,
            scores={
                rule if m == model.rule else m: v for m, v in target.scores.items()
            },
        )
        for label, runs in group.rows.items()
        if is_headline and (target := _target(model, runs[0])) is not None
    }
    bases = [b for m in ("local", "fedavg") if (b := baseline(group, m))]
    differences = [(row, b) for b in bases for row in group.rows if row != b]
    if model.task != ANY_TASK and START in results and results[START].notna().all():
        differences += [(row, OWN_START) for row in group.rows]
    first = group.runs[0]
    measured_on, usual = (first.summary.get(k) for k in ("split", "metric"))
    shown = StudyTable(
        title=f"{group.dataset}: {measured_on or 'test'} {metric or usual},"
        f" {first.split[2]} clients",
        rows=tuple(group.rows),
        differences=tuple(differences),
        notes=tuple(_notes(group, rule, model)),
    )
    also = {heading: f"{rule}:{m}" for m, heading in _ALSO.items() if is_headline}
    precision, is_rare = CLASS_SCORES[AVERAGE_PRECISION], any(map(_is_rare, group.runs))
    study = replace(
        model,
        rule=rule,
        paper=model.paper if targets else "",
        columns={**model.columns, **also, HELD_OUT: HELD_OUT, ON_ALL: ON_ALL},
        also={precision: also[precision]} if is_rare and is_headline else {},
        targets=targets,
    )
    return make_report(study, shown, by_row(results))


@cache
def model_of(task: str) -> Study:
    """Find the study whose columns and targets runs of a task take over."""
    studies = {(s := load_study(path.stem)).task: s for path in FOLDER.glob("*.toml")}
    return studies.get(task) or studies[ANY_TASK]


def _is_rare(run: Run) -> bool:
    """Whether average precision chooses the run's rounds, as a class is rare."""
    found = run.summary.get("rarest_class")
    return bool(found and found["chooses_by_precision"])


def _target(model: Study, run: Run) -> Target | None:
    """Find the paper's scores of the run's method with these settings."""
    return model.targets.get(with_settings(*_preset(run)))


def _preset(run: Run) -> tuple[str, dict[str, Value]]:
    """Find the nearest preset, and the settings that differ and change results.

    Self-train shares nothing, so that ``shared-group`` says how it begins and no more.
    """
    preset, other = nearest_preset(run.method, run.dataset, run.settings)
    same = RESUME_MAY_CHANGE - {"num-server-rounds"}
    same |= {"shared-group"} if run.method == "local" else set()
    return preset, {k: v for k, v in other.items() if k not in same}


def _notes(group: Group, rule: str, model: Study) -> list[str]:
    notes = [f"rule {rule}: {PROTOCOLS[rule]}."]
    for label, runs in group.rows.items():
        run = runs[0]
        preset, other = _preset(run)
        if preset in model.targets and _target(model, run) is None:
            words = ", ".join(f"{k} {v}" for k, v in sorted(other.items()))
            notes.append(
                f"{label}: the paper has other settings than these runs, {words}; its"
                " scores are left out."
            )
    for key, values in shared_differences(group).items():
        rows: dict[str, list[str]] = {}
        for label, value in values.items():
            rows.setdefault(value, []).append(label)
        words = "; ".join(f"{v} ({', '.join(n)})" for v, n in rows.items())
        notes.append(f"rows differ in {key}: {words}.")
    failures = [r.path.name for r in group.runs if r.summary.get("failures")]
    if failures:
        notes.append(f"runs in which clients failed: {', '.join(failures)}.")
    return notes


def _draw(groups: Sequence[Group], out: Path, rule: str, metric: str) -> list[Path]:
    """Draw the gain over self-train, for each data set a file, for each row a panel."""
    drawn = []
    for group in groups:
        paths = {row: [run.path for run in runs] for row, runs in group.rows.items()}
        alone = paths.pop(baseline(group, "local") or "", [])
        named = f"{out.stem}-{group.dataset.replace(':', '-')}{out.suffix}"
        place = out.with_name(named) if len(groups) > 1 else out
        read_by = rule or group.headline
        if path := draw_gain(paths, alone, place, rule=read_by, metric=metric):
            drawn.append(path)
    if not drawn:
        raise FedGraphError(
            f"{out} was not drawn: no method shares a seed with a self-train run"
            " (method local); add its results folder"
        )
    return drawn

"""``fedgraph compare``: put runs side by side.

Makes a study of the runs it finds: one table per data set, rows paired by seed, the
paper's scores beside ours. Failed and repeated runs are listed on stderr.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated

import click
import pandas as pd
import typer

from fedgraph_flwr.core.config import RESUME_MAY_CHANGE
from fedgraph_flwr.core.errors import DataError, FedGraphError, unknown_name
from fedgraph_flwr.core.tasks import (
    AVERAGE_PRECISION,
    CLASS_SCORES,
    OF_COMMONEST,
    OF_MEAN,
)
from fedgraph_flwr.results.reader import GainUnit, blaming, client_gains
from fedgraph_flwr.results.selection import PROTOCOLS
from fedgraph_flwr.view.curves import gain_figure
from fedgraph_flwr.view.style import save

from .markup import Report, consoles, markdown, print_terminal, tell_unused
from .tables.captions import make_report
from .tables.frame import (
    HELD_OUT,
    METRICS,
    ON_ALL,
    RULES,
    START,
    Row,
    by_row,
    check_alike,
    from_run,
    join_folds,
    merge,
    table,
)
from .tables.runs import (
    Found,
    Run,
    find_runs,
    held_out_of,
    nearest_preset,
    plain_settings,
    with_settings,
)
from .tables.studies import FOLDER, OWN_START, Study, StudyTable, Target, load_study

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
    attacked: Annotated[
        bool, typer.Option("--attacked", help="Read runs under an attack, too.")
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw the gain over self-train per client."),
    ] = None,
) -> int:
    """Compare runs: one table per data set, paired by seed."""
    out, err = consoles()
    groups, problems = group_runs(find_runs(folders, attacked=attacked))
    tell_unused(problems, err)
    if not groups:
        raise FedGraphError(
            f"none of the {len(problems)} runs found was completed; there is nothing to"
            " compare"
        )
    for group in groups:
        with blaming(*(run.path for run in group.runs)):
            report = compare(group, rule or group.headline, metric or "")
        if in_markdown:
            out.out(markdown(report), end="\n\n")
        else:
            print_terminal(report, out)
    for path in _draw(groups, figure, rule, metric or "") if figure else ():
        err.out(f"drawn: {path}")
    return 0


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs on one data set: by row of its table, and their results."""

    dataset: str
    rows: Mapping[str, list[Run]]
    results: pd.DataFrame

    @property
    def runs(self) -> list[Run]:
        """All runs of the group."""
        return [run for runs in self.rows.values() for run in runs]

    @property
    def headline(self) -> str:
        """First rule of the runs' task; the last round if the runs differ in it."""
        rules = {run.headline for run in self.runs}
        return rules.pop() if len(rules) == 1 else "final"

    def baseline(self, method: str) -> str | None:
        """Row of ``method`` with the shortest label; None if the group has none."""
        labels = [n for n, runs in self.rows.items() if runs[0].method == method]
        return min(labels, key=lambda label: (len(label), label), default=None)


def group_runs(found: Found) -> tuple[list[Group], list[str]]:
    """Group the runs that can be used by data set, and say why others cannot.

    Raises
    ------
    FedGraphError
        Runs of one data set differ in data or metric, those of one split seed in the
        split; two runs of one row have the same seeds.
    """
    problems, lines = list(found.left_out), dict[Path, Row]()
    by_dataset: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(found.runs, key=lambda r: (_rank(r.method), r.seed)):
        try:
            lines[run.path], partial = from_run(run, run.method, per_client=True)
        except DataError as error:
            problems.append(str(error))
            continue
        by_dataset[run.dataset].append(run)
        problems += partial
    groups = []
    for dataset, runs in sorted(by_dataset.items()):
        rows = label_rows(runs)
        of_rows = [
            (run, {**lines[run.path], "row": label})
            for label in rows
            for run in rows[label]
        ]
        joined, partial = join_folds(of_rows)
        problems += partial
        if not joined:
            continue
        results = table(joined)
        check_alike(results, ["dataset", "split_seed"], "split_hash")
        check_alike(results, ["dataset"], "metric")
        results = merge(table([]), results)
        groups.append(Group(dataset=dataset, rows=rows, results=results))
    return groups, problems


def _rank(method: str) -> tuple[int, str]:
    """Baselines come first, and the ceiling last."""
    return {"local": 0, "fedavg": 1, "centralized": 3}.get(method, 2), method


def label_rows(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Label each run of a data set with its method and what sets it apart.

    That are the settings that are not the data set's defaults, if runs differ in them
    or they are parameters of the method.
    """
    settings = [(run, run.settings) for run in runs]
    values = defaultdict(set)
    for _, chosen in settings:
        for key, value in chosen.items():
            values[key].add(value)
    rows: dict[str, list[Run]] = defaultdict(list)
    for run, chosen in settings:
        plain = plain_settings(run.method, run.dataset)
        apart = {
            key.rpartition(".")[2]: value
            for key, value in chosen.items()
            if value != plain.get(key)
            and (len(values[key]) > 1 or ("." in key and key in plain))
        }
        rows[with_settings(run.method, apart)].append(run)
    return dict(rows)


def compare(group: Group, rule: str, metric: str = "") -> Report:
    """Word the table of a group of runs.

    Columns and targets are those of a model, the study that names the task of the
    runs, or else any task. Each row is compared with self-train, with FedAvg and, if it
    is known, with its own round 0. ``metric`` is one beside the headline's; "" is the
    headline, and the only one that papers state.
    """
    first = group.runs[0].summary
    usual = str(first.get("metric"))
    metric = "" if metric == usual else metric
    measure = f"{rule}:{metric}" if metric else rule
    if metric and measure not in group.results:
        stated = [
            usual,
            *(m.partition(":")[2] for m in group.results if rule + ":" in m),
        ]
        cure = "Take one of these, or run it again with this version."
        raise FedGraphError(unknown_name("metric", metric or usual, stated, cure))
    model = model_of(str(first.get("task")))
    targets = {
        # The paper's score stands beside the rule by which runs are compared.
        label: replace(
            target,
            scores={
                rule if m == model.rule else m: v for m, v in target.scores.items()
            },
        )
        for label, runs in group.rows.items()
        if not metric and (target := _target(model, runs[0])) is not None
    }
    bases = [b for m in ("local", "fedavg") if (b := group.baseline(m))]
    differences = [(row, b) for b in bases for row in group.rows if row != b]
    starts = group.results.get(START)
    if model.task != ANY_TASK and starts is not None and starts.notna().all():
        differences += [(row, OWN_START) for row in group.rows]
    shown = StudyTable(
        title=f"{group.dataset}: {first.get('split') or 'test'} {metric or usual},"
        f" {first['num_clients']} clients",
        rows=tuple(group.rows),
        differences=tuple(differences),
        notes=tuple(_notes(group, rule)),
    )
    columns, also = dict(model.columns), {h: f"{rule}:{m}" for m, h in _ALSO.items()}
    tail = f":{metric}" if metric else ""
    if metric:
        rules = {r: r + tail for r in (rule, *RULES)}
        columns, also = {"seeds": "seeds", "rounds": "rounds", **rules}, {}
    precision, is_rare = CLASS_SCORES[AVERAGE_PRECISION], any(map(_is_rare, group.runs))
    study = replace(
        model,
        rule=measure,
        held_out=held_out_of(first["config"]) or model.held_out,
        paper=model.paper if targets else "",
        columns={**columns, **also, HELD_OUT: HELD_OUT + tail, ON_ALL: ON_ALL},
        also={precision: also[precision]} if is_rare and not metric else {},
        targets=targets,
    )
    return make_report(study, shown, by_row(group.results))


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
    """Find the paper's scores of the run's method with these settings.

    Self-train shares nothing, so that ``shared-group`` says how it begins and no more.
    """
    preset, other = nearest_preset(run.method, run.dataset, run.settings)
    same = RESUME_MAY_CHANGE - {"num-server-rounds"}
    same |= {"shared-group"} if run.method == "local" else set()
    differ = {k: v for k, v in other.items() if k not in same}
    return model.targets.get(with_settings(preset, differ))


def _notes(group: Group, rule: str) -> list[str]:
    notes = [f"rule {rule}: {PROTOCOLS[rule]}."]
    if (folds := max(run.fold[1] for run in group.runs)) > 1:
        notes.append(
            f"a score is the mean of {folds} folds, which share training data."
        )
        found = [run.summary.get(rule) or {} for run in group.runs]
        also = [scores.get("also_per_client") or {} for scores in found]
        names = {name for of_run in also for name in of_run}
        if few := [n for n in names if len({len(a.get(n, ())) for a in also}) > 1]:
            notes.append(
                f"{', '.join(sorted(few))}: a client whose test items of a fold are of"
                " one class is left out of the mean of that fold."
            )
    if failed := [run.path.name for run in group.runs if run.summary.get("failures")]:
        notes.append(f"runs in which clients failed: {', '.join(failed)}.")
    return notes


def _draw(
    groups: Sequence[Group], out: Path, rule: str | None, metric: str
) -> list[Path]:
    """Draw the gain over self-train, for each data set a file, for each row a panel."""
    drawn = []
    for group in groups:
        base, read_by = group.baseline("local"), rule or group.headline
        own = group.rows.get(base or "", [])
        alone = {(run.seed, run.split, run.fold): run.summary for run in own}
        panels = {
            row: gains
            for row, runs in group.rows.items()
            if row != base
            and (
                gains := [
                    client_gains(run.summary, alone[key], read_by, metric)
                    for run in runs
                    if (key := (run.seed, run.split, run.fold)) in alone
                ]
            )
        }
        if panels:
            measured = metric or str(group.runs[0].summary.get("metric"))
            unit = GainUnit.of(group.runs[0].summary, measured)
            named = f"{out.stem}-{group.dataset.replace(':', '-')}{out.suffix}"
            place = out.with_name(named) if len(groups) > 1 else out
            figure = gain_figure(panels, group.dataset, read_by, measured, unit)
            drawn.append(save(figure, place))
    if not drawn:
        raise FedGraphError(
            f"{out} was not drawn: no method shares a seed with a self-train run"
            " (method local); add its results folder"
        )
    return drawn

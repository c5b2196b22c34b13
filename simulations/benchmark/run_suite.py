"""``fedgraph benchmark``: a method against rivals and controls."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.core.files import write_text
from fedgraph_flwr.core.plugins import is_plugin
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.tasks import OF_COMMONEST
from fedgraph_flwr.resolve import defaults, fits

from ..markup import Report, consoles
from ..tables import frame
from ..tables.captions import (
    NONE,
    chance_text,
    known_text,
    make_report,
    points_text,
    subtract,
)
from ..tables.frame import (
    FIELDS,
    HELD_OUT,
    ON_ALL,
    PAIR,
    RULES,
    Row,
    Table,
    pair,
    records,
    table,
)
from ..tables.runs import held_out_of
from ..tables.stats import FLOOR_RUNS, TIE, Ranks, noise_floor, ranks, split_means
from ..tables.studies import OWN_START, Study, StudyTable
from .output import page, write_all
from .recommend import ALONE, recommend
from .suite import (
    FOLDER,
    Known,
    Pair,
    Suite,
    SuiteMethod,
    Trial,
    choose,
    kept_path,
    known_results,
    load_suite,
    make_missing,
    same_code,
    trials,
)
from .verdict import (
    BETTER,
    CEILING,
    MAJORITY,
    OPEN,
    START,
    WORSE,
    Duel,
    inert_words,
    sentence,
)

_SUITES = ", ".join(sorted(path.stem for path in FOLDER.glob("*.toml")))
Found = dict[str, dict[str, Table]]  # data set -> method -> results
Chosen = list[tuple[Trial, Pair]]
FEDAVG, NO_EDGES = "fedavg", "no-edges"
STANDARD = {
    name: SuiteMethod(name=name, role="control", settings=settings)
    for name, settings in {
        FEDAVG: {"method": FEDAVG},
        NO_EDGES: {"method": FEDAVG, "encoder": "mlp"},
        CEILING: {"method": CEILING},
    }.items()
}


def benchmark(
    suite_name: Annotated[
        str, typer.Argument(metavar="SUITE", help=f"{_SUITES}, or a file.")
    ],
    *,
    results: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of runs and tables.")
    ],
    methods: Annotated[
        str,
        typer.Option(
            help="Candidates, e.g. local,fgx:METHOD of plugins/fgx.py. Else the rivals."
        ),
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep rows and page in docs/runs of this project."),
    ] = False,
) -> int:
    """Compare methods with rivals and controls, say what is shown and what to take.

    Start it again to go on: a finished run is never made twice. The exit code is 0 if
    every run is there, 1 if one failed, 2 if nothing could be started.
    """
    tell = consoles()[1].out
    try:
        suite = load_suite(suite_name)
        taking, misfits = fitting(suite, participants(suite, methods))
        planned = list(trials(suite, taking))
        known = known_results(suite.name, results)
        check_same_data(planned, known)
        make = partial(
            make_missing, known=known, results=results, jobs=jobs, keep=keep, tell=tell
        )
        failed = make([(t, p) for p in suite.pairs for t in planned])
        chosen = chosen_trials(suite, planned, known)
        moved = [] if failed else moved_starts(suite, chosen)
        failed += make(moved)
        planned += [t for t, _ in moved]
        check_same_data(planned, known)
        found = collect(suite, chosen, known)
        floors = noise_floors(suite, moved, known, found)
        reports, duels = make_reports(suite, taking, chosen, found, floors)
        if misfits:
            words = f"Does not fit, left out: {', '.join(misfits)}."
            reports[0] = replace(reports[0], parts=[*reports[0].parts, words])
        title = f"Benchmark {suite.name}"
        for path in write_all(results, title, reports, duels):
            tell(f"written: {path}")
        if keep:
            keep_rows(suite, planned, known)
            rows, place = rows_of(planned, known), kept_path(suite.name)
            commits = ", ".join(sorted(set(rows["commit"])))
            source = f"Rows: [{place.name}]({place.name}), by the code of {commits}."
            write_text(place.with_suffix(".md"), page(title, reports, source))
            tell(f"kept: {place}")
        for line in reports[0].parts:
            tell(line if isinstance(line, str) else "")
    except KeyboardInterrupt:
        raise KeyboardInterrupt("; the same command goes on") from None
    for line in failed:
        tell(f"failed: {line}")
    return 1 if failed else 0


def participants(suite: Suite, names: str) -> list[SuiteMethod]:
    """Candidates first, then the suite's methods and standard controls that are none.

    Raises
    ------
    ConfigError
        There is no candidate, or one is named twice.
    """
    rivals = [m.name for m in suite.methods if m.role == "rival"]
    given = names.split(",") if names else rivals
    wanted = [name.strip() for name in given if name.strip()]
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(
            "--methods needs names of methods separated by commas, each once, got"
            f" {names!r}; give e.g. fedavg,fgx:METHOD"
        )
    own = {m.name: m for m in suite.methods}
    plain: dict[str, dict[str, Value]] = {name: {"method": name} for name in wanted}
    candidates = [
        replace(own[n], role="candidate")
        if n in own
        else SuiteMethod(name=n, role="candidate", settings=plain[n])
        for n in wanted
    ]
    rest = {n: m for n, m in (STANDARD | own).items() if n not in wanted}
    return [*candidates, *rest.values()]


def fitting(
    suite: Suite, methods: Sequence[SuiteMethod]
) -> tuple[list[SuiteMethod], list[str]]:
    """Leave data sets out whose labels a method cannot learn from, and name them.

    Raises
    ------
    ConfigError
        A method fits no data set of the suite.
    """
    found, misfits = [], []
    for m in methods:
        wanted = [d for d in suite.data if m.takes(d.name)]
        config = {**defaults(), **suite.settings}
        fit = [d for d in wanted if fits({**config, **d.settings, **m.settings})]
        if not fit and m == STANDARD.get(m.name):
            continue
        if not fit:
            raise ConfigError(
                f"method {m.name!r} fits no data set of suite {suite.name!r}"
                f" ({', '.join(d.name for d in wanted)}): it learns from other labels;"
                " take another suite, or write one of your own (docs/benchmark.md)"
            )
        misfits += [f"{m.name} on {d.name}" for d in wanted if d not in fit]
        found.append(replace(m, only=tuple(d.name for d in fit)))
    return found, misfits


def chosen_trials(suite: Suite, planned: Sequence[Trial], known: Known) -> Chosen:
    """Choose one trial for each method, data set and pair, by validation."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in planned:
        groups.setdefault((trial.data, trial.method), []).append(trial)
    return [
        (chosen, seeds)
        for tried in groups.values()
        for seeds in suite.pairs
        if (chosen := choose(tried, seeds, known))
    ]


def moved_starts(suite: Suite, chosen: Chosen) -> Chosen:
    """List runs of FedAvg that differ from the chosen ones by 1e-7 at the start."""
    draws = range(1, 1 + math.ceil(FLOOR_RUNS / len(suite.pairs)))
    return [
        (replace(trial, config={**trial.config, "start-noise": draw}), seeds)
        for draw in draws
        for trial, seeds in chosen
        if trial.method == FEDAVG
    ]


def collect(suite: Suite, chosen: Chosen, known: Known) -> Found:
    """Results of the chosen trials, named after the methods."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for trial, seeds in chosen:
        row = {**known[trial.row, *seeds], "row": trial.method}
        rows.setdefault((trial.data, trial.method), []).append(row)
    found: Found = {data.name: {} for data in suite.data}
    for (data, method), of_method in rows.items():
        found[data][method] = table(of_method)
    for of_data in found.values():
        of_data[MAJORITY] = majority(pd.concat([table([]), *of_data.values()]))
    return found


def noise_floors(
    suite: Suite, moved: Chosen, known: Known, found: Found
) -> dict[str, float]:
    """By data set: what 95 % of differences of FedAvg from itself stay below.

    In points; its runs differ by 1e-7 at the start. A data set without such runs, one
    of which failed perhaps, is left out.
    """
    floors = {}
    for data, rows in found.items():
        keys = [(t.row, *seeds) for t, seeds in moved if t.data == data]
        if results := [known[k] for k in keys if k in known]:
            values = pair(table(results), rows[FEDAVG], suite.rule).values
            floors[data] = noise_floor(values)
    return floors


def majority(results: Table) -> Table:
    """Score the constant prediction: what each pair's runs say of it.

    Of classes it is each client's commonest among its training labels. A constant ranks
    nothing, so that its ROC-AUC is 0.5.
    """
    found = []
    for r in records(results.drop_duplicates(PAIR, keep="last")):
        constant = {rule: f"{rule}:{r['metric']}{OF_COMMONEST}" for rule in RULES}
        scores = {k: r[m] for k, m in constant.items() if m in r}
        if r["metric"] == "roc-auc":
            scores = {rule: 0.5 for rule in RULES if rule in r}
        fields = {k: r[k] for k in FIELDS}
        own = {"row": MAJORITY, "rounds": 0, "wall_s": 0.0, "inert": ""}
        found.append({**fields, **own, **scores})
    return table(found)


def check_same_data(planned: Sequence[Trial], known: Known) -> None:
    """Refuse results on one data set that are of different splits or files.

    Raises
    ------
    FedGraphError
        A folder has older runs, or a method sets keys that change the split.
    """
    found = rows_of(planned, known)
    found["place"] = found["row"].map({t.row: t.data for t in planned})
    frame.check_alike(found, ["place", "seed", "split_seed"], "split_hash")
    drawn = found["dataset"].map(is_plugin).astype(bool)  # perhaps anew in each run
    frame.check_alike(found[(found["data"] != "") & ~drawn], ["place"], "data")


def make_reports(
    suite: Suite,
    methods: Sequence[SuiteMethod],
    chosen: Chosen,
    found: Found,
    floors: Mapping[str, float],
) -> tuple[list[Report], list[Duel]]:
    """Word the verdict, the ranks and a table for each data set."""
    held_out = {t.data: held_out_of(t.resolved) for t, _ in chosen}
    held_out |= {d.name: 0.0 for d in suite.data if d.drawn or d.name not in held_out}
    candidates = [m.name for m in methods if m.role == "candidate"]
    opponents = {m.name: m.name for m in methods}
    opponents |= {MAJORITY: MAJORITY, START: OWN_START}
    duels = [
        Duel(
            candidate=c,
            opponent=m,
            data=d.name,
            difference=diff,
            held_out=held_out[d.name],
            floor=floors.get(d.name, math.nan),
            inert=inert_words(*(found[d.name][n] for n in (c, row) if n != OWN_START)),
        )
        for d in suite.data
        for c in candidates
        for m, row in opponents.items()
        if m != c
        and (diff := subtract(c, row, suite.rule, found[d.name]))
        and diff.num_pairs == len(suite.pairs)  # what failed may have been the worst
    ]
    scores = {
        d: {m: of[suite.rule].dropna() for m, of in rows.items() if suite.rule in of}
        for d, rows in found.items()
    }
    lacking = [
        (m.name, d)
        for m in methods
        for d, of in scores.items()
        if m.takes(d) and len(of.get(m.name, [])) < len(suite.pairs)
    ]
    complete = {
        d: {
            m: statistics.fmean(split_means(v, found[d][m].loc[v.index, "split_hash"]))
            for m, v in of.items()
            if m not in (MAJORITY, CEILING)
            and (m, d) not in lacking
            and len(v)
            and not inert_words(found[d][m])
        }
        for d, of in scores.items()
    }
    advice = []
    names = dict.fromkeys([m.name for m in (*suite.methods, *methods)])
    trained = [n for n in names if n not in (ALONE, CEILING, NO_EDGES)]
    for d in suite.data:
        order = [n for n in trained if n in complete[d.name]]
        if order and ALONE in complete[d.name]:
            how = {"held_out": held_out[d.name], "floor": floors.get(d.name, math.nan)}
            of = found[d.name]
            advice.append(recommend(d.name, order, of, rule=suite.rule, **how))
    ranking = ranks(complete)
    reports = [_verdict_report(suite, duels, methods, lacking, ranking, advice)]
    if duels:
        reports.append(_duel_report(duels))
    reports += [
        _data_report(suite, d.name, chosen, found[d.name], held_out) for d in suite.data
    ]
    return reports, duels


def _verdict_report(
    suite: Suite,
    duels: Sequence[Duel],
    methods: Sequence[SuiteMethod],
    lacking: Sequence[tuple[str, str]],
    ranking: Ranks | None,
    advice: Sequence[str],
) -> Report:
    roles = ", ".join(f"{m.name} ({m.role})" for m in methods)
    roles += f", {MAJORITY} (control, trains nothing)"
    judged = Counter(d.word for d in duels)
    hits = judged[BETTER] + judged[WORSE]
    parts: list[pd.DataFrame | str] = [
        sentence(m.name, duels, _num_missing(m, methods, suite, lacking))
        for m in methods
        if m.role == "candidate"
    ]
    parts.append(
        f"{suite.title}. Methods: {roles}. Rule {suite.rule}; {len(suite.pairs)} pairs"
        f" of run seed and split seed. In each pair and on each data set a method tried"
        f" up to {max(len(suite.points(m)) for m in methods)} settings, and kept the"
        " best by validation."
    )
    parts += advice
    parts.append(chance_text(hits + judged[OPEN], hits))
    if lacking:
        words = ", ".join(f"{m} on {d}" for m, d in lacking)
        parts.append(f"INCOMPLETE, no verdict on: {words}.")
    if ranking is None:
        parts.append("No ranks: they need two methods and two data sets, complete.")
        return Report(title="Verdict", parts=parts)
    friedman = "no test by Friedman (it needs three methods and unequal ranks)"
    if not math.isnan(ranking.p_value):
        friedman = f"Friedman's p = {ranking.p_value:.3f}"
    rows = [[m, f"{rank:.2f}"] for m, rank in ranking.mean.items()]
    parts.append(pd.DataFrame(rows, columns=["method", "mean rank"]))
    parts.append(
        f"Ranks over {ranking.num_data} data sets: {friedman}, Nemenyi's critical"
        f" difference {ranking.critical:.2f}."
    )
    if rest := [m.name for m in methods if m.name not in ranking.mean]:
        parts.append(
            "Without a rank, as not on every data set, or inert on one:"
            f" {', '.join(rest)}."
        )
    return Report(title="Verdict", parts=parts)


def _num_missing(
    candidate: SuiteMethod,
    methods: Sequence[SuiteMethod],
    suite: Suite,
    lacking: Sequence[tuple[str, str]],
) -> int:
    """Count the comparisons of a candidate in which one side is incomplete."""
    return sum(
        (candidate.name, d.name) in lacking or (m.name, d.name) in lacking
        for m in methods
        for d in suite.data
        if m.name not in (candidate.name, CEILING)
        and candidate.takes(d.name)
        and m.takes(d.name)
    )


def _duel_report(duels: Sequence[Duel]) -> Report:
    headings = ["data", "candidate", "opponent", "pairs", "points [95 %]", "judged"]
    headings += ["floor", "seen with 80 %"]
    headings += ["win/tie/loss", "clients that gain", "worst client"]
    cells = []
    for d in duels:
        gains = d.difference.gains
        gain = sum(g > TIE for g in gains)
        cells.append(
            [
                d.data,
                d.candidate,
                d.opponent,
                d.difference.num_pairs,
                points_text(d.difference, d.held_out),
                d.word,
                *map(known_text, (d.floor, d.difference.detectable(d.held_out))),
                "/".join(map(str, d.wins)),
                f"{gain}/{len(gains)}" if gains else NONE,
                f"{min(gains):+.2f}" if gains else NONE,
            ]
        )
    words = (
        "Points of the score. Floor: 95 % of differences between runs of FedAvg that"
        " differ by 1e-7 at the start are smaller, and no smaller difference is judged."
        " Worst client: its mean difference, in points."
        f" {START}: the candidate's own model before training."
    )
    shown = pd.DataFrame(cells, columns=headings)
    return Report(title="Differences", parts=[shown, words])


def _data_report(
    suite: Suite,
    data: str,
    chosen: Chosen,
    rows: dict[str, Table],
    held_out: Mapping[str, float],
) -> Report:
    columns = {"pairs": "pairs", "rounds": "rounds", suite.rule: suite.rule}
    columns |= {
        m: m if m in (HELD_OUT, ON_ALL) else f"{suite.rule}:{m}" for m in suite.also
    }
    study = Study(
        name=suite.name,
        paper="",
        rule=suite.rule,
        tables=(),
        held_out=held_out[data],
        columns={**columns, START: "start", "MB": "MB", "seconds": "wall_s"},
    )
    found = {name: of for name, of in rows.items() if len(of)}
    if not found:
        return Report(title=data, parts=["No runs."])
    report = make_report(study, StudyTable(title=data, rows=tuple(rows)), found)
    counts = Counter(
        (t.method, ", ".join(f"{k}={v}" for k, v in t.point.items()) or "defaults")
        for t, _ in chosen
        if t.data == data
    )
    words = "; ".join(f"{m}: {point} ({n})" for (m, point), n in counts.items())
    chose = f"Chosen by validation (in so many pairs): {words}."
    return replace(report, parts=[*report.parts, chose])


def rows_of(planned: Sequence[Trial], known: Known) -> Table:
    """Results of these trials; a folder may hold those of other methods too."""
    rows = {t.row for t in planned}
    return table(r for r in known.values() if r["row"] in rows)


def keep_rows(suite: Suite, planned: Sequence[Trial], known: Known) -> None:
    """Add results of committed code to the suite's kept file.

    Raises
    ------
    FedGraphError
        Nothing of it was made by the code of a commit.
    """
    results = _of_this_code(rows_of(planned, known))
    if results.empty:
        raise FedGraphError(
            "--keep found no run of the code of a commit; commit your changes, run the"
            " benchmark in an empty folder, and keep that"
        )
    path = kept_path(suite.name)
    old = frame.read(path) if path.is_file() else table([])
    frame.write(path, frame.merge(_of_this_code(old), results))


def _of_this_code(results: Table) -> Table:
    return results[results["commit"].map(same_code).astype(bool)]

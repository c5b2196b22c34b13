"""Flower ServerApp: check the configuration, call the roll, train, write results."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from logging import ERROR, INFO, WARNING
from pathlib import Path
from statistics import fmean
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from clients.base import initial_arrays
from strategies.base import AbstractGraphStrategy, Stopper
from strategies.report import ClientInfo, Evaluation, RoundReport

from .agreement import check_same_data, describe_features
from .errors import ConfigError
from .figures import draw_run
from .figures_embedding import draw_embeddings
from .figures_network import draw_network
from .figures_tasks import draw_task_relations
from .network import describe_network, network_facts
from .pooled import PooledEvaluation
from .provenance import partition_distance, split_hash
from .registry import Resolved, resolve
from .results import Clock, RunFolder, results_root
from .selection import EarlyStopping
from .task_relations import (
    TaskRelations,
    describe_sources,
    read_covariances,
    read_rounds,
    task_sources,
    write_task_sources,
)
from .tasks import POOLED, EmbeddingSettings
from .wire import NamedArrays

app = ServerApp()
_LOSS = ("train", "loss")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run config describes."""
    try:
        resolved = resolve(context.run_config)
        root, why = results_root(resolved.settings.results_dir)
        log(INFO, "results go to %s (%s)", root, why)
        folder = run(grid, resolved, run_id=context.run_id)
    except Exception as error:
        log(ERROR, "run failed: %s: %s", type(error).__name__, error)
        raise
    log(INFO, "results: %s", folder)


def run(grid: Grid, resolved: Resolved, *, run_id: int) -> Path:
    """Train on whatever nodes ``grid`` reaches and return the results folder.

    Raises
    ------
    FedGraphError
        As the parts do. What was computed before is in the folder, whose summary then
        says ``"status": "failed"``.
    """
    settings = resolved.settings
    if settings.resume:
        folder, arrays, found = RunFolder.resume(
            Path(settings.resume), resolved, run_id=run_id
        )
    else:
        folder, arrays, found = RunFolder.create(resolved, run_id=run_id), {}, {}
    try:
        return _run(grid, resolved, folder, arrays, found)
    finally:
        folder.close()


def _run(
    grid: Grid,
    resolved: Resolved,
    folder: RunFolder,
    arrays: NamedArrays,
    found: Mapping[str, Any],
) -> Path:
    """Train from a checkpoint, if one was ``found``, and write the results."""
    settings = resolved.settings
    clock = Clock(folder.last_round, settings.num_server_rounds)

    def observe(report: RoundReport) -> None:
        folder.record(report)
        if not report.is_complete:
            return
        folder.checkpoint(strategy)
        log(
            INFO, "%s", progress_line(folder, report, clock, settings.num_server_rounds)
        )

    embeds = isinstance(resolved.task, EmbeddingSettings)
    evaluator = PooledEvaluation(resolved) if embeds else TaskRelations()
    strategy = resolved.method.make_strategy(
        settings,
        resolved.params,
        experiment=folder.experiment,
        observer=observe,
        evaluator=evaluator,
        stopper=_stopper(folder),
    )
    try:
        if found:
            strategy.restore_frame(found["frame"])
            strategy.restore(arrays, found["facts"])
            strategy.keep_from = folder.oldest_checkpoint
            strategy.first_round = folder.last_round + 1
        clients = strategy.roll_call(grid)
        check_same_data(settings, clients)
        log(INFO, "split hash %s", split_hash(clients))
        if features := describe_features(clients):
            log(INFO, "features: %s", features)
        if (distance := partition_distance(clients)) is not None:
            log(INFO, "EMD of the partition %.4f", distance)
        if (network := network_facts(strategy)) is not None:
            log(INFO, "%s", describe_network(network))
        evaluator.expect(clients)
        if not found:
            strategy.initialise(common_start(resolved, clients))
        # With one BLAS thread sums round alike on any number of cores, and short
        # products never wait for a second thread while clients hold the cores.
        with threadpool_limits(limits=1, user_api="blas"):
            strategy.start(
                grid,
                ArrayRecord(),
                num_rounds=settings.num_server_rounds,
                timeout=settings.round_timeout_s,
            )
    except BaseException as error:
        if folder.finish(strategy, error=error):
            log(ERROR, "what was computed is in %s", folder.path)
        else:
            log(ERROR, "%s is as it was before this resume", folder.path)
        raise
    summary = folder.finish(strategy)
    for line in describe_unscored(summary):
        log(WARNING, "%s", line)
    _relate_tasks(folder.path, strategy)
    draw_run(folder.path)
    draw_network(folder.path)
    task = resolved.task
    if isinstance(task, EmbeddingSettings) and task.figure_rounds:
        draw_embeddings(folder.path, task.drawn_rounds(), seed=settings.seed)
    log(INFO, "\n%s", summary_table(summary))
    return folder.path


def _relate_tasks(path: Path, strategy: AbstractGraphStrategy) -> None:
    """Write, say and draw how tasks relate, where that was learned.

    Of sealed parcels the server has no Omega, but knows who has which tasks.
    """
    rounds = read_rounds(path)
    if not rounds and strategy.network() is None:
        return
    infos = strategy.clients
    sources = task_sources(
        {c: i.task_ids for c, i in infos.items()},
        strategy.peers(),
        infos[min(infos)].tasks,
        read_covariances(path, rounds[-1]) if rounds else None,
    )
    write_task_sources(path, sources)
    for line in describe_sources(sources):
        log(INFO, "%s", line)
    draw_task_relations(path)


def _stopper(folder: RunFolder) -> Stopper:
    """Early stopping, going on from what a resumed run has measured."""
    settings = folder.resolved.settings
    rule = EarlyStopping(
        folder.tables.get("val", {}),
        patience=settings.patience,
        min_rounds=settings.min_rounds,
        larger_is_better=folder.task.larger_is_better,
    )

    def stop(evaluations: Iterable[Evaluation]) -> bool:
        for e in evaluations:
            if e.split == "val" and folder.is_score(e.point, e.metric):
                rule.add(e.server_round, e.client, e.value)
        return rule.is_due()

    return stop


def common_start(resolved: Resolved, clients: dict[int, ClientInfo]) -> dict[str, Any]:
    """Make the initial shared tensors; to share all, the widths must agree.

    Raises
    ------
    ConfigError
        Everything is to be shared, but clients differ in features or classes, or
        clients' labels are of different tasks.
    """
    tasks = {c: i.tasks for c, i in clients.items()}
    if len(set(tasks.values())) > 1:
        raise ConfigError(
            f"clients have labels of different tasks: {tasks}; name those that all have"
            " in csv-label-columns"
        )
    widths = {c: (i.num_features, i.num_classes) for c, i in clients.items()}
    if resolved.settings.shared_group == "all" and len(set(widths.values())) > 1:
        raise ConfigError(
            'shared-group is "all", but clients differ in (features, classes):'
            f" {widths}; choose one data set for all clients, or, for methods that"
            ' allow it, shared-group="convs"'
        )
    num_features, num_classes = widths[min(widths)]
    return initial_arrays(
        resolved.method.client,
        resolved.settings,
        resolved.params,
        num_features=num_features,
        num_classes=num_classes,
    )


def progress_line(
    folder: RunFolder, report: RoundReport, clock: Clock, num_rounds: int
) -> str:
    """Round, score, loss, clusters, time left.

    The score is of the last model that was measured: the one received, or an older one.
    """
    done, task = report.server_round, folder.resolved.method.task
    parts = [f"round {done}/{num_rounds}"]
    every = folder.resolved.settings.evaluate_every
    measured = (done - 1) // every * every
    means = {split: folder.mean_score(split, measured) for split in task.splits}
    if not any(map(math.isnan, means.values())):
        words = " ".join(f"{split} {mean:.3f}" for split, mean in means.items())
        parts.append(f"{task.metric} after round {measured}: {words}")
    losses = [e.value for e in report.evaluations if (e.split, e.metric) == _LOSS]
    if losses:
        parts.append(f"training loss {fmean(losses):.3f}")
    if len(report.facts["clusters"]) > 1:
        parts.append(f"clusters {len(report.facts['clusters'])}")
    parts.append(f"{clock.left(done)} left")
    if report.failures:
        parts.append(f"{len(report.failures)} failed")
    return " · ".join(parts)


def summary_table(summary: dict[str, Any]) -> str:
    """Format the table at the end of a run."""
    table = Table(
        title=f"{summary['method']} on {summary['dataset']}, seed {summary['seed']},"
        f" {summary['num_clients']} clients, {summary['rounds']} rounds",
        caption=f"{summary['split']} {summary['metric']}, {_whose(summary)}; split "
        + summary["split_hash"][:12],
    )
    for column in ("rule", "mean", "std", "min", "max", "selected by"):
        table.add_column(column)
    for rule in summary["rules"]:
        row = summary[rule]
        words = row["protocol"]
        if rule == summary["rules"][0]:
            words += " (headline)"
        by = row.get("num_clients_chosen_by")
        if by is not None and by < summary["num_clients"] and not _is_pooled(summary):
            words += f"; chosen over {by} of {summary['num_clients']} clients"
        cells = [
            "-" if row[k] is None else f"{row[k]:.4f}"
            for k in ("mean", "std", "min", "max")
        ]
        table.add_row(rule, *cells, words)
    out = Console(file=io.StringIO(), width=110)
    out.print(table)
    ari = summary["adjusted_rand_index"]
    planted = "" if ari is None else f" · planted groups recovered: ARI {ari:.2f}"
    out.print(f"clusters {summary['clusters']}{planted}", highlight=False)
    for entry in summary.get("clusters_held_up", []):
        out.print(
            f"cluster {entry['cluster']} could not split: client {entry['client']} was"
            f" missing from round {entry['since_round']}",
            highlight=False,
        )
    if (seen := summary["own_and_unseen"]) is not None:
        out.print(_own_and_unseen(summary["metric"], seen), highlight=False)
    if summary["privacy"] is not None:
        out.print(summary["privacy"]["says"], highlight=False)
    if "disclosed" in summary:
        out.print(summary["disclosed"], highlight=False)
    if summary["network"] is not None:
        out.print(describe_network(summary["network"]), highlight=False)
    if summary["emd"] is not None:
        out.print(f"EMD of the partition {summary['emd']:.4f}", highlight=False)
    megabytes = [f"{summary[k] / 1e6:.1f} MB" for k in ("bytes_up", "bytes_down")]
    out.print(
        f"up {megabytes[0]} · down {megabytes[1]} · {summary['wall_s']:.1f} s, of which"
        f" no client was computing {summary['overhead_s']:.1f} s · weights"
        f" {summary['weights_sha256'][:12]}",
        highlight=False,
    )
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    return text


def describe_unscored(summary: dict[str, Any]) -> list[str]:
    """Say, for each split, which tasks have no score; nothing where all have one."""
    everyone = list(range(summary["num_clients"]))
    lines = []
    for split, tasks in summary.get("tasks_without_score", {}).items():
        names = [
            name if clients == everyone else f"{name} (clients {str(clients)[1:-1]})"
            for name, clients in tasks.items()
        ]
        lines.append(
            f"{summary['metric']} on {split} graphs leaves out {len(names)} of"
            f" {len(summary['tasks'])} tasks, of which labels there are missing or all"
            f" of one class: {', '.join(names)}"
        )
    return lines


def _own_and_unseen(metric: str, seen: dict[str, dict[str, float]]) -> str:
    names = {"post_training": "trained", "post_aggregation": "then mixed or averaged"}
    parts = [
        f"{words}: own tasks {seen[point].get('own', math.nan):.4f}, others"
        f" {seen[point].get('unseen', math.nan):.4f}"
        for point, words in names.items()
        if point in seen
    ]
    return f"{metric} {'; '.join(parts)}"


def _whose(summary: dict[str, Any]) -> str:
    return "all clients together" if _is_pooled(summary) else "unweighted client mean"


def _is_pooled(summary: dict[str, Any]) -> bool:
    return list(summary["final"]["per_client"]) == [str(POOLED)]

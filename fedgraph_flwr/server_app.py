"""Flower ServerApp: check the configuration, call the roll, train, write results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from threadpoolctl import threadpool_limits

from clients.base import initial_arrays
from strategies.base import AbstractGraphStrategy, Stopper
from strategies.report import ClientInfo, Evaluation, RoundReport

from .agreement import check_same_data, describe_features
from .errors import ConfigError
from .figures import draw_all
from .progress import Clock, progress_line
from .resolve import Resolved, resolve
from .results.folder import RunFolder, results_root
from .results.network import describe_network, network_facts
from .results.pooled import PooledEvaluation
from .results.provenance import partition_distance, split_hash
from .results.selection import EarlyStopping
from .results.table import describe_unscored, summary_table
from .results.task_relations import (
    TaskRelations,
    describe_sources,
    read_covariances,
    read_rounds,
    task_sources,
    write_task_sources,
)
from .tasks import EmbeddingSettings
from .wire import NamedArrays

app = ServerApp()


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
    clock = Clock(folder.so_far.last_round, settings.num_server_rounds)

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
            strategy.first_round = folder.so_far.last_round + 1
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
    draw_all(folder.path)
    log(INFO, "\n%s", summary_table(summary))
    return folder.path


def _relate_tasks(path: Path, strategy: AbstractGraphStrategy) -> None:
    """Write and say how tasks relate, if that was learned.

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


def _stopper(folder: RunFolder) -> Stopper:
    """Early stopping, going on from what a resumed run has measured."""
    settings = folder.resolved.settings
    rule = EarlyStopping(
        folder.so_far.tables.get("val", {}),
        patience=settings.patience,
        min_rounds=settings.min_rounds,
        larger_is_better=folder.so_far.task.larger_is_better,
    )

    def stop(evaluations: Iterable[Evaluation]) -> bool:
        for e in evaluations:
            if e.split == "val" and folder.so_far.is_score(e.point, e.metric):
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

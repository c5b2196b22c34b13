"""Flower ServerApp: check the configuration, call the roll, train, write results."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from threadpoolctl import threadpool_limits

import datasets
from strategies.base import AbstractGraphStrategy
from strategies.paper import Evaluator, Stopper
from strategies.round_report import RARE, ClientInfo, Evaluation, Rarest, class_totals
from strategies.sending import side_by_side

from .agreement import (
    check_owners,
    check_same_data,
    check_same_plugins,
    class_names,
    common_columns,
    describe_features,
    describe_left_out,
)
from .core.audit_log import FILE as AUDIT_LOG
from .core.audit_log import AuditLog, config_hash
from .core.config import RunSettings
from .core.data import balanced_weights
from .core.errors import ConfigError, RunFailedError, StorageError
from .core.files import write_json, write_text
from .core.flower_names import shorten_waits
from .core.logs import log
from .core.process import STOPPED, LastWord, announced, delayed_stop, log_failure
from .core.tasks import AVERAGE_PRECISION, MultiTaskSettings
from .core.words import BY_HAND, client_ranges, clients_by_site, shortened
from .node.introduce import scores_elsewhere
from .registry import load_class
from .resolve import Resolved, resolve
from .results import dry_run
from .results.checkpoints import ROLL_CALL, check_roll_call
from .results.folder import RunFolder, results_root
from .results.model_files import read_start
from .results.pooled import PooledEvaluation, TaskRelations
from .results.printed import (
    STATISTICS,
    describe_network,
    describe_unscored,
    mean_degree,
    network_facts,
    statistics_table,
    summary_table,
    unlike_targets,
)
from .results.progress import AuditedGrid, RoundWriter
from .results.provenance import partition_distance, split_hash
from .results.selection import EarlyStopping
from .results.trackers import NONE, Tracking, check_installed
from .view.drawers import draw_all
from .view.html_report import write_own_report

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run config describes."""
    try:
        resolved = resolve(context.run_config)
        _describe_run(resolved.settings, context.run_id)
        shorten_waits()
        with delayed_stop(), side_by_side(grid) as replies:
            folder = run(replies, resolved, run_id=context.run_id)
    except Exception as error:
        log_failure("run failed", error)
        getLogger("flwr").addFilter(LastWord(error))
        raise
    log(INFO, "results: %s", folder)


def _describe_run(settings: RunSettings, run_id: int) -> None:
    """Log what a user has to know while Flower's processes start."""
    log(INFO, "results go to %s (%s)", *results_root(settings.results_dir))
    log(
        INFO,
        "`flwr stop %d` stops this run (between sites: with the name of the SuperLink"
        " behind it); Ctrl-C on `flwr run` ends its output only",
        run_id,
    )
    if datasets.is_downloaded(settings) and not settings.data_dir:
        log(INFO, "%s", datasets.describe_source())


def run(
    grid: Grid,
    resolved: Resolved,
    *,
    run_id: int,
    only: Collection[int] | None = None,
) -> Path:
    """Train on whatever nodes ``grid`` reaches and return the results folder.

    Parameters
    ----------
    only : collection of int, optional
        Clients that take part, where a site tries a run without the others.

    Raises
    ------
    FedGraphError
        As the parts do. If training had begun, what was computed is in the folder,
        whose summary then says ``"status": "failed"``; a run that is refused before
        leaves no folder.
    """
    for words in resolved.warnings:
        log(WARNING, "%s", words)
    check_installed(resolved.settings.tracker)
    with (
        closing(RunFolder.open(resolved, run_id=run_id)) as folder,
        closing(_tracking(folder)) as tracking,
    ):
        audited = _audited(grid, folder, run_id)
        try:
            strategy = _make_strategy(folder, tracking)
            if only is not None:
                strategy.directory.await_only(only)
            _begin(audited, folder, strategy)
        except BaseException as error:
            audited.end("refused", str(error))
            folder.withdraw()
            raise
        if resolved.settings.dry_run:
            strategy.last_round = 1
        elif only is None:
            log(INFO, 'if this run is lost: resume="%s"', folder.path)
        try:
            _train(audited, strategy)
            summary = {}
            if not resolved.settings.dry_run:
                summary = folder.finish(strategy)
        except BaseException as error:
            _fail(folder, strategy, error, is_kept=only is None)
            audited.end("failed", str(error))
            raise
        head = audited.end("completed")
        if resolved.settings.dry_run:
            log(INFO, "%s", dry_run.describe(dry_run.report(folder, strategy)))
            return folder.path
        if head:
            log(INFO, "audit log of this server: head %s", head)
        for line in describe_unscored(summary):
            log(WARNING, "%s", line)
        log(INFO, "\n%s", summary_table(summary))
        _draw(folder.path, draw_all)
        write_own_report(folder.path)
        return folder.path


def _audited(grid: Grid, folder: RunFolder, run_id: int) -> AuditedGrid:
    """Record messages to and from sites in the server's audit log."""
    facts = {
        "experiment": folder.experiment,
        "config_sha256": config_hash(folder.resolved.to_config()),
    }
    audit = AuditLog(folder.path.parent / AUDIT_LOG)
    num_clients = folder.resolved.settings.num_clients
    return AuditedGrid(grid, audit, run=run_id, num_clients=num_clients, facts=facts)


def _begin(grid: Grid, folder: RunFolder, strategy: AbstractGraphStrategy) -> None:
    """Call the roll, and give the strategy its state before the first round."""
    resolved, settings = folder.resolved, folder.resolved.settings
    is_resumed = folder.restore(strategy)
    warm = None if is_resumed else read_start(resolved)
    if is_resumed:
        log(INFO, "resumed after round %d", folder.so_far.last_round)
    with announced(
        "roll call: waiting for clients to start and to load their graphs",
        strategy.directory.progress,
    ):
        clients = strategy.roll_call(grid)
    check_same_data(settings, clients)
    check_owners(resolved.secagg, {c: clients[c] for c in strategy.trainers()})
    if not is_resumed and resolved.method.task.has_classes:
        _find_rarest(resolved, strategy)
    if not is_resumed and settings.class_weights == "federation":
        strategy.class_weights = weights_of_all(strategy)
    rarest, by_loss = strategy.rarest, "loss" if settings.csv_label_scale else ""
    folder.so_far.by = AVERAGE_PRECISION if rarest and rarest.chooses else by_loss
    check_same_plugins(resolved.plugin, clients)
    if settings.tell_statistics:
        told = statistics_table(clients)
        text = told.to_csv(index=False, float_format="%.9g")
        folder.add(STATISTICS, lambda: write_text(folder.path / STATISTICS, text))
        shown = told.dropna(axis=1, how="all")
        words = shown.to_string(index=False, na_rep="-", float_format="%g".__mod__)
        log(INFO, "what clients told of their graphs:\n%s", words)
    for words in unlike_targets(clients, is_scaled=bool(settings.csv_label_scale)):
        log(WARNING, "%s", words)
    _describe_clients(strategy)
    some = clients[min(clients)]
    strategy.scores_elsewhere = scores_elsewhere(resolved, some.widths)
    folder.meter(strategy)
    if not is_resumed:
        start = common_start(resolved, clients)
        if warm is not None:
            start = warm.start(start)
            if settings.shared_group != "convs":
                warm.warn_of_other_columns(common_columns(clients))
            folder.lineage = warm.lineage
        roll = check_roll_call(folder.path, clients, start)
        folder.add(ROLL_CALL, lambda: write_json(folder.path / ROLL_CALL, roll))
        strategy.initialise(dict(sorted(start.items())))  # as parcels and files have it
    strategy.evaluator.expect(clients)


def _find_rarest(resolved: Resolved, strategy: AbstractGraphStrategy) -> None:
    """Find the class of fewest training labels; say so if it decides what chooses."""
    if resolved.settings.partition == "datasets":
        return  # other classes at each client
    clients = [strategy.clients[c] for c in strategy.trainers()]
    may_choose = not datasets.is_published(resolved.settings)
    untrained = [k for k, count in enumerate(class_totals(clients)) if not count]
    if untrained:
        names = class_names(clients[0])
        log(
            WARNING,
            "no client trains on an item of class %s, which no model can learn; label"
            " more, or split otherwise",
            " or ".join(repr(names[k]) for k in untrained),
        )
    strategy.rarest = found = Rarest.of(clients, may_choose=may_choose)
    if found is not None and found.chooses:
        log(
            INFO,
            "class %r has %.1f %% of the training labels, less than %.0f %%: average"
            " precision tells rounds and models apart, not accuracy",
            class_names(clients[0])[found.number],
            100 * found.share,
            100 * RARE,
        )


def weights_of_all(strategy: AbstractGraphStrategy) -> str:
    """Weights of classes by the training labels of all clients, for the clients."""
    clients = [strategy.clients[c] for c in strategy.trainers()]
    total = np.array(class_totals(clients), np.int64)
    if not len(total):
        widths = {i.client: len(i.train_counts) for i in clients}
        raise ConfigError(
            "class-weights 'federation' needs the same classes at all clients, which"
            f" count so many: {shortened(widths)}; set class-weights to 'balanced'"
        )
    if clients[0].tasks:
        total = total.reshape(2, -1)
    return json.dumps(balanced_weights(total).tolist())


def _tracking(folder: RunFolder) -> Tracking:
    """Tracker of a run; a dry run has none."""
    settings = folder.resolved.settings
    name = NONE if settings.dry_run else settings.tracker
    return Tracking(name, folder.path, folder.resolved.to_config())


def _make_strategy(folder: RunFolder, tracking: Tracking) -> AbstractGraphStrategy:
    resolved, more = folder.resolved, dict[str, Any]()
    method = resolved.method
    if method.distil:
        learn = load_class(method.distil)  # imports torch
        more["distil"] = partial(learn, method.client, resolved.spec)
    return method.make_strategy(
        resolved.settings,
        resolved.params,
        experiment=folder.experiment,
        observer=RoundWriter(folder, tracking),
        evaluator=_evaluator(resolved),
        stopper=_stopper(folder),
        privacy=resolved.privacy,
        robust=resolved.robust,
        secagg=resolved.secagg,
        config_sha256=config_hash(resolved.to_config()),
        attack=resolved.attack,
        **more,
    )


def _evaluator(resolved: Resolved) -> Evaluator:
    if resolved.task.pools:
        return PooledEvaluation(resolved)
    learns_targets = isinstance(resolved.task, MultiTaskSettings)
    return TaskRelations() if learns_targets else Evaluator()


def _stopper(folder: RunFolder) -> Stopper:
    """Early stopping, going on from what a resumed run has measured."""
    settings, so_far = folder.resolved.settings, folder.so_far
    if not settings.patience:
        return lambda _evaluations: False

    @cache  # made when the roll call has said what chooses
    def rule() -> EarlyStopping:
        return EarlyStopping(
            so_far.table(so_far.by, "val"),
            so_far.table("loss", "val"),
            patience=settings.patience,
            min_rounds=settings.min_rounds,
            larger_is_better=so_far.task.larger_is_better,
        )

    def stop(evaluations: Iterable[Evaluation]) -> bool:
        for e in evaluations:
            is_read = (e.split, e.point) == ("val", "post_aggregation")
            chooses = so_far.by or so_far.task.metric
            if is_read and e.metric in ("loss", chooses):
                is_loss = e.metric != chooses
                rule().add(e.server_round, e.client, e.value, is_loss=is_loss)
        return rule().is_due()

    return stop


def _train(grid: Grid, strategy: AbstractGraphStrategy) -> None:
    settings = strategy.settings
    # With one BLAS thread sums round alike on any number of cores, and short products
    # never wait for a second thread while clients hold the cores.
    with threadpool_limits(limits=1, user_api="blas"):
        strategy.start(
            grid,
            ArrayRecord(),
            num_rounds=strategy.last_round,
            timeout=settings.round_timeout_s,
        )


def _fail(
    folder: RunFolder,
    strategy: AbstractGraphStrategy,
    error: BaseException,
    *,
    is_kept: bool,
) -> None:
    """Keep what was computed, and say where it is; never hide the first error.

    A folder that goes with a site's trial is nothing to go on from.
    """
    why = error
    if isinstance(error, KeyboardInterrupt):
        why = RunFailedError(BY_HAND)
    elif isinstance(error, SystemExit):  # Flower ends a process by a signal
        why = RunFailedError(STOPPED)
    try:
        is_written = folder.finish(strategy, error=why)
    except StorageError as second:
        log_failure(f"no summary of the failed run in {folder.path}", second)
        return
    if not is_written:
        log(WARNING, "%s is as it was before this resume", folder.path)
        return
    write_own_report(folder.path)
    if is_kept:
        words = "stopped" if why is not error else "what was computed is kept"
        log(WARNING, '%s; to go on: resume="%s"', words, folder.path)


def _draw(folder: Path, draw: Callable[[Path], object]) -> None:
    """Draw figures of a run, which none of them can stop or fail."""
    try:
        draw(folder)
    except Exception as error:
        words = f"not all figures are in {folder}: {type(error).__name__}: {error}"
        log(WARNING, "%s; `fedgraph figures %s` draws them later", words, folder)


def _describe_clients(strategy: AbstractGraphStrategy) -> None:
    """Log what the roll call says of all clients together."""
    clients = strategy.clients
    log(INFO, "split hash %s", split_hash(clients))
    if features := describe_features(clients):
        log(INFO, "features: %s", features)
    if left_out := describe_left_out(clients):
        log(WARNING, "rows of tables that are left out: %s", left_out)
    if (distance := partition_distance(clients)) is not None:
        log(INFO, "EMD of the partition %.4f", distance)
    for site, members in clients_by_site(strategy.sites).items():
        log(INFO, "site %s: clients %s", site, client_ranges(members))
    if words := strategy.outweighing:
        log(WARNING, "%s", words)
    if (network := network_facts(strategy)) is not None:
        log(INFO, "%s", describe_network(network))


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
    widths = {c: tuple(i.widths.values()) for c, i in clients.items()}
    group = resolved.settings.shared_group
    if group != "convs" and len(set(widths.values())) > 1:
        raise ConfigError(
            f"shared-group is {group!r}, but clients differ in (features, classes,"
            f" features of edges, of graphs): {widths}; choose one data set for all or,"
            ' for methods that allow it, shared-group="convs"'
        )
    from clients.base import start_of  # here: it takes a second

    settings = resolved.settings
    if settings.encoder == "pna" and not settings.pna_degree:
        degree = mean_degree(clients)
        resolved = replace(resolved, settings=replace(settings, pna_degree=degree))
    client = resolved.method.client
    first = clients[min(clients)].widths
    start = start_of(client, resolved.spec(**first))
    shapes = {n: a.shape for n, a in start.arrays().items()}
    others_of = {
        tuple(w.values()): w for i in clients.values() if (w := i.widths) != first
    }
    for width in others_of.values():
        others = start_of(client, resolved.spec(**width)).arrays()
        if {n: a.shape for n, a in others.items()} != shapes:
            raise ConfigError(
                "clients differ in (features, classes, features of edges, of graphs):"
                f" {shortened(widths)}, so that the tensors that they share have other"
                " shapes; set encoder to one that does not read features of edges,"
                " e.g. 'gin', or take one data set"
            )
    if resolved.settings.never_train and (own := start.private()):
        raise ConfigError(
            "held-out-clients needs a model that travels as a whole, but clients keep"
            f" {shortened(own)} to themselves, which a client that never trains never"
            " learns; set shared-group to 'all', or take another method, e.g. fedavg"
        )
    if resolved.settings.evaluate_on == "all":
        if len(set(widths.values())) > 1:
            raise ConfigError(
                "evaluate-on must be 'own' if clients differ in (features, classes,"
                f" features of edges, of graphs), as {shortened(widths)}: no model fits"
                " the others' graphs; set it to 'own' in the run config"
            )
        if why := client.NOT_ELSEWHERE:
            raise ConfigError(
                f"evaluate-on must be 'own' for {resolved.settings.method!r}, got"
                f" 'all': {why}"
            )
    return start.arrays()

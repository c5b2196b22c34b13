"""What the results of many clients over many rounds take: to write, and to open.

No client trains: the server's own code writes scores, ledger and checkpoints of made-up
replies, and closes the run. All else that opens a run then does so, each in a process
of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedgraph_flwr.figures import draw_all
from fedgraph_flwr.progress import RoundWriter
from fedgraph_flwr.report import write_own_report, write_report
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from fedgraph_flwr.results.folder import RunFolder
from fedgraph_flwr.rules import Value
from fedgraph_flwr.seeding import numpy_rng
from fedgraph_flwr.trackers import NONE, Tracking
from fedgraph_flwr.wire import evaluation_key
from strategies.base import AbstractGraphStrategy
from strategies.report import (
    ClientInfo,
    Evaluation,
    LedgerEntry,
    RoundReport,
)

from ..compare import main as compare
from ..run import add_settings
from .arguments import Parts
from .scale import files_in
from .timing import in_own_process, print_table, resident_bytes

_ROWS, _MODEL_BYTES = 35, 85_557  # of each split of `planted`, and of its model
_SPLITS = {
    "val": ["accuracy", "loss"],
    "test": ["accuracy", "loss", "macro-f1", "roc-auc"],
}
_RUN_ID = 1


def add_results(parts: Parts) -> None:
    """Declare ``results`` and its arguments."""
    part = parts.add_parser("results", help="files of a run of many clients and rounds")
    part.set_defaults(measure=measure_results)
    part.add_argument("--clients", type=int, default=10_000)
    part.add_argument("--rounds", type=int, default=200)
    part.add_argument("--method", default="fedavg", help="one that classifies nodes")
    add_settings(part)


def measure_results(arguments: argparse.Namespace) -> int:
    """Print what writing and opening takes, and the size of each file."""
    config: dict[str, Value] = {
        **defaults(),
        "method": arguments.method,
        "dataset": "planted",
        "num-clients": arguments.clients,
        "num-server-rounds": arguments.rounds,
        "patience": 0,
        **dict(arguments.set),
    }
    with tempfile.TemporaryDirectory() as scratch:
        config["results-dir"] = scratch
        rows = [in_own_process(_write, config)]
        (folder,) = (path for path in Path(scratch).iterdir() if path.is_dir())
        sizes = {
            str(path.relative_to(folder)): path.stat().st_size
            for path in sorted(files_in(folder))
        }
        rows += [in_own_process(_timed, what, config, folder) for what in _OPEN]
    title = f"{arguments.clients} clients, {arguments.rounds} rounds"
    print_table(title, rows)
    total = sum(sizes.values())
    big = {n: s for n, s in sizes.items() if s > total / 200}
    sizes = {**big, "all files": total}
    print_table(
        "files", [{"file": n, "MB": f"{s / 1e6:.1f}"} for n, s in sizes.items()]
    )
    return 0


def _write(config: dict[str, Value]) -> dict[str, str]:
    """Write a run's folder; seconds are of all rounds, and of closing it."""
    began = time.perf_counter()
    resolved = resolve(config)
    folder = RunFolder.open(resolved, run_id=_RUN_ID)
    tracking = Tracking(NONE, folder.path, resolved.to_config())
    strategy = _strategy(resolved, folder)
    writer = RoundWriter(folder, tracking)
    rng = numpy_rng(0, "speed-results")
    last, seconds = resolved.settings.num_server_rounds, []
    for number in range(1, last + 2):
        report = _report(resolved, number, rng)
        before = time.perf_counter()
        if report.is_complete:
            strategy.last_rounds |= dict.fromkeys(strategy.clients, number)
        writer(strategy, report)
        seconds.append(time.perf_counter() - before)
    strategy.last_round = last
    before = time.perf_counter()
    folder.finish(strategy)
    draw_all(folder.path)
    write_own_report(folder.path)
    folder.close()
    closing = time.perf_counter() - before
    per_round = f"{statistics.median(seconds):.2f} per round, {closing:.1f} to close"
    return _row("the server writes", time.perf_counter() - began, per_round)


def _strategy(resolved: Resolved, folder: RunFolder) -> AbstractGraphStrategy:
    strategy = resolved.method.make_strategy(
        resolved.settings, resolved.params, experiment=folder.experiment
    )
    strategy.clients = {
        c: ClientInfo(
            client=c, node_id=0, num_train=30, num_val=_ROWS, num_test=_ROWS,
            num_features=16, num_classes=4, group=c % 2, split_hash="0" * 64,
            raw_sha256="0" * 64, identity="0" * 64, class_counts=(25, 25, 25, 25),
        )
        for c in range(resolved.settings.num_clients)
    }  # fmt: skip
    strategy.initialise({"convs.0.weight": np.zeros((64, 64), np.float32)})
    return strategy


def _report(resolved: Resolved, number: int, rng: np.random.Generator) -> RoundReport:
    """Make up the report of a round, or of the closing evaluation."""
    settings = resolved.settings
    clients = range(settings.num_clients)
    is_closing = number > settings.num_server_rounds
    points = {"post_aggregation": number - 1}
    if not is_closing:
        points["post_training"] = number
    names = [
        (at, split, point, metric)
        for point, at in points.items()
        if settings.is_measured(at)
        for split, metrics in _SPLITS.items()
        for metric in metrics
    ]
    if not is_closing:
        names.append((number, "train", "post_training", "loss"))
    values = rng.random((len(clients), len(names))).tolist()
    sizes = [("down", "arrays", _MODEL_BYTES), ("down", "facts", 111)]
    if not is_closing:
        sizes.append(("up", "arrays", _MODEL_BYTES))
    metrics = [evaluation_key(*rest) for _, *rest in names]
    sizes.append(("up", "metrics", 100 + sum(8 + len(name) for name in metrics)))
    return RoundReport(
        server_round=number,
        evaluations=[
            Evaluation(
                server_round=at, client=c, split=split, point=point, metric=metric,
                value=value, num_examples=_ROWS,
            )
            for c, row in zip(clients, values, strict=True)
            for (at, split, point, metric), value in zip(names, row, strict=True)
        ],
        ledger=[
            LedgerEntry(
                server_round=number, client=c, direction=d, record=record, bytes=size
            )
            for c in clients
            for d, record, size in sizes
        ],
        wall_s=1.0, client_compute_s=1.0, busy_s=1.0,
        facts={"clusters": [list(clients)]},
        is_complete=not is_closing, is_closing=is_closing,
    )  # fmt: skip


def _resume(config: dict[str, Value], folder: Path) -> None:
    """Go back to the last checkpoint, as a resume does before the roll call."""
    resolved = resolve({**config, "resume": str(folder)})
    reopened = RunFolder.open(resolved, run_id=_RUN_ID + 1)
    reopened.restore(_strategy(resolved, reopened))
    reopened.close()


_OPEN: dict[str, Callable[[dict[str, Value], Path], object]] = {
    "simulations.report": lambda _, run: write_report([run], run / "again.html"),
    "simulations.compare": lambda _, run: compare([str(run)]),
    "a resume, before the roll call": _resume,
}


def _timed(what: str, config: dict[str, Value], folder: Path) -> dict[str, str]:
    before = time.perf_counter()
    _OPEN[what](config, folder)
    return _row(what, time.perf_counter() - before)


def _row(what: str, seconds: float, more: str = "") -> dict[str, str]:
    return {
        "what": what,
        "s": f"{seconds:.1f}",
        "peak MB": f"{resident_bytes(at_most=True) / 1e6:.0f}",
        "of this": more,
    }

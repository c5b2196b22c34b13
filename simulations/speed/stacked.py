"""A round of many small clients: trained one by one, and as one."""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

import datasets
from clients.base import GraphClient
from clients.marks import done_by_stacks
from clients.stacking.stack import Stack
from fedgraph_flwr.config import Value
from fedgraph_flwr.device import choose_device
from fedgraph_flwr.resolve import defaults, resolve

from ..inline import run_inline
from .rounds import on_threads, ours_single_process
from .timing import console, median_seconds, print_table

_WARM_UP = 2  # rounds


def measure_stacked(arguments: argparse.Namespace) -> int:
    """Time rounds without and with stacks, beside the bare loop; count operators.

    The bare loop evaluates, trains and evaluates each client in turn on a CPU, and does
    nothing else. What a round takes beyond it is the cost of clients being clients.
    """
    device = choose_device(arguments.device)
    config: dict[str, Value] = {
        "method": arguments.method,
        "dataset": arguments.dataset,
        "num-server-rounds": _WARM_UP + arguments.rounds,
        "device": arguments.device,
        "patience": 0,
        "min-rounds": 0,
    }
    rows = []
    for count in arguments.clients:
        own = {**config, "num-clients": count}
        bare = _bare_seconds(own, arguments.rounds)
        rows.append(_row(count, "bare loop", bare, bare))
        for mode in ("off", "on"):
            times = [
                _seconds({**own, "stacked": mode}) for _ in range(arguments.repeats)
            ]
            seconds = statistics.median(times)
            spread = f"{min(times):.3f} to {max(times):.3f}"
            operators = _operators({**own, "stacked": mode})
            what = "one by one" if mode == "off" else "stacked"
            row = _row(count, what, seconds, bare)
            rows.append({**row, "least to most": spread, "operators": str(operators)})
    print_table(
        f"{arguments.dataset}, {arguments.method}, {device.type}: a round; ms more per"
        " client than the bare loop on a CPU",
        rows,
    )
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**30
        console.print(f"most memory of the GPU: {peak:.2f} GiB")
    return 0


def _row(count: int, what: str, seconds: float, bare: float) -> dict[str, str]:
    return {
        "clients": str(count),
        "what": what,
        "s": f"{seconds:.3f}",
        "ms more": f"{1000 * (seconds - bare) / count:.1f}",
        "least to most": "",
        "operators": "",
    }


def _bare_seconds(config: dict[str, Value], repeats: int) -> float:
    settings = resolve({**defaults(), **config}).settings
    clients = range(settings.num_clients)
    partitions = [datasets.load_partition(settings, c) for c in clients]
    loop = on_threads(1, ours_single_process(partitions, settings), flushes=True)
    return median_seconds({"bare": loop}, repeats)["bare"]


def _seconds(config: dict[str, Value]) -> float:
    """Median wall seconds of a round."""
    with tempfile.TemporaryDirectory() as scratch:
        places = {f"{k}-dir": str(Path(scratch) / k) for k in ("state", "results")}
        folder = run_inline({**config, **places}, num_nodes=1)
        with (folder / "times.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = rows[_WARM_UP:-1]  # the last is the closing evaluation
    return statistics.median(float(row["wall_s"]) for row in done)


def _operators(config: dict[str, Value]) -> int:
    """Operators of one round's training and evaluations."""
    counting = _Counting()
    parts = [(kind, kind.practise) for kind in (GraphClient, Stack)]
    with ExitStack() as patches, tempfile.TemporaryDirectory() as scratch:
        for kind, practise in parts:
            patches.enter_context(
                mock.patch.object(kind, "practise", counting.around(practise))
            )
        places = {f"{k}-dir": str(Path(scratch) / k) for k in ("state", "results")}
        run_inline({**config, **places, "num-server-rounds": 1}, num_nodes=1)
    return counting.seen.total()


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that counts while it does what ``function`` does."""

        def call(*args: Any) -> Any:
            with self:
                return function(*args)

        done_by_stacks(call)
        return call

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))

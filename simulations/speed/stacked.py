"""A round of many small clients: trained one by one, and as one."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

import datasets
from clients.base import GraphClient
from clients.marks import done_by_stacks
from clients.stacking.stack import Stack
from fedgraph_flwr.device import choose_device
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.rules import Value
from strategies.base import AbstractGraphStrategy

from ..run import add_settings
from ..scratch import finished_run
from .arguments import Parts, add_repeats
from .rounds import on_threads, ours_single_process
from .timing import WARM_UP, console, print_table


def add_stacked(parts: Parts) -> None:
    """Declare ``stacked`` and its arguments."""
    part = parts.add_parser("stacked", help="small clients, one by one and as one")
    part.set_defaults(measure=measure_stacked)
    part.add_argument("--clients", type=int, nargs="+", default=[5, 50])
    part.add_argument("--method", default="fedavg")
    part.add_argument("--dataset", default="NCI1")
    part.add_argument("--device", default="auto")
    part.add_argument("--rounds", type=int, default=5, help="to take medians of")
    add_repeats(part, 3)
    add_settings(part)


def measure_stacked(arguments: argparse.Namespace) -> int:
    """Time rounds without and with stacks, beside the bare loop; count operators.

    The bare loop evaluates, trains and evaluates each client in turn on a CPU, and does
    nothing else. It runs in the same process after each round, as a machine's own speed
    changes within seconds. What a round takes beyond it is the cost of clients being
    clients.
    """
    device = choose_device(arguments.device)
    config: dict[str, Value] = {
        "method": arguments.method,
        "dataset": arguments.dataset,
        "num-server-rounds": WARM_UP + arguments.rounds,
        "device": arguments.device,
        "patience": 0,
        "min-rounds": 0,
        **dict(arguments.set),
    }
    if datasets.label_kind(resolve({**defaults(), **config}).settings) == "nodes":
        raise ConfigError(
            f"the bare loop trains on whole graphs, and --dataset {arguments.dataset}"
            " is of nodes; choose a data set of graphs, e.g. NCI1"
        )
    rows = []
    for count in arguments.clients:
        own = {**config, "num-clients": count}
        loop = _bare_loop(own)
        for mode in ("off", "on"):
            given = {**own, "stacked": mode}
            turns = [t for _ in range(arguments.repeats) for t in _turns(given, loop)]
            seconds, bare = map(statistics.median, zip(*turns, strict=True))
            more = [1000 * (whole - alone) / count for whole, alone in turns]
            counted = _counted(given)
            row = {
                "clients": str(count),
                "what": "one by one" if mode == "off" else "stacked",
                "s": f"{seconds:.3f}",
                "bare loop s": f"{bare:.3f}",
                "ms more per client": f"{statistics.median(more):.1f}",
                "quartiles": " to ".join(f"{q:.1f}" for q in _quartiles(more)),
                "no padding": f"{counted.own:.0%}" if mode == "on" else "",
                "operators": str(counted.seen.total()),
            }
            rows.append(row)
    print_table(
        f"{arguments.dataset}, {arguments.method}, {device.type}: a round, and the bare"
        " loop on a CPU after it",
        rows,
    )
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**30
        console.print(f"most memory of the GPU: {peak:.2f} GiB")
    return 0


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    first, _, last = statistics.quantiles(values, n=4, method="inclusive")
    return first, last


def _bare_loop(config: dict[str, Value]) -> Callable[[], None]:
    run = resolve({**defaults(), **config})
    clients = range(run.settings.num_clients)
    partitions = [datasets.load_partition(run.settings, c) for c in clients]
    loop = on_threads(1, ours_single_process(partitions, run), flushes=True)
    loop()  # the first one is slower
    return loop


def _turns(
    config: dict[str, Value], loop: Callable[[], None]
) -> list[tuple[float, float]]:
    """Wall seconds of each round, all in all, and of the bare loop after it."""
    found: list[tuple[float, float]] = []
    begin = AbstractGraphStrategy.begin_round
    last = 0.0

    def after(*arguments: Any) -> Any:
        nonlocal last
        before = time.perf_counter()
        loop()
        found.append((before - last, time.perf_counter() - before))
        last = time.perf_counter()
        return begin(*arguments)

    with (
        mock.patch.object(AbstractGraphStrategy, "begin_round", after),
        finished_run(config),
    ):
        pass
    return found[1 + WARM_UP :]  # before the first is the start


def _counted(config: dict[str, Value]) -> _Counting:
    """Count one round's training and evaluations."""
    counting = _Counting()
    with ExitStack() as patches:
        for kind in (GraphClient, Stack):
            practise = counting.around(kind.practise)
            patches.enter_context(mock.patch.object(kind, "practise", practise))
        step = counting.looking(Stack.step)
        patches.enter_context(mock.patch.object(Stack, "step", step))
        patches.enter_context(finished_run({**config, "num-server-rounds": 1}))
    return counting


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators by name, and the rows of stacks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()
        self._own_rows = self._rows = 0

    @property
    def own(self) -> float:
        """Share of the rows in steps of stacks that are no padding; 1 without any."""
        return self._own_rows / self._rows if self._rows else 1.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that counts while it does what ``function`` does."""

        def call(*args: Any) -> Any:
            with self:
                return function(*args)

        done_by_stacks(call)
        return call

    def looking(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Make a step that notes the rows of its batch."""

        def call(stack: Any, optimizer: Any, batch: Any, losses: Any) -> Any:
            self._own_rows += int(batch.num_nodes.sum())
            self._rows += len(batch.num_nodes) * int(batch.num_nodes.max())
            return step(stack, optimizer, batch, losses)

        return call

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))

"""All that is to be measured on a GPU, by one command, with the aims beside it.

Every part has a process of its own, so that its peak of memory is its own. On a CPU the
same parts run, to try the command; no aim is for a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedgraph_flwr.device import choose_device
from fedgraph_flwr.results.reader import read_times
from fedgraph_flwr.rules import Value

from .. import device_check
from ..scratch import finished_run
from .arguments import Parts
from .timing import WARM_UP, console, in_own_process, print_table, resident_bytes

# Clients as large as those of PROTEINS among ten: 50 to 149 graphs each.
_MANY: dict[str, Value] = {"dataset": "PROTEINS", "partition": "chunks-overlap"}
_LOOK_S = 0.1
_ROUND_S, _RATIO, _MEMORY_GB = 0.02, 10.0, 6.0  # aims


def add_gpu(parts: Parts) -> None:
    """Declare ``gpu`` and its arguments."""
    part = parts.add_parser("gpu", help="all that is to be measured on a GPU")
    part.set_defaults(measure=measure_gpu)
    part.add_argument("--device", default="cuda")
    part.add_argument("--dataset", default="NCI1")
    part.add_argument("--clients", type=int, default=50)
    part.add_argument(
        "--many", type=int, default=500, help="clients of PROTEINS, for the memory"
    )
    part.add_argument(
        "--shares", type=float, nargs="*", default=[0.1],
        help="of a GPU for an actor of Ray; none: not through Flower",
    )  # fmt: skip
    part.add_argument("--rounds", type=int, default=10, help="to take medians of")


def measure_gpu(arguments: argparse.Namespace) -> int:
    """Print every part; return what the check of all methods returns."""
    device = choose_device(arguments.device)
    common: dict[str, Value] = {
        "method": "fedavg",
        "device": str(device),
        "num-server-rounds": WARM_UP + arguments.rounds,
        "patience": 0,
        "min-rounds": 0,
    }
    few = {**common, "dataset": arguments.dataset, "num-clients": arguments.clients}
    many = {
        **common,
        **_MANY,
        "num-clients": arguments.many,
        "stacked": "on",
    }
    rows: list[dict[str, str]] = []
    seconds: dict[str, float] = {}
    for mode in ("off", "on"):
        found = in_own_process(run, {**few, "stacked": mode})
        seconds[mode] = found[0]
        name = "stacked" if mode == "on" else "one by one"
        rows.append(_row(f"{arguments.clients} clients inline, {name}", *found))
    rows.append(_row(f"{arguments.many} clients inline", *in_own_process(run, many)))
    memory = rows[-1]["peak GB"]
    for share in arguments.shares:
        share *= device.type == "cuda"  # a CPU has none to give
        found = in_own_process(run, few, arguments.clients, share)
        rows.append(_row(f"{arguments.clients} nodes, {share:g} GPU an actor", *found))
    print_table(f"fedavg on {device}: a round, median of {arguments.rounds}", rows)
    ratio = seconds["off"] / seconds["on"]
    console.print(f"stacked: {seconds['on']:.4f} s, aim at most {_ROUND_S} s")
    console.print(f"one by one / stacked: {ratio:.1f}, aim at least {_RATIO:g}")
    console.print(f"{arguments.many} clients: {memory} GB, aim at most {_MEMORY_GB:g}")
    return device_check.main(["--device", str(device)])


def run(
    config: dict[str, Value], num_nodes: int = 0, share: float = 0.0
) -> tuple[float, float, int]:
    """Run inline, or through Flower on some nodes, an actor for a share of a GPU.

    Returns
    -------
    seconds : float
        Of a round, the median after warm-up.
    peak : float
        Bytes of the GPU, by whatever process; on a CPU of this process.
    together : int
        Most clients that computed at the same time.
    """
    device = choose_device(str(config["device"]))
    with _watched(device) as peaks, finished_run(config, num_nodes, share) as folder:
        done = read_times(folder)[WARM_UP:-1]  # the last is the closing
    ratios = [row.client_compute_s / row.busy_s for row in done]
    seconds = statistics.median(row.wall_s for row in done)
    return seconds, max(peaks), max(1, round(statistics.median(ratios)))


@contextmanager
def _watched(device: torch.device) -> Iterator[list[float]]:
    """Note the memory in use, until this is left."""
    peaks, is_over = [0.0], threading.Event()
    first = _used(device)

    def look() -> None:
        while not is_over.wait(_LOOK_S):
            peaks.append(_used(device) - first)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        is_over.set()
        thread.join()
        if device.type == "cuda":  # of this process, between two looks
            peaks.append(float(torch.cuda.max_memory_reserved(device)))


def _used(device: torch.device) -> float:
    if device.type != "cuda":
        return float(resident_bytes())
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free)


def _row(what: str, seconds: float, peak: float, together: int) -> dict[str, str]:
    return {
        "what": what,
        "s": f"{seconds:.4f}",
        "peak GB": f"{peak / 1e9:.2f}",
        "computing at once": str(together),
    }

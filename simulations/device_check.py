"""Does a device compute what the CPU computes? ``python -m simulations.device_check``.

Runs every method for a few rounds on the given device and on the CPU, without dropout
(masks are drawn on the device, so they differ), on graphs, nodes and molecules that
need no files. Compares the models of server and clients, 32 wide. Also times a round on
either. Exits with 1 if a method disagrees.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.numpy import load_file

from datasets import label_kind
from datasets.molecules import SMILES_CSV
from fedgraph_flwr.command import command
from fedgraph_flwr.device import choose_device
from fedgraph_flwr.methods.gcfl import GCFLParams
from fedgraph_flwr.registry import METHODS, on_data
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.rules import Value
from fedgraph_flwr.tasks import GRAPH_EMBEDDING

from .example_data import write_examples
from .scratch import finished_run

console = Console(highlight=False)
Models = Mapping[str, Mapping[str, NDArray[Any]]]  # tensors by name, by file
_PRIVATE: Mapping[str, Value] = {
    "features": "atoms-no-degree",
    "privacy.edge-epsilon": 10.0,
}
_FOR_LABELS = {"binary": _PRIVATE, "regression": _PRIVATE}  # FGCL trains on no others
_NEVER_SPLITS: Mapping[str, Value] = {  # rounding could decide on a cut
    "gcfl.mean-norm-threshold": 0.0,
    "gcfl.max-norm-threshold": 0.0,
    "gcfl.seq-length": 2,
    "gcfl.min-round": 1,
}
_NO_SCORES: Mapping[str, Value] = {"embedding.rounds": "", "embedding.probe": False}


def largest_difference(one: Models, other: Models) -> float:
    """Largest absolute difference between the models of two runs."""
    if one.keys() != other.keys():
        return float("inf")
    largest = 0.0
    for name, model in one.items():
        for key, array in model.items():
            gap = np.abs(array.astype(np.float64) - other[name][key])
            largest = max(largest, float(gap.max(initial=0.0)))
    return largest


def train(overrides: Mapping[str, Value]) -> tuple[Models, float]:
    """Run once; return the models of server and clients, and the seconds of a round."""
    with finished_run(overrides) as run:
        files = [
            *run.glob("models/*.safetensors"),
            *run.parents[1].glob("state/*/client-*/model/*.safetensors"),
        ]
        models = {f"{path.parent.name}/{path.name}": load_file(path) for path in files}
        summary = load_summary(run)
        return models, summary["client_compute_s"] / summary["rounds"]


def datasets_of_all(folder: Path) -> list[dict[str, Value]]:
    """Name data that need no files, for every method; molecules go to a folder."""
    *_, molecules = write_examples(folder)
    return [
        {"dataset": "synthetic"},
        {"dataset": "planted"},
        {
            "dataset": SMILES_CSV,
            "csv-label-kind": "regression",
            "csv-label-columns": "solubility",
            "data-dir": str(molecules),
            "num-clients": 2,
        },
    ]


def check(
    method: str, device: str, data: Mapping[str, Value], *, rounds: int
) -> tuple[float, float, float]:
    """Largest difference to the CPU, and seconds per round on CPU and device."""
    kind = _kind(data)
    chosen = on_data(METHODS[method], kind)
    overrides: dict[str, Value] = {
        "num-server-rounds": rounds,
        "local-epochs": 2,
        "hidden-dim": 32,
        "dropout": 0.0,
        **_FOR_LABELS.get(kind, {}),
        **(_NEVER_SPLITS if chosen.params is GCFLParams else {}),
        **(_NO_SCORES if chosen.task is GRAPH_EMBEDDING else {}),
        **data,
        "method": method,
    }
    cpu, cpu_s = train({**overrides, "device": "cpu"})
    there, there_s = train({**overrides, "device": device})
    return largest_difference(cpu, there), cpu_s, there_s


def _kind(data: Mapping[str, Value]) -> str:
    return label_kind(resolve({**defaults(), "method": "local", **data}).settings)


def _fits(method: str, data: Mapping[str, Value]) -> bool:
    kind = _kind(data)
    return on_data(METHODS[method], kind).task.fits(kind)


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m simulations.device_check")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--dataset", help="one data set, instead of three built-in ones"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    arguments = parser.parse_args(argv)
    logging.disable(logging.INFO)
    device = str(choose_device(arguments.device))
    table = Table(title=f"{device} against cpu, {arguments.rounds} rounds")
    for column in (
        "data",
        "method",
        "largest difference",
        "cpu s/round",
        f"{device} s/round",
    ):
        table.add_column(column)
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.dataset:
            sets: list[dict[str, Value]] = [{"dataset": arguments.dataset}]
        else:
            sets = datasets_of_all(Path(scratch) / "example")
        found = [(d, m) for d in sets for m in METHODS if _fits(m, d)]
        if others := sorted(set(METHODS) - {method for _, method in found}):
            console.print(f"need another --dataset: {', '.join(others)}")
        for data, method in track(found, console=console, transient=True):
            gap, *times = check(method, device, data, rounds=arguments.rounds)
            worst = max(worst, gap)
            seconds = [f"{s:.3f}" for s in times]
            table.add_row(str(data["dataset"]), method, f"{gap:.1e}", *seconds)
    console.print(table)
    agrees = worst <= arguments.tolerance
    console.print("agrees" if agrees else f"DIFFERS by more than {arguments.tolerance}")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())

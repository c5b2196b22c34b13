"""Does a device compute what the CPU computes? ``python tests/lab/device.py``.

Runs every method for a few rounds on the device and on the CPU, without dropout (masks
are drawn on the device, so they differ), on graphs, nodes and molecules that need no
files. Compares the models of server and clients, 32 wide, and times a round on either.
Exits with 1 if a method disagrees. ``--clients 50 500`` then times rounds of so many
clients of PROTEINS on the device, in one process.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from bench import WARM_UP, finished_run, print_table
from safetensors.numpy import load_file

from datasets import label_kind
from datasets.molecules import SMILES_CSV
from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.process import choose_device, in_own_process, resident_bytes
from fedgraph_flwr.registry import METHODS, on_data
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import load_summary, read_times
from simulations.example_data import write_examples

TOLERANCE = 1e-3
_COMMON = {
    "local-epochs": 2,
    "hidden-dim": 32,
    "dropout": 0.0,
    # GCFL never splits, as rounding could decide on a cut.
    "gcfl.mean-norm-threshold": 0.0,
    "gcfl.max-norm-threshold": 0.0,
    "gcfl.seq-length": 2,
    "gcfl.min-round": 1,
    "embedding.rounds": "",
    "embedding.probe": False,
}


def largest_difference(one, other):
    """Largest absolute difference between models: tensors by name, by file."""
    if one.keys() != other.keys():
        return float("inf")
    return max(
        float(np.abs(array.astype(np.float64) - other[name][key]).max(initial=0.0))
        for name, model in one.items()
        for key, array in model.items()
    )


def train(overrides):
    """Run once; return the models of server and clients, and the seconds of a round."""
    with finished_run(overrides) as run:
        own = run.parents[1].glob("state/*/client-*/model/*.safetensors")
        files = [*run.glob("models/*.safetensors"), *own]
        models = {f"{path.parent.name}/{path.name}": load_file(path) for path in files}
        summary = load_summary(run)
        return models, summary["client_compute_s"] / summary["rounds"]


def datasets_of_all(folder):
    """Name data that need no files, for every method; molecules go to a folder."""
    molecules = write_examples(folder)[2]
    return [
        {"dataset": "synthetic"},
        {"dataset": "planted"},
        {
            "dataset": SMILES_CSV,
            "csv-label-kind": "regression",
            "csv-label-columns": "solubility",
            "data-dir": str(molecules),
            "num-clients": 2,
            "features": "atoms-no-degree",
            "privacy.edge-epsilon": 10.0,
        },
    ]


def check(overrides, device):
    """Largest difference to the CPU, and seconds per round on CPU and device."""
    cpu, cpu_s = train({**overrides, "device": "cpu"})
    there, there_s = train({**overrides, "device": device})
    return largest_difference(cpu, there), cpu_s, there_s


def compare(device, rounds):
    """Check every method; print a table, and return the largest difference."""
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for data in datasets_of_all(Path(scratch) / "example"):
            common = {**_COMMON, **data, "num-server-rounds": rounds}
            local = resolve({**defaults(), "method": "local", **data})
            kind = label_kind(local.settings)
            for method in METHODS:
                if not on_data(METHODS[method], kind).task.fits(kind):
                    continue
                gap, *seconds = check({**common, "method": method}, device)
                worst = max(worst, gap)
                row = {"data": data["dataset"], "method": method, "gap": f"{gap:.1e}"}
                row["cpu s"], row["device s"] = (f"{s:.3f}" for s in seconds)
                rows.append(row)
    print_table(f"{device} against cpu, {rounds} rounds", rows)
    return worst


def many(device, clients, rounds):
    """Median seconds of a round of many clients, and peak bytes of the device."""
    config = {
        "method": "fedavg",
        "dataset": "PROTEINS",
        "partition": "chunks-overlap",
        "num-clients": clients,
        "num-server-rounds": WARM_UP + rounds,
        "patience": 0,
        "device": device,
    }
    with finished_run(config) as run:
        walls = [row.wall_s for row in read_times(run)[WARM_UP : WARM_UP + rounds]]
    if device.startswith("cuda"):
        return float(np.median(walls)), torch.cuda.max_memory_reserved(device)
    return float(np.median(walls)), resident_bytes(at_most=True)


@command
def main(argv=None):
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="*", default=[], help="to time")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    device = str(choose_device(options.device))
    agrees = compare(device, options.rounds) <= TOLERANCE
    sys.stdout.write("agrees\n" if agrees else f"DIFFERS by more than {TOLERANCE}\n")
    for count in options.clients:
        seconds, peak = in_own_process(many, device, count, options.rounds)
        sys.stdout.write(f"{count} clients: {seconds:.3f} s, {peak / 1e9:.2f} GB\n")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())

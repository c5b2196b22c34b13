"""Measure time or memory: ``python -m simulations.speed WHAT``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedgraph_flwr.command import command

from .gpu import measure_gpu
from .memory import NUM_NODES, measure_memory
from .molecules import measure_molecules
from .peers import measure_peers
from .results import measure_results
from .rounds import compare_round, measure_overhead
from .scale import measure_scale
from .server import measure_server
from .sites import measure_sites
from .stacked import measure_stacked
from .views import measure_views


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.speed",
        description="Time and memory, beside a plain loop of PyTorch Geometric.",
    )
    parts = parser.add_subparsers(metavar="WHAT", required=True)

    part = parts.add_parser("round", help="a round through Flower, and plain loops")
    part.set_defaults(measure=compare_round)
    part.add_argument("--dataset", default="molecules")
    part.add_argument("--clients", type=int, default=7)
    part.add_argument(
        "--nodes", type=int, nargs="+", help="of Flower; 2, and one per client"
    )
    _add_repeats(part, 5)

    part = parts.add_parser("overhead", help="share of time that no client computes")
    part.set_defaults(measure=measure_overhead)
    part.add_argument("--rounds", type=int, default=20, help="rounds per run")
    _add_repeats(part, 5)

    part = parts.add_parser("molecules", help="multi-task training, per molecule")
    part.set_defaults(measure=measure_molecules)
    part.add_argument("--datasets", nargs="+", default=["SIDER", "QM8"])
    part.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128])
    part.add_argument("--graphs", type=int, default=300, help="to train on")
    _add_repeats(part, 3)

    part = parts.add_parser("views", help="noisy graphs as matrices, and as edges")
    part.set_defaults(measure=measure_views)
    part.add_argument("--nodes", type=int, nargs="+", default=[30, 100, 300, 620])
    _add_repeats(part, 5)

    part = parts.add_parser("memory", help="of a client with a graph like ogbn-arxiv")
    part.set_defaults(measure=measure_memory)
    part.add_argument("--clients", default="1,5", help="numbers of clients to try")
    part.add_argument("--methods", default="fedavg", help="names, by commas")
    part.add_argument("--nodes", type=int, default=NUM_NODES, help="of the graph")
    part.add_argument("--limit-gb", type=float, default=4.0, help="else exit with 1")
    _add_settings(part)

    part = parts.add_parser("sites", help="a round over SuperNodes, resident or not")
    part.set_defaults(measure=measure_sites)
    part.add_argument("--sites", type=int, default=3)
    part.add_argument("--rounds", type=int, default=10, help="per run")
    part.add_argument("--method", default="fedavg")

    part = parts.add_parser("stacked", help="small clients, one by one and as one")
    part.set_defaults(measure=measure_stacked)
    part.add_argument("--clients", type=int, nargs="+", default=[5, 50])
    part.add_argument("--method", default="fedavg")
    part.add_argument("--dataset", default="NCI1")
    part.add_argument("--device", default="auto")
    part.add_argument("--rounds", type=int, default=5, help="to take medians of")
    _add_repeats(part, 3)

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

    part = parts.add_parser("peers", help="a round of FedAvg beside a peer's code")
    part.set_defaults(measure=measure_peers)
    part.add_argument(
        "--peer-python", required=True, metavar="FILE",
        help="Python of an environment that has the package fedgraph",
    )  # fmt: skip
    part.add_argument(
        "--gcfl-code", type=Path, metavar="DIR",
        help="a clone of the code of GCFL's authors, to be the peer in its place",
    )  # fmt: skip
    part.add_argument(
        "--dataset", default="PROTEINS",
        help="of the TU collection, or a group of the authors, as molecules",
    )  # fmt: skip
    part.add_argument(
        "--clients", type=int, default=10, help="a group has one per member"
    )
    part.add_argument("--rounds", type=int, default=30, help="per run")
    _add_repeats(part, 3)

    part = parts.add_parser("server", help="what strategies compute for many clients")
    part.set_defaults(measure=measure_server)
    part.add_argument("--clients", type=int, nargs="+", default=[200, 1000])
    _add_repeats(part, 3)

    part = parts.add_parser("results", help="files of a run of many clients and rounds")
    part.set_defaults(measure=measure_results)
    part.add_argument("--clients", type=int, default=10_000)
    part.add_argument("--rounds", type=int, default=200)
    part.add_argument("--method", default="fedavg", help="one that classifies nodes")
    _add_settings(part)

    part = parts.add_parser("scale", help="how a run grows with its clients")
    part.set_defaults(measure=measure_scale)
    part.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    part.add_argument("--method", default="fedavg")
    part.add_argument("--dataset", default="planted")
    part.add_argument("--nodes", type=int, default=0, help="of Flower; 0: no Flower")
    part.add_argument("--rounds", type=int, default=3)
    part.add_argument("--figure", type=Path, help="file to draw to")
    _add_settings(part)
    return parser


def _add_settings(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="a further run-config key; may be repeated",
    )  # fmt: skip


def _add_repeats(part: argparse.ArgumentParser, default: int) -> None:
    part.add_argument("--repeats", type=int, default=default, help="to take medians of")


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    arguments = _parser().parse_args(argv)
    result: int = arguments.measure(arguments)
    return result


if __name__ == "__main__":
    sys.exit(main())

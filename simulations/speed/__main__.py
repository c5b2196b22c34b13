"""Measure time or memory: ``python -m simulations.speed WHAT``."""

from __future__ import annotations

import argparse
import sys

from fedgraph_flwr.command import command

from .memory import add_memory
from .molecules import add_molecules
from .peers import add_peers
from .results import add_results
from .rounds import add_overhead, add_round
from .scale import add_scale
from .server import add_server
from .sites import add_sites
from .views import add_views

# In the order of ``--help``.
_PARTS = (
    add_round,
    add_overhead,
    add_molecules,
    add_views,
    add_memory,
    add_sites,
    add_peers,
    add_server,
    add_results,
    add_scale,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.speed",
        description="Time and memory, beside a plain loop of PyTorch Geometric.",
    )
    parts = parser.add_subparsers(metavar="WHAT", required=True)
    for add in _PARTS:
        add(parts)
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    arguments = _parser().parse_args(argv)
    result: int = arguments.measure(arguments)
    return result


if __name__ == "__main__":
    sys.exit(main())

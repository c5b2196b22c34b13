"""Say and draw what a topology is: ``python -m simulations.topology ring --clients 8``.

Without a run: edges, parts, and the spectral gap of its mixing weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedgraph_flwr.core import mixing
from fedgraph_flwr.core import network as topology
from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.network import Network
from fedgraph_flwr.results.printed import describe_network, facts_of
from fedgraph_flwr.view.matrices import draw_facts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.topology", description=__doc__
    )
    parser.add_argument("kind", choices=topology.KINDS)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--degree", type=int, default=2)
    parser.add_argument("--rewiring", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--edges-file", default="")
    parser.add_argument(
        "--weights", choices=mixing.KINDS, default="metropolis",
        help="'samples' is shown for clients with as many training graphs each",
    )  # fmt: skip
    parser.add_argument("--without", default="", help="clients that are gone, e.g. 1,4")
    parser.add_argument("--figure", type=Path, help="PNG file to write")
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Print the description and draw the figure; 2 if there is no such topology."""
    arguments = _parser().parse_args(argv)
    made = topology.build_topology(
        arguments.kind,
        arguments.clients,
        degree=arguments.degree,
        rewiring=arguments.rewiring,
        seed=arguments.seed,
        edges_file=arguments.edges_file,
    )
    gone = [int(part) for part in arguments.without.split(",") if part]
    network = Network(topology=made, weights=arguments.weights, gone=gone)
    facts = facts_of(network, dict.fromkeys(made.neighbours, 1))
    sys.stdout.write(f"{describe_network(facts)}\n")
    for client, peers in made.neighbours.items():
        sys.stdout.write(f"client {client}: {', '.join(map(str, peers)) or 'alone'}\n")
    if arguments.figure:
        sys.stdout.write(f"{draw_facts(facts, arguments.figure)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

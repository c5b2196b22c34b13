"""``fedgraph topology``: say who talks to whom, without a run."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer

from fedgraph_flwr.core import mixing, network
from fedgraph_flwr.results.printed import describe_network, facts_of

from .run import numbers


def topology(
    kind: Annotated[str, typer.Argument(click_type=click.Choice(network.KINDS))],
    *,
    clients: Annotated[int, typer.Option()],
    degree: int = 2,
    seed: int = 0,
    edges_file: str = "",
    weights: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(mixing.KINDS),
            help="'samples' is shown for clients with as many training graphs each.",
        ),
    ] = "metropolis",
    without: Annotated[str, typer.Option(help="Clients that are gone: 1,4.")] = "",
) -> int:
    """Say edges, parts, and the spectral gap of the mixing weights of a topology."""
    made = network.build_topology(
        kind, clients, degree=degree, seed=seed, edges_file=edges_file
    )
    gone = numbers("--without", without)
    facts = facts_of(
        network.Network(topology=made, weights=weights, gone=gone),
        dict.fromkeys(made.neighbours, 1),
    )
    sys.stdout.write(f"{describe_network(facts)}\n")
    for client, peers in made.neighbours.items():
        sys.stdout.write(f"client {client}: {', '.join(map(str, peers)) or 'alone'}\n")
    return 0

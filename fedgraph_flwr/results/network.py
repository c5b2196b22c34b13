"""The network of a decentralised run: edges, spectral gap, clients that dropped out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.base import AbstractGraphStrategy

from ..peers.mixing import mixing_matrix, spectral_gap
from ..peers.topology import Network
from ..wording import name_clients


def network_facts(strategy: AbstractGraphStrategy) -> dict[str, Any] | None:
    """Describe the network of a run after roll call; None if clients have none."""
    network = strategy.network()
    if network is None or not strategy.clients:
        return None
    return facts_of(network, {c: i.num_train for c, i in strategy.clients.items()})


def facts_of(network: Network, num_examples: Mapping[int, int]) -> dict[str, Any]:
    """Describe a network, given the training graphs of its clients.

    ``spectral_gap`` is that of all clients together; ``rest`` are the sets of clients
    that reach each other without those that are gone.
    """
    topology = network.topology
    matrix = mixing_matrix(network.weights, topology, num_examples)
    rest = topology.components(network.gone)
    return {
        "kind": topology.kind,
        "edges": [list(edge) for edge in topology.edges],
        "weights": network.weights,
        "sealed": network.is_sealed,
        "spectral_gap": spectral_gap(matrix),
        "is_connected": topology.is_connected(),
        "isolated": topology.isolated,
        "dropped_out": sorted(network.gone),
        "missed_rounds": {str(c): list(r) for c, r in sorted(network.missed.items())},
        "without_mail_of": {
            str(c): list(js) for c, js in sorted(network.silent.items()) if js
        },
        "unusable_letters_of": {str(c): n for c, n in sorted(network.unusable.items())},
        "rest_is_connected": len(rest) <= 1,
        "rest": rest,
    }


def describe_seal(is_sealed: bool | None) -> str:
    """Say whether neighbours' letters were sealed; "" if there are none."""
    if is_sealed is None:
        return ""
    return f"letters {'sealed' if is_sealed else 'not sealed'}"


def describe_network(facts: Mapping[str, Any]) -> str:
    """Describe the network in one line."""
    words = [
        f"{facts['kind']} topology, {len(facts['edges'])} edges,"
        f" {'connected' if facts['is_connected'] else 'not connected'},"
        f" spectral gap {facts['spectral_gap']:.4f} with {facts['weights']} weights"
    ]
    if seal := describe_seal(facts["sealed"]):
        words.append(seal)
    if gone := facts["dropped_out"]:
        rest = facts["rest"]
        state = "connected" if facts["rest_is_connected"] else f"in parts {rest}"
        words.append(
            f"{len(gone)} dropped out ({name_clients(gone)}), the"
            f" {sum(map(len, rest))} others went on and are {state}"
        )
    for client, senders in facts["without_mail_of"].items():
        lacking = sorted(set(senders) - set(gone))
        if lacking and int(client) not in gone:
            named = ", ".join(map(str, lacking))
            words.append(f"client {client} has no mail of {named}, who take part")
    for client, count in facts["unusable_letters_of"].items():
        words.append(f"{count} letters of client {client} could not be used")
    return "; ".join(words)

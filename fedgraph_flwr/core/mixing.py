"""How a client weighs its neighbours' models: rows of the mixing matrix M.

A client computes its own row from what its neighbours say of themselves; the whole
matrix is made for reports only.

Source
------
SpreadGNN, Eq. (12), asks for a symmetric, doubly stochastic M and names none.
Metropolis: Xiao, Boyd 2004, "Fast linear iterations for distributed averaging".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import WireError
from .network import Topology

KINDS = ("metropolis", "uniform", "samples")
MOST_ENTRY = 1000.0  # no number of a letter's network is larger: none has batch norm


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What a client sends its neighbours so that they can weigh its model."""

    num_neighbours: int
    num_examples: int


def mixing_row(kind: str, client: int, peers: Mapping[int, Peer]) -> dict[int, float]:
    """Weights of the models that ``client`` mixes, by client, ascending.

    Parameters
    ----------
    kind : str
        "metropolis": 1 / (1 + max(deg_k, deg_j)) of a neighbour, the rest of itself.
        "uniform": all the same. "samples": in proportion to training graphs, or
        all the same if there are none.
    peers : mapping of int to Peer
        The client itself and those neighbours whose models arrived. What a missing
        neighbour would have weighed goes to the client itself under "metropolis", so
        that M stays symmetric and doubly stochastic over those that are left, and to
        all in proportion under "uniform" and "samples".
    """
    order = sorted(peers)
    total = sum(peers[j].num_examples for j in order)
    if kind == "uniform" or (kind == "samples" and not total):
        row = {j: 1 / len(order) for j in order}
    elif kind == "samples":
        row = {j: peers[j].num_examples / total for j in order}
    else:
        others = [j for j in order if j != client]
        own = peers[client].num_neighbours
        row = {j: 1 / (1 + max(own, peers[j].num_neighbours)) for j in others}
        row[client] = 1 - sum(row.values())
    return dict(sorted(row.items()))


def mix(
    models: Mapping[int, Mapping[str, NDArray[np.generic]]],
    row: Mapping[int, float],
    client: int,
) -> dict[str, NDArray[np.generic]]:
    """Mix models of the same layout: X_k <- sum_j M_kj X_j.

    Parameters
    ----------
    models : mapping of int to model
        By client; named arrays that passed :func:`check_layout`. Accumulated in
        float64 in ascending order, whatever the order of the mapping.
    row : mapping of int to float
        Weight of each of ``models``.
    client : int
        Whose arrays that are no floats (counters) are kept.
    """
    own = models[client]
    mixed: dict[str, NDArray[np.generic]] = {}
    for name, array in own.items():
        if not np.issubdtype(array.dtype, np.floating):
            mixed[name] = array.copy()
            continue
        total = np.zeros(array.shape, np.float64)
        for sender in sorted(models):
            total += row[sender] * models[sender][name].astype(np.float64)
        mixed[name] = total.astype(array.dtype)
    return mixed


def mix_rows(
    models: Mapping[int, Mapping[str, NDArray[np.generic]]],
    row: Mapping[int, float],
    owners: Mapping[int, Sequence[int]],
    names: Sequence[str],
) -> dict[str, NDArray[np.generic]]:
    """Mix arrays with one row per task over the task's owners, if it has any.

    Parameters
    ----------
    models, row
        As of :func:`mix`.
    owners : mapping of int to sequence of int
        Tasks of each of ``models``, by client.
    names : sequence of str
        Arrays with one row per task.
    """
    mixed = mix({j: {n: m[n] for n in names} for j, m in models.items()}, row, min(row))
    for task in sorted({t for tasks in owners.values() for t in tasks}):
        own = [j for j in sorted(models) if task in owners[j]]
        total = sum(row[j] for j in own)
        if not total > 0:
            continue
        for name in names:
            rows = [row[j] / total * models[j][name][task].astype(float) for j in own]
            mixed[name][task] = sum(rows)
    return mixed


def check_layout(
    sender: int,
    model: Mapping[str, NDArray[np.generic]],
    own: Mapping[str, NDArray[np.generic]],
) -> None:
    """Raise WireError unless a neighbour's model can be mixed with one's own."""
    theirs, ours = (
        {n: (tuple(a.shape), str(a.dtype)) for n, a in sorted(m.items())}
        for m in (model, own)
    )
    if theirs != ours:
        differ = sorted(n for n in {*theirs, *ours} if theirs.get(n) != ours.get(n))
        raise WireError(
            f"model of client {sender} differs in {', '.join(differ)}:"
            f" got {[theirs.get(n) for n in differ]}, here"
            f" {[ours.get(n) for n in differ]}; all clients must run the same settings"
        )
    check_entries(f"model of client {sender}", model)


def check_entries(whose: str, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Raise WireError unless all numbers are those of a trained network.

    Numbers that are finite and absurd would fail whoever mixes them, a round later.
    """
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not (np.abs(array) <= MOST_ENTRY).all():
            raise WireError(
                f"{whose}: array {name!r} holds NaN or infinity, or numbers beyond"
                f" +-{MOST_ENTRY:g}; lower the learning rate or look at that client's"
                " data"
            )


def mixing_matrix(
    kind: str, topology: Topology, num_examples: Mapping[int, int]
) -> NDArray[np.float64]:
    """M of a whole topology, for reports: (num_clients, num_clients), ascending."""
    neighbours = topology.neighbours
    order = sorted(neighbours)
    at = {k: i for i, k in enumerate(order)}
    m = np.zeros((len(order), len(order)))
    for k in order:
        peers = {
            j: Peer(num_neighbours=len(neighbours[j]), num_examples=num_examples[j])
            for j in (k, *neighbours[k])
        }
        for j, weight in mixing_row(kind, k, peers).items():
            m[at[k], at[j]] = weight
    return m


def spectral_gap(m: NDArray[np.float64]) -> float:
    """Return 1 - |second eigenvalue| of M, in [0, 1]; 0 if models never agree.

    The distance to the mean shrinks by the second eigenvalue per mixing round
    (assumption of the paper's Theorem 1: it is below 1).
    """
    moduli = np.sort(np.abs(np.linalg.eigvals(m)))[::-1]
    return float(np.clip(1 - moduli[1], 0, 1)) if len(moduli) > 1 else 1.0

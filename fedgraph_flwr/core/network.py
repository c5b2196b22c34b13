"""Who talks to whom: fixed undirected graphs over clients 0..n-1.

A topology says nothing of how neighbours' models are weighed; see ``mixing.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from .checked import checked
from .errors import ConfigError
from .rules import read_toml, shown
from .seeding import numpy_rng

KINDS = ("complete", "ring", "random-regular", "star", "watts-strogatz", "file")
Neighbours: TypeAlias = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Neighbours of each client.

    Parameters
    ----------
    kind : str
        Key of ``KINDS``.
    neighbours : mapping of int to tuple of int
        Ascending; symmetric; a client is not its own neighbour.
    """

    kind: str
    neighbours: Neighbours

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Each edge once, smaller client first, ascending."""
        return [(k, j) for k, peers in self.neighbours.items() for j in peers if k < j]

    @property
    def isolated(self) -> list[int]:
        """Clients without a neighbour, if there are other clients."""
        alone = [k for k, peers in self.neighbours.items() if not peers]
        return alone if len(self.neighbours) > 1 else []

    def components(self, without: Collection[int] = ()) -> list[list[int]]:
        """List the sets of clients that reach each other when ``without`` have left."""
        import networkx as nx  # here, as it takes a third of a second to import

        graph = nx.Graph(self.edges)
        graph.add_nodes_from(self.neighbours)
        graph.remove_nodes_from(without)
        return sorted(sorted(part) for part in nx.connected_components(graph))

    def is_connected(self) -> bool:
        """Whether all clients reach each other."""
        return len(self.components()) <= 1


@dataclass(frozen=True, kw_only=True)
class Network:
    """A topology in use.

    Parameters
    ----------
    weights : str
        Kind of its mixing weights; key of ``mixing.KINDS``.
    gone : collection of int
        Clients that did not answer when last asked.
    missed : mapping of int to sequence of int
        Rounds in which a client was asked and did not answer.
    is_sealed : bool, optional
        Whether letters are encrypted; None of a network that is not in use.
    silent : mapping of int to sequence of int
        Neighbours whose mail a client lacks for long, as it says.
    unusable : mapping of int to int
        Letters that receivers left out, by sender.
    """

    topology: Topology
    weights: str
    gone: Collection[int] = ()
    missed: Mapping[int, Sequence[int]] = field(default_factory=dict)
    is_sealed: bool | None = None
    silent: Mapping[int, Sequence[int]] = field(default_factory=dict)
    unusable: Mapping[int, int] = field(default_factory=dict)


def build_topology(
    kind: str,
    num_clients: int,
    *,
    degree: int = 2,
    rewiring: float = 0.1,
    seed: int = 0,
    edges_file: str = "",
) -> Topology:
    """Make a topology.

    Parameters
    ----------
    kind : str
        Key of ``KINDS``. A star has client 0 in its middle. "random-regular" need not
        be connected.
    degree : int
        Neighbours of each client, of "random-regular"; before rewiring, of
        "watts-strogatz", which needs an even number.
    rewiring : float
        Probability that an edge of "watts-strogatz" is moved, in [0, 1].
    seed : int
        Of the two random kinds.
    edges_file : str
        TOML file of "file"; see :func:`read_edges`.

    Raises
    ------
    ConfigError
        Sizes that make no such graph, or a file that is not one.
    """
    import networkx as nx

    rng = numpy_rng(seed, "topology", kind)
    if kind == "complete":
        graph = nx.complete_graph(num_clients)
    elif kind == "ring":
        graph = nx.Graph(pairwise([*range(num_clients), 0]) if num_clients > 1 else ())
    elif kind == "star":
        graph = nx.Graph((0, k) for k in range(1, num_clients))
    elif kind == "random-regular":
        _check_degree(degree, num_clients, is_possible=degree * num_clients % 2 == 0)
        graph = nx.random_regular_graph(degree, num_clients, seed=rng)
    elif kind == "watts-strogatz":
        _check_degree(degree, num_clients, is_possible=degree % 2 == 0)
        graph = nx.watts_strogatz_graph(num_clients, degree, rewiring, seed=rng)
    elif kind == "file":
        return read_edges(edges_file, num_clients)
    else:
        raise ConfigError(f"unknown topology {kind!r}; known: {', '.join(KINDS)}")
    return Topology(kind=kind, neighbours=_sorted(graph.edges, num_clients))


def _check_degree(degree: int, num_clients: int, *, is_possible: bool) -> None:
    if not 0 < degree < num_clients or not is_possible:
        raise ConfigError(
            f"no graph of this kind has {num_clients} clients with {degree} neighbours"
            " each: degree must be below num-clients, even for"
            " 'watts-strogatz', and for 'random-regular' with an odd number of clients;"
            " set it in the run config"
        )


def _sorted(edges: Iterable[tuple[int, int]], num_clients: int) -> Neighbours:
    peers: dict[int, set[int]] = {k: set() for k in range(num_clients)}
    for one, other in edges:
        peers[one].add(other)
        peers[other].add(one)
    return {k: tuple(sorted(found)) for k, found in peers.items()}


def read_edges(path: str, num_clients: int) -> Topology:
    """Read a topology from a TOML file: ``edges = [[0, 1], [1, 2]]``.

    Raises
    ------
    ConfigError
        The file cannot be read, or an edge does not join two clients of the run.
    """
    if not path:
        raise ConfigError(
            "topology is 'file', but edges-file is empty; set it to"
            " the absolute path of a TOML file with edges = [[0, 1], [1, 2]]"
        )
    content = read_toml(Path(path))
    try:
        given = checked(list[tuple[int, ...]], content.get("edges"))
        edges = [(one, other) for one, other in given]
    except ValueError as error:
        raise ConfigError(
            f"edge list {path} must hold edges = [[0, 1], [1, 2]], every edge [client,"
            f" client]; got {shown(content)}"
        ) from error
    if bad := [
        e for e in edges if e[0] == e[1] or not 0 <= min(e) <= max(e) < num_clients
    ]:
        raise ConfigError(
            f"edge list {path} has {shown([*bad[0]])}, which must join two clients of"
            f" 0 to {num_clients - 1}"
        )
    return Topology(kind="file", neighbours=_sorted(edges, num_clients))

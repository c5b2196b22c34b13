"""The game of the privacy audit: one client, one edge, present or not.

World 1 is a client with real molecules; world 0 is the same without one bond of one of
them. The client answers a train message as in any run: the registry's client class, its
ledger, its noisy views, its optimiser. Labels, node features, initial model, order of
batches and dropout are the same in both worlds and known to the attacker; only the
noise, which depends on a secret of the client, is not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clients.base import GraphClient, start_of
from clients.fgcl import FGCLClient
from clients.privacy.laplace import GraphAdjacency, pair_index
from clients.privacy.site import noisy_partition
from clients.store import ClientStore
from fedgraph_flwr.data import GraphPartition, GraphSet, IntArray, pointer
from fedgraph_flwr.errors import ConfigError, DataError
from fedgraph_flwr.loaded import load_data
from fedgraph_flwr.privacy import METRIC
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from fedgraph_flwr.rules import Value
from fedgraph_flwr.seeding import derive_seed
from fedgraph_flwr.wire import SERVER_ROUND

from .attacks import Floats, ratios

CPU = torch.device("cpu")
SECRET = "noise-secret"  # as clients.privacy.noisy_views.site_secret names it


@dataclass(frozen=True, kw_only=True)
class Game:
    """Two worlds that differ in one edge, and what both sides know.

    Parameters
    ----------
    resolved : Resolved
    worlds : tuple of GraphPartition
        Without and with the edge; it belongs to graph 0, which is a training graph.
    pair : int
        Place of the edge in the upper triangle of graph 0.
    start : list of array
        Model that the server sends.
    """

    resolved: Resolved
    worlds: tuple[GraphPartition, GraphPartition]
    pair: int
    start: list[NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What an attacker sees of one trial.

    Parameters
    ----------
    update : float32 array, shape (num_weights,)
        Upload minus received model. The next global model tells no more.
    metrics : float64 array, shape (num_metrics,)
        What the client publishes, by ascending name.
    view : float
        Log-likelihood ratio, edge against none, of all noisy values of the pair that
        the client trained on. Everything it sends is computed from these.
    views : tuple of float
        Epsilons of the views that these values come from.
    epsilon : float
        What the client says it has spent; infinite without noise.
    """

    update: NDArray[np.float32]
    metrics: Floats
    view: float
    views: tuple[float, ...]
    epsilon: float


def make_game(
    overrides: Mapping[str, Value],
    *,
    num_graphs: int,
    client_id: int = 0,
    load: Callable[[Resolved, int], GraphPartition] | None = None,
) -> Game:
    """Take a few graphs of a client; in world 0 the smallest loses its first edge.

    Parameters
    ----------
    overrides : mapping
        Run-config keys that differ from the defaults.
    num_graphs : int
        Training graphs, the smallest ones: the fewer, the easier for the attacker. The
        ones after the target have other labels than it where there are such, so that
        FGCL finds negatives. One validation and one test graph come on top.
    client_id : int
    load : callable, optional
        Instead of the data set's own loading.

    Raises
    ------
    ConfigError
        Fewer graphs than 1 asked for, or settings that cannot be run.
    DataError
        The client has no graph with an edge, or fewer training graphs.
    """
    resolved = resolve({**defaults(), **overrides})
    partition = (load or _load)(resolved, client_id)
    chosen = _choose(partition, num_graphs)
    graphs = partition.graphs.take(chosen)
    edge = graphs.edge_index[:, graphs.edge_ptr[0]].astype(np.int64)
    without, present = (
        replace(
            partition,
            graphs=_with_edge(graphs, edge, is_present=is_present),
            graph_ids=partition.graph_ids[chosen],
            train=np.arange(num_graphs),
            val=np.array([num_graphs]),
            test=np.array([num_graphs + 1]),
        )
        for is_present in (False, True)
    )
    start = start_of(
        resolved.method.client,
        resolved.spec(num_features=graphs.num_features, num_classes=graphs.num_classes),
    )
    u, v = np.sort(edge)
    return Game(
        resolved=resolved,
        worlds=(without, present),
        pair=int(pair_index(u, v, int(graphs.node_ptr[1]))),
        start=list(start.arrays().values()),
    )


def _load(resolved: Resolved, client_id: int) -> GraphPartition:
    return load_data(resolved, client_id, CPU, None).partition


def _choose(partition: GraphPartition, num_graphs: int) -> IntArray:
    """Positions: the target, other training graphs, a validation and a test graph."""
    if num_graphs < 1:
        raise ConfigError(f"--graphs must be at least 1, got {num_graphs}")
    graphs = partition.graphs
    sizes, edges = np.diff(graphs.node_ptr), np.diff(graphs.edge_ptr)

    def by_size(positions: IntArray) -> IntArray:
        return positions[np.argsort(sizes[positions], kind="stable")]

    train = by_size(partition.train)
    with_edges = train[edges[train] > 0]
    if not len(with_edges) or len(train) < num_graphs:
        raise DataError(
            f"client {partition.client_id} has {len(train)} training graphs,"
            f" {len(with_edges)} of them with edges; the audit needs {num_graphs} and"
            " one with an edge: choose another --client, or fewer --graphs"
        )
    target = with_edges[0]
    others = train[train != target]
    is_same = (graphs.y[others] == graphs.y[target]).reshape(len(others), -1).all(1)
    others = others[np.argsort(is_same, kind="stable")][: num_graphs - 1]
    held_out = [by_size(part)[:1] for part in (partition.val, partition.test)]
    return np.concatenate([[target], others, *held_out])


def _with_edge(graphs: GraphSet, edge: IntArray, *, is_present: bool) -> GraphSet:
    """Return graphs; graph 0 has the edge if ``is_present``."""
    end = graphs.edge_ptr[1]
    own = graphs.edge_index[:, :end]
    pairs = np.sort(own, axis=0)
    own = own[:, (pairs != np.sort(edge)[:, None]).any(axis=0)]
    if is_present:
        own = np.concatenate([own, np.stack([edge, edge[::-1]], axis=1)], axis=1)
    own = own[:, np.lexsort((own[1], own[0]))]
    counts = np.diff(graphs.edge_ptr)
    counts[0] = own.shape[1]
    edges = np.concatenate([own, graphs.edge_index[:, end:]], axis=1)
    return replace(graphs, edge_index=edges.astype(np.int32), edge_ptr=pointer(counts))


@dataclass
class _Watch:
    """Adds up likelihood ratios of the values that views give to the pair."""

    game: Game
    total: float = 0.0
    epsilons: tuple[float, ...] = ()

    def add(self, values: NDArray[np.floating], epsilon: float) -> None:
        """Count the target's values in one view."""
        is_rounded = self.game.resolved.privacy.edge_post == "round"
        value = float(values[self.game.pair])
        self.total += float(ratios(value, epsilon, is_rounded=is_rounded))
        self.epsilons += (epsilon,)


def play(game: Game, world: int, trial: str, root: Path) -> Sight:
    """Let the client of ``world`` answer one train message, with noise of its own.

    Parameters
    ----------
    game : Game
    world : int
        0 or 1.
    trial : str
        The noise is a function of it. Without noise it is the seed of batches and
        dropout, which the attacker then does *not* know: trials would be equal else.
    root : path
        For the client's files, which are deleted.
    """
    resolved = game.resolved
    privacy, settings = resolved.privacy, resolved.settings
    watch = _Watch(game)
    store = ClientStore(root, trial.replace("/", "-"), client_id=0)
    store.folder.mkdir(parents=True)
    (store.folder / SECRET).write_text(trial)
    site = resolved.site(store, is_secret=True)
    partition = game.worlds[world]
    if not privacy.is_on:
        seed = derive_seed(settings.seed, "audit", trial) % 2**31
        resolved = replace(resolved, settings=replace(settings, seed=seed))
    elif privacy.edge_epsilon and not resolved.params.TAKES_WEIGHTS:
        partition = noisy_partition(partition, site)
        rounded = GraphAdjacency(partition.graphs).upper_triangle(0)
        watch.add(rounded, privacy.edge_epsilon)
    data = resolved.method.client.DATA.collate(partition, CPU)
    client = resolved.method.client(resolved.job(data, store, site, CPU))
    _watch_views(client, watch)
    sent, _, metrics = client.fit(list(game.start), {SERVER_ROUND: 1})
    shutil.rmtree(store.folder.parent)
    told = {k: float(v) for k, v in metrics.items() if not k.startswith(METRIC)}
    return Sight(
        update=np.concatenate(
            [(a - b).ravel() for a, b in zip(sent, game.start, strict=True)]
        ).astype(np.float32),
        metrics=np.array([told[k] for k in sorted(told)]),
        view=watch.total,
        views=watch.epsilons,
        epsilon=float(metrics.get(f"{METRIC}edge-epsilon", np.inf)),
    )


def _watch_views(client: GraphClient[Any], watch: _Watch) -> None:
    """Note the views of a client that draws them itself, epoch by epoch."""
    if not isinstance(client, FGCLClient) or not client.is_noisy:
        return
    begin, epsilons = client.begin_epoch, client.train_views.epsilons
    before: list[object] = []

    def watched(epoch: int) -> None:
        begin(epoch)
        if before and before[-1] is client.triangles:  # not drawn again
            return
        before.append(client.triangles)
        for view, epsilon in zip(client.triangles, epsilons, strict=True):
            watch.add(view.values, epsilon)  # graph 0 is the first of the view

    client.begin_epoch = watched  # type: ignore[method-assign]

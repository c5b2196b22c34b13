"""The game of the attacks on privacy: one client, one edge, present or not.

World 1 is a client with real molecules; world 0 is the same without one bond of one of
them. The client answers a train message as in any run: the registry's client class, its
ledger, its noisy views, its optimiser. Labels, node features, initial model, order of
batches and dropout are the same in both worlds and known to the attacker; only the
noise, which depends on a secret of the client, is not.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from clients.base import start_of
from clients.privacy.laplace import GraphAdjacency, pair_index
from clients.privacy.site import noisy_partition
from clients.store import ClientStore
from fedgraph_flwr.core.data import GraphPartition, GraphSet, IntArray, pointer
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.privacy_settings import METRIC
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.wire import SERVER_ROUND
from fedgraph_flwr.node.serve import load_data
from fedgraph_flwr.resolve import Resolved, defaults, resolve

Floats = NDArray[np.float64]
CPU = torch.device("cpu")
SECRET = "noise-secret"  # as clients.privacy.noisy_views.site_secret names it


class Setting(NamedTuple):
    """Overrides of the run config, number of training graphs, and whose they are."""

    overrides: tuple[tuple[str, Value], ...]
    num_graphs: int
    client: int


class Game(NamedTuple):
    """What both sides know of two worlds, without and with an edge of graph 0.

    ``pair`` is the place of the edge in the upper triangle of the graph, which is a
    training graph; ``start`` is the model that the server sends.
    """

    resolved: Resolved
    worlds: tuple[GraphPartition, GraphPartition]
    pair: int
    start: list[NDArray[Any]]


class Sight(NamedTuple):
    """What an attacker sees of one trial.

    The next global model tells no more than the update, and everything that the client
    sends is computed from the noisy values of the pair that it trained on.
    """

    update: NDArray[np.float32]  # upload minus received model, (num_weights,)
    metrics: Floats  # what the client publishes, by ascending name
    view: float  # log-likelihood ratio, edge against none, of all values of the pair
    views: list[float]  # epsilons of the views that these values come from
    epsilon: float  # what the client says it has spent; infinite without noise


@lru_cache(maxsize=1)
def known_game(setting: Setting) -> Game:
    """Load a client's graphs and make its game, once per process."""
    resolved = resolve({**defaults(), **dict(setting.overrides)})
    loaded = load_data(resolved, setting.client, CPU, None)
    return make_game(resolved, loaded.partition, setting.num_graphs)


def make_game(resolved: Resolved, partition: GraphPartition, num_graphs: int) -> Game:
    """Take a few graphs of a client; in world 0 the smallest loses its first edge.

    The smallest ``num_graphs`` training graphs are taken: the fewer, the easier for the
    attacker. Where there are such, those after the target have other labels than it, so
    that FGCL finds negatives. One validation and one test graph come on top. Raises
    ConfigError or DataError if there are not so many, or none has an edge.
    """
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
    sizes = {"num_features": graphs.num_features, "num_classes": graphs.num_classes}
    start = start_of(resolved.method.client, resolved.spec(**sizes))
    pair = int(pair_index(edge.min(), edge.max(), int(graphs.node_ptr[1])))
    return Game(resolved, (without, present), pair, list(start.arrays().values()))


def _choose(partition: GraphPartition, num_graphs: int) -> IntArray:
    """Positions: the target, other training graphs, a validation and a test graph."""
    if num_graphs < 1:
        raise ConfigError(f"--graphs must be at least 1, got {num_graphs}")
    graphs = partition.graphs
    if len(graphs) == 1:
        raise ConfigError(
            f"leaks attacks an edge of one of many graphs, got {graphs.name}, a graph"
            " whose nodes or edges are learned; choose a dataset of whole graphs"
        )
    sizes, edges = np.diff(graphs.node_ptr), np.diff(graphs.edge_ptr)
    train, val, test = (
        part[np.argsort(sizes[part], kind="stable")]
        for part in (partition.train, partition.val, partition.test)
    )
    with_edges = train[edges[train] > 0]
    if not len(with_edges) or len(train) < num_graphs:
        raise DataError(
            f"client {partition.client_id} has {len(train)} training graphs,"
            f" {len(with_edges)} of them with edges; the attack needs {num_graphs} and"
            " one with an edge: choose another --client, or fewer --graphs"
        )
    target = with_edges[0]
    others = train[train != target]
    is_same = (graphs.y[others] == graphs.y[target]).reshape(len(others), -1).all(1)
    others = others[np.argsort(is_same, kind="stable")][: num_graphs - 1]
    return np.concatenate([[target], others, val[:1], test[:1]])


def _with_edge(graphs: GraphSet, edge: IntArray, *, is_present: bool) -> GraphSet:
    """Return graphs; graph 0 has the edge if ``is_present``."""
    end = graphs.edge_ptr[1]
    own = graphs.edge_index[:, :end]
    own = own[:, (np.sort(own, axis=0) != np.sort(edge)[:, None]).any(axis=0)]
    if is_present:
        own = np.concatenate([own, np.stack([edge, edge[::-1]], axis=1)], axis=1)
    own = own[:, np.lexsort((own[1], own[0]))]
    counts = np.diff(graphs.edge_ptr)
    counts[0] = own.shape[1]
    edges = np.concatenate([own, graphs.edge_index[:, end:]], axis=1)
    return replace(graphs, edge_index=edges.astype(np.int32), edge_ptr=pointer(counts))


def ratios(values: Floats | float, epsilon: float, *, is_rounded: bool) -> Floats:
    """Log-likelihood ratios, edge against none, of released values of a pair.

    For Laplace noise it is ``epsilon (|w| - |w - 1|)``, which clamping to [0, 1] does
    not change; of a rounded value it is that of randomised response.
    """
    if is_rounded:
        flip = np.exp(-epsilon / 2) / 2
        found = np.log((1 - flip) / flip) * np.where(np.asarray(values) > 0.5, 1, -1)
    else:
        found = epsilon * (2 * np.clip(values, 0.0, 1.0) - 1)
    return np.asarray(found, np.float64)


def play(game: Game, world: int, trial: str) -> Sight:
    """Let the client of ``world`` answer one train message, with noise of its own.

    The noise is a function of ``trial``. Without noise it is the seed of batches and
    dropout, which the attacker then does *not* know: trials would be equal else. The
    client's files, with its accounts, are deleted afterwards.
    """
    torch.set_num_threads(1)
    memory = Path("/dev/shm")  # accounts are flushed to the disk at every draw
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root:
        return _play(game, world, trial, Path(root))


def _play(game: Game, world: int, trial: str, root: Path) -> Sight:
    resolved, views, total = game.resolved, list[float](), 0.0
    privacy, settings = resolved.privacy, resolved.settings
    store = ClientStore(root, trial.replace("/", "-"), client_id=0)
    store.folder.mkdir(parents=True)
    (store.folder / SECRET).write_text(trial)
    site = resolved.site(store, is_secret=True)
    partition = game.worlds[world]

    def add(values: NDArray[np.floating], epsilon: float) -> None:
        """Count the target's values in one view; it is the first graph of the view."""
        nonlocal total
        rounded = privacy.edge_post == "round"
        total += float(ratios(float(values[game.pair]), epsilon, is_rounded=rounded))
        views.append(epsilon)

    if not privacy.is_on:
        seed = derive_seed(settings.seed, "audit", trial) % 2**31
        resolved = replace(resolved, settings=replace(settings, seed=seed))
    elif privacy.edge_epsilon and not resolved.params.TAKES_WEIGHTS:
        partition = noisy_partition(partition, site)
        add(GraphAdjacency(partition.graphs).upper_triangle(0), privacy.edge_epsilon)
    data = resolved.method.client.DATA.collate(partition, CPU)
    client: Any = resolved.method.client(resolved.job(data, store, site, CPU))
    if getattr(client, "is_noisy", False):  # it draws views itself
        begin, drawn = client.look, list[object]()

        def watched(epoch: int) -> None:
            begin(epoch)
            if not drawn or drawn[-1] is not client.triangles:
                drawn.append(client.triangles)
                for view, e in zip(
                    client.triangles, client.train_views.epsilons, strict=True
                ):
                    add(view.values, e)

        client.look = watched
    sent, _, metrics = client.fit(list(game.start), {SERVER_ROUND: 1})
    moved = [(a - b).ravel() for a, b in zip(sent, game.start, strict=True)]
    published = [float(metrics[k]) for k in sorted(metrics) if not k.startswith(METRIC)]
    epsilon = float(metrics.get(f"{METRIC}edge-epsilon", np.inf))
    update = np.concatenate(moved).astype(np.float32)
    return Sight(update, np.array(published), total, views, epsilon)


def play_known(setting: Setting, trial: tuple[int, str]) -> Sight:
    """Play a trial in a process that may not have the game yet."""
    return play(known_game(setting), *trial)

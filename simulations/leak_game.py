"""The games of the attacks on privacy: a client with a secret, which attackers guess.

In each trial the client answers the message of round 1 as in any run: the message that
the strategy makes, the registry's client class, its ledger, its noise, its optimiser.
Attackers know all of its data but the secret.

``edge``: in world 1 the client has few of its training graphs; in world 0 the smallest
of them lacks one edge.
``member``: in world 0 another of the client's graphs is in the place of the smallest.
``data``: its training graphs are drawn, classes in other shares each time. Secrets are
shares of labels, and mean features.

If nodes or edges of one graph are learned, they stand for graphs, and no edge is
secret.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from clients.privacy.laplace import GraphAdjacency, pair_index
from clients.privacy.site import noisy_partition
from clients.store import ClientStore
from datasets.diffusion import diffuse
from fedgraph_flwr.client_entry import app
from fedgraph_flwr.core.data import GraphPartition, GraphSet, IntArray
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.privacy_settings import EDGE, GRAPH_EPSILON, METRIC
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.seeding import derive_seed, numpy_rng
from fedgraph_flwr.core.wire import SERVER_ROUND, Parcel
from fedgraph_flwr.node.serve import load_data
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from fedgraph_flwr.server_app import common_start, weights_of_all

from .inline import InlineGrid

Floats = NDArray[np.float64]
CPU = torch.device("cpu")
SECRET = "noise-secret"  # as clients.privacy.noisy_views.site_secret names it
ATTACKS = "view", "upload", "model", "metrics"
GAMES = "edge", "member", "data"


class Setting(NamedTuple):
    """Overrides of the run config, number of training graphs, client attacked."""

    overrides: tuple[tuple[str, Value], ...]
    num_graphs: int
    client: int


class Game(NamedTuple):
    """A federation before round 1: what the server sends to each client that trains."""

    resolved: Resolved
    setting: Setting
    messages: Mapping[int, Parcel]

    def data_of(self, client: int) -> GraphPartition:
        """Load all data of a client, once per process."""
        return load_data(self.resolved, client, CPU, None).partition

    @property
    def games(self) -> tuple[str, ...]:
        """What can be played: single graphs have no edge that may be there or not."""
        return GAMES[len(self.data_of(self.setting.client).graphs) == 1 :]


class Trial(NamedTuple):
    """Who plays what; noise and draws are functions of ``name`` and the run's seed."""

    client: int
    game: str
    world: int
    name: str


class Claim(NamedTuple):
    """What the ledger says of a secret of two worlds: a bound on some attacks."""

    epsilon: float = math.inf
    delta: float = 0.0
    attacks: tuple[str, ...] = ATTACKS


class Sight(NamedTuple):
    """What there is to see of one trial, and what is to be guessed."""

    update: NDArray[np.float32]  # all that is sent, less what was received
    metrics: Mapping[str, float]  # what the client publishes
    view: float | None  # log-likelihood ratio of the noisy values of the pair, if any
    claim: Claim
    secrets: Mapping[str, Floats]  # of game ``data``, by what they are


@lru_cache(maxsize=1)
def known_game(setting: Setting) -> Game:
    """Call the roll of a run and let its strategy make the first messages.

    Raises
    ------
    ConfigError, DataError
        As in a run; or the client does not train, or trains where its data are.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = {**defaults(), **dict(setting.overrides), "state-dir": folder}
        resolved = resolve(config)
        settings, method = resolved.settings, resolved.method
        if method.strategy.IN_ONE_PLACE:
            raise ConfigError(
                f"method {settings.method!r} trains in one place and sends nothing;"
                " choose another method"
            )
        privacy = resolved.privacy
        strategy = method.make_strategy(
            settings, resolved.params, experiment="leaks", privacy=privacy
        )
        node = {"partition-id": 0, "num-partitions": 1}
        strategy.roll_call(InlineGrid(app, [node], run_config=config, run_id=1))
    if settings.class_weights == "federation":
        strategy.class_weights = weights_of_all(strategy)
    start = common_start(resolved, strategy.clients)
    strategy.initialise(dict(sorted(start.items())))
    sent, trainers = strategy.outgoing(1), strategy.trainers()
    if setting.client not in trainers:
        raise ConfigError(
            f"--client must be one that trains, one of {trainers}, got {setting.client}"
        )
    parcels = {c: Parcel(arrays=sent[c], facts=strategy.facts(c)) for c in trainers}
    return Game(resolved, setting, parcels)


def _hand_out(game: Game, trial: Trial) -> tuple[GraphPartition, IntArray]:
    """Return what a client has in a trial, and which of its items train."""
    whole, seed = game.data_of(trial.client), game.resolved.settings.seed
    rng = numpy_rng(seed, trial.client, "leaks", trial.game, trial.name)
    count = game.setting.num_graphs
    if trial.game == "data":
        chosen = _draw(whole, min(count, len(whole.train)), rng)
    else:
        items = _sorted(whole, count)
        chosen = items[:count]
        if trial.game == "member" and not trial.world:
            chosen = np.concatenate([[rng.choice(items[count:])], chosen[1:]])
    return _cut(whole, chosen), chosen


def _sorted(whole: GraphPartition, count: int) -> IntArray:
    """Sort training items: the attacked one, ``count`` - 1 that stay, the others.

    The smallest graph with an edge is attacked: the fewer nodes, the easier. If there
    are such, those after it have other labels, so that contrasts find negatives.

    Raises
    ------
    DataError
    """
    graphs, train = whole.graphs, whole.train
    first = train
    if len(graphs) > 1:
        train = train[np.argsort(np.diff(graphs.node_ptr)[train], kind="stable")]
        first = train[np.diff(graphs.edge_ptr)[train] > 0]
    if not len(first) or len(train) <= count:
        raise DataError(
            f"client {whole.client_id} trains on {len(train)} graphs, nodes or edges,"
            f" {len(first)} of them fit for an attack, which needs {count + 1} and"
            " one that fits: choose another --client, or fewer --graphs"
        )
    others = train[train != first[0]]
    is_same = (graphs.y[others] == graphs.y[first[0]]).reshape(len(others), -1).all(1)
    return np.concatenate([first[:1], others[np.argsort(is_same, kind="stable")]])


def _draw(whole: GraphPartition, count: int, rng: np.random.Generator) -> IntArray:
    """Draw training items, classes in shares that are uniform over all shares."""
    y = whole.graphs.y[whole.train]
    _, kind, sizes = np.unique(
        y if y.ndim == 1 else y[:, 0], return_inverse=True, return_counts=True
    )
    shares = (rng.dirichlet(np.ones(len(sizes))) / sizes)[kind]
    return rng.choice(whole.train, count, replace=False, p=shares / shares.sum())


def _cut(whole: GraphPartition, chosen: IntArray) -> GraphPartition:
    """Let the chosen items train; of many graphs one validates and one tests."""
    if len(whole.graphs) == 1:
        return replace(whole, train=np.sort(chosen))
    taken = np.concatenate([chosen, whole.val[:1], whole.test[:1]])
    at = np.cumsum([len(chosen), len(whole.val[:1]), len(whole.test[:1])])
    return replace(
        whole,
        graphs=whole.graphs.take(taken),
        graph_ids=whole.graph_ids[taken],
        train=np.arange(at[0]),
        val=np.arange(at[0], at[1]),
        test=np.arange(at[1], at[2]),
    )


def _without_edge(graphs: GraphSet) -> GraphSet:
    """Take the first edge of the first graph away, in both directions."""
    ends = np.sort(graphs.edge_index[:, : graphs.edge_ptr[1]], axis=0)
    is_it = (ends == ends[:, :1]).all(axis=0)
    kept = np.ones(graphs.edge_index.shape[1], bool)
    kept[: len(is_it)] = ~is_it
    return graphs.take_edges(np.flatnonzero(kept))


def _secrets(whole: GraphPartition, chosen: IntArray) -> dict[str, Floats]:
    """Means over training items: of rows of labels, and of features."""
    graphs, y = whole.graphs, whole.targets()
    if y.ndim == 1:  # shares of classes; -1 is no label
        y = y[:, None] == np.arange(max(graphs.num_classes, y.max() + 1))

    def features(nodes: Any) -> Floats:
        x = graphs.x[nodes]
        x = x if x.ndim > 1 else np.eye(graphs.num_features)[x]
        return np.asarray(x.mean(0, dtype=np.float64))

    if graphs.pairs is not None:
        mean = features(graphs.pairs[:, chosen].ravel())
    elif len(graphs) == 1:
        mean = features(chosen)
    else:
        at = graphs.node_ptr
        mean = np.mean([features(slice(at[g], at[g + 1])) for g in chosen], axis=0)
    labels = np.nan_to_num(y[chosen].astype(np.float64)).mean(0)
    return {"labels": labels, "features": mean}


def _ratio(value: float, epsilon: float, *, is_rounded: bool) -> float:
    """Log-likelihood ratio, edge against none, of the released value of a pair.

    For Laplace noise it is ``epsilon (|w| - |w - 1|)``, which clamping to [0, 1] does
    not change; of a rounded value it is that of randomised response.
    """
    if not is_rounded:
        return epsilon * (2 * min(max(value, 0.0), 1.0) - 1)
    flip = math.exp(-epsilon / 2) / 2
    return math.log((1 - flip) / flip) * (1 if value > 0.5 else -1)


def _claim(spent: Mapping[str, float], game: str) -> Claim:
    """Say what the client's ledger promises for one edge, or one graph.

    Noise on updates covers no metrics. Noise on gradients is stated for a graph that is
    added or removed; here one takes the place of another, which is both.
    """
    found = [Claim()]
    if game == "edge" and EDGE in spent:
        found.append(Claim(spent[EDGE]))
    if e := spent.get("update-epsilon"):
        found.append(Claim(e, spent["update-delta"], ("upload", "model")))
    if e := spent.get(GRAPH_EPSILON):
        found.append(Claim(2 * e, (1 + math.exp(min(e, 700))) * spent["graph-delta"]))
    return min(found)


def play(setting: Setting, trial: Trial) -> Sight:
    """Let a client answer one train message, with noise of its own.

    The noise is a function of the trial. Without noise these are the order of batches
    and dropout, which the attacker then does *not* know: trials would be equal else.
    The client's files, with its accounts, are deleted afterwards.
    """
    torch.set_num_threads(1)
    memory = Path("/dev/shm")  # accounts are flushed to the disk at every draw
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root:
        return _play(known_game(setting), trial, Path(root))


def _play(game: Game, trial: Trial, root: Path) -> Sight:
    resolved, values = game.resolved, list[float]()
    privacy, seed = resolved.privacy, resolved.settings.seed
    store = ClientStore(root, "leaks", client_id=trial.client)
    store.folder.mkdir(parents=True)
    (store.folder / SECRET).write_text(f"{seed}/{trial.game}/{trial.name}")
    site = resolved.site(store, is_secret=True)
    partition, chosen = _hand_out(game, trial)
    whole, is_drawn = game.data_of(trial.client), trial.game == "data"
    secrets = _secrets(whole, chosen) if is_drawn else {}
    graphs, is_edge = partition.graphs, trial.game == "edge"
    if is_edge and not trial.world:
        partition = replace(partition, graphs=_without_edge(graphs))

    def add(view: NDArray[np.floating], epsilon: float) -> None:
        """Count the pair's value in one view; its graph is the first of the view."""
        if is_edge:
            ends, size = graphs.edge_index[:, 0].astype(np.int64), graphs.node_ptr[1]
            value = view[int(pair_index(ends.min(), ends.max(), int(size)))]
            is_rounded = privacy.edge_post == "round"
            values.append(_ratio(float(value), epsilon, is_rounded=is_rounded))

    if privacy.edge_epsilon and not resolved.params.TAKES_WEIGHTS:
        partition = noisy_partition(partition, site)
        seen = GraphAdjacency(partition.graphs).upper_triangle(0)
        add(seen, privacy.edge_epsilon)
    data = resolved.method.client.DATA.collate(partition, CPU)
    if spec := resolved.method.client.diffusion(resolved.params):
        data = data.with_view(diffuse(partition.graphs, spec))
    client: Any = resolved.method.client(resolved.job(data, store, site, CPU))
    if not privacy.is_on:
        of_trial = seed, trial.client, trial.game, trial.name
        client.order, client.noise = (
            torch.Generator().manual_seed(derive_seed(*of_trial, what))
            for what in ("order", "dropout")
        )
    if getattr(client, "is_noisy", False):  # it draws views itself
        begin, drawn = client.look, list[object]()

        def watched(epoch: int) -> None:
            begin(epoch)
            if not drawn or drawn[-1] is not client.triangles:
                drawn.append(client.triangles)
                epsilons = client.train_views.epsilons
                for view, e in zip(client.triangles, epsilons, strict=True):
                    add(view.values, e)

        client.look = watched
    message = game.messages[trial.client]
    reply = client.participate(message, {SERVER_ROUND: 1})
    told = dict(reply.metrics)
    spent = {
        k.removeprefix(METRIC): told.pop(k) for k in [*told] if k.startswith(METRIC)
    }
    return Sight(
        update=_numbers(reply, message),
        metrics={name: float(value) for name, value in told.items()},
        view=sum(values) if values else None,
        claim=_claim(spent, trial.game),
        secrets=secrets,
    )


def _numbers(reply: Parcel, message: Parcel) -> NDArray[np.float32]:
    """Put all that is sent in a row, less what was received by the same name.

    Bytes are read as numbers of four bytes each, as letters hold them.
    """
    found = [np.zeros(0, np.float32)]
    for name, array in (*reply.arrays.items(), *reply.evaluation.items()):
        flat: NDArray[Any] = array.ravel()
        if flat.dtype == np.uint8:
            flat = flat[: len(flat) // 4 * 4].view(np.float32)
        elif name in message.arrays:
            flat = flat - message.arrays[name].ravel()
        found.append(np.nan_to_num(flat.astype(np.float32)))
    return np.concatenate(found)

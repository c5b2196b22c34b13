"""Splits of a client's items, noise on them, and masks of targets.

What is drawn depends on ``split-seed`` and the client alone, so that all runs on a
split have the same noise. It is no privacy: who knows the seed can undo most of it.

SpreadGNN's setting: in the worst case every task belongs to one client, and each client
is to predict all of them. Validation and test graphs keep their labels of all tasks.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import SPLITS, GraphPartition, GraphSet, IntArray, pointer
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.seeding import numpy_rng

from .molecules import BONDS

log = logging.getLogger("flwr.fedgraph")

DECIDES = {  # a column ``split``, if it is read
    True: "decides; held-out and split-seed are not read",
    False: "is not used, as held-out is 0, or edges are learned",
}
TRAIN, VAL, TEST = range(3)
MIN_GRAPHS = 3  # one each to train, validate and test


def need_graphs(count: int, client_id: int, what: str, place: Path) -> None:
    """Refuse a client whose own files hold too few graphs, or molecules, to split."""
    if count < MIN_GRAPHS:
        raise DataError(
            f"client {client_id} has {count} usable {what}(s) in {place}, but training,"
            f" validating and testing needs at least {MIN_GRAPHS}; add some, or leave"
            " this client out"
        )


def check_is_drawn(settings: RunSettings, what: str) -> None:
    """Refuse settings that draw roles where ``what`` gives them."""
    if settings.split != "random" or settings.folds > 1:
        given = f"split {settings.split!r}" if settings.folds == 1 else "folds"
        raise DataError(
            f"{given} cannot decide which items test, as {what} does; set split to"
            " 'random' and folds to 1 in the run config, or delete that column"
        )


def split_graphs(
    client_id: int,
    graphs: GraphSet,
    ids: IntArray,
    settings: RunSettings,
    *,
    scaffold: IntArray | None = None,
    **more: Any,
) -> GraphPartition:
    """Split a client's graphs by the run's settings; ``more`` is said of them.

    ``scaffold`` has the number of each molecule's scaffold.
    """
    what, seed = f"graphs of client {client_id}", settings.split_seed
    everything, roles = np.arange(len(graphs)), np.full(len(graphs), TRAIN)
    if settings.folds > 1:
        strata = None if graphs.has_tasks else graphs.y
        roles = fold_roles(len(graphs), settings, seed, what, strata)
    else:
        held_out = settings.held_out
        parts = split_client(everything, graphs.y, seed=seed, held_out=held_out)
        roles[parts[VAL]], roles[parts[TEST]] = VAL, TEST
    roles = as_split_says(roles, graphs.time, settings, what)
    if settings.split == "scaffold" and scaffold is not None:
        roles = by_scaffold(scaffold, np.bincount(roles, minlength=3), what)
    return with_roles(client_id, graphs, ids, roles, **more)


def with_roles(
    client_id: int, graphs: GraphSet, ids: IntArray, roles: IntArray, **more: Any
) -> GraphPartition:
    """Make a client's data of its graphs and the role of each graph or node."""
    return GraphPartition(
        client_id=client_id,
        graphs=graphs,
        graph_ids=ids,
        train=np.flatnonzero(roles == TRAIN),
        val=np.flatnonzero(roles == VAL),
        test=np.flatnonzero(roles == TEST),
        **more,
    )


def fold_roles(
    count: int, settings: RunSettings, seed: int, what: str, y: IntArray | None
) -> IntArray:
    """Role of each item in one run of a cross-validation.

    Items are shuffled, sorted by class, and dealt to the parts in turn: parts, and each
    class in them, differ by one item at most. Over all runs each item tests once.

    Parameters
    ----------
    settings : RunSettings
        Part ``fold`` of ``folds`` tests (2), the next validates (1), the others train.
    what : str
        The items, in words.
    y : int array, shape (count,), optional
        Classes.

    Raises
    ------
    DataError
        There are fewer items than parts.
    """
    folds = settings.folds
    if count < folds:
        raise DataError(
            f"folds is {folds}, but there are {count} {what}: lower folds, or give more"
        )
    order = numpy_rng(seed, "folds").permutation(count)
    if y is not None:
        order = order[np.argsort(y[order], kind="stable")]
    part = np.empty(count, np.int64)
    part[order] = np.arange(count) % folds
    distance = (part - settings.fold) % folds
    return np.where(distance == 0, 2, np.where(distance == 1, 1, 0))


def by_scaffold(scaffold: IntArray, counts: IntArray, what: str) -> IntArray:
    """Role of each molecule: common scaffolds train (0), rare validate (1), test (2).

    All molecules of a scaffold have one role, also all without rings, which have the
    empty one. Beginning with the smallest, scaffolds test as long as there is room for
    them, then validate; each part has one at least.

    Parameters
    ----------
    scaffold : int array, shape (num_molecules,)
        Number of each molecule's scaffold, by first appearance.
    counts : int array, shape (3,)
        How many molecules the parts are to have.
    what : str
        The molecules, in words.

    Raises
    ------
    DataError
        There are fewer scaffolds than parts.

    Source
    ------
    DeepChem, ``ScaffoldSplitter.split``: the same, if single molecules fill both parts.
    """
    sizes = np.bincount(scaffold)
    if len(sizes) < np.count_nonzero(counts):
        raise DataError(
            f"split 'scaffold' leaves no {what} to validate or to test: all"
            f" {len(scaffold)} have {len(sizes)} scaffold(s); add molecules of other"
            " scaffolds, or set split to 'random'"
        )
    ascending = np.lexsort((np.arange(len(sizes)), sizes))
    ends, roles, start = np.cumsum(sizes[ascending]), np.zeros_like(sizes), 0
    for role in (2, 1):
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + counts[role], "right"))
        stop = max(stop, start + (counts[role] > 0))
        roles[ascending[start:stop]], start = role, stop
    return roles[scaffold]


def as_split_says(
    roles: IntArray,
    times: NDArray[np.float64] | None,
    settings: RunSettings,
    what: str,
) -> IntArray:
    """Roles as drawn, or with ``split`` "time" as many of each :func:`by_time`."""
    if settings.split != "time":
        return roles
    return by_time(times, np.bincount(roles, minlength=3), what)


def by_time(times: NDArray[np.float64] | None, counts: IntArray, what: str) -> IntArray:
    """Role of each item: the oldest train (0), the newest test (2), others validate.

    Items of one time are in one part, the later one.

    Parameters
    ----------
    times : array, shape (num_items,), optional
    counts : int array, shape (3,)
        How many items have each role, but for items of one time.
    what : str
        The items, in words.

    Raises
    ------
    DataError
        There are no times, or a part would have no item.
    """
    if times is None:
        raise DataError(
            f"split is 'time', but {what} have no time; name their column as time in"
            " the schema (of edges: in [edges]), or set split to 'random'"
        )
    roles = np.full(len(times), 2)
    order = np.argsort(times, kind="stable")
    roles[order[: counts[0]]] = 0
    roles[order[counts[0] : counts[0] + counts[1]]] = 1
    for earlier in (0, 1):
        cut = times[roles > earlier].min(initial=np.inf)
        roles[(roles == earlier) & (times >= cut)] = earlier + 1
    if len(np.unique(roles)) < len(SPLITS):
        raise DataError(
            f"split 'time' leaves no {what} to train, to validate or to test: too many"
            " have the same time; give finer times, or set split to 'random'"
        )
    return roles


def split_client(
    graph_ids: IntArray,
    y: NDArray[np.generic],
    *,
    seed: int,
    held_out: float = 0.2,
) -> tuple[IntArray, IntArray, IntArray]:
    """Split one client's graphs 80/10/10, keeping class shares.

    Parameters
    ----------
    graph_ids : int array, shape (n,)
        Rows of the client's graphs, unique, n >= 3.
    y : int array, shape (num_graphs,), or float array, shape (num_graphs, num_tasks)
        Class of every row that ``graph_ids`` may name. Several labels per graph are no
        classes to keep shares of: the split is then plain random.
    seed : int
        Split seed.
    held_out : float
        Share of the graphs that is kept from training, in [0, 1): half of them
        validate, half test. 0 holds out none, and looks at no class.

    Returns
    -------
    train, val, test : int64 arrays
        Positions into ``graph_ids``, ascending, disjoint. With ``held_out`` > 0 none
        is empty: two graphs at least are held out, and one is trained on.

    Raises
    ------
    DataError
        If there are fewer than 3 graphs.
    ValueError
        If a graph occurs twice.

    Source
    ------
    GCFL's code: scikit-learn's ``train_test_split`` twice with the split seed. If a
    class is too small to stratify by, the split is plain random and a warning is
    logged.
    """
    num_graphs = len(graph_ids)
    if num_graphs < MIN_GRAPHS:
        raise DataError(
            f"{num_graphs} graphs cannot be split into train, validation and test"
            f" (at least {MIN_GRAPHS}); lower num-clients"
        )
    if len(np.unique(graph_ids)) != num_graphs:
        raise ValueError("graph_ids has repeats, which would leak into the test set")
    everything = np.arange(num_graphs)
    if held_out == 0:
        return everything, everything[:0], everything[:0]
    labels = np.asarray(y)[graph_ids] if np.ndim(y) == 1 else None
    count = min(max(2, math.ceil(held_out * num_graphs)), num_graphs - 1)
    train, rest = _split_off(everything, labels, count, seed=seed)
    val, test = _split_off(rest, labels, math.ceil(len(rest) / 2), seed=seed)
    return np.sort(train), np.sort(val), np.sort(test)


def _split_off(
    positions: IntArray, labels: NDArray[np.generic] | None, count: int, *, seed: int
) -> tuple[IntArray, IntArray]:
    """Split ``count`` of the positions off, stratified by ``labels`` if possible."""
    # here, because scikit-learn takes seconds to import and the server needs none
    from sklearn.model_selection import train_test_split

    strata = None if labels is None else labels[positions]
    if strata is not None:
        classes, sizes = np.unique(strata, return_counts=True)
        if sizes.min() < 2 or min(count, len(strata) - count) < len(classes):
            log.warning(
                "split of %d graphs is not stratified: class sizes are %s, %d to split"
                " off",
                len(strata),
                dict(zip(classes.tolist(), sizes.tolist(), strict=True)),
                count,
            )
            strata = None
    left, right = train_test_split(
        positions, test_size=count, random_state=seed, stratify=strata
    )
    return left, right


_FEW_PAIRS = 1_000_000  # of a graph: up to so many, pairs without an edge are listed


def check_noise(settings: RunSettings, label_kind: str) -> None:
    """Refuse noise on labels that are numbers, and on edges that are learned.

    No other class could replace a number; and edges would not be those of the items.
    """
    if label_kind in ("edges", "links"):
        for key, share in (
            ("split-noise-edges", settings.split_noise_edges),
            ("split-noise-labels", settings.split_noise_labels),
        ):
            if share:
                raise ConfigError(
                    f"{key} must be 0 where edges are learned, got {share:g}; set it to"
                    " 0 in the run config"
                )
    if settings.split_noise_edges and settings.features == BONDS:
        raise ConfigError(
            f"split-noise-edges must be 0 with features {BONDS!r}, got"
            f" {settings.split_noise_edges:g}: a new edge would have no bond; set it to"
            " 0 in the run config, or features to 'atoms'"
        )
    if settings.split_noise_labels and label_kind == "regression":
        raise ConfigError(
            f"split-noise-labels must be 0 for labels that are numbers, got"
            f" {settings.split_noise_labels:g}: noise replaces a class by another; set"
            " it to 0 in the run config"
        )


def add_noise(partition: GraphPartition, settings: RunSettings) -> GraphPartition:
    """Return a client's data with the noise of a run; the same object without any.

    Parameters
    ----------
    settings : RunSettings
        ``split_noise_features``, ``split_noise_edges``, ``split_noise_labels`` and
        ``split_seed`` are read.

    Raises
    ------
    DataError
        Labels are to be noisy and there is one class only, or edges and they carry
        more than two ends.
    """
    shares = {
        "features": settings.split_noise_features,
        "edges": settings.split_noise_edges,
        "labels": settings.split_noise_labels,
    }
    if not any(shares.values()):
        return partition
    streams = {
        kind: numpy_rng(settings.split_seed, "noise", partition.client_id, kind)
        for kind in shares
    }
    graphs = partition.graphs
    if share := shares["features"]:
        x = shuffled_rows(graphs.x, share, streams["features"])
        graphs = replace(graphs, x=x)
    if shares["edges"] and graphs.beside:
        raise DataError(
            f"{graphs.name} has {' and '.join(graphs.beside)}, which split-noise-edges"
            f" {shares['edges']:g} would not replace; set it to 0 in the run config"
        )
    if share := shares["edges"]:
        graphs = rewired(graphs, share, streams["edges"])
    if share := shares["labels"]:
        y = flipped(graphs, partition.train, share, streams["labels"])
        graphs = replace(graphs, y=y)
    words = ",".join(f"{kind}={share:g}" for kind, share in shares.items() if share)
    noise = f"{words},seed={settings.split_seed}"
    return replace(partition, graphs=graphs, noise=noise, data_hash="")


def shuffled_rows(
    x: NDArray[np.generic], share: float, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Let a share of the nodes exchange their features.

    Every value stays as frequent as it was.

    Parameters
    ----------
    x : array, shape (num_nodes, num_features) or (num_nodes,)
    share : float
        In [0, 1], of the nodes of all graphs; rounded to whole nodes. One node alone
        has nobody to swap with.
    """
    chosen = rng.permutation(len(x))[: round(share * len(x))]
    noisy = np.array(x)
    noisy[chosen] = noisy[np.roll(chosen, 1)]
    return noisy


def rewired(graphs: GraphSet, share: float, rng: np.random.Generator) -> GraphSet:
    """Replace a share of each graph's edges by pairs of nodes that had none.

    An undirected edge counts once. Self-loops stay. A graph keeps its number of edges,
    unless it has too few pairs without an edge.

    Parameters
    ----------
    share : float
        In [0, 1]; rounded to whole edges in each graph.
    """
    found, counts = [], []
    for g in range(len(graphs)):
        edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
        size = int(graphs.node_ptr[g + 1] - graphs.node_ptr[g])
        noisy = _rewire(edges, size, share, rng, is_undirected=graphs.is_undirected)
        found.append(noisy)
        counts.append(noisy.shape[1])
    return replace(
        graphs,
        edge_index=np.concatenate(found, axis=1).astype(graphs.edge_index.dtype),
        edge_ptr=pointer(counts),
    )


def _rewire(
    edges: NDArray[np.integer],
    size: int,
    share: float,
    rng: np.random.Generator,
    *,
    is_undirected: bool,
) -> IntArray:
    """Edges of one graph, shape (2, num_edges), sorted by source, then target."""
    source, target = np.array(edges, dtype=np.int64)
    is_loop = source == target
    is_pair = source < target if is_undirected else ~is_loop
    pairs = np.unique(source[is_pair] * size + target[is_pair])
    count = round(share * len(pairs))
    new = _free_pairs(pairs, size, count, rng, is_undirected=is_undirected)
    gone = rng.permutation(len(pairs))[: len(new)]
    kept = np.concatenate([np.delete(pairs, gone), new])
    one_way = np.stack([kept // max(size, 1), kept % max(size, 1)])
    loops = np.stack([source[is_loop], target[is_loop]])
    parts = [one_way, one_way[::-1], loops] if is_undirected else [one_way, loops]
    every = np.concatenate(parts, axis=1)
    return every[:, np.lexsort((every[1], every[0]))]


def _free_pairs(
    pairs: IntArray,
    size: int,
    count: int,
    rng: np.random.Generator,
    *,
    is_undirected: bool,
) -> IntArray:
    """Draw ``count`` pairs that are not in ``pairs``; fewer if there are fewer.

    A pair (u, v) is the number u * size + v, with u < v if edges are undirected.
    """
    total = size * (size - 1) // (2 if is_undirected else 1)
    count = min(count, total - len(pairs))
    if size * size <= _FEW_PAIRS:
        numbers = np.arange(size * size)
        u, v = numbers // max(size, 1), numbers % max(size, 1)
        numbers = numbers[u < v if is_undirected else u != v]
        return rng.permutation(np.setdiff1d(numbers, pairs))[:count]
    drawn = np.zeros(0, np.int64)
    while len(drawn) < count:
        u, v = rng.integers(size, size=(2, 2 * count + 10))
        if is_undirected:
            u, v = np.minimum(u, v), np.maximum(u, v)
        more = (u * size + v)[u != v]
        more = more[~np.isin(more, pairs)]
        every = np.concatenate([drawn, more])
        _, first = np.unique(every, return_index=True)
        drawn = every[np.sort(first)]
    return drawn[:count]


def flipped(
    graphs: GraphSet, train: IntArray, share: float, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Return labels; a share of those to train on is wrong.

    A class becomes one of the others, each as likely; a yes/no label becomes the other.
    Labels to validate and test by stay right.

    Parameters
    ----------
    train : int array
        Positions of the graphs, or nodes, to train on.
    share : float
        In [0, 1], of the labels that are there; rounded to whole labels.

    Raises
    ------
    DataError
        There is one class only.
    """
    y = np.array(graphs.y)
    if graphs.has_tasks:
        row, task = np.nonzero(~np.isnan(y[train]))
        chosen = rng.permutation(len(row))[: round(share * len(row))]
        at = train[row[chosen]], task[chosen]
        y[at] = 1 - y[at]
        return y
    if graphs.num_classes < 2:
        raise DataError(
            f"split-noise-labels {share:g} needs two classes or more, {graphs.name} has"
            f" {graphs.num_classes}; set it to 0 in the run config"
        )
    known = train[y[train] >= 0]
    chosen = rng.permutation(known)[: round(share * len(known))]
    step = rng.integers(1, graphs.num_classes, size=len(chosen))
    y[chosen] = (y[chosen] + step) % graphs.num_classes
    return y


TaskIds = tuple[int, ...]
ALL, EXCLUSIVE, OVERLAPPING = "all", "exclusive", "overlapping"
NUM_OWNERS = 2  # of a task that is "overlapping"
MAX_DRAWS = 100_000  # of masks that leave nobody without a task


def assign_tasks(
    masks: str, num_tasks: int, num_clients: int, *, seed: int
) -> list[TaskIds]:
    """Give each client its tasks.

    Returns those of each client, ascending; together they are every task.

    Parameters
    ----------
    masks : str
        "all": every task to everyone. "exclusive": every task to one client, drawn
        uniformly; "overlapping": to two different ones; both are drawn anew
        until every client has a task. Otherwise the clients' tasks one after the other,
        numbered from 0: ``"0-2;3,5;4"``.
    seed : int
        Split seed.

    Raises
    ------
    ConfigError
        A task that nobody has, one that does not exist, a client without any, or
        another number of clients.
    DataError
        No draw gives every client a task.

    Source
    ------
    SpreadGNN (He et al. 2021, arXiv:2106.02743), Sec. 4 and code
    ``data_loader.py:load_partition_data``; "overlapping" is ours.
    """
    if masks == ALL:
        return [tuple(range(num_tasks))] * num_clients
    if masks not in (EXCLUSIVE, OVERLAPPING):
        return _listed(masks, num_tasks, num_clients)
    count = 1 if masks == EXCLUSIVE else NUM_OWNERS
    if not count <= num_clients <= num_tasks * count:
        raise ConfigError(
            f"task-masks {masks!r} gives each of {num_tasks} task(s) to {count}"
            f" client(s) and every client one, but num-clients is {num_clients}; set"
            f" num-clients to {count} to {num_tasks * count}, or task-masks to {ALL!r}"
        )
    rng = numpy_rng(seed, "task-masks", masks)
    for _ in range(MAX_DRAWS):
        order = rng.random((num_tasks, num_clients)).argsort(axis=1)
        owners = order < count  # (num_tasks, num_clients)
        if owners.any(axis=0).all():
            return [tuple(np.flatnonzero(mine).tolist()) for mine in owners.T]
    raise DataError(
        f"{MAX_DRAWS} draws of task-masks {masks!r} all left one of {num_clients}"
        f" clients without any of {num_tasks} tasks; lower num-clients, or list the"
        " tasks of each client in task-masks"
    )


def _listed(masks: str, num_tasks: int, num_clients: int) -> list[TaskIds]:
    """Read and check an explicit list."""
    given = [_numbers(part) for part in masks.split(";")]
    every = set(range(num_tasks))
    if len(given) != num_clients or not all(given) or set().union(*given) != every:
        got = f"{len(given)} client(s) and tasks {sorted(set().union(*given))}"
        raise ConfigError(
            f"task-masks must list the tasks of {num_clients} client(s), separated by"
            f" ';': one or more each, as 0-2,5, and together tasks 0-{num_tasks - 1},"
            f" got {masks!r}, {got}; set task-masks in the run config"
        )
    return [tuple(sorted(tasks)) for tasks in given]


def _numbers(part: str) -> set[int]:
    """Read ``"0-2,5"`` as {0, 1, 2, 5}."""
    found: set[int] = set()
    for piece in part.split(","):
        first, _, last = piece.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def mask_tasks(partition: GraphPartition, settings: RunSettings) -> GraphPartition:
    """Take the training labels of other clients' tasks out of a client's graphs.

    Parameters
    ----------
    partition : GraphPartition
        With labels for tasks.
    settings : RunSettings
        ``task_masks``, ``num_clients`` and ``split_seed`` are read.
    """
    if settings.task_masks == ALL:
        return partition
    num_tasks = len(partition.tasks)
    own = assign_tasks(
        settings.task_masks,
        num_tasks,
        settings.num_clients,
        seed=settings.split_seed,
    )[partition.client_id]
    y = partition.graphs.y.copy()
    foreign = np.setdiff1d(np.arange(num_tasks), own)
    y[np.ix_(partition.train, foreign)] = np.nan
    return replace(partition, graphs=replace(partition.graphs, y=y), task_ids=own)

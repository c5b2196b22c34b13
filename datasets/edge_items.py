"""Edges as what is learned: those that have a class, or links that are hidden.

A client's graph of nodes becomes data whose items are pairs of nodes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, GraphSet, IntArray
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.seeding import derive_seed, numpy_rng

from .catalog import label_kind
from .node_clients import draw_roles
from .splits import TEST, TRAIN, VAL, as_split_says, with_roles
from .tabular.encode import NO_ROLE

LINK = "link"  # name of the one target of link prediction
_TRIES = 1000  # draws of another target, before those that remain are listed


def edge_items(partition: GraphPartition, settings: RunSettings) -> GraphPartition:
    """Make edges the items of a client with one graph, if the task is about edges.

    Raises
    ------
    ConfigError
        Several clients would hold an edge, in one part to train and in another to test.
    DataError
        There are no classes, no times, or too few edges.
    """
    kind = label_kind(settings)
    if kind not in ("edges", "links"):
        return partition
    if settings.partition.startswith("metis-overlap"):
        raise ConfigError(
            f"partition must not be {settings.partition!r} for task {settings.task!r}:"
            " clients would share edges, and train on those by which others are"
            " tested; set partition to 'metis' or 'louvain'"
        )
    make = classified_edges if kind == "edges" else hidden_links
    return make(partition, settings)


def classified_edges(
    partition: GraphPartition, settings: RunSettings
) -> GraphPartition:
    """Make the edges that have a class the items.

    An undirected edge is one item. All edges pass messages; with ``split`` "time" items
    have their ``time``, and later edges pass none: see ``EdgeData`` of the clients.
    """
    graphs = partition.graphs
    if graphs.edge_y is None:
        raise DataError(
            f"{graphs.name} has no classes of edges, which task {settings.task!r}"
            " learns; name their column in the schema, as label of [edges], or set"
            " task to 'link-prediction'"
        )
    learned = as_items(graphs, only_known=True)
    items = np.asarray(learned.item_edge)
    roles = _roles(graphs, items, partition.client_id, settings, y=learned.y)
    if settings.split == "time" and graphs.edge_time is not None:
        learned = replace(learned, time=graphs.edge_time[items])
    made = with_roles(partition.client_id, learned, items, roles)
    return _as(partition, made)


def as_items(graphs: GraphSet, *, only_known: bool = False) -> GraphSet:
    """Make all edges the items, or those whose class is known.

    An undirected edge is one item.
    """
    assert graphs.edge_y is not None
    is_item = graphs.edge_y >= 0 if only_known else np.ones(len(graphs.edge_y), bool)
    if graphs.is_undirected:
        is_item &= graphs.edge_index[0] <= graphs.edge_index[1]
    items = np.flatnonzero(is_item)
    return replace(
        graphs,
        y=graphs.edge_y[items],
        num_classes=len(graphs.edge_classes),
        classes=list(graphs.edge_classes),
        pairs=graphs.edge_index[:, items].astype(np.int64),
        item_edge=items,
        time=None,
    )


def hidden_links(partition: GraphPartition, settings: RunSettings) -> GraphPartition:
    """Make links the items: training ones, and hidden ones among other pairs.

    A link is a pair of nodes that one or more edges join, whatever their direction if
    the graph is undirected; edges from a node to itself are none. Its time is that of
    its first edge. Hidden links have no edge in ``graphs``. After each of them stand
    ``negatives`` pairs that no edge joins, with its source and another target, drawn
    uniformly from ``split-seed``; of an undirected link either end may be the source. A
    source that is joined to all nodes has none: its hidden links are left out.
    """
    graphs, seed = partition.graphs, settings.split_seed
    source, target = graphs.edge_index.astype(np.int64)
    size = max(graphs.num_nodes, 1)
    low, high = source, target
    if graphs.is_undirected:
        low, high = np.minimum(source, target), np.maximum(source, target)
    key = np.where(low == high, -1, low * size + high)
    order = np.arange(len(key))
    if graphs.edge_time is not None:
        order = np.argsort(graphs.edge_time, kind="stable")
    links, first = np.unique(key[order], return_index=True)
    first = order[first[links >= 0]]
    links = links[links >= 0]
    roles = _roles(graphs, first, partition.client_id, settings)
    rng = numpy_rng(seed, "negatives", partition.client_id)
    is_shown = np.isin(key, links[roles == TRAIN]) | (key < 0)
    joined = links
    if graphs.is_undirected:
        turned = links % size * size + links // size
        joined = np.unique(np.concatenate([links, turned]))
        links = np.where(rng.random(len(links)) < 1 / 2, links, turned)
    is_full = np.bincount(joined // size, minlength=size)[links // size] >= size - 1
    roles[is_full & (roles != TRAIN)] = NO_ROLE
    if not {TRAIN, VAL, TEST} <= {*roles.tolist()}:
        raise DataError(
            f"client {partition.client_id}: too few nodes of {graphs.name} have a pair"
            " that no edge joins, among which a hidden link is ranked; leave weak edges"
            " out, or set task to another one in the run config"
        )
    if settings.split == "time" and graphs.edge_time is not None:  # no later repeat
        is_shown &= graphs.edge_time <= graphs.edge_time[first[roles == TRAIN]].max()
    items, train = links[roles == TRAIN], int((roles == TRAIN).sum())
    y, ids = np.ones(train, np.float32), [first[roles == TRAIN]]
    for role in (VAL, TEST):
        hidden = links[roles == role]
        drawn = draw_targets(hidden // size, joined, size, settings.negatives, rng)
        rows = np.concatenate([hidden[:, None], drawn], axis=1)
        items = np.concatenate([items, rows.ravel()])
        one = np.zeros(rows.shape, np.float32)
        one[:, 0] = 1
        y = np.concatenate([y, one.ravel()])
        ids.append(np.repeat(first[roles == role], rows.shape[1]))
    kept = np.flatnonzero(is_shown)
    shown = graphs.take_edges(kept)
    num_val = int((roles == VAL).sum()) * (settings.negatives + 1)
    part = np.repeat([TRAIN, VAL, TEST], [train, num_val, len(items) - train - num_val])
    learned = replace(
        shown,
        y=y[:, None],
        num_classes=1,
        classes=[],
        pairs=np.stack(np.divmod(items, size)),
        time=None,
    )
    made = with_roles(partition.client_id, learned, np.concatenate(ids), part)
    return replace(_as(partition, made), tasks=(LINK,))


def draw_targets(
    sources: IntArray,
    joined: IntArray,
    num_nodes: int,
    count: int,
    rng: np.random.Generator,
) -> IntArray:
    """Draw pairs with given sources that no link joins, each other target as likely.

    Returns pairs, (num_links, count), as source * num_nodes + target.

    Parameters
    ----------
    sources : int array, shape (num_links,)
        Each is free of a link to one node or more beside itself.
    joined : int array
        Links, as source * num_nodes + target, ascending.
    count : int
        Pairs per source, which may repeat.
    """
    wide = np.repeat(sources, count)
    found = np.zeros(len(wide), np.int64)
    open_ = np.arange(len(wide))
    for _ in range(_TRIES):
        target = rng.integers(num_nodes, size=len(open_))
        pair = wide[open_] * num_nodes + target
        at = np.minimum(np.searchsorted(joined, pair), max(len(joined) - 1, 0))
        is_link = joined[at] == pair if len(joined) else np.zeros(len(pair), bool)
        fits = ~is_link & (target != wide[open_])
        found[open_[fits]] = pair[fits]
        open_ = open_[~fits]
    for source in np.unique(wide[open_]).tolist():  # joined to nearly all nodes
        mine = open_[wide[open_] == source]
        near = joined[joined // num_nodes == source] % num_nodes
        others = np.setdiff1d(np.arange(num_nodes), [*near, source])
        found[mine] = source * num_nodes + rng.choice(others, len(mine))
    return found.reshape(len(sources), count)


def _roles(
    graphs: GraphSet,
    edges: IntArray,
    client_id: int,
    settings: RunSettings,
    y: IntArray | None = None,
) -> IntArray:
    """Role of each of these edges: at random, or the oldest to train on."""
    seed = derive_seed(settings.split_seed, "edges", client_id)
    drawn = draw_roles(len(edges), settings, seed, what="edges", y=y)
    times = None if graphs.edge_time is None else graphs.edge_time[edges]
    return as_split_says(drawn, times, settings, f"edges of {graphs.name}")


def _as(partition: GraphPartition, made: GraphPartition) -> GraphPartition:
    """Keep what is said of a client's data as a whole."""
    return replace(
        made,
        group=partition.group,
        noise=partition.noise,
        source=partition.source,
        left_out=partition.left_out,
        whole_sha256=partition.whole_sha256,
    )

"""Types of the data that a client holds, and statistics that it may share.

A run asks for them by ``tell-statistics``; a site tells them only if its policy has
``statistics = true``. They hold no smallest or largest value and nothing of one graph.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checked import at_most, between, checked

IntArray: TypeAlias = NDArray[np.int64]
Scale: TypeAlias = tuple[float, float]  # what is subtracted, then divided by
SPLITS = ("train", "val", "test")
# arrays of a GraphSet that it may have, a row for each edge, or for each graph
_OF_EDGES = ("edge_attr", "edge_weight", "edge_time", "edge_y")
_OF_GRAPHS = ("time", "graph_x")
_OF_ITEMS = ("pairs", "item_edge")


@dataclass(frozen=True, kw_only=True)
class GraphSet:
    """Graphs in flat arrays: one row per node, edge or graph.

    Parameters
    ----------
    name : str
        Data set name.
    x : array, shape (num_nodes, num_features) float32, or (num_nodes,) integer
        Node features. One integer per node stands for a one-hot row: the column
        that holds the one.
    edge_index : int array, shape (2, num_edges)
        Source and target of each directed edge, numbered *within its graph*; the
        edges of a graph are sorted by source, then target; repeated ones stand in the
        order of the files.
    node_ptr, edge_ptr : int64 arrays, shape (num_graphs + 1,)
        Graph ``g`` owns nodes ``node_ptr[g]:node_ptr[g + 1]``, edges likewise.
    y : int64 array (num_graphs,), or float32 array (num_graphs, num_tasks)
        Class of each graph, in ``range(num_classes)``; or its label for each task, NaN
        where that is missing. Where nodes are classified the set is one graph, and y
        has the class of each node, int64, shape (num_nodes,); where edges are learned,
        a row for each of ``pairs``.
    num_features, num_classes : int
        With labels for tasks, ``num_classes`` is the number of tasks: either way, how
        many outputs a model has.
    is_undirected : bool
        Every edge is present in both directions, with equal features, weight and time.
    is_simple : bool
        No edge is repeated, or joins a node to itself.
    edge_attr : array, optional
        Edge features: shape (num_edges, num_edge_features) float32, or (num_edges,)
        integer, the column of a one-hot row that holds the one.
    edge_weight : float32 array, shape (num_edges,), optional
        What a message along the edge is multiplied with.
    edge_time : float64 array, shape (num_edges,), optional
        When the edge came about, in any unit.
    time : float64 array, optional
        The same of each item of ``y``.
    edge_y : int64 array, shape (num_edges,), optional
        Class of each edge, -1 where it is not known.
    edge_classes : list of str
        Name of each of these classes.
    graph_x : float32 array, shape (num_graphs, num_graph_features), optional
        Features of whole graphs.
    pairs : int64 array, shape (2, num_items), optional
        Nodes of what is predicted, where edges are learned.
    item_edge : int64 array, shape (num_items,), optional
        Column of ``edge_index`` of each pair, where it is an edge.
    num_edge_features : int
        Width of edge features; 0 without any.
    raw_sha256 : str
        Checksum of the files the graphs were read from ("" for generated graphs).
    columns : str
        What the columns of ``x`` are, in words; "" where the setting ``features`` says
        all.
    unused : str
        What the files hold beside and nothing is made of.
    classes : list of str
        Name of each class in the files; empty where the numbers themselves are meant.
    """

    name: str
    x: NDArray[np.generic]
    edge_index: NDArray[np.integer]
    node_ptr: IntArray
    edge_ptr: IntArray
    y: NDArray[Any]
    num_features: int
    num_classes: int
    is_undirected: bool
    is_simple: bool = True
    edge_attr: NDArray[Any] | None = None
    edge_weight: NDArray[np.float32] | None = None
    edge_time: NDArray[np.float64] | None = None
    time: NDArray[np.float64] | None = None
    edge_y: IntArray | None = None
    edge_classes: list[str] = field(default_factory=list)
    graph_x: NDArray[np.float32] | None = None
    pairs: IntArray | None = None
    item_edge: IntArray | None = None
    num_edge_features: int = 0
    raw_sha256: str = ""
    columns: str = ""
    unused: str = ""
    classes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.node_ptr) - 1

    @property
    def num_nodes(self) -> int:
        """Total number of nodes."""
        return int(self.node_ptr[-1])

    @property
    def widths(self) -> dict[str, int]:
        """Widths that a model is built from; an edge's weight is one more feature."""
        has_weight, graph_x = self.edge_weight is not None, self.graph_x
        return {
            "num_features": self.num_features,
            "num_classes": self.num_classes,
            "num_edge_features": self.num_edge_features + has_weight,
            "num_graph_features": 0 if graph_x is None else graph_x.shape[1],
        }

    @property
    def beside(self) -> tuple[str, ...]:
        """What edges have beside their two ends, in words; empty for plain graphs."""
        has = {
            "direction": not self.is_undirected,
            "repeated edges or loops": not self.is_simple,
            "features": self.edge_attr is not None,
            "weights": self.edge_weight is not None,
            "times": self.edge_time is not None,
        }
        return tuple(words for words, is_so in has.items() if is_so)

    def degrees(self) -> IntArray:
        """Count the edges that leave every node, shape (num_nodes,)."""
        first = np.repeat(self.node_ptr[:-1], np.diff(self.edge_ptr))
        return np.bincount(self.edge_index[0] + first, minlength=self.num_nodes)

    @property
    def has_tasks(self) -> bool:
        """Whether graphs have labels of several tasks instead of one class."""
        return self.y.ndim == 2

    def without_edges(self) -> GraphSet:
        """Return the nodes without any edge."""
        return replace(
            self,
            edge_index=self.edge_index[:, :0],
            edge_ptr=np.zeros_like(self.edge_ptr),
            is_undirected=True,
            is_simple=True,
            num_edge_features=0,
            edge_attr=None,
            edge_weight=None,
            edge_time=None,
            edge_y=None,
        )

    def without_edge_features(self) -> GraphSet:
        """Return the graphs without features and weights of edges."""
        return replace(self, edge_attr=None, edge_weight=None, num_edge_features=0)

    def take_edges(self, edges: IntArray) -> GraphSet:
        """Keep the edges at these positions, ascending, and all nodes."""
        graph = np.repeat(np.arange(len(self)), np.diff(self.edge_ptr))
        count = np.bincount(graph[edges], minlength=len(self))
        return replace(
            self,
            edge_index=np.ascontiguousarray(self.edge_index[:, edges]),
            edge_ptr=pointer(count),
            **self._cut(_OF_EDGES, edges),
        )

    def take(self, graph_ids: IntArray) -> GraphSet:
        """Copy out the graphs ``graph_ids`` (repeats allowed), in that order."""
        nodes, node_ptr = _ranges(self.node_ptr, graph_ids)
        edges, edge_ptr = _ranges(self.edge_ptr, graph_ids)
        label_type = np.float32 if self.has_tasks else np.int64
        return replace(
            self,
            x=np.ascontiguousarray(self.x[nodes]),
            edge_index=np.ascontiguousarray(self.edge_index[:, edges]),
            node_ptr=node_ptr,
            edge_ptr=edge_ptr,
            y=np.ascontiguousarray(self.y[graph_ids], label_type),
            **self._cut(_OF_EDGES, edges),
            **self._cut(_OF_GRAPHS, graph_ids),
        )

    def induced(self, ids: IntArray) -> GraphSet:
        """Copy out the nodes ``ids``, ascending, of one graph, and edges among them.

        Node k of the result is node ``ids[k]``, in features, class, time and edges.
        """
        number = np.full(self.num_nodes, -1, np.int32)
        number[ids] = np.arange(len(ids), dtype=np.int32)
        edges = number[self.edge_index]  # (2, num_edges)
        # Numbers ascend with ids, hence edges stay sorted by source, then target.
        kept = np.flatnonzero((edges >= 0).all(axis=0))
        return replace(
            self,
            x=np.ascontiguousarray(self.x[ids]),
            edge_index=np.ascontiguousarray(edges[:, kept]),
            node_ptr=pointer([len(ids)]),
            edge_ptr=pointer([len(kept)]),
            y=np.ascontiguousarray(self.y[ids]),
            **self._cut(_OF_EDGES, kept),
            **self._cut(("time",), ids),
        )

    def _cut(self, names: Sequence[str], rows: IntArray) -> dict[str, Any]:
        """Copy rows of the arrays that are there."""
        found = ((name, getattr(self, name)) for name in names)
        return {n: np.ascontiguousarray(a[rows]) for n, a in found if a is not None}


def pointer(counts: ArrayLike) -> IntArray:
    """Start of each part in a flat array, and the end of the last, from their sizes."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def is_undirected(edges: NDArray[np.integer], *of_edges: NDArray[Any] | None) -> bool:
    """Whether each edge has its reverse, with equal rows of the arrays ``of_edges``.

    Edges (2, num_edges) are numbered over all graphs, sorted by source, then target.
    """
    back = np.lexsort((edges[0], edges[1]))
    return bool(np.array_equal(edges, edges[::-1, back])) and all(
        np.array_equal(a, a[back]) for a in of_edges if a is not None
    )


def distinct_edges(source: IntArray, target: IntArray, num_nodes: int) -> IntArray:
    """Each edge once, by source, then target, shape (2, num_edges); no loops."""
    size = max(num_nodes, 1)
    key = (source * size + target)[source != target]
    key.sort()  # np.unique hashes, which takes far longer
    key = key[np.diff(key, prepend=-1) != 0]
    return np.stack(np.divmod(key, size))


def _ranges(ptr: IntArray, ids: IntArray) -> tuple[IntArray, IntArray]:
    """Concatenate ``range(ptr[i], ptr[i + 1])`` for i in ids; and the new pointer."""
    sizes = ptr[ids + 1] - ptr[ids]
    new_ptr = pointer(sizes)
    offsets = np.repeat(ptr[ids] - new_ptr[:-1], sizes)
    return offsets + np.arange(new_ptr[-1]), new_ptr


@dataclass(frozen=True, kw_only=True)
class WeightedEdges:
    """Weighted edges over the nodes of the graphs of a :class:`GraphSet`.

    Parameters
    ----------
    edge_index : int32 array, shape (2, num_edges)
        Source and target of each edge, numbered and sorted as a ``GraphSet``'s.
    weight : float32 array, shape (num_edges,)
        What the message from source to target is multiplied with.
    edge_ptr : int64 array, shape (num_graphs + 1,)
        Graph ``g`` owns edges ``edge_ptr[g]:edge_ptr[g + 1]``.
    """

    edge_index: NDArray[np.int32]
    weight: NDArray[np.float32]
    edge_ptr: IntArray


@dataclass(frozen=True, kw_only=True)
class DiffusionSpec:
    """Settings of the diffusion view of a graph; see ``datasets.diffusion``.

    Parameters
    ----------
    alpha : float
        Teleport probability of PageRank, in (0, 1]; 1 never leaves the node.
    threshold : float
        Smaller entries are dropped, in (0, 1): without any, rounding alone would
        join nodes that no path joins.

    Source
    ------
    Defaults: alpha from MVGRL's code, as FCLG gives none.
    """

    alpha: float = 0.2
    threshold: float = 0.01


@dataclass(frozen=True, kw_only=True)
class GraphPartition:
    """The data of one client.

    Where nodes are classified ``graphs`` is one graph, and what is said of graphs below
    holds for its nodes.

    Parameters
    ----------
    graphs : GraphSet
        This client's graphs only.
    graph_ids : int64 array, shape (num_graphs,)
        Row of each graph in the data set it comes from.
    train, val, test : int64 arrays
        Positions into ``graphs`` (not data set rows), ascending, disjoint.
    group : int
        Planted group of the client (synthetic data), -1 where there is none.
    tasks : tuple of str
        Names of the columns of ``graphs.y``; empty where graphs have classes.
    task_ids : tuple of int, optional
        Columns of which the client has labels to train on, ascending; None: all. Those
        of its training graphs are NaN elsewhere; of the others all are kept, to
        measure by.
    shares_held_out : bool
        Every client of the run holds these same validation and test graphs.
    split_hash : str
        See :func:`hash_split`; computed here.
    data_hash : str
        See :func:`hash_data`; computed here where it is not given. Graphs that noise
        replaced keep that of the graphs they replace.
    whole_sha256 : str
        Checksum of labels and sizes of the whole set that the client's graphs are part
        of; "" where they are no part of one.
    scales : tuple of Scale
        By which models learn each column of ``graphs.y``, which is in the units of the
        files; empty: as it is.
    noise : str
        Noise that ``datasets.splits`` put on the graphs, in words; "" for none.
    source : str
        Name of the file that ``graph_ids`` are rows of, where each client has a file
        of its own.
    left_out : str
        Which shares of its tables are not in ``graphs``, e.g. "4.6 % of edges".
    """

    client_id: int
    graphs: GraphSet
    graph_ids: IntArray
    train: IntArray
    val: IntArray
    test: IntArray
    group: int = -1
    tasks: tuple[str, ...] = ()
    task_ids: tuple[int, ...] | None = None
    shares_held_out: bool = False
    whole_sha256: str = ""
    scales: tuple[Scale, ...] = ()
    noise: str = ""
    source: str = field(default="", compare=False)
    left_out: str = field(default="", compare=False)
    split_hash: str = field(default="", compare=False)
    data_hash: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "split_hash", hash_split(self))
        if not self.data_hash:
            object.__setattr__(self, "data_hash", hash_data(self))

    @property
    def owned_tasks(self) -> tuple[int, ...]:
        """Columns of labels that the client may train on."""
        if self.task_ids is None:
            return tuple(range(len(self.tasks)))
        return self.task_ids

    def targets(self) -> NDArray[Any]:
        """Give the labels of all graphs as models learn them."""
        if not self.scales:
            return self.graphs.y
        shift, scale = np.array(self.scales).T
        with np.errstate(over="ignore"):
            learned: NDArray[Any] = ((self.graphs.y - shift) / scale).astype(np.float32)
        return learned

    def in_units(self, outputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Turn numbers that a model predicts into the units of the files."""
        if not self.scales:
            return outputs
        shift, scale = np.array(self.scales).T
        with np.errstate(over="ignore"):
            scaled: NDArray[np.float32] = (outputs * scale + shift).astype(np.float32)
        return scaled

    @property
    def held_out(self) -> IntArray:
        """Positions of the validation graphs, then of the test graphs."""
        return np.concatenate([self.val, self.test])

    def positions(self, split: str) -> IntArray:
        """Positions of ``split``: "train", "val" or "test"."""
        return {"train": self.train, "val": self.val, "test": self.test}[split]


def hash_split(partition: GraphPartition, *, with_files: bool = True) -> str:
    """SHA-256 over data set, client, graph ids of each split, tasks, noise, files.

    Tasks count only where the client does not have all, noise where there is some.
    Files count by their checksum, unless they are generated, or ``with_files`` is
    false: where edges and labels are private, a hash of the files would confirm a guess
    of them.
    """
    graphs = partition.graphs
    digest = hashlib.sha256(f"{graphs.name}/{partition.client_id}".encode())
    for split in SPLITS:
        ids = np.sort(partition.graph_ids[partition.positions(split)])
        digest.update(f"/{split}:{','.join(map(str, ids.tolist()))}".encode())
    if partition.task_ids is not None:
        digest.update(f"/tasks:{','.join(map(str, partition.task_ids))}".encode())
    if partition.noise:
        digest.update(f"/noise:{partition.noise}".encode())
    if with_files and graphs.raw_sha256:
        digest.update(f"/files:{graphs.raw_sha256}".encode())
    return digest.hexdigest()


def hash_data(partition: GraphPartition) -> str:
    """SHA-256 over the split and every number of the graphs, as training sees them."""
    graphs = partition.graphs
    digest = hashlib.sha256(partition.split_hash.encode())
    for array in (graphs.x, graphs.edge_index, graphs.node_ptr, graphs.edge_ptr):
        digest.update(f"/{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update(f"/{graphs.y.shape}".encode())
    digest.update(np.ascontiguousarray(graphs.y).data)
    for name in (*_OF_EDGES, *_OF_GRAPHS, *_OF_ITEMS):
        array = getattr(graphs, name)
        if array is not None:
            digest.update(f"/{name}{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def hash_federation(client_hashes: dict[int, str]) -> str:
    """SHA-256 over the split hashes of all clients, in client order."""
    lines = "\n".join(f"{c} {client_hashes[c]}" for c in sorted(client_hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def earth_mover_distance(class_counts: IntArray) -> float:
    """Distance of the clients' class shares from the shares of all graphs.

    ``sum_i |S_i| / |S| * ||q_i - p||_1``, where client ``i`` holds ``|S_i|`` of the
    ``|S|`` graphs, ``q_i`` are its class shares and ``p`` those of all graphs. In
    [0, 2); 0 where every client has the same shares.

    Parameters
    ----------
    class_counts : int array, shape (num_clients, num_classes)
        Graphs per client and class. A client without graphs contributes 0.

    Source
    ------
    Li et al. 2024 (FCLG), arXiv:2411.12098, Sec. 4. "EMD" is the paper's name, as in
    Zhao et al. 2018, arXiv:1806.00582: with distance 1 between any two classes the
    earth mover's distance is half of this sum.
    """
    counts = np.asarray(class_counts, dtype=np.float64)
    total = counts.sum()
    shares = counts.sum(axis=0) / total
    sizes = counts.sum(axis=1, keepdims=True)  # |S_i| q_i is the row of counts itself
    return float(np.abs(counts - sizes * shares).sum() / total)


def join_training(parts: Sequence[GraphPartition], *, of_nodes: bool) -> GraphPartition:
    """Give the first client the training items of all, and none to validate and test.

    Whole graphs are those that train. ``of_nodes``: nodes or edges are learned of, and
    the graphs of all clients become one, without edges between them.
    """
    first, sets, more = parts[0], [p.graphs for p in parts], dict[str, Any]()
    if of_nodes:
        node, edge, item = (
            pointer(sizes)[:-1].tolist()
            for sizes in zip(
                *((s.num_nodes, s.edge_index.shape[1], len(s.y)) for s in sets),
                strict=True,
            )
        )
        train = np.concatenate(
            [p.train + at for p, at in zip(parts, item, strict=True)]
        )
        edges = [s.edge_index + at for s, at in zip(sets, node, strict=True)]
        for name, starts in (("pairs", node), ("item_edge", edge)):
            if getattr(sets[0], name) is not None:
                of_each = zip(sets, starts, strict=True)
                rows_of = [getattr(s, name) + at for s, at in of_each]
                more[name] = np.concatenate(rows_of, axis=-1)
        more["graph_x"] = None  # of one graph it would have several rows
    else:
        sets = [p.graphs.take(p.train) for p in parts]
        train = np.arange(sum(map(len, sets)))
        edges = [s.edge_index for s in sets]
    one, nothing = first.graphs, train[:0]
    node_ptr, edge_ptr = (
        pointer(np.concatenate([np.diff(ptr) for ptr in ptrs]))
        for ptrs in ([s.node_ptr for s in sets], [s.edge_ptr for s in sets])
    )
    names = [n for n in (*_OF_EDGES, *_OF_GRAPHS) if getattr(one, n) is not None]
    rows: dict[str, Any] = {
        n: np.concatenate([getattr(s, n) for s in sets]) for n in ("x", "y", *names)
    }
    graphs = replace(
        one,
        edge_index=np.concatenate(edges, axis=1),
        node_ptr=node_ptr[[0, -1]] if of_nodes else node_ptr,
        edge_ptr=edge_ptr[[0, -1]] if of_nodes else edge_ptr,
        is_undirected=all(s.is_undirected for s in sets),
        is_simple=all(s.is_simple for s in sets),
        **{**rows, **more},
    )
    return replace(
        first,
        graphs=graphs,
        graph_ids=np.arange(len(graphs.y)),
        train=train,
        val=nothing,
        test=nothing,
        task_ids=None,
        data_hash="",
    )


def training_counts(partition: GraphPartition) -> IntArray:
    """Count a client's training labels: (num_classes,), or (2, num_tasks) of 0 and 1.

    Missing labels do not count.
    """
    graphs = partition.graphs
    y = graphs.y[partition.train]
    if graphs.has_tasks:
        return np.stack([(y == label).sum(axis=0) for label in (0, 1)])
    return np.bincount(y[y >= 0], minlength=graphs.num_classes)


def balanced_weights(counts: ArrayLike) -> NDArray[np.float64]:
    """Weights n / (C n_c), with which all C classes weigh alike.

    A class without labels has weight 1. Else as
    ``sklearn.utils.class_weight.compute_class_weight("balanced", ...)``.

    Parameters
    ----------
    counts : int array, shape (C,) or (C, num_tasks)
        Labels of each class.
    """
    given = np.asarray(counts, np.float64)
    total, some = np.broadcast_to(given.sum(axis=0), given.shape), given > 0
    ones: NDArray[np.float64] = np.ones_like(given)
    np.divide(total, len(given) * given, out=ones, where=some)
    return ones


TELLS = "statistics"  # name of the fact at roll call
_MOST_COUNTS, MOST_TARGETS = 50, 15  # a fact of the roll call is a short text
_Count: TypeAlias = Annotated[int, between(0, 2**53)]
_Means: TypeAlias = Annotated[tuple[float, ...], at_most(MOST_TARGETS)]


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Means over the graphs of one client; NaN if there is nothing to average.

    Parameters
    ----------
    nodes_per_graph, edges_per_graph : float
        An edge counts once; of directed graphs each repeated edge counts.
    degree : float
        Mean number of edges of a node; of directed graphs those in both directions.
    isolated : float
        Share of nodes without neighbour.
    homophily : float
        Of the edges between labelled nodes, the share that joins nodes of one class;
        NaN for whole graphs.
    counts : tuple of int
        Graphs, or labelled nodes, of each of the first 50 classes; of binary targets
        the graphs with 1, target by target; empty for other targets.
    target_mean, target_std : tuple of float
        Of each of the first 15 targets that are numbers.
    """

    OPEN: ClassVar[bool] = True

    num_graphs: _Count
    num_nodes: _Count
    nodes_per_graph: float
    edges_per_graph: float
    degree: float
    isolated: float
    homophily: float
    counts: Annotated[tuple[_Count, ...], at_most(_MOST_COUNTS)] = ()
    target_mean: _Means = ()
    target_std: _Means = ()

    def to_json(self) -> str:
        """Write as a short text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Statistics | None:
        """Read what a client sent; None if these are no statistics."""
        try:
            found: Statistics = checked(cls, json.loads(text))
        except (ValueError, RecursionError):
            return None
        return found


def measure(partition: GraphPartition, *, is_binary: bool) -> Statistics:
    """Measure all graphs of a client.

    ``is_binary`` says whether targets, if there are any, are 0 or 1.
    """
    graphs = partition.graphs
    degrees, count, y = graphs.degrees(), len(graphs), np.asarray(graphs.y)
    both = 2 if graphs.is_undirected else 1
    if both == 1:
        turned = replace(graphs, edge_index=graphs.edge_index[::-1])
        degrees = degrees + turned.degrees()
    found: dict[str, Any] = {}
    if not graphs.has_tasks:
        counts = np.bincount(y[y >= 0], minlength=graphs.num_classes)
        found["counts"] = tuple(counts[:_MOST_COUNTS].tolist())
    elif is_binary:
        found["counts"] = tuple((y == 1).sum(axis=0)[:_MOST_COUNTS].tolist())
    else:
        known = [c[~np.isnan(c)] for c in y.T[:MOST_TARGETS]]
        found["target_mean"] = tuple(_rounded(c, np.mean) for c in known)
        found["target_std"] = tuple(_rounded(c, np.std) for c in known)
    return Statistics(
        num_graphs=count,
        num_nodes=graphs.num_nodes,
        nodes_per_graph=_rounded(np.diff(graphs.node_ptr), np.mean),
        edges_per_graph=_rounded(np.diff(graphs.edge_ptr) / both, np.mean),
        degree=_rounded(degrees, np.mean),
        isolated=_rounded(degrees == 0, np.mean),
        homophily=_homophily(partition),
        **found,
    )


def _rounded(values: np.ndarray, of: Any) -> float:
    """Round to three digits; NaN if there is no value."""
    return float(f"{float(of(values)):.3g}") if len(values) else math.nan


def _homophily(partition: GraphPartition) -> float:
    graphs = partition.graphs
    is_of_nodes = graphs.pairs is None and len(graphs.y) == graphs.num_nodes
    if graphs.has_tasks or not is_of_nodes or len(graphs) > 1:
        return math.nan
    source, target = (np.asarray(graphs.y)[end] for end in graphs.edge_index)
    known = (source >= 0) & (target >= 0)
    return _rounded((source == target)[known], np.mean)

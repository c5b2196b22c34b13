"""Types of the data that a client holds. No loading and no torch here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
SPLITS = ("train", "val", "test")


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
        edges of a graph are sorted by source, then target.
    node_ptr, edge_ptr : int64 arrays, shape (num_graphs + 1,)
        Graph ``g`` owns nodes ``node_ptr[g]:node_ptr[g + 1]``, edges likewise.
    y : int64 array, shape (num_graphs,)
        Class of each graph, in ``range(num_classes)``.
    num_features, num_classes : int
    is_undirected : bool
        Every edge is present in both directions.
    raw_sha256 : str
        Checksum of the files the graphs were read from ("" for generated graphs).
    """

    name: str
    x: NDArray[np.generic]
    edge_index: NDArray[np.integer]
    node_ptr: IntArray
    edge_ptr: IntArray
    y: IntArray
    num_features: int
    num_classes: int
    is_undirected: bool
    raw_sha256: str = ""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_nodes(self) -> int:
        """Total number of nodes."""
        return int(self.node_ptr[-1])

    def take(self, graph_ids: IntArray) -> GraphSet:
        """Copy out the graphs ``graph_ids`` (repeats allowed), in that order."""
        nodes, node_ptr = _ranges(self.node_ptr, graph_ids)
        edges, edge_ptr = _ranges(self.edge_ptr, graph_ids)
        return GraphSet(
            name=self.name,
            x=np.ascontiguousarray(self.x[nodes]),
            edge_index=np.ascontiguousarray(self.edge_index[:, edges]),
            node_ptr=node_ptr,
            edge_ptr=edge_ptr,
            y=np.asarray(self.y[graph_ids], dtype=np.int64),
            num_features=self.num_features,
            num_classes=self.num_classes,
            is_undirected=self.is_undirected,
            raw_sha256=self.raw_sha256,
        )


def _ranges(ptr: IntArray, ids: IntArray) -> tuple[IntArray, IntArray]:
    """Concatenate ``range(ptr[i], ptr[i + 1])`` for i in ids; and the new pointer."""
    sizes = ptr[ids + 1] - ptr[ids]
    new_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    offsets = np.repeat(ptr[ids] - new_ptr[:-1], sizes)
    return offsets + np.arange(new_ptr[-1]), new_ptr


@dataclass(frozen=True, kw_only=True)
class GraphPartition:
    """The data of one client.

    Parameters
    ----------
    client_id : int
    graphs : GraphSet
        This client's graphs only.
    graph_ids : int64 array, shape (num_graphs,)
        Row of each graph in the data set it comes from.
    train, val, test : int64 arrays
        Positions into ``graphs`` (not data set rows), ascending, disjoint.
    group : int
        Planted group of the client (synthetic data), -1 where there is none.
    """

    client_id: int
    graphs: GraphSet
    graph_ids: IntArray
    train: IntArray
    val: IntArray
    test: IntArray
    group: int = -1
    split_hash: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "split_hash", hash_split(self))

    def positions(self, split: str) -> IntArray:
        """Positions of ``split``: "train", "val" or "test"."""
        return {"train": self.train, "val": self.val, "test": self.test}[split]


def hash_split(partition: GraphPartition) -> str:
    """SHA-256 over data set, client id and the sorted graph ids of each split."""
    digest = hashlib.sha256(f"{partition.graphs.name}/{partition.client_id}".encode())
    for split in SPLITS:
        ids = np.sort(partition.graph_ids[partition.positions(split)])
        digest.update(f"/{split}:{','.join(map(str, ids.tolist()))}".encode())
    return digest.hexdigest()


def hash_federation(client_hashes: dict[int, str]) -> str:
    """SHA-256 over the split hashes of all clients, in client order."""
    lines = "\n".join(f"{c} {client_hashes[c]}" for c in sorted(client_hashes))
    return hashlib.sha256(lines.encode()).hexdigest()

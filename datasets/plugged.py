"""Data sets of plug-ins: graphs of PyTorch Geometric in, one client's part out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, GraphSet, pointer
from fedgraph_flwr.core.errors import ConfigError, DataError, unknown_name
from fedgraph_flwr.core.plugins import one_name
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.seeding import derive_seed

from .cache import DATA_ENV
from .molecules import warn_once
from .node_clients import draw_roles, with_roles
from .splits import split_graphs

_USED = {"x", "edge_index", "y", "num_nodes"}  # the last is the number of rows of x


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """A data set of a plug-in, as ``DATA = DataSet(...)`` in its module.

    Parameters
    ----------
    load : callable
        ``load(client, settings)`` returns the graphs of a client, from 0, as a list of
        ``torch_geometric.data.Data`` with ``x`` (num_nodes, num_features),
        ``edge_index`` (2, num_edges) and ``y``: one class, or one per node in the one
        graph of a list if ``of_nodes``. An edge counts in the directions that are
        given. Nothing else of them is used, and the log says so: neither masks nor
        weights of edges. It must give the same graphs whenever it is called with the
        same ``settings.split_seed``, give each client others, and draw from no global
        generator.
    num_classes : int
        Of all clients together; classes count from 0.
    num_clients : int
        What ``num-clients`` is unless the run config says.
    of_nodes : bool
        Whether nodes have classes, or graphs.
    reads_files : bool
        Whether ``load`` reads from ``settings.data_dir`` (``data-dir``, at a site its
        ``data-path``, or FEDGRAPH_DATA), without which it must not be called at a site.
    settings : mapping
        Recommended values of other shared settings that may be "auto", by run-config
        key.

    Raises
    ------
    ConfigError
        A value is not allowed.
    """

    load: Callable[[int, RunSettings], Sequence[Any]]
    num_classes: int
    num_clients: int
    of_nodes: bool = False
    reads_files: bool = False
    settings: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.load):
            raise ConfigError(f"load of a DataSet must be a function, got {self.load}")
        for name, least in (("num_classes", 2), ("num_clients", 1)):
            if type(value := getattr(self, name)) is not int or value < least:
                raise ConfigError(
                    f"{name} of a DataSet must be an int >= {least}, got {value!r}"
                )
        known = RunSettings.config_fields()
        for key in self.settings:
            if key not in known:
                cure = "Correct settings of the DataSet."
                raise ConfigError(unknown_name("run-config key", key, known, cure))
            if not known[key].metadata["rule"].auto:
                raise ConfigError(
                    f"settings of a DataSet cannot set {key}, whose default is"
                    f" {known[key].default!r} and not 'auto': runs would not read it;"
                    " set it in the run config"
                )


def plugged_client(own: DataSet, settings: RunSettings, client: int) -> GraphPartition:
    """Load a client's graphs and split them.

    Raises
    ------
    DataError
        A graph is not what :class:`DataSet` says, or there are too few of them.
    """
    place = settings.data_dir or os.environ.get(DATA_ENV, "")
    place = str(Path(place).expanduser()) if place else ""
    given = replace(settings, data_dir=place)
    graphs = from_pyg(
        one_name(settings.dataset, DataSet),  # a site's account of edges goes by it
        own.load(client, given),
        num_classes=own.num_classes,
        of_nodes=own.of_nodes,
    )
    graphs = replace(graphs, raw_sha256=_checksum(graphs))
    if own.of_nodes:
        seed = derive_seed(settings.split_seed, "plugged", client)
        roles = draw_roles(
            graphs.num_nodes, held_out=settings.held_out, seed=seed, y=graphs.y
        )
        return with_roles(client, graphs, np.arange(graphs.num_nodes), roles)
    return split_graphs(client, graphs, np.arange(len(graphs)), settings)


def _checksum(graphs: GraphSet) -> str:
    """SHA-256 of graphs in place of their files, which only the plug-in knows."""
    digest = hashlib.sha256()
    arrays = (graphs.node_ptr, graphs.edge_ptr, graphs.edge_index, graphs.x, graphs.y)
    for array in arrays:
        digest.update(f"/{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def from_pyg(
    name: str, given: Sequence[Any], *, num_classes: int, of_nodes: bool = False
) -> GraphSet:
    """Join graphs of PyTorch Geometric; an edge that is listed twice counts once.

    Raises
    ------
    DataError
        A graph is not what :class:`DataSet` says; the message names it.
    """
    wanted = "one graph, whose nodes have classes" if of_nodes else "graphs"
    is_many = isinstance(given, Iterable) or hasattr(given, "__getitem__")
    if not is_many or hasattr(given, "keys"):  # as a Data has
        raise DataError(
            f"{name}: load must return a list of {wanted}, got a"
            f" {type(given).__name__}; return one"
        )
    found = list(given)
    if unused := sorted({a for g in found for a in _attributes(g)} - _USED):
        warn_once(
            f"{name}: not used of its graphs: {', '.join(unused)}; which graphs or"
            " nodes train and test is drawn by split-seed and held-out"
        )
    if not found or (of_nodes and len(found) != 1):
        raise DataError(
            f"{name}: load must return a list of {wanted}; got {len(found)}"
        )
    parts = [
        _read(f"{name}: graph {g}", graph, num_classes, of_nodes=of_nodes)
        for g, graph in enumerate(found)
    ]
    widths = {x.shape[1] for x, _, _ in parts}
    if len(widths) > 1:
        raise DataError(
            f"{name}: graphs have {' and '.join(map(str, sorted(widths)))} features;"
            " give all of them the same columns"
        )
    return GraphSet(
        name=name,
        x=np.concatenate([x for x, _, _ in parts]),
        edge_index=np.concatenate([edges for _, edges, _ in parts], axis=1),
        node_ptr=pointer([len(x) for x, _, _ in parts]),
        edge_ptr=pointer([edges.shape[1] for _, edges, _ in parts]),
        y=np.concatenate([y for _, _, y in parts]),
        num_features=widths.pop(),
        num_classes=num_classes,
        is_undirected=all(_is_symmetric(edges) for _, edges, _ in parts),
    )


def _read(
    where: str, graph: Any, num_classes: int, *, of_nodes: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Features (n, d), edges (2, e) sorted, classes (1,) or (n,) of one graph."""
    x, edges, y = (_array(where, graph, name) for name in ("x", "edge_index", "y"))
    x, y = np.asarray(x, np.float32), y.reshape(-1)
    if x.ndim != 2 or not x.size or not np.isfinite(x).all():
        raise DataError(
            f"{where}: x must be finite numbers of shape (num_nodes, num_features), got"
            f" shape {x.shape}{'' if x.ndim != 2 or not x.size else ' with NaN'}; give"
            " every node a row, e.g. its degree"
        )
    is_whole = np.issubdtype(edges.dtype, np.integer) or not edges.size
    if edges.shape[:1] != (2,) or edges.ndim != 2 or not is_whole:
        raise DataError(
            f"{where}: edge_index must be ints of shape (2, num_edges), got"
            f" {edges.dtype} of shape {edges.shape}"
        )
    if edges.size and not 0 <= edges.min() <= edges.max() < len(x):
        raise DataError(
            f"{where}: edge_index names node {edges.min()} to {edges.max()}, but x has"
            f" {len(x)} rows; number the nodes of a graph from 0"
        )
    count = len(x) if of_nodes else 1
    if len(y) != count or not np.issubdtype(y.dtype, np.integer):
        raise DataError(
            f"{where}: y must be {'an int for each node' if of_nodes else 'one int'},"
            f" got {len(y)} of {y.dtype}"
        )
    if not 0 <= y.min() <= y.max() < num_classes:
        raise DataError(
            f"{where}: y must be a class from 0 to {num_classes - 1}, got {y.min()} to"
            f" {y.max()}; correct it, or num_classes of the DataSet"
        )
    return x, np.unique(edges.astype(np.int32), axis=1), y.astype(np.int64)


def _attributes(graph: Any) -> Iterable[str]:
    return getattr(graph, "to_dict", dict)()


def _array(where: str, graph: Any, name: str) -> NDArray[Any]:
    value = getattr(graph, name, None)
    if value is None:
        raise DataError(
            f"{where} has no {name}; a graph is torch_geometric.data.Data(x=...,"
            " edge_index=..., y=...)"
        )
    return np.asarray(value)


def _is_symmetric(edges: NDArray[Any]) -> bool:
    return np.array_equal(edges, np.unique(edges[::-1], axis=1))

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
from .node_clients import draw_roles
from .splits import split_graphs, with_roles

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
        for name, least in (("num_classes", 2), ("num_clients", 1)):
            if type(value := getattr(self, name)) is not int or value < least:
                raise ConfigError(
                    f"{name} of a DataSet must be an int >= {least}, got {value!r}"
                )
        fields = RunSettings.config_fields()  # runs read no others
        known = [key for key, one in fields.items() if one.metadata["rule"].auto]
        for key in self.settings:
            if key not in known:
                cure = "Correct settings of the DataSet, or set it in the run config."
                what = "key with default 'auto'"
                raise ConfigError(unknown_name(what, key, known, cure))


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
        roles = draw_roles(graphs.num_nodes, settings, seed, y=graphs.y)
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
    is_many = is_many and not hasattr(given, "keys")  # as a Data has
    found = list(given) if is_many else []
    if not found or (of_nodes and len(found) != 1):
        got = len(found) if is_many else f"a {type(given).__name__}"
        raise DataError(f"{name}: load must return a list of {wanted}; got {got}")
    named = {a for graph in found for a in getattr(graph, "to_dict", dict)()}
    if unused := sorted(named - _USED):
        warn_once(
            f"{name}: not used of its graphs: {', '.join(unused)}; which graphs or"
            " nodes train and test is drawn by split-seed and held-out"
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
        is_undirected=all(
            np.array_equal(edges, np.unique(edges[::-1], axis=1))
            for _, edges, _ in parts
        ),
    )


def _read(
    where: str, graph: Any, num_classes: int, *, of_nodes: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Features (n, d), edges (2, e) sorted, classes (1,) or (n,) of one graph."""
    x, edges, y = (_array(where, graph, name) for name in ("x", "edge_index", "y"))
    x, y = np.asarray(x, np.float32), y.reshape(-1)
    is_whole = np.issubdtype(edges.dtype, np.integer) or not edges.size
    ends = (int(edges.min()), int(edges.max())) if edges.size else (0, 0)
    count, least = len(x) if of_nodes else 1, (y.min(initial=0), y.max(initial=0))
    for is_fine, must, got in (
        (
            x.ndim == 2 and x.size and np.isfinite(x).all(),
            "x must be finite numbers of shape (num_nodes, num_features)",
            f"shape {x.shape}",
        ),
        (
            edges.ndim == 2 and len(edges) == 2 and is_whole,
            "edge_index must be ints of shape (2, num_edges)",
            f"{edges.dtype} of shape {edges.shape}",
        ),
        (
            0 <= ends[0] <= ends[1] < len(x),
            f"edge_index must number the {len(x)} rows of x from 0",
            f"{ends[0]} to {ends[1]}",
        ),
        (
            len(y) == count and np.issubdtype(y.dtype, np.integer),
            f"y must be {'an int for each node' if of_nodes else 'one int'}",
            f"{len(y)} of {y.dtype}",
        ),
        (
            0 <= least[0] <= least[1] < num_classes,
            f"y must be a class from 0 to {num_classes - 1}, as num_classes says",
            f"{least[0]} to {least[1]}",
        ),
    ):
        if not is_fine:
            raise DataError(f"{where}: {must}, got {got}; correct the loader")
    return x, np.unique(edges.astype(np.int32), axis=1), y.astype(np.int64)


def _array(where: str, graph: Any, name: str) -> NDArray[Any]:
    value = getattr(graph, name, None)
    if value is None:
        raise DataError(
            f"{where} has no {name}; a graph is torch_geometric.data.Data(x=...,"
            " edge_index=..., y=...)"
        )
    return np.asarray(value)

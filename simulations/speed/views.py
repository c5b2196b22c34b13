"""Time and memory of noisy graphs: dense matrices beside edge lists.

One forward and backward pass of a two-layer GCN over noisy graphs, in which every pair
of nodes is an edge:

``kept``: what clients run where it fits: matrices, and features spread along noisy
edges, are made in the first pass, which is not timed, and kept.
``dense``: what they run otherwise. Matrices are cut from the compact triangles in every
pass, which is part of the time.
``edges``: PyG's ``GCNConv`` on the complete edge list with weights, made beforehand.

Memory is how far a fresh process grows beyond what it held before the first pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch_geometric.nn import GCNConv

from clients.graphs.node_rows import NodeRows
from clients.graphs.noisy_view import NoisyView
from clients.graphs.noisy_view_kept import KeptNoisyView
from clients.models.weighted_encoders import GraphModel, TwoLayers
from clients.privacy.laplace import Triangles, add_noise, post_process
from fedgraph_flwr.data import GraphSet, pointer

from .arguments import Parts, add_repeats
from .timing import in_own_process, median_seconds, print_table, resident_bytes

CPU = torch.device("cpu")
NUM_FEATURES, HIDDEN = 40, 64
CELLS = 100_000  # pairs of nodes in a batch: the number of graphs follows


MakePass = Callable[[Triangles, GraphSet], Callable[[], None]]


def noisy_graphs(count: int, num_nodes: int) -> Triangles:
    """Make rings of ``num_nodes`` with noise of epsilon 1, not post-processed."""
    ring = np.zeros((num_nodes, num_nodes), np.float32)
    at = np.arange(num_nodes)
    ring[at, (at + 1) % num_nodes] = 1
    clean = np.tile(np.maximum(ring, ring.T)[np.triu_indices(num_nodes, 1)], count)
    return Triangles(
        values=add_noise(clean, 1.0, np.random.default_rng(0)),
        num_nodes=np.full(count, num_nodes),
        positions=np.arange(count),
    )


def client_pass(kind: type[NoisyView]) -> MakePass:
    """Make the pass of clients, with one of two kinds of views."""

    def prepared(view: Triangles, graphs: GraphSet) -> Callable[[], None]:
        generator = torch.Generator().manual_seed(0)
        graph_model = GraphModel("gcn", NUM_FEATURES, 1, generator=generator)
        encoder = graph_model.encoder
        assert isinstance(encoder, TwoLayers)
        cut = kind(view, device=CPU, nodes=NodeRows(graphs, CPU))
        rows = np.arange(len(view))

        def one() -> None:
            encoder(cut.nodes(rows).x, cut.rows(rows), generator).sum().backward()

        return one

    return prepared


def edges_pass(view: Triangles, graphs: GraphSet) -> Callable[[], None]:
    """One pass over the complete edge list."""
    x = torch.from_numpy(graphs.x)
    n, b = int(view.num_nodes[0]), len(view)
    pairs = np.argwhere(~np.eye(n, dtype=bool)).T
    shift = np.repeat(np.arange(b) * n, n * (n - 1))
    edge_index = torch.from_numpy(np.tile(pairs, b) + shift)
    weight = torch.from_numpy(
        np.concatenate([view.matrix(g)[tuple(pairs)] for g in range(b)])
    )
    first, second = GCNConv(NUM_FEATURES, HIDDEN), GCNConv(HIDDEN, HIDDEN)

    def one() -> None:
        h = torch.dropout(first(x, edge_index, weight).relu(), 0.3, train=True)
        second(h, edge_index, weight).sum().backward()

    return one


PASSES = {
    "kept": client_pass(KeptNoisyView),
    "dense": client_pass(NoisyView),
    "edges": edges_pass,
}


def nodes_of(view: Triangles) -> GraphSet:
    """Graphs of these sizes without edges, nodes of as many kinds as features."""
    ptr = pointer(view.num_nodes)
    kinds = np.random.default_rng(0).integers(0, NUM_FEATURES, ptr[-1])
    nothing = np.zeros((2, 0), np.int64)
    return GraphSet(
        name="rings",
        x=np.eye(NUM_FEATURES, dtype=np.float32)[kinds],
        edge_index=nothing,
        node_ptr=ptr,
        edge_ptr=np.zeros_like(ptr),
        y=np.zeros((len(view), 1), np.float32),
        num_features=NUM_FEATURES,
        num_classes=1,
        is_undirected=True,
    )


def measure(kind: str, num_nodes: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a pass, and by how many MiB the process grew."""
    torch.set_num_threads(1)
    view = post_process(noisy_graphs(num_graphs(num_nodes), num_nodes), 1.0, "clamp01")
    one = PASSES[kind](view, nodes_of(view))
    before = resident_bytes()
    seconds = median_seconds({kind: one}, repeats)[kind]
    return seconds, (resident_bytes(at_most=True) - before) / 2**20


def num_graphs(num_nodes: int) -> int:
    """Return how many graphs of this size a batch holds."""
    return max(1, CELLS // num_nodes**2)


def add_views(parts: Parts) -> None:
    """Declare ``views`` and its arguments."""
    part = parts.add_parser("views", help="noisy graphs as matrices, and as edges")
    part.set_defaults(measure=measure_views)
    part.add_argument("--nodes", type=int, nargs="+", default=[30, 100, 300, 620])
    add_repeats(part, 5)


def measure_views(arguments: argparse.Namespace) -> int:
    """Print time and memory at several sizes of graphs."""
    tables: dict[str, list[dict[str, object]]] = {"milliseconds": [], "MiB": []}
    for n in arguments.nodes:
        found = [in_own_process(measure, k, n, arguments.repeats) for k in PASSES]
        seconds, mib = zip(*found, strict=True)
        for rows, values in zip(
            tables.values(), ([s * 1e3 for s in seconds], mib), strict=True
        ):
            kept, *_, edges = values
            rows.append(
                {
                    "nodes": n,
                    "graphs": num_graphs(n),
                    **{k: f"{v:.1f}" for k, v in zip(PASSES, values, strict=True)},
                    "edges / kept": f"{edges / kept:.1f}x" if kept else "-",
                }
            )
    for unit, rows in tables.items():
        print_table(
            f"GCN on noisy graphs, forward and backward, {unit}, median of"
            f" {arguments.repeats}",
            rows,
        )
    return 0

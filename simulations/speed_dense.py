"""Noisy graphs, dense or as edge lists: ``python -m simulations.speed_dense``.

Time and memory of one forward and backward pass of a two-layer GCN over noisy graphs,
in which every pair of nodes is an edge:

``kept``: what clients run where it fits: matrices, and features spread along noisy
edges, are made in the first pass, which is not timed, and kept.
``dense``: what they run otherwise. Matrices are cut from the compact triangles in every
pass, which is part of the time.
``edges``: PyG's ``GCNConv`` on the complete edge list with weights, made beforehand.

Memory is how far a fresh process grows beyond what it held before the first pass. A
second table shows what the compact triangles would save, and lose, in half precision.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch_geometric.nn import GCNConv

from clients.graphs.csr import csr
from clients.graphs.node_rows import NodeBatch, NodeRows
from clients.graphs.noisy_view import NoisyView
from clients.graphs.noisy_view_kept import KeptNoisyView
from clients.models.weighted_encoders import GraphModel, TwoLayers
from clients.privacy.laplace import Triangles, add_noise, num_pairs, post_process
from fedgraph_flwr.data import GraphSet, pointer

console = Console(highlight=False)
CPU = torch.device("cpu")
SIZES = (30, 100, 300, 620)
NUM_FEATURES, HIDDEN = 40, 64
CELLS = 100_000  # pairs of nodes in a batch: the number of graphs follows


MakePass = Callable[[Triangles, GraphSet], Callable[[], None]]


def noisy_graphs(num_graphs: int, num_nodes: int, epsilon: float) -> Triangles:
    """Rings of ``num_nodes`` with noise, not post-processed."""
    ring = np.zeros((num_nodes, num_nodes), np.float32)
    at = np.arange(num_nodes)
    ring[at, (at + 1) % num_nodes] = 1
    clean = np.tile(np.maximum(ring, ring.T)[np.triu_indices(num_nodes, 1)], num_graphs)
    return Triangles(
        values=add_noise(clean, epsilon, np.random.default_rng(0)),
        num_nodes=np.full(num_graphs, num_nodes),
        positions=np.arange(num_graphs),
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
    """Median seconds of a pass after one to warm up, and MiB of growth."""
    torch.set_num_threads(1)
    num_graphs = max(1, CELLS // num_nodes**2)
    view = post_process(noisy_graphs(num_graphs, num_nodes, 1.0), 1.0, "clamp01")
    one = PASSES[kind](view, nodes_of(view))
    before = _memory("VmRSS")
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        one()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]), _memory("VmHWM") - before


def _memory(what: str) -> float:
    """MiB, from the kernel: what is held now, or the most that was ever held."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", status)
    assert found
    return int(found.group(1)) / 1024


def apart(kind: str, num_nodes: int, repeats: int) -> tuple[float, float]:
    """``measure`` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (kind, num_nodes, repeats))


def compare_passes(sizes: tuple[int, ...], repeats: int) -> None:
    """Print the first table."""
    table = Table(
        title=f"GCN on noisy graphs, forward and backward, median of {repeats}"
    )
    for column in ("nodes", "graphs", *(f"{k} ms" for k in PASSES), "edges / kept"):
        table.add_column(column, justify="right")
    for column in (*(f"{k} MiB" for k in PASSES), "edges / kept"):
        table.add_column(column, justify="right")
    for n in sizes:
        times, memory = zip(*(apart(k, n, repeats) for k in PASSES), strict=True)
        table.add_row(
            *(str(n), str(max(1, CELLS // n**2))),
            *(f"{t * 1e3:.1f}" for t in times),
            f"{times[-1] / times[0]:.1f}x",
            *(f"{m:.1f}" for m in memory),
            f"{memory[-1] / memory[0]:.1f}x" if memory[0] else "-",
        )
    console.print(table)


@torch.no_grad()
def compare_storage(num_nodes: int = 34, num_graphs: int = 300) -> None:
    """Print the second table: errors by storing raw values as float16."""
    torch.set_num_threads(1)
    size = 2 * int(num_pairs(np.array(num_nodes))) * num_graphs / 2**20
    table = Table(
        title=f"float16 for {num_graphs} molecules saves {size:.2f} MiB a view"
    )
    for column in ("epsilon", "post", "largest error of w", "of an embedding"):
        table.add_column(column, justify="right")
    model = GraphModel(
        "gcn", NUM_FEATURES, 1, generator=torch.Generator().manual_seed(0)
    )
    rows = num_graphs * num_nodes
    graph = torch.arange(num_graphs).repeat_interleave(num_nodes)
    nodes = NodeBatch(
        x=torch.rand(rows, NUM_FEATURES).round(),
        membership=csr(torch.arange(0, rows + 1, num_nodes), torch.arange(rows), rows),
        graph_of_node=graph,
        positions=np.arange(num_graphs),
    )
    for epsilon in (0.1, 1.0, 10.0):
        raw = noisy_graphs(num_graphs, num_nodes, epsilon)
        for post in ("clamp01", "abs-degree"):
            found, weights = [], []
            for kind in (np.float32, np.float16):
                rounded = Triangles(
                    values=raw.values.astype(kind).astype(np.float32),
                    num_nodes=raw.num_nodes,
                    positions=raw.positions,
                )
                view = post_process(rounded, epsilon, post)
                weights.append(view.values)
                structure = NoisyView(view, device=CPU, post=post).batch(view.positions)
                found.append(model.embed(nodes, structure, None))
            table.add_row(
                f"{epsilon:g}",
                post,
                f"{np.abs(weights[0] - weights[1]).max():.1e}",
                f"{float((found[0] - found[1]).abs().max()):.1e}",
            )
    console.print(table)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m simulations.speed_dense")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    arguments = parser.parse_args(argv)
    compare_passes(tuple(arguments.sizes), arguments.repeats)
    compare_storage()
    return 0


if __name__ == "__main__":
    sys.exit(main())

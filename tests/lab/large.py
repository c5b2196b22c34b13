"""Large graphs: ``python tests/lab/large.py many`` or ``one FOLDER``.

``many`` times rounds of FedAvg with many clients of one graph each, beside a plain loop
of PyTorch Geometric in turns. ``one`` writes a site of one large graph as Parquet files
into a folder, if they are not there, and says what loading and training by samples
take.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from bench import finished_run, inline_rounds, now, our_round
from torch.nn.functional import cross_entropy, relu
from torch_geometric.nn import GCNConv

import datasets
from clients.job import Round
from clients.store import ClientStore
from fedgraph_flwr.core.process import resident_bytes
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import read_times


class PlainNodes:
    """A GCN of two layers and Adam, for one client's graph."""

    def __init__(self, partition, settings):
        g = partition.graphs
        self.x = torch.from_numpy(g.x)
        self.edges = torch.from_numpy(g.edge_index).long()
        self.y = torch.from_numpy(g.y)
        self.train = torch.from_numpy(partition.train)
        self.held_out = torch.from_numpy(partition.held_out)
        widths = g.num_features, settings.hidden_dim, g.num_classes
        self.convs = torch.nn.ModuleList(
            GCNConv(*pair, cached=True) for pair in itertools.pairwise(widths)
        )
        self.optimizer = torch.optim.Adam(
            self.convs.parameters(), lr=settings.learning_rate
        )

    def logits(self):
        """Of all nodes."""
        first, second = self.convs
        return second(relu(first(self.x, self.edges)), self.edges)

    def round(self):
        """Train one epoch; evaluate."""
        self.optimizer.zero_grad()
        cross_entropy(self.logits()[self.train], self.y[self.train]).backward()
        self.optimizer.step()
        with torch.no_grad():
            found = self.logits()[self.held_out].argmax(1)
            return float((found == self.y[self.held_out]).float().mean())


def many(options):
    """Print seconds of a round: plain loop, our clients, inline, and Flower."""
    torch.set_num_threads(1)
    config = {
        "method": "fedavg",
        "dataset": "planted",
        "num-clients": options.clients,
        "planted-nodes": options.nodes,
        "planted-degree": options.degree,
        "planted-features": 100,
        "encoder": "gcn2",
        "hidden-dim": 64,
        "num-layers": 2,
        "dropout": 0.0,
        "patience": 0,
        "num-server-rounds": 2 + options.rounds,
    }
    run = resolve({**defaults(), **config})
    begin = time.perf_counter()
    parts = [datasets.load_partition(run.settings, c) for c in range(options.clients)]
    entries = sum(p.graphs.edge_index.shape[1] for p in parts)
    nodes = sum(p.graphs.num_nodes for p in parts)
    print(
        f"{options.clients} clients, {nodes:,} nodes, {entries:,} entries, generated in"
        f" {time.perf_counter() - begin:.0f} s"
    )
    plain = [PlainNodes(p, run.settings) for p in parts]
    found = {"plain loop": [], "our clients in a loop": []}
    ours = our_round(parts, run)
    for turn in range(1 + options.rounds):
        for name, action in (("plain loop", plain), ("our clients in a loop", ours)):
            begin = time.perf_counter()
            if name == "plain loop":
                for client in action:
                    client.round()
            else:
                action()
            if turn:
                found[name].append(time.perf_counter() - begin)
    del plain, ours, parts
    if options.inline:
        found["inline"] = inline_rounds(config)[:, 0].tolist()
    for count in options.flower:
        with finished_run(config, count) as folder:
            rows = read_times(folder)[2:]
        found[f"Flower, {count} nodes"] = [r.wall_s for r in rows]
    base = np.median(found["plain loop"])
    for name, seconds in found.items():
        middle = np.median(seconds)
        print(
            f"{name}: {middle:.2f} s a round ({min(seconds):.2f} to"
            f" {max(seconds):.2f}), {middle / base:.2f} of the plain loop"
        )
    print(f"peak {resident_bytes(at_most=True) / 1e9:.1f} GB, this process")


def client_of(partition, run):
    """Return our client of some data, at the start of round 1."""
    cpu, kind = torch.device("cpu"), run.method.client
    store = ClientStore(Path(tempfile.gettempdir()), "none", client_id=0)
    data = kind.DATA.collate(partition, cpu)
    client = kind(run.job(data, store, run.site(store, is_secret=False), cpu))
    client.round = Round(number=1)
    return client


def write_site(folder, nodes, edges):
    """Write a site's tables: text ids, 20 numbers of a node, 3 of an edge."""
    import pyarrow as pa
    from pyarrow import parquet

    site = folder / "site"
    site.mkdir(parents=True)
    rng = np.random.default_rng(1)
    ids = np.char.add("account-", np.arange(nodes).astype(str))
    y = rng.integers(0, 2, nodes)
    table = {"node": ids}
    for k in range(20):
        table[f"c{k}"] = (rng.normal(size=nodes) + (k < 5) * y * 0.3).round(3)
    table["label"] = np.array(["no", "yes"])[y]
    parquet.write_table(pa.table(table), site / "nodes.parquet")
    source, target = rng.integers(0, nodes, (2, edges))
    alike = rng.random(edges) < 0.5  # half of the edges join nodes of one class
    by_class = [np.flatnonzero(y == k) for k in (0, 1)]
    for k, members in enumerate(by_class):
        chosen = np.flatnonzero(alike & (y[source] == k))
        target[chosen] = rng.choice(members, len(chosen))
    table = {"source": ids[source], "target": ids[target]}
    table |= {f"e{k}": rng.normal(size=edges).round(3) for k in range(3)}
    parquet.write_table(pa.table(table), site / "edges.parquet")


def one(options):
    """Print what a large site takes to load, and to train by samples."""
    if not options.folder.exists():
        write_site(options.folder, options.nodes, options.edges)
    schema = options.folder / "schema.toml"
    if not schema.exists():
        command = ["fedgraph", "site", "schema", str(options.folder / "site")]
        subprocess.run([*command, "--out", str(schema)], check=True)
        text = schema.read_text()
        schema.write_text(text.replace("directed = false", "directed = true"))
    config = {
        "method": "fedavg",
        "dataset": "graph-csv",
        "data-dir": str(options.folder.resolve()),
        "cache-dir": f"{options.folder.resolve()}-cache",
        "num-clients": 1,
        "encoder": options.encoder,
        "num-layers": 2,
        "fanout": "10,5",
        "batch-size": 1024,
    }
    run = resolve({**defaults(), **config})
    stamps = [("start", *now(), resident_bytes(at_most=True))]

    def stamp(what):
        stamps.append((what, *now(), resident_bytes(at_most=True)))
        (_, *before), (_, *after) = stamps[-2:]
        wall, cpu, more = np.subtract(after, before)
        print(
            f"{what}: {wall:.0f} s, {cpu:.0f} s of CPU, peak {after[-1] / 1e9:.1f} GB"
            f" ({more / 1e9:.1f} more)",
            flush=True,
        )

    partition = datasets.load_partition(run.settings, 0)
    stamp("loaded")
    client = client_of(partition, run)
    stamp("on the device")
    client.train()
    stamp("one epoch of samples")
    scores = client.measure("post_training").metrics
    stamp(f"scores, accuracy {scores['eval/test/post_training/accuracy']:.3f}")


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(required=True)
    part = kinds.add_parser("many")
    part.add_argument("--clients", type=int, default=195)
    part.add_argument("--nodes", type=int, default=12_308)
    part.add_argument("--degree", type=float, default=12.5)
    part.add_argument("--rounds", type=int, default=3)
    part.add_argument("--flower", type=int, nargs="*", default=[2])
    part.add_argument("--inline", action="store_true")
    part.set_defaults(run=many)
    part = kinds.add_parser("one")
    part.add_argument("folder", type=Path)
    part.add_argument("--nodes", type=int, default=1_000_000)
    part.add_argument("--edges", type=int, default=10_000_000)
    part.add_argument("--encoder", default="sage")
    part.set_defaults(run=one)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())

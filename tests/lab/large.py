"""Large graphs: ``python tests/lab/large.py many``, ``one FOLDER``, ``growth FOLDER``.

``many`` times rounds of FedAvg with many clients of one graph each, beside a plain loop
of sparse products: client by client in turns, with as many passes over each graph.
``one`` writes a site of one large graph as Parquet files into a folder, if they are not
there, and says what loading and training by samples take. ``growth`` writes a table
and a figure of seconds and memory.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from bench import finished_run, inline_rounds, now, our_round
from matplotlib.figure import Figure
from torch.nn.functional import cross_entropy, relu
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import datasets
from clients.graphs.ops import spread
from clients.job import Round
from clients.store import ClientStore
from fedgraph_flwr.core.process import in_own_process, resident_bytes
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import read_times
from fedgraph_flwr.view.style import bare, head, save

MEASURES = "s a round", "CPU s a round", "GB at the peak"
PLANTED = {
    "method": "fedavg",
    "dataset": "planted",
    "planted-nodes": 12_308,
    "planted-degree": 12.5,
    "planted-features": 100,
    "encoder": "gcn2",
    "hidden-dim": 64,
    "num-layers": 2,
    "dropout": 0.0,
    "patience": 0,
    "local-epochs": 1,
    "evaluate-every": 2,
}


class PlainNodes:
    """A GCN of two layers and Adam by sparse products, for one client's graph."""

    def __init__(self, partition, settings, product=torch.matmul):
        g, self.product = partition.graphs, product
        self.x, self.y = torch.from_numpy(g.x), torch.from_numpy(g.y)
        self.train = torch.from_numpy(partition.train)
        self.held_out = torch.from_numpy(partition.held_out)
        self.evaluations = 3 - settings.evaluate_every  # a round, as ours
        index, weight = gcn_norm(
            torch.from_numpy(g.edge_index).long(), num_nodes=len(g.y)
        )
        entries = torch.sparse_coo_tensor(index, weight, (len(g.y),) * 2)
        self.adjacency = entries.coalesce().to_sparse_csr()
        widths = g.num_features, settings.hidden_dim, g.num_classes
        self.layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        tensors = [t for layer in self.layers for t in layer.parameters()]
        self.optimizer = torch.optim.Adam(tensors, lr=settings.learning_rate)

    def logits(self):
        """Of all nodes."""
        x = self.x
        for layer in self.layers:
            x = x if layer is self.layers[0] else relu(x)
            x = self.product(self.adjacency, x @ layer.weight.t()) + layer.bias
        return x

    def evaluate(self):
        """Accuracy of nodes that are held out."""
        with torch.no_grad():
            found = self.logits()[self.held_out].argmax(1)
            return float((found == self.y[self.held_out]).float().mean())

    def round(self):
        """Evaluate, if that is due twice; train one epoch; evaluate."""
        for _ in range(1, self.evaluations):
            self.evaluate()
        self.optimizer.zero_grad()
        cross_entropy(self.logits()[self.train], self.y[self.train]).backward()
        self.optimizer.step()
        self.evaluate()


def many(options):
    """Print seconds of a round: plain loop, our clients, inline, and Flower."""
    torch.set_num_threads(1)
    config = {
        **PLANTED,
        "num-clients": options.clients,
        "planted-nodes": options.nodes,
        "evaluate-every": 3 - options.evaluations,
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
    kinds = {
        "plain loop": [PlainNodes(p, run.settings).round for p in parts],
        "plain loop that knows A to be symmetric": [
            PlainNodes(p, run.settings, lambda a, x: spread(x, a)).round for p in parts
        ],
        "our clients in a loop": [our_round([p], run) for p in parts],
    }
    found = {name: [] for name in kinds}
    for turn in range(1 + options.rounds):
        spent = dict.fromkeys(kinds, 0.0)
        for client in zip(*kinds.values(), strict=True):  # in turns
            for name, one_round in zip(kinds, client, strict=True):
                begin = now()
                one_round()
                spent[name] += now() - begin
        for name, seconds in spent.items():
            found[name] += [seconds] * bool(turn)
    del kinds, parts
    if options.inline:
        found["inline"] = [*inline_rounds(config)]
    for count in options.flower:
        with finished_run(config, count) as folder:
            rows = read_times(folder)[2 : 2 + options.rounds]  # then scores alone
        found[f"Flower, {count} nodes"] = [np.array([r.wall_s, np.nan]) for r in rows]
    base = np.array(found["plain loop"])  # (rounds, 2)
    for name, seconds in found.items():
        wall, cpu = np.median(seconds, 0)
        low, high = np.min(seconds, 0)[0], np.max(seconds, 0)[0]
        ratio, of_cpu = np.median(seconds / base[: len(seconds)], 0)
        print(
            f"{name}: {wall:.2f} s a round ({low:.2f} to {high:.2f}), {cpu:.2f} of CPU;"
            f" {ratio:.2f} of the plain loop, {of_cpu:.2f} of its CPU"
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


def growth(options):
    """Write ``growth.csv``: what inline runs take, by clients and by nodes of one."""
    few = {"fanout": "10,5", "batch-size": 1024}
    runs = [("clients", n, {"num-clients": n}) for n in options.clients]
    for n in options.nodes:
        one_site = {"num-clients": 1, "planted-nodes": n}
        runs += [("full batch", n, one_site), ("samples", n, {**one_site, **few})]
    options.folder.mkdir(parents=True, exist_ok=True)
    with (options.folder / "growth.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["kind", "size", *MEASURES])
        for kind, size, own in runs:
            config = {**PLANTED, **own, "num-server-rounds": 2 + options.rounds}
            row = kind, size, *in_own_process(size_of, config)
            table.writerow(row)
            file.flush()
            print(*row, flush=True)
    draw(options)


def size_of(config):
    """Run inline in this process; return ``MEASURES``, of its rounds the median."""
    rounds = inline_rounds(config)
    wall, cpu = np.median(rounds, 0).round(3).tolist()
    return wall, cpu, round(resident_bytes(at_most=True) / 1e9, 2)


def draw(options):
    """Draw ``growth.csv`` beside it."""
    with (options.folder / "growth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(8.4, 4.0), dpi=150, layout="constrained")
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    for what, across in zip(MEASURES[1:], panels, strict=True):
        for kind, axes, x in (
            ("clients", across[0], "clients of 12,308 nodes each"),
            ("full batch", across[1], "nodes of one site"),
            ("samples", across[1], "nodes of one site"),
        ):
            mine = [r for r in rows if r["kind"] == kind]
            points = [[float(r[c]) for r in mine] for c in ("size", what)]
            axes.loglog(*points, "o-", label=kind, markersize=4)
            if axes in panels[1]:
                axes.set_xlabel(x)
            bare(axes)
        across[0].set_ylabel(what)
    panels[0, 1].legend(frameon=False)
    head(figure, "How a run grows", "inline, GCN 2 x 64, 100 features, degree 12.5\n\n")
    save(figure, options.folder / "growth.png")


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(required=True)
    part = kinds.add_parser("many")
    part.add_argument("--clients", type=int, default=195)
    part.add_argument("--nodes", type=int, default=12_308)
    part.add_argument("--rounds", type=int, default=3)
    part.add_argument("--evaluations", type=int, choices=(1, 2), default=1)
    part.add_argument("--flower", type=int, nargs="*", default=[2])
    part.add_argument("--inline", action="store_true")
    part.set_defaults(run=many)
    part = kinds.add_parser("one")
    part.add_argument("folder", type=Path)
    part.add_argument("--nodes", type=int, default=1_000_000)
    part.add_argument("--edges", type=int, default=10_000_000)
    part.add_argument("--encoder", default="sage")
    part.set_defaults(run=one)
    part = kinds.add_parser("growth")
    part.add_argument("folder", type=Path)
    part.add_argument("--clients", type=int, nargs="*", default=[10, 25, 50, 100, 195])
    part.add_argument("--nodes", type=int, nargs="*", default=[10**4, 10**5, 10**6])
    part.add_argument("--rounds", type=int, default=1)
    part.set_defaults(run=growth)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())

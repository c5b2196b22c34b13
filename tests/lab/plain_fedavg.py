"""FedAvg of a GIN as a plain loop of PyTorch Geometric, without this app's clients.

``python tests/lab/plain_fedavg.py tu:Letter-low --seeds 10,42 --shared all`` trains
on the clients' graphs and splits that a run of the app has. ``--shared convs`` averages
the convolutions only, with private starts of all else; ``none`` is training alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
from plain import PlainGIN, to_pyg
from torch import nn
from torch_geometric.loader import DataLoader

from datasets import load_partition
from fedgraph_flwr.resolve import defaults, resolve

SHARED = {"all": "", "convs": "convs.", "none": "nothing"}  # names begin with


def plain_fedavg(partitions, models, *, shared, rounds, batch_size, rate, decay=0.0):
    """Train the clients' models in place; returns each one's accuracy on its tests."""
    shares = [len(p.train) / sum(len(q.train) for q in partitions) for p in partitions]
    train, test = (
        [to_pyg(p, p.positions(split)) for p in partitions]
        for split in ("train", "test")
    )
    optimizers = [
        torch.optim.Adam(m.parameters(), lr=rate, weight_decay=decay) for m in models
    ]
    for _ in range(rounds):
        for graphs, model, optimizer in zip(train, models, optimizers, strict=True):
            model.train()
            for batch in DataLoader(graphs, batch_size, shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch), batch.y).backward()
                optimizer.step()
        with torch.no_grad():
            for name in models[0].state_dict():
                if name.startswith(SHARED[shared]):
                    own = [m.state_dict()[name] for m in models]
                    mean = sum(n * t for n, t in zip(shares, own, strict=True))
                    for each in own:
                        each.copy_(mean)
    return [accuracy(m, graphs) for m, graphs in zip(models, test, strict=True)]


@torch.no_grad()
def accuracy(model, graphs):
    """Share of graphs whose class is predicted."""
    model.eval()
    batch = next(iter(DataLoader(graphs, len(graphs))))
    return float((model(batch).argmax(1) == batch.y).float().mean())


def main():
    """Print the mean over clients of their accuracies for each seed, and over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--shared", choices=SHARED, default="all")
    parser.add_argument("--seeds", default="10")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    config = {**defaults(), "method": "fedavg", "dataset": options.dataset}
    settings = resolve(config).settings
    partitions = [load_partition(settings, c) for c in range(settings.num_clients)]
    scores = []
    for seed in map(int, options.seeds.split(",")):
        torch.manual_seed(seed)
        graphs = partitions[0].graphs
        widths = graphs.num_features, graphs.num_classes, settings.hidden_dim
        models = [PlainGIN(*widths) for _ in partitions]
        for model in models[1:]:
            start = "convs." if options.shared == "convs" else ""
            for name, tensor in models[0].state_dict().items():
                if name.startswith(start):
                    model.state_dict()[name].copy_(tensor)
        found = plain_fedavg(
            partitions,
            models,
            shared=options.shared,
            rounds=options.rounds,
            batch_size=settings.batch_size,
            rate=options.rate,
            decay=settings.weight_decay,
        )
        scores.append(statistics.fmean(found))
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    each = ", ".join(f"{score:.4f}" for score in scores)
    sys.stdout.write(
        f"{options.dataset}, shared {options.shared}, {options.rounds} rounds:"
        f" {statistics.fmean(scores):.4f} ± {spread:.4f} over seeds ({each})\n"
    )


if __name__ == "__main__":
    main()

"""What an honest-but-curious server reads from one round, with pads and without.

``python tests/lab/curious_server.py --out FOLDER`` runs FedAvg on MUTAG over a real
SuperLink and three SuperNodes, which host 60, 30 or 10 clients. The ServerApp follows
the protocol, and writes every reply down as it came. Attacks read nothing else: beside
the replies they use the model that was sent, the run config and the number of graphs
that each client tells. The truth is loaded afterwards, to count what was right.

``sgd`` is a plug-in whose clients take a plain gradient step, without dropout: the case
that the literature on inversion is about. FedAvg itself takes a step of Adam.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fedgraph_flwr.core.wire import NUM_EXAMPLES, select, unpack

STEP = 1e-3
COMMON: dict[str, Any] = {
    "dataset": "MUTAG",
    "num-server-rounds": 1,
    "learning-rate": STEP,
}
RUNS = {  # method, clients
    "adam, 1 graph": ("fedavg", 60),
    "adam, 4 graphs": ("fedavg", 30),
    "adam, 15 graphs": ("fedavg", 10),
    "sgd, 1 graph": ("plain_sgd:METHOD", 60),
}
PLAIN = """
import torch
from functools import cached_property
from fedgraph_flwr.api import *

class Client(GraphClassifierClient):
    @cached_property
    def optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=STEP)

METHOD = Method(clients={GRAPH_CLASSIFICATION: Client})
""".replace("STEP", str(STEP))


# The server ----------------------------------------------------------------------


def keep_replies(root: Path) -> None:
    """Let the strategy write down what was sent and each reply to it, unchanged."""
    from fedgraph_flwr.core.fields import Phase
    from strategies import rounds

    collect = rounds.Round.collect

    def curious(self, replies):
        replies = list(replies)
        if self.phase is Phase.TRAINING:
            folder = root / self._strategy.experiment
            folder.mkdir(parents=True)
            np.savez(folder / "sent.npz", **next(iter(self._sent_to.values())))
            for reply in replies:
                for client, parcel in unpack(reply.content)[0].items():
                    told = {"told": np.array(parcel.metrics[NUM_EXAMPLES])}
                    np.savez(folder / f"{client}.npz", **parcel.arrays, **told)
        return collect(self, replies)

    rounds.Round.collect = curious


def run_all(root: Path, seeds: list[int]) -> None:
    """Run every setting over SuperNodes; records go below ``root``."""
    from federation import Federation, environment

    (root / "plain_sgd.py").write_text(PLAIN)
    variables = environment(root / "flwr")
    variables["PYTHONPATH"] += f"{os.pathsep}{root}"
    variables["FEDGRAPH_CURIOUS"] = str(root / "records")
    for clients in (60, 30, 10):
        hosted = np.array_split(np.arange(clients), 3)
        sites = [
            f'clients="{",".join(map(str, ids))}" plugins="plain_sgd"'
            f' data-path="{os.environ["FEDGRAPH_DATA"]}"'
            for ids in hosted
        ]
        folder = root / str(clients)
        folder.mkdir()
        with Federation(folder, variables, sites) as federation:
            for name, (method, count) in RUNS.items():
                for seed in seeds if count == clients else []:
                    for pads in (False, True):
                        places = root / f"{name}/{seed}/{pads}"
                        config = configured(method, clients, seed, pads=pads)
                        config["results-dir"] = str(places)
                        run = federation.submit(config)
                        status = federation.wait(run, limit_s=900)
                        print(name, seed, pads, status, flush=True)


def run_here(root: Path, seeds: list[int]) -> None:
    """Run every setting in this process, which gives the bytes of real nodes."""
    from simulations.inline import run_inline

    (root / "plain_sgd.py").write_text(PLAIN)
    sys.path.append(str(root))
    keep_replies(root / "records")
    for name, (method, clients) in RUNS.items():
        for seed in seeds:
            for pads in (False, True):
                config = configured(method, clients, seed, pads=pads)
                config["results-dir"] = str(root / f"{name}/{seed}/{pads}")
                config["state-dir"] = str(root / "state")
                config["data-dir"] = os.environ["FEDGRAPH_DATA"]
                run_inline(config, num_nodes=3)
                print(name, seed, pads, "inline", flush=True)


def configured(method: str, clients: int, seed: int, *, pads: bool) -> dict[str, Any]:
    """Return the run config of one run."""
    config = {**COMMON, "method": method, "num-clients": clients, "seed": seed}
    config |= {"split-seed": seed, "secure-aggregation.on": pads}
    return config | ({"dropout": 0.0} if method != "fedavg" else {})


# The attacks ---------------------------------------------------------------------


def received(folder: Path) -> tuple[dict[str, Any], dict[int, tuple[Any, int]]]:
    """Return the model sent; by client its update and number of graphs.

    Of covered updates the mean of all stands for each: no other thing can be read.
    """
    sent = select("shared/", dict(np.load(folder / "sent.npz")))
    raw = {int(p.stem): dict(np.load(p)) for p in folder.glob("[0-9]*.npz")}
    told = {c: int(r.pop("told")) for c, r in sorted(raw.items())}
    if any(n.startswith("shared/") for n in raw[0]):
        return sent, {
            c: ({n: raw[c][f"shared/{n}"] - a for n, a in sent.items()}, told[c])
            for c in told
        }
    from fedgraph_flwr.core.secure_aggregation import MASKED, decode

    total = np.sum([r[MASKED] for r in raw.values()], axis=0, dtype=np.uint64)
    size, at, update = sum(a.size for a in sent.values()), 0, {}
    mean, _ = decode(total, len(raw), sum(told.values()), size)
    for name, a in sorted(sent.items()):
        update[name] = mean[at : at + a.size].reshape(a.shape)
        at += a.size
    return sent, {c: (update, told[c]) for c in told}


def count_labels(found: Any, told: int, said: float, *, is_adam: bool) -> float:
    """Number of graphs of class 1, by the last layer's bias.

    Its gradient is the mean of (said - true) over graphs, ``said`` being what the model
    says before the step. Of Adam's first step the sign is seen: for one graph its
    class, for several whether there are more than was said; then halfway.
    """
    slope = float(found["readout.bias"][1])
    share = said - slope
    if is_adam:
        share = (1 - slope) / 2 if told == 1 else said / 2 + (1 - slope) / 4
    return float(np.clip(np.round(told * share), 0, told))


def kinds_of_atoms(sent: Any, found: Any, *, is_adam: bool) -> np.ndarray:
    """Kinds of atoms that occur: columns of the first layer that have a gradient.

    Weight decay moves the others, too; but that is known.
    """
    known = np.sign(sent["pre.weight"]) * is_adam
    rest = np.abs(found["pre.weight"] - known).max(axis=0)
    return rest > (0.5 if is_adam else 1e-5 * rest.max())


def composition(found: Any, there: np.ndarray) -> np.ndarray:
    """Shares of kinds of atoms, as if all atoms had one gradient in the first layer."""
    weight, bias = found["pre.weight"], found["pre.bias"]
    shares = np.clip(bias @ weight, 0, None) * there
    return shares / shares.sum() if shares.sum() else there / there.sum()


def says(sent: Any, x: Any, adjacency: Any, weights: Any = None) -> torch.Tensor:
    """Logits of one graph; differentiable by features and adjacency."""
    w = weights or {n: torch.tensor(a) for n, a in sent.items()}
    h = nn.functional.linear(x, w["pre.weight"], w["pre.bias"])
    for k in range(sum(n.endswith("mlp.0.weight") for n in w)):
        h = h + adjacency @ h
        at = f"convs.{k}.mlp."
        h = nn.functional.linear(h, w[f"{at}0.weight"], w[f"{at}0.bias"]).relu()
        h = nn.functional.linear(h, w[f"{at}2.weight"], w[f"{at}2.bias"]).relu()
    g = nn.functional.linear(h.sum(0), w["post.weight"], w["post.bias"]).relu()
    return nn.functional.linear(g, w["readout.weight"], w["readout.bias"])


def invert(sent, found, shares, label, *, sizes, steps, rng) -> np.ndarray:
    """Number of atoms of each kind: of a graph whose gradient is that of the client.

    Features and adjacency are soft and are optimised together, for each number of
    atoms anew, from the ``shares`` of kinds that :func:`composition` found; the best
    fit counts. Source of the idea: Zhu et al. 2019,
    arXiv:1906.08935.
    """
    weights = {n: torch.tensor(a, requires_grad=True) for n, a in sent.items()}
    target = {n: torch.tensor(np.asarray(found[n], np.float32)) for n in sent}
    barred = torch.tensor(np.where(shares > 0, 0.0, -30.0), dtype=torch.float32)
    best = (np.inf, np.zeros(len(shares)))
    for size in sizes:
        begin = np.log(shares + 1e-3) + rng.normal(0, 0.5, (size, len(shares)))
        x = torch.tensor(begin, dtype=torch.float32)
        pairs = torch.tensor(rng.normal(-2, 0.3, (size, size)), dtype=torch.float32)
        parts = [x.requires_grad_(), pairs.requires_grad_()]
        optimiser = torch.optim.Adam(parts, lr=0.1)
        for _ in range(steps):
            soft = torch.softmax(x + barred, dim=1)
            near = torch.sigmoid((pairs + pairs.T) / 2) * (1 - torch.eye(size))
            loss = nn.functional.cross_entropy(
                says(sent, soft, near, weights)[None], torch.tensor([label])
            )
            made = torch.autograd.grad(loss, [*weights.values()], create_graph=True)
            wrong = sum(
                ((m - target[n]) ** 2).sum() / (target[n] ** 2).sum().clamp(min=1e-12)
                for n, m in zip(weights, made, strict=True)
            )
            optimiser.zero_grad()
            wrong.backward(inputs=parts)
            optimiser.step()
        if (fit := float(wrong.detach())) < best[0]:
            best = fit, np.bincount(soft.argmax(1).numpy(), minlength=len(shares))
    return best[1]


# What was right --------------------------------------------------------------------


def score(
    folder: Path, name: str, seed: int, *, pads: bool, inverted: int, steps: int
) -> list[Any]:
    """One row per client: what attacks and guesses got right, as shares."""
    from datasets import load_partition
    from fedgraph_flwr.resolve import defaults, resolve

    method, clients = RUNS[name]
    is_adam = method == "fedavg"
    config = configured("fedavg", clients, seed, pads=False)
    config["data-dir"] = os.environ["FEDGRAPH_DATA"]
    settings = resolve({**defaults(), **config}).settings
    sent, seen = received(folder)
    truth = {}
    for c in seen:
        part = load_partition(settings, c)
        ids = part.train
        graphs = part.graphs.take(ids)
        atoms = np.bincount(graphs.x, minlength=graphs.num_features)
        truth[c] = int((graphs.y == 1).sum()), atoms
    rng = np.random.default_rng(seed)
    rows = []
    for c, (update, told) in seen.items():
        labels, atoms = truth[c]
        others = np.sum([a for k, (_, a) in truth.items() if k != c], axis=0)
        usual = np.mean([a > 0 for k, (_, a) in truth.items() if k != c], axis=0) > 0.5
        ones = sum(n for k, (n, _) in truth.items() if k != c)
        share = ones / sum(t for k, (_, t) in seen.items() if k != c)
        found = {n: -a / STEP for n, a in update.items()}
        there = kinds_of_atoms(sent, found, is_adam=is_adam)
        made = composition(found, there)
        said = _said(sent, made, rng)
        guess = count_labels(found, told, said, is_adam=is_adam)
        row = {
            "labels": 1 - abs(guess - labels) / told,
            "labels, guessed": 1 - abs(np.round(share * told) - labels) / told,
            "kinds": (there == (atoms > 0)).all(),
            "kinds, guessed": (usual == (atoms > 0)).all(),
            "atoms": np.minimum(made, atoms / atoms.sum()).sum(),
            "atoms, guessed": np.minimum(
                others / others.sum(), atoms / atoms.sum()
            ).sum(),
        }
        if not is_adam and told == 1 and c < inverted and not pads:
            sizes = range(12, 25, 4)
            given = {"sizes": sizes, "steps": steps, "rng": rng}
            counts = invert(sent, found, made, int(guess), **given)
            row["inverted"] = np.minimum(counts, atoms).sum() / max(
                counts.sum(), atoms.sum()
            )
        rows.append(row)
    return rows


def _said(sent: Any, shares: np.ndarray, rng: np.random.Generator) -> float:
    """Probability of class 1 that the model gives to graphs made up of such atoms."""
    found = []
    for _ in range(20):
        size = int(rng.integers(12, 24))
        x = np.eye(len(shares))[rng.choice(len(shares), size, p=shares)]
        near = np.zeros((size, size))
        ends = np.arange(1, size), rng.integers(0, np.arange(1, size))
        near[ends] = 1
        logits = says(
            sent,
            torch.tensor(x, dtype=torch.float32),
            torch.tensor(near + near.T, dtype=torch.float32),
        )
        found.append(float(torch.softmax(logits, 0)[1]))
    return float(np.mean(found))


def main() -> None:
    """Run, attack, print a table and write it with a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp()))
    parser.add_argument("--seeds", default="1", help="of runs over SuperNodes")
    parser.add_argument("--inline", default="2,3", help="of runs in this process")
    parser.add_argument("--inverted", type=int, default=5, help="clients of a run")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    root = given.out.resolve()
    deployed, here = (
        [int(s) for s in text.split(",") if s] for text in (given.seeds, given.inline)
    )
    seeds = [*deployed, *here]
    if not (root / "records").exists():  # else only attack
        root.mkdir(parents=True, exist_ok=True)
        run_all(root, deployed)
        run_here(root, here)
    rows: list[dict[str, Any]] = []
    for name in RUNS:
        for pads in (False, True):
            of_run = []
            for seed in seeds:
                found = [*(root / f"{name}/{seed}/{pads}").glob("2*")]
                where = root / "records" / found[0].name
                of_run += score(
                    where,
                    name,
                    seed,
                    pads=pads,
                    inverted=given.inverted,
                    steps=given.steps,
                )
            rows.append(summary(name, of_run, pads=pads))
    from simulations.markup import pipe_table

    table = pd.DataFrame(rows).map(
        lambda v: "{:.2f} [{:.2f}, {:.2f}]".format(*v) if isinstance(v, tuple) else v
    )
    print("\n".join(pipe_table(table)))
    if given.figure:
        draw(rows, given.figure)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw what was read of labels and of kinds of atoms, beside guessing."""
    from matplotlib.figure import Figure

    from fedgraph_flwr.view.style import GREY, PALETTE, bare, head, save

    figure = Figure(figsize=(8.4, 3.4), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = [name for name in RUNS if name.startswith("adam")]
    by_run = {(r["run"], r["pads"]): r for r in rows}
    titles = {"labels": "labels counted rightly", "kinds": "all kinds of atoms named"}
    for axes, what in zip(panels, ("labels", "kinds"), strict=True):
        for k, pads in enumerate(("no", "yes")):
            found = [
                r[what]
                for n in names
                for r in rows
                if (r["run"], r["pads"]) == (n, pads)
            ]
            at = np.arange(len(names)) + 0.3 * k - 0.15
            means = [m for m, _, _ in found]
            wide = [[m - a for m, a, _ in found], [b - m for m, _, b in found]]
            colour = PALETTE[1 - k]
            label = "with pads" if k else "without pads"
            axes.bar(at, means, 0.28, yerr=wide, color=colour, label=label, capsize=2)
        guessed = [by_run[n, "no"][f"{what}, guessed"][0] for n in names]
        for x, y in enumerate(guessed):
            axes.plot([x - 0.35, x + 0.35], [y, y], color="black", linestyle=":")
        axes.set_xticks(range(len(names)), [n.removeprefix("adam, ") for n in names])
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("training graphs of a client", color=GREY)
        titles = {
            "labels": "labels counted rightly",
            "kinds": "all kinds of atoms named",
        }
        axes.set_title(titles[what], fontsize=9)
        bare(axes)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False)
    words = "FedAvg on MUTAG, one round; dotted: guessing from all other clients"
    head(figure, "What a curious server reads of one client", f"{words}\n\n")
    save(figure, path)


def summary(name: str, rows: list[Any], *, pads: bool) -> dict[str, Any]:
    """Means over clients of all seeds, with 95 % intervals by resampling clients."""
    table, rng = pd.DataFrame(rows), np.random.default_rng(0)
    found = {"run": name, "pads": "yes" if pads else "no", "clients": len(table)}
    for column in table:
        values = table[column].dropna().to_numpy(float)
        drawn = rng.integers(len(values), size=(1000, len(values)))
        low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
        found[column] = (values.mean(), low, high)
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()

"""Seconds of a round: ``python tests/lab/bench.py WHAT``.

``round`` is beside a plain loop of PyTorch Geometric, ``beside`` compares trees of this
repository, ``sites`` goes over SuperNodes of this machine, and ``scale`` shows how a
run grows with its clients.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from federation import Federation, environment
from plain import PlainClient
from rich.console import Console
from rich.table import Table

import datasets
from clients.job import Round
from clients.store import ClientStore
from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.process import in_own_process, resident_bytes
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import TIMES, read_times
from simulations.flower import run_flower
from simulations.inline import InlineGrid, run_inline

WARM_UP = 2  # rounds of a run, which are not timed
# Waits of Flower's SuperNode and SuperExec, shorter than its own; byte code is kept.
_PROMPT = {
    "FEDGRAPH_POLL_S": "0.5",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "PYTHONDONTWRITEBYTECODE": "",
}
# In another tree: its settings and ports, and this file.
_THERE = (
    "unset FEDGRAPH_HOME FLWR_HOME FLWR_LOCAL_CONTROL_API_PORT"
    ' FLWR_LOCAL_SUPERLINK_HTTP_API_PORT; . ./env.sh && exec python "$0" "$@"'
)


def now():
    """Seconds by the clock, and of CPU: this process with all its threads."""
    return np.array([time.perf_counter(), time.process_time()])


def print_table(title, rows):
    """Print rows that have the same columns."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(highlight=False, width=120).print(table)


@contextmanager
def finished_run(config, nodes=0, gpus=0.0):
    """Run inline, or through Flower on some nodes; give the results folder.

    Files of clients lie in ``state``, beside ``results``. All go when this is left.
    """
    with tempfile.TemporaryDirectory() as folder:
        places = {f"{kind}-dir": f"{folder}/{kind}" for kind in ("results", "state")}
        if nodes:
            yield run_flower({**config, **places}, num_nodes=nodes, num_gpus=gpus)
        else:
            yield run_inline({**config, **places})


def measure_round(options):
    """Time rounds of every kind in turns, and print the medians.

    All do the same training and the same validation and test evaluations. Operators
    alone are the limit: what a round takes if nothing but them takes time.
    """
    turn = turns_of(options)
    turn()  # warms up
    found = [turn() for _ in range(options.turns)]
    if options.json:
        sys.stdout.write(f"{json.dumps(found)}\n")
        return 0
    medians = {what: np.median([t[what] for t in found], 0) for what in found[0]}
    best = np.min([s for what, s in medians.items() if what.startswith("plain")], 0)
    rows = []
    for what, (wall, cpu) in medians.items():
        each = [t[what][0] for t in found]
        row = {
            "what": what,
            "s": f"{wall:.3f}",
            "plain / this": f"{best[0] / wall:.2f}",
        }
        row["turns"] = f"{min(each):.3f} to {max(each):.3f}"
        row["CPU s"] = f"{cpu:.3f}" if cpu else ""
        row["plain CPU / this"] = f"{best[1] / cpu:.2f}" if cpu else ""
        rows.append(row)
    print_table(f"{options.dataset}, {options.clients} clients: a round", rows)
    return 0


def turns_of(options):
    """Return what makes a turn: median (wall, CPU) seconds of a round, by kind."""
    config = {
        "method": "gcfl+",
        "dataset": options.dataset,
        "num-clients": options.clients,
        "num-server-rounds": WARM_UP + options.rounds,
    }
    run = resolve({**defaults(), **config})
    partitions = [
        datasets.load_partition(run.settings, c) for c in range(options.clients)
    ]
    clients = [PlainClient(partition, run.settings) for partition in partitions]

    def plain():
        for client in clients:
            client.round()

    name = "our clients in a loop"
    loops = {name: on_threads(1, our_round(partitions, run), flushes=True)}
    share = operators(loops[name])
    loops |= {f"plain loop, {n} threads": on_threads(n, plain) for n in options.threads}

    def turn():
        found = {}
        for what, loop in loops.items():
            stamps = [now()]
            for _ in range(options.rounds):
                loop()
                stamps.append(now())
            found[what] = np.diff(stamps, axis=0)
        found["operators of these alone"] = share * found[name]
        found["inline: with server and messages"] = inline_rounds(config)
        for nodes in options.nodes:
            with finished_run(config, nodes) as folder:
                rows = read_times(folder)[WARM_UP : WARM_UP + options.rounds]
            what = f"Flower, {nodes} nodes"
            found[f"{what}: some client computing"] = [(r.busy_s, 0) for r in rows]
            found[f"{what}: wall"] = [(r.wall_s, 0) for r in rows]
        return {what: np.median(each, 0).tolist() for what, each in found.items()}

    return turn


def our_round(partitions, run):
    """Return a round of our clients' training alone: no server, message or file."""
    cpu, client = torch.device("cpu"), run.method.client
    store = ClientStore(Path(tempfile.gettempdir()), "none", client_id=0)
    site = run.site(store, is_secret=False)
    clients = [
        client(run.job(client.DATA.collate(partition, cpu), store, site, cpu))
        for partition in partitions
    ]
    for each in clients:
        each.round = Round(number=1)

    def one_round():
        for each in clients:
            each.measure("post_aggregation")
            each.train()
            each.measure("post_training")

    return one_round


def on_threads(count, action, *, flushes=False):
    """Let ``action`` run on so many threads, denormal numbers flushed as in a run."""

    def call():
        torch.set_num_threads(count)
        torch.set_flush_denormal(flushes)
        action()

    return call


def operators(action):
    """Share of the time of ``action`` that is spent inside operators."""
    action()
    with torch.profiler.profile() as profile:
        begin = time.perf_counter()  # the profiler's clock
        action()
        whole = time.perf_counter() - begin
    names = ("aten::", "mkldnn::")
    events = [e for e in profile.key_averages() if e.key.startswith(names)]
    return sum(e.self_cpu_time_total for e in events) / 1e6 / whole


def inline_rounds(config):
    """Seconds of the rounds of an inline run, shape (rounds, 2)."""
    stamps, push = [], InlineGrid.push_messages
    last = config["num-server-rounds"]  # one more begins where it ends

    def stamped(grid, messages):
        messages = list(messages)
        if messages[0].metadata.message_type == "train":
            stamps.append(now())
        return push(grid, messages)

    InlineGrid.push_messages = stamped
    try:
        with finished_run({**config, "num-server-rounds": last + 1}):
            pass
    finally:
        InlineGrid.push_messages = push
    return np.diff(stamps, axis=0)[WARM_UP:]


def compare_trees(options):
    """Measure trees in turns; print ratios of each to the first.

    A tree is a checkout of this repository. Each turn is a process of its own there,
    with its code and this file.
    """
    trees = [tree.resolve() for tree in options.trees]
    given = ["round", "--json", "--turns=1", f"--rounds={options.rounds}"]
    given += [f"--dataset={options.dataset}", f"--clients={options.clients}"]
    given += ["--nodes", *map(str, options.nodes)]
    given += ["--threads", *map(str, options.threads)]
    found = [[_turn_in(tree, given) for tree in trees] for _ in range(options.turns)]
    rows = []
    for what in found[0][0]:
        seconds = np.array([[there[what] for there in turn] for turn in found])
        for unit, each in zip(("s", "CPU s"), seconds.T, strict=True):  # (trees, turns)
            row = {
                "what": f"{what}, {unit}",
                f"{trees[0]}": f"{np.median(each[0]):.3f}",
            }
            for tree, own in zip(trees[1:], each[1:], strict=True):
                ratios = own / each[0] if each.all() else own
                low, middle, high = np.quantile(ratios, (0, 0.5, 1))
                row[f"{tree} / first"] = f"{middle:.3f} ({low:.3f} to {high:.3f})"
            if each.all():
                rows.append(row)
    print_table(f"{options.dataset}, {options.clients} clients: a round", rows)
    return 0


def _turn_in(tree, given):
    done = subprocess.run(
        ["bash", "-c", _THERE, str(Path(__file__).resolve()), *given],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        check=True,
    )
    (found,) = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_sites(options):
    """Time a round over SuperNodes on loopback, one per client, by who answers.

    The same run inline is the work itself; what is beyond it are processes, messages
    and waits. SuperNodes look for messages every half second here, not every three.
    """
    config = {
        "method": options.method,
        "dataset": options.dataset,
        "num-clients": options.clients,
        "num-server-rounds": options.rounds,
        "patience": 0,
    }
    with finished_run(config) as folder:
        found = {"inline: the work itself": _walls(folder, options.rounds)}
    for kind, stays in (("a worker that stays", "true"), ("a process each", "false")):
        found[kind] = site_rounds(config, stays)
    rows = [
        {
            "who answers messages": kind,
            "first round s": f"{walls[0]:.2f}",
            "later rounds s": f"{np.median(walls[1:]):.2f}",
            "least to most": f"{min(walls[1:]):.2f} to {max(walls[1:]):.2f}",
        }
        for kind, walls in found.items()
    ]
    print_table(f"{options.method} on {options.dataset}, {options.clients} sites", rows)
    return 0


def site_rounds(config, stays):
    """Seconds of each round over sites whose ``resident`` is ``stays``."""
    sites = [f'clients="{c}" resident={stays}' for c in range(config["num-clients"])]
    with tempfile.TemporaryDirectory() as place:
        folder, results = Path(place), Path(place, "results")
        variables = {**environment(folder / "flwr"), **_PROMPT}
        with Federation(folder, variables, sites) as federation:
            run_id = federation.submit({**config, "results-dir": str(results)})
            status = federation.wait(run_id, limit_s=1800)
            if status != "finished:completed":
                raise RunFailedError(f"{status}\n{federation.log(run_id)}")
        (run,) = (path for path in results.iterdir() if path.is_dir())
        return _walls(run, config["num-server-rounds"])


def _walls(folder, rounds):
    return [row.wall_s for row in read_times(folder) if 1 <= row.round <= rounds]


def measure_scale(options):
    """Show how a run grows with its clients: start, round, server, memory, files."""
    rows = []
    for count in options.clients:
        config = {
            "method": options.method,
            "dataset": options.dataset,
            "num-clients": count,
            "num-server-rounds": options.rounds,
            "device": "cpu",
        }
        rows.append(in_own_process(size_of_run, config, options.nodes))
    how = f"Flower, {options.nodes} nodes" if options.nodes else "inline"
    title = f"{options.method} on {options.dataset}, {options.rounds} rounds, {how}"
    print_table(title, rows)
    return 0


def size_of_run(config, nodes):
    """Run in this process, or through Flower on some nodes; say what it took.

    ``ready s``: until round 1 begins: imports, loading, roll call, Flower's start.
    ``server ms``: of a round in which no client computes, per client. ``CPU s`` and
    ``peak MB``: of server and clients together; not of Flower's processes.
    """
    begin, before = time.time(), now()
    with finished_run(config, nodes) as folder:
        _, cpu = now() - before
        rows = read_times(folder)
        training = [r for r in rows if 1 <= r.round <= config["num-server-rounds"]]
        # The file of times is written last when the last round has ended.
        first = (folder / TIMES).stat().st_mtime - sum(r.wall_s for r in rows)
        files = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    clients = config["num-clients"]
    here = {"CPU s": cpu, "peak MB": resident_bytes(at_most=True) / 1e6}
    found = {
        "clients": clients,
        "ready s": first - begin,
        "round s": min(r.wall_s for r in training),
        "server ms": 1000 * np.mean([r.wall_s - r.busy_s for r in training]) / clients,
        **({} if nodes else here),
        "results kB": files / 1e3,
    }
    return {name: f"{value:.4g}" for name, value in found.items()}


@command
def main(argv=None):
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(metavar="WHAT", required=True)

    def add(name, measure, dataset, clients, rounds):
        part = parts.add_parser(name, help=measure.__doc__.partition("\n")[0])
        part.set_defaults(measure=measure)
        part.add_argument("--dataset", default=dataset)
        many = "+" if isinstance(clients, list) else None
        part.add_argument("--clients", type=int, nargs=many, default=clients)
        part.add_argument("--rounds", type=int, default=rounds, help="of a turn or run")
        return part

    for name, measure in (("round", measure_round), ("beside", compare_trees)):
        part = add(name, measure, "molecules", 7, 5)
        part.add_argument("--nodes", type=int, nargs="*", default=[2], help="of Flower")
        part.add_argument("--threads", type=int, nargs="+", default=[1], help="plain")
        part.add_argument("--turns", type=int, default=3)
        if measure is compare_trees:
            part.add_argument("trees", type=Path, nargs="+", metavar="TREE")
        else:
            part.add_argument(
                "--json", action="store_true", help="medians of each turn"
            )
    sites = add("sites", measure_sites, "synthetic", 3, 10)
    scale = add("scale", measure_scale, "planted", [10, 100, 1000], 3)
    scale.add_argument("--nodes", type=int, default=0, help="of Flower; 0: no Flower")
    for part in (sites, scale):
        part.add_argument("--method", default="fedavg")
    options = parser.parse_args(argv)
    return options.measure(options)


if __name__ == "__main__":
    sys.exit(main())

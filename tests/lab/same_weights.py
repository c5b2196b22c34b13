"""Do runs end in the same bytes? ``python tests/lab/same_weights.py COMMIT``.

Runs every method for a few rounds, in this tree and in a worktree of COMMIT, and says
whose ``weights_sha256`` differ. ``--documented`` runs each preset that has a hash on a
page of docs/ or in docs/runs/*.csv, its fastest run if that took less than a minute
(``--all``: every run). Another kind of processor gives other bytes than a page has.
Data: ``FEDGRAPH_DATA``. Exits with 0 if all agree, 1 if one differs or failed.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICK_S = 60.0
_ROW = re.compile(r"(?P<preset>\S+)(?: \((?P<settings>.*)\))?")
G = "num-clients=4 num-server-rounds=3 dataset=synthetic"
SPLIT = "gcfl.min-round=1 gcfl.min-cluster-size=2 gcfl.mean-norm-threshold=100"
SPLIT += " gcfl.max-norm-threshold=0 gcfl.seq-length=2"
N = "dataset=planted num-clients=4 num-server-rounds=3"
C = "dataset=Cora num-clients=3 num-server-rounds=2"
E = "dataset=MUTAG num-clients=2 num-server-rounds=2"
P = "dataset=PROTEINS num-clients=3 num-server-rounds=2"
M = "dataset=BACE num-clients=3 num-server-rounds=2"
S = "dataset=SIDER num-clients=3 num-server-rounds=2"
R = "dataset=FreeSolv num-clients=3 num-server-rounds=2"
CLIP = "privacy.update-clip=1.0 privacy.update-noise=0.5"
RUNS = {
    G: "local fedavg fedprox moon",
    f"{G} {SPLIT} num-server-rounds=5": "gcfl gcfl+",
    f"{G} {SPLIT} gcfl.seq-source=last-grad-norm num-server-rounds=4": "gcfl+",
    f"{P} shared-group=convs": "gcfl+",
    f"{P} dropout=0.5 weight-decay=0.01 persist-optimizer=true": "fedavg",
    f"{G} client-fraction=0.5 evaluate-on=all": "fedavg",
    f"{G} {CLIP}": "fedavg",
    f"{G} {SPLIT} {CLIP}": "gcfl",
    E: "fclg infograph mvgrl",
    f"{E} task=graph-embedding": "local",
    f"{E} fclg.inter=nodes": "fclg",
    f"{E} infomax.moon-mu=1.0": "infograph",
    N: "fedavg fedprox gcfl+ self-weight fedgkd fedpub fedgta fedstar fedsage fedsage+",
    f"{N} adafgl.federated-rounds=2 num-server-rounds=4": "adafgl",
    f"{N} fedsage-plus.cross-client=true": "fedsage+",
    C: "fedavg fedgkd fedgta local",
    M: "fedavg fedprox",
    f"{M} {SPLIT}": "gcfl",
    f"{M} privacy.edge-epsilon=2.0": "fgcl fedavg",
    f"{M} fgcl.encoder=tag privacy.edge-epsilon=20.0 fgcl.views=two": "fgcl",
    f"{S} multitask.encoder=sage": "fedavg fedgmtl spreadgnn",
    f"{S} multitask.encoder=gat": "fedavg fedgmtl spreadgnn",
    f"{S} spreadgnn.topology=ring spreadgnn.period=2": "spreadgnn",
    f"{S} spreadgnn.seal=true": "spreadgnn",
    R: "fedgmtl spreadgnn fedprox",
    S: "local",
}


def short_runs() -> dict[str, list[str]]:
    """Arguments of the command for every run of the table, by name."""
    found = {}
    for words, methods in RUNS.items():
        for method in methods.split():
            found[f"{method} {words}"] = [method, *words.split(), "--seeds", "10"]
    return found


def weights_of(argv: list[str]) -> str:
    """Run the everyday command in this process; the hash, or how it ended."""
    try:  # of the tree that is asked
        from simulations.cli import main

        given = ["run", "--inline", *argv]
    except ImportError:  # one without the command `fedgraph`
        from simulations.run import main

        given = ["--engine", "inline"]
        for word in argv:
            given += ["--set"] * ("=" in word) + [word]
    with tempfile.TemporaryDirectory() as folder:
        try:
            end = main([*given, "--results", folder])
        except SystemExit as error:
            end = error.code
        summaries = list(Path(folder).rglob("summary.json"))
        if end or len(summaries) != 1:
            return f"ends with {end}, {len(summaries)} summaries"
        return str(json.loads(summaries[0].read_text())["weights_sha256"])


def run_all(only: str, out: Path) -> None:
    """Run the table in this process, of the tree on its path."""
    logging.disable(logging.INFO)
    found = {}
    for name, argv in short_runs().items():
        if only in name:
            found[name] = weights_of(argv)
            print(found[name][:12], name, file=sys.__stderr__, flush=True)
            out.write_text(json.dumps(found))


def in_tree(tree: Path, only: str) -> dict[str, str]:
    """Hashes of the table's runs by the code of a tree."""
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    with tempfile.NamedTemporaryFile() as out:
        command = [sys.executable, __file__, "--only", only, "--inner", out.name]
        subprocess.run(command, cwd=tree, env=env, check=True)
        return dict(json.loads(Path(out.name).read_text() or "{}"))


@contextmanager
def worktree(commit: str):
    """Check a commit out beside this tree, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", folder, commit], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)


def documented(docs: Path):
    """Yield (place, command's arguments, first digits of the hash, seconds)."""
    from simulations.presets import list_presets

    for path in sorted(docs.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        for block in re.split(r"\n(?=\||\s*[-*] )|\n\s*\n", text):
            words = " ".join(block.split())  # a command may be wrapped
            commands = re.findall(r"`fedgraph run ([^`]+)`", words)
            hashes = set(re.findall(r"`([0-9a-f]{12})`", words))
            if len(commands) == len(hashes) == 1:
                argv = shlex.split(commands[0].replace("--nodes N", ""))
                yield path.name, argv, hashes.pop(), 0.0
    for path in sorted(docs.rglob("*.csv")):
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
            found = _ROW.fullmatch(row["row"])
            if row["weights"] and found and found["preset"] in list_presets():
                pairs = [p for p in (found["settings"] or "").split(", ") if p]
                pairs.append(f"split-seed={row['split_seed']}")
                argv = [found["preset"], *pairs, "--seeds", row["seed"]]
                yield path.name, argv, row["weights"], float(row["wall_s"])


def replay(only: str, every: bool, docs: Path) -> tuple[int, int]:
    """Run documented runs again; how many there are, and how many agree."""
    runs = sorted(
        (r for r in documented(docs) if only in " ".join(r[1])), key=lambda r: r[3]
    )
    if not every:
        fastest = {run[1][0]: run for run in reversed(runs) if run[3] < QUICK_S}
        runs = list(fastest.values())
    equal = 0
    for place, argv, expected, _ in runs:
        found = weights_of(argv)
        equal += found.startswith(expected)
        verdict = "same" if found.startswith(expected) else f"DIFFERS, {expected} is in"
        print(found[:12], verdict, f"{place}: {' '.join(argv)}", flush=True)
    return len(runs), equal


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "commit", nargs="?", default="", help="to compare this tree with"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="in a run's name")
    parser.add_argument("--documented", action="store_true", help="runs of the pages")
    parser.add_argument("--all", action="store_true", help="also what takes minutes")
    parser.add_argument(
        "--docs", type=Path, default=ROOT / "docs", help="folder of pages"
    )
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.inner:
        run_all(chosen.only, chosen.inner)
        return 0
    if bool(chosen.commit) == chosen.documented:
        parser.error("give a commit, or --documented")
    if chosen.documented:
        logging.disable(logging.INFO)
        with Path(os.devnull).open("w") as nothing, redirect_stderr(nothing):
            number, equal = replay(chosen.only, chosen.all, chosen.docs)
    else:
        with worktree(chosen.commit) as tree:
            before, after = in_tree(tree, chosen.only), in_tree(ROOT, chosen.only)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                print(f"DIFFERS {before.get(name)} {after.get(name)} {name}")
        number = len(before.keys() | after.keys())
        equal = sum(before.get(name) == new for name, new in after.items())
    print(f"{equal} of {number} runs give the same bytes")
    return 0 if number == equal > 0 else 1


if __name__ == "__main__":
    sys.exit(main())

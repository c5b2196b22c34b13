"""Kill runs at random and resume them: ``python tests/lab/drill.py [ENGINE]``.

A trial kills a run of four clients with -9 one to four times, resumes it as
docs/failures.md says and compares the end with the undisturbed run: weights, rows of
``rounds.csv``, epsilons, and accounts with the noise that was drawn. Exits with 0 if
all are equal, 1 if not. README.md beside this file has more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import federation
from forks import warm_context
from small import HOSTED, NODES, PRIVATE, RUNS, small_run, write_molecules
from witness import account_faults, draw_from, keep_witness, secrets_of

from fedgraph_flwr.results.run_file import RunFile
from simulations import flower

LIMIT_S, _WAIT_S, _POLL_S = 900.0, 0.5, 0.02
_VICTIM_S, _PAUSE_S = 60.0, 10.0  # for a process to begin; between submissions
_SUBMISSIONS, _MORE_ATTEMPTS = 5, 4
# A folder that is refused so, and holds no checkpoint, has nothing to go on from.
_NOTHING_YET = ("no checkpoint", "config.json cannot be read", "start a new run")
LOST = "Flower lost the run before the app could say anything"
_FAIL = "the drill let a round fail "
BEFORE, AFTER = "before it began", "after it was stored"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What is killed when: at a share of the run, or ``before`` or ``after`` a change.

    ``change`` counts changes of the disk that last, see :func:`count_changes`.
    """

    victim: str
    share: float
    seconds: float = 0.0
    change: tuple[int, str] | None = None

    def __str__(self) -> str:
        when = "{1} change {0}".format(*self.change) if self.change else ""
        return f"{self.victim} {when or f'at {self.share:.0%}'}"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How an attempt ended: "completed", "failed" or "killed"."""

    status: str
    says: str = ""
    changes: int = 0
    killed: bool = False  # by the drill; the run may have lived on


@dataclass(kw_only=True)
class Trial:
    """A disturbed run; its verdict is "equal", "unequal", "lost" or "account"."""

    name: str
    kills: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    attempts: int = 0
    anew: int = 0
    says: str = ""
    verdict: str = "lost"


@dataclass(frozen=True)
class End:
    """What a run ends with."""

    weights: str
    rounds: str
    epsilons: dict[tuple[str, str], float]

    @classmethod
    def of(cls, run: Path) -> End:
        """Read the results folder of a run that has completed."""
        summary = json.loads((run / "summary.json").read_text())
        clients = (summary["privacy"] or {}).get("per_client", {})
        spent = {(c, k): v for c, of in clients.items() for k, v in of.items()}
        spent = {key: float(v) for key, v in spent.items() if "epsilon" in key[1]}
        return cls(summary["weights_sha256"], (run / "rounds.csv").read_text(), spent)

    def faults(self, now: End) -> list[str]:
        """Epsilons that a disturbed run states lower than this one."""
        return [
            f"summary of client {client}: {name} {now.epsilons.get((client, name))},"
            f" undisturbed {value:g}"
            for (client, name), value in self.epsilons.items()
            if now.epsilons.get((client, name), 0.0) < value * (1 - 1e-9)
        ]


def runs_of(folder: Path) -> set[Path]:
    """Results folders of a trial."""
    return {path for path in (folder / "results").glob("*") if path.is_dir()}


def finished(folder: Path, since: float) -> Path | None:
    """Results folder of a run that has ended since then."""
    for path in (folder / "results").glob("*/summary.json"):
        if path.stat().st_mtime >= since:
            return path.parent
    return None


def changed(folder: Path) -> list[float]:
    """When files below a folder were last written; some may go meanwhile."""
    found = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found.append(path.stat().st_mtime)
    return found


# Runs in one process ----------------------------------------------------------------


class Inline:
    """Each attempt is a child process, forked from one that has imported everything.

    ``sites`` are the clients that each node hosts; ``secrets`` are what they draw noise
    of. In a ``failing`` share of rounds a client fails, other ones in each attempt;
    ``failures`` fixes them.
    """

    name, kinds, rounds, most_kills, may_lose = "inline", ("process",), 8, 2, False

    def __init__(self, sites=(), secrets=None, failing=0.0, failures=None, rng=None):
        self._sites, self._secrets = sites, secrets or {}
        self._failing, self._failures, self._rng = failing, failures, rng
        self._context = warm_context("drill")
        first = self._context.Process(target=int)
        first.start()  # and with it the server, which imports for seconds
        first.join()

    def close(self) -> None:
        pass

    def attempt(self, config: dict, moment: Moment | None, folder: Path) -> Ended:
        """Run or resume; kill the process at ``moment``."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ended.json").unlink(missing_ok=True)
        failures = self._failures
        if self._failing:
            failures = draw_failures(self._rng, self._failing, self.rounds)
            config = {**config, "min-fit-replies": 0.5, "checkpoint-every": 3}
        places = {"state-dir": "state-dir", "data-path": "data-dir"}
        nodes = [
            {"clients": c} | {k: config[v] for k, v in places.items() if v in config}
            for c in self._sites
        ]
        change = moment.change if moment else None
        given = (config, nodes, self._secrets, folder, change, failures)
        process = self._context.Process(target=_attempt, args=given)
        process.start()
        if moment and not change:
            process.join(moment.seconds)
            process.kill()
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"an attempt hangs; see {folder / 'log.txt'}")
        if process.exitcode == -signal.SIGKILL:
            return Ended(status="killed", killed=True)
        if not (folder / "ended.json").is_file():
            says = f"exit {process.exitcode}, see {folder / 'log.txt'}"
            return Ended(status="failed", says=says)
        return Ended(**json.loads((folder / "ended.json").read_text()))

    def faults(self, folder: Path) -> list[str]:
        """Accounts below what was drawn."""
        return account_faults(folder / "witness.jsonl")

    def own_end(self, name: str, run: Path) -> End | None:
        """End of an undisturbed run in which the same clients fail, if any do."""
        if not self._failing:
            return None
        reasons = json.loads((run / "summary.json").read_text())["failures"]
        failures = {
            f"{f['round']}/{f['client']}": f["reason"].partition(_FAIL)[2].strip("'>")
            for f in reasons
            if _FAIL in f["reason"]
        }
        return undisturbed(
            Inline(failures=failures), name, run.parents[1] / "quiet", self.rounds,
            more={"min-fit-replies": 0.5, "checkpoint-every": 3},
        )[0]  # fmt: skip


def draw_failures(rng: random.Random, share: float, rounds: int) -> dict[str, str]:
    """Let one client fail in about this share of rounds, the closing one included."""
    return {
        f"{number}/{rng.randrange(4)}": rng.choice([BEFORE, AFTER])
        for number in range(1, rounds + 2)
        if rng.random() < share
    }


def let_fail(failures: dict[str, str]) -> None:
    """Let messages of this process's inline runs fail; each node hosts one client."""
    from flwr.app import ConfigRecord, Error, Message

    from simulations.inline import InlineGrid

    deliver = InlineGrid.deliver

    def deliver_or_fail(self, message):
        header = message.content.get("header", ConfigRecord({}))
        node = self._contexts[message.metadata.dst_node_id].node_config
        when = failures.get(f"{header.get('server-round')}/{node['partition-id']}")
        if when is None:
            return deliver(self, message)
        if when == AFTER:
            deliver(self, message)
        return Message(Error(2, f"RuntimeError: {_FAIL}{when}"), reply_to=message)

    InlineGrid.deliver = deliver_or_fail


def _attempt(config, nodes, secrets, folder, change, failures) -> None:
    """Run in the child; write down how it ended, if it gets that far."""
    with (folder / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    import numpy as np  # here: the drill itself needs neither
    import torch

    from fedgraph_flwr.core.errors import FedGraphError
    from simulations.inline import run_inline

    for unseed in (random.seed, np.random.seed, torch.seed):
        unseed()  # children of one server would draw alike what no seed decides
    changes = count_changes(change)
    keep_witness(folder / "witness.jsonl")
    if secrets:
        draw_from(secrets)
    if failures is not None:
        let_fail(failures)
    count = NODES if failures is None else 4
    try:
        run_inline(config, num_nodes=count, node_configs=nodes or None)
    except FedGraphError as error:
        found: dict[str, Any] = {"status": "failed"}
        found["says"] = f"{type(error).__name__}: {error}"
    else:
        found = {"status": "completed", "changes": changes[0]}
    (folder / "ended.json").write_text(json.dumps(found))


def count_changes(at: tuple[int, str] | None) -> list[int]:
    """Count renames of files and commits of SQLite; end before or after the chosen."""
    counted, replace, connect = [0], os.replace, sqlite3.connect

    def end(when: str) -> None:
        if at == (counted[0], when):
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(*args, **kw):
        counted[0] += 1
        end("before")
        replace(*args, **kw)
        end("after")

    def statement(sql: str) -> None:
        end("after")  # the statement that follows a commit
        if sql.startswith("COMMIT"):
            counted[0] += 1
            end("before")

    def connecting(*args, **kw):
        connection = connect(*args, **kw)
        connection.set_trace_callback(statement)
        return connection

    sqlite3.connect = connecting
    os.replace = counting
    return counted


# Runs through Flower ----------------------------------------------------------------


class Flower:
    """Kills a process of Flower at a moment, and does what an operator does then."""

    name, kinds, rounds, most_kills, may_lose = "", {}, 0, 0, True
    trains = "clientapp"

    def __init__(self, out: Path) -> None:
        self._out, self._home = out, out / "flwr"
        self._witness, self._seen = out / "witness.jsonl", set()
        self._env = federation.environment(self._home, witness=self._witness)

    def attempt(self, config: dict, moment: Moment | None, folder: Path) -> Ended:
        """Run or resume, and kill ``moment``'s victim."""
        since = time.time()
        run_id = self._patiently(config)
        killed = bool(moment) and self._disturb(moment, folder, since)
        if not (killed and moment.victim in ("serverapp", "superlink")):
            self._await(lambda: not self._living("serverapp"), folder, since)
        says = "" if killed or finished(folder, since) else self.log(run_id)
        if not finished(folder, since):
            self.clean_up()
        run = finished(folder, since)
        if run is None and killed:
            return Ended(status="killed", killed=True)
        if run is None:  # it was refused before it began: only the log says why
            why = re.search(r"run failed: (\w+: .*)", " ".join(says.split()))
            return Ended(status="failed", says=why.group(1)[:1000] if why else LOST)
        summary = json.loads((run / "summary.json").read_text())
        says = summary["error"] or ""
        return Ended(status=summary["status"], says=says, killed=killed)

    def faults(self, folder: Path) -> list[str]:
        """Accounts below what was drawn, each once."""
        new = [f for f in account_faults(self._witness) if f not in self._seen]
        self._seen |= set(new)
        return new

    def own_end(self, name: str, run: Path) -> End | None:
        """Return nothing: noise of a simulation is a function of the seed."""
        return None

    def _patiently(self, config: dict) -> str:
        """Submit until Flower takes the run: a busy SuperLink is not ready at once."""
        for _ in range(_SUBMISSIONS - 1):
            try:
                return self.submit(config)
            except (federation.RunFailedError, subprocess.TimeoutExpired):
                time.sleep(_PAUSE_S)
        return self.submit(config)

    def _disturb(self, moment: Moment, folder: Path, since: float) -> bool:
        """Wait for the moment and kill; False if the run ended before."""

        def begun() -> bool:
            return max(changed(folder / "results"), default=0.0) >= since

        if not self._await(begun, folder, since):
            return False
        due = time.monotonic() + moment.seconds
        self._await(lambda: time.monotonic() > due, folder, since)
        deadline = time.monotonic() + _VICTIM_S
        while not finished(folder, since) and time.monotonic() < deadline:
            if found := self._living(moment.victim):
                federation.kill([found[int(moment.share * 1000) % len(found)]])
                return True
            time.sleep(_POLL_S)
        return False

    def _living(self, kind: str) -> list[int]:
        """Find processes of a kind; those that train only once they are at work."""
        found = flower.pids(self._home, self.kinds[kind])
        if kind == self.trains:
            found = [p for p in found if federation.has_loaded(p, "libtorch")]
        leads = kind in ("superlink", "supernode", "worker")
        return [p for p in found if leads or not federation.is_orphan(p)]

    def _await(self, is_there, folder: Path, since: float) -> bool:
        """Wait until something is so; False if the run ends or never begins."""
        begin, seen = time.monotonic(), False
        while (now := time.monotonic()) < begin + LIMIT_S:
            serves = bool(self._living("serverapp"))
            seen = seen or serves
            done = finished(folder, since) or (seen and not serves)
            if done or (not seen and now > begin + _VICTIM_S):
                return False
            if seen and is_there():
                return True
            self.keep()
            time.sleep(_WAIT_S)
        raise TimeoutError(f"a run hangs; see {folder}")


class Ray(Flower):
    """``flwr run`` on a SuperLink of the drill's own."""

    name, rounds, most_kills = "ray", 24, 3
    kinds = {  # noqa: RUF012
        "actor": "ClientAppActor",
        "serverapp": "flwr-simulation",
        "superlink": "flower-superlink",
    }

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        first = federation.free_ports(2)
        os.environ |= (
            self._env
        )  # which the SuperLink reads when the first run starts it
        os.environ["FLWR_LOCAL_CONTROL_API_PORT"] = str(first)
        os.environ["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(first + 1)

    def submit(self, config: dict) -> str:
        return str(flower.submit(config, num_nodes=NODES))

    def log(self, run_id: str) -> str:
        return flower.read_log(int(run_id))

    def keep(self) -> None:
        pass  # actors that die are not replaced

    def clean_up(self) -> None:
        """Stop the SuperLink and what it left behind, as ``make stop`` does."""
        federation.kill(flower.pids(self._home))

    close = clean_up


class Sites(Flower):
    """A SuperLink and two SuperNodes with workers; killed ones are started again."""

    name, rounds, most_kills, trains = "sites", 4, 4, "worker"
    kinds = {  # noqa: RUF012
        "worker": "fedgraph_flwr.resident_worker",
        "supernode": "flower-supernode",
        "clientapp": "flwr-clientapp",
        "serverapp": "flwr-serverapp",
        "superlink": "flower-superlink",
    }

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        molecules = write_molecules(out / "molecules")
        places = f'data-path="{molecules}" cache-dir="{out}/cache"'
        nodes = [f'clients="{c}" {places}' for c in HOSTED]
        self._federation = federation.Federation(out, self._env, nodes)
        self.log, self.keep = self._federation.log, self._federation.start
        self.close = self._federation.close

    def submit(self, config: dict) -> str:
        """Start a run; a site has folders of its own."""
        self._federation.start()
        of_site = ("state-dir", "data-dir", "cache-dir")
        return self._federation.submit(
            {k: v for k, v in config.items() if k not in of_site}
        )

    def attempt(self, config: dict, moment: Moment | None, folder: Path) -> Ended:
        """Run or resume; restart SuperNodes that answer one message late.

        That is Flower's fault, and the cure of docs/failures.md.
        """
        ended = super().attempt(config, moment, folder)
        if "answered no roll call" in ended.says:
            federation.kill(flower.pids(self._home, self.kinds["supernode"]))
        return ended

    def clean_up(self) -> None:
        """Wait for a ServerApp that outlives its SuperLink: it holds the folder."""
        deadline = time.monotonic() + _VICTIM_S
        while flower.pids(self._home, "flwr-serverapp") and time.monotonic() < deadline:
            time.sleep(_WAIT_S)

    def own_end(self, name: str, run: Path) -> End | None:
        """End of an undisturbed run with the secrets behind this run's noise."""
        if name not in PRIVATE:
            return None
        quiet = Inline(sites=HOSTED, secrets=secrets_of(self._out, run.name))
        return undisturbed(quiet, name, run.parents[1] / "quiet", self.rounds)[0]


# Trials -----------------------------------------------------------------------------


def undisturbed(engine, name: str, folder: Path, rounds: int, more=None):
    """Run to the end: what it ends with, the seconds of its rounds, its changes."""
    begin = time.time()
    config = {**small_run(name, folder, rounds), **(more or {})}
    ended = engine.attempt(config, None, folder)
    if ended.status != "completed":
        raise RuntimeError(f"{name} does not complete undisturbed: {ended.says}")
    (run,) = runs_of(folder)
    if engine.name != "inline":  # Flower's start-up is not the run's
        begin = min(changed(run))
    seconds = (run / "summary.json").stat().st_mtime - begin
    return End.of(run), seconds, ended.changes


def draw_moments(rng: random.Random, kinds, seconds: float, changes: int):
    """Draw when to kill: by time, or half by change if the engine counts them."""
    rest = 1.0  # what a resumed run has still to do
    for victim in kinds:
        share = rng.random() * rest
        rest -= share
        change = None
        if changes and rng.random() < 0.5:
            change = 1 + int(share * changes), rng.choice(["before", "after"])
        yield Moment(victim=victim, share=share, seconds=share * seconds, change=change)


def run_trial(engine, name: str, end: End, moments, folder: Path) -> Trial:
    """Kill at each moment, one attempt after the other, then let the run end.

    A run is resumed from its newest folder, and started anew if that holds nothing.
    """
    trial, newest = Trial(name=name), None
    for moment in [*moments, *[None] * _MORE_ATTEMPTS]:
        before = runs_of(folder)
        config = small_run(name, folder, engine.rounds)
        if newest is not None:
            config["resume"] = str(newest)
        ended = engine.attempt(config, moment, folder)
        trial.attempts += 1
        trial.faults += engine.faults(folder)
        newest = max(runs_of(folder) - before, default=newest)
        trial.says = ended.says
        if ended.killed:
            trial.kills.append(f"{moment}{' survived' * (ended.status == 'completed')}")
        if ended.status == "completed":
            break
        if ended.killed or ended.says == LOST:
            continue
        has_more = newest is not None and RunFile(newest).checkpoints()
        if not has_more and any(words in ended.says for words in _NOTHING_YET):
            trial.anew, newest = trial.anew + 1, None
        elif not engine.may_lose:
            break
    if ended.status == "completed":
        end, now = engine.own_end(name, newest) or end, End.of(newest)
        trial.faults += end.faults(now)
        is_equal = (end.weights, end.rounds) == (now.weights, now.rounds)
        trial.verdict = "equal" if is_equal else "unequal"
    if trial.faults:
        trial.verdict = "account"
    return trial


def drill(engine, names, *, kills: int, seed: int, out: Path):
    """Yield trials until ``kills`` were carried out; the same seed draws the same."""
    quiet = engine if engine.name == "inline" else Inline()
    known: dict[str, tuple] = {}
    victims, done = itertools.cycle(engine.kinds), 0
    for number in range(5 * kills):  # a kill after the end of its run does not count
        rng = random.Random(f"{seed}/{number}")
        count = min(kills - done, rng.randint(1, engine.most_kills))
        if count < 1:
            return
        name = names[number % len(names)]
        if name not in known:
            end, seconds, changes = undisturbed(
                quiet, name, out / f"quiet-{name}", engine.rounds
            )
            if quiet is not engine:
                changes, folder = 0, out / f"undisturbed-{name}"
                other, seconds, _ = undisturbed(engine, name, folder, engine.rounds)
                is_own = engine.name == "sites" and name in PRIVATE
                assert is_own or other.weights == end.weights, f"{name}: other bytes"
            known[name] = end, seconds, changes
        end, seconds, changes = known[name]
        moments = draw_moments(rng, itertools.islice(victims, count), seconds, changes)
        folder = out / f"trial-{number:04d}-{name}"
        trial = run_trial(engine, name, end, list(moments), folder)
        done += len(trial.kills)
        yield trial


def table(trials: list[Trial]) -> str:
    """Trials, kills, verdicts and victims by federation, as a Markdown table."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for trial in trials:
        words = ["trials", trial.verdict, *(["anew"] * trial.anew)]
        words += ["kills"] * len(trial.kills) + [k.split()[0] for k in trial.kills]
        for name in (trial.name, "**sum**"):
            counts[name].update(words)
    columns = ["trials", "kills", "equal", "unequal", "lost", "account", "anew"]
    columns += sorted(set(counts["**sum**"]) - set(columns))
    rows = [["federation", *columns], ["---", *["---:"] * len(columns)]]
    counts["**sum**"] = counts.pop("**sum**", Counter())
    rows += [[name, *(str(of[c]) for c in columns)] for name, of in counts.items()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "engine", nargs="?", choices=("inline", "ray", "sites"), default="inline"
    )
    parser.add_argument("--kills", type=int, default=24, help="in all (default 24)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--methods", default="", help=f"of {','.join(RUNS)}")
    parser.add_argument(
        "--failing", type=float, default=0.0, metavar="SHARE",
        help="of rounds in which a client fails as well (inline alone)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="a new folder (default: temporary)")
    chosen = parser.parse_args(argv)
    out = (chosen.out or Path(tempfile.mkdtemp(prefix="drill-"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    names = chosen.methods.split(",") if chosen.methods else list(RUNS)
    if unknown := set(names) - set(RUNS):
        parser.error(f"unknown federation {sorted(unknown)}; known: {', '.join(RUNS)}")
    if chosen.failing:
        if chosen.engine != "inline":
            parser.error("--failing needs the engine inline")
        # Clients of SpreadGNN refuse to go back: what fails once may fail for good.
        names = [name for name in names if not name.startswith("spreadgnn")]
        rng = random.Random(f"{chosen.seed}/failures")
        engine: Any = Inline(failing=chosen.failing, rng=rng)
    else:
        engine = {"inline": Inline, "ray": Ray, "sites": Sites}[chosen.engine]
        engine = engine() if engine is Inline else engine(out)
    trials = []
    try:
        for trial in drill(
            engine, names, kills=chosen.kills, seed=chosen.seed, out=out
        ):
            trials.append(trial)
            why = trial.faults or ([trial.says] if trial.verdict == "lost" else [])
            print(f"{trial.name}: {trial.verdict} after {trial.attempts} attempts"
                  f" ({', '.join(trial.kills) or 'no kill'}) {'; '.join(why)}",
                  file=sys.stderr, flush=True)  # fmt: skip
    finally:
        engine.close()
    print(table(trials), end="")
    print(f"folder: {out}", file=sys.stderr)
    return 0 if all(t.verdict == "equal" for t in trials) else 1


if __name__ == "__main__":
    sys.exit(main())

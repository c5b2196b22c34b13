"""One case of ``simulations.fuzz``: run in a child process with limits, judged after.

A case is a kind, a seed and a number: these draw everything else, so that a case can
be repeated from them.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import random
import re
import resource
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgraph_flwr import errors
from fedgraph_flwr.errors import FedGraphError

from ..forks import warm_context

MODULES = {
    "config": "simulations.fuzz.config",
    "data": "simulations.fuzz.data",
    "state": "simulations.fuzz.state",
    "message": "simulations.fuzz.messages",
}
SECRET = "canary-7d1f"  # in files that no run may read, and no text may repeat
GOOD = ("refused", "named", "unchanged", "accepted")
BAD = (
    "foreign",  # an exception that is not ours, at the server or a client
    "stopped",  # one client's message stopped all
    "changed",  # accepted, with other results
    "outside",  # a file outside the allowed folders
    "leak",  # a text that tells what such a file holds
    "memory",
    "hang",
    "crash",  # the process died
)
LIMIT_S = 120.0
WAIT_S = 0.5  # for clients: every node is here at once, who is not let in stays out
_TO_PREPARE = 5
_MEMORY = 3 << 30  # bytes above what the process has mapped when a case begins
_NAMED = re.compile(r"client \d+[^:;]{0,60}: (?:\w+\.)*(\w+(?:Error|Exception)):?")
_RAISED = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
_GRAPHS = (24, 30)  # of a client with synthetic data, by its group


@dataclass(frozen=True, kw_only=True)
class Case:
    """Kind, seed and number, from which a case can be repeated."""

    kind: str
    seed: int
    number: int

    def rng(self) -> random.Random:
        """Return the generator that draws the case."""
        return random.Random(f"{self.kind}/{self.seed}/{self.number}")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a case."""

    kind: str
    seed: int
    number: int
    what: str
    outcome: str
    says: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0

    @property
    def is_bad(self) -> bool:
        """Whether it must be mended."""
        return self.outcome not in GOOD


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folders of a case.

    Parameters
    ----------
    work : path
        The only one in which it may write.
    canary : path
        Another one beside it.
    shared : path
        Undisturbed runs that several cases are held against.
    """

    work: Path
    canary: Path
    shared: Path


class Judged(Exception):
    """Raised by a kind that has judged for itself."""

    def __init__(self, outcome: str, says: str = "") -> None:
        super().__init__(says)
        self.outcome = outcome


def folder_of(case: Case, out: Path) -> Path:
    """Return the folder of a case."""
    return out / "cases" / f"{case.kind}-{case.seed}-{case.number:05d}"


def run_case(case: Case, out: Path, *, limit_s: float = LIMIT_S) -> Result:
    """Run a case in a child and judge it."""
    root = folder_of(case, out)
    place = Place(work=root / "work", canary=root / "canary", shared=out / "shared")
    for folder in (place.work / "home", place.shared):
        folder.mkdir(parents=True, exist_ok=True)
    plant(place.canary)
    before = tree(place.canary)
    process = warm_context(*MODULES.values()).Process(target=_child, args=(case, place))
    begin = time.monotonic()
    process.start()
    process.join(limit_s)
    if process.is_alive() and not (place.work / "what.json").is_file():
        process.join(_TO_PREPARE * limit_s)  # it still makes undisturbed runs
    hangs = process.is_alive()
    if hangs:
        process.kill()
        process.join()
    told: dict[str, Any] = {"what": "?", "outcome": "crash"}
    told["says"] = f"exit {process.exitcode}"
    for name in ("what.json", "told.json"):
        if (place.work / name).is_file():
            told |= json.loads((place.work / name).read_text())
    if hangs:
        told |= {"outcome": "hang", "says": f"not done after {limit_s:g} s"}
    if SECRET in told["says"]:
        told["outcome"] = "leak"
    after = tree(place.canary)
    strange = {p.name for p in root.iterdir()} - {"work", "canary"}
    if before != after or strange:
        changed = {n for n in before | after if before.get(n) != after.get(n)}
        told["outcome"], told["says"] = "outside", str(sorted(changed | strange))
    return Result(**asdict(case), **told, seconds=round(time.monotonic() - begin, 2))


def _child(case: Case, place: Place) -> None:
    """Run in the child: limits, a home of its own, then the case."""
    with (place.work / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    _move_home(str(place.work / "home"))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf(
        "SC_PAGE_SIZE"
    )
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _MEMORY, mapped + _MEMORY))
    module = importlib.import_module(MODULES[case.kind])
    _be_small()

    def tell(name: str, content: Mapping[str, str | float]) -> None:
        (place.work / name).write_text(json.dumps(content))

    try:
        module.execute(
            case.rng(), place, lambda what: tell("what.json", {"what": what})
        )
        outcome, says = "accepted", ""
    except Judged as judged:
        outcome, says = judged.outcome, str(judged)
    except FedGraphError as error:
        says = f"{type(error).__name__}: {error}"
        outcome = "foreign" if strangers(says) else "refused"
    except MemoryError:
        outcome, says = "memory", "MemoryError"
    except Exception as error:
        outcome, says = "foreign", f"{type(error).__name__}: {error}"
        traceback.print_exc()
    used = round(time.process_time(), 2)
    tell("told.json", {"outcome": outcome, "says": says[:4000], "cpu_s": used})


def _move_home(home: str) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "FEDGRAPH_CACHE"):
        os.environ[name] = home
    os.environ["FEDGRAPH_DATA"] = home  # nothing is downloaded
    os.chdir(home)


def _be_small() -> None:
    """Use few graphs and one thread, to have time for more cases."""
    import torch  # here: the parent has no need of either

    from datasets import synthetic

    synthetic.GRAPHS_PER_CLIENT = _GRAPHS
    torch.set_num_threads(1)


def small_run(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Run config of a target of the drills that keeps all its files in ``folder``."""
    from ..drill.targets import targets

    (target,) = targets([name], folder, num_rounds=rounds)
    return {**target.config(folder), "roll-call-timeout-s": WAIT_S}


def strangers(text: str) -> list[str]:
    """Names of exceptions in a failure that are not this application's own."""
    ours = {n for n, v in vars(errors).items() if isinstance(v, type)}
    return sorted(set(_NAMED.findall(text) + _RAISED.findall(text)) - ours)


def plant(folder: Path) -> None:
    """Write files that no case may change or read."""
    (folder / "round" / "client-0").mkdir(parents=True, exist_ok=True)
    (folder / "0.csv").write_text(f"smiles,{SECRET}\nCCO,{SECRET}\nCCN,1\n")
    (folder / "patients.txt").write_text(f"{SECRET}\n")
    (folder / "round" / "client-0" / "round-000001.safetensors").write_text(SECRET)


def tree(folder: Path) -> dict[str, str]:
    """Hash every file below a folder; for anything else state its kind."""
    found = {}
    for path in sorted(folder.rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        content = path.read_bytes() if is_file else b""
        kind = "file" if is_file else "link" if path.is_symlink() else "folder"
        name = str(path.relative_to(folder))
        found[name] = f"{kind} {hashlib.sha256(content).hexdigest()}"
    return found

"""One run of a peer's code, by the Python that has what it needs.

The peer is the package ``fedgraph``, or the code of GCFL's authors, which is none.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import ConfigError, RunFailedError
from fedgraph_flwr.rules import Value

from . import peer_driver
from .timing import console

VERSION = "0.2.5"
_LIMIT_S = 1800.0
_NEEDS = (
    "torch torch-geometric ray pandas jinja2 scikit-learn attridict dtaidistance"
    " networkx matplotlib torchmetrics tenseal huggingface_hub gdown"
)
AUTHORS = "https://github.com/Oxfordblue7/GCFL"


@dataclass(frozen=True)
class Run:
    """What a run took.

    Parameters
    ----------
    rounds : list of float
        Seconds of each round but the first, in which actors may still start.
    wall : float
        Seconds of the whole run, from the start of its process to its end.
    accuracy : float
        Test accuracy of the last model, mean over clients.
    graphs : list of (int, int)
        Each client's graphs, and how many of them are tested on.
    """

    rounds: list[float]
    wall: float
    accuracy: float
    graphs: list[tuple[int, int]]

    @property
    def round(self) -> float:
        """Median seconds of a round."""
        return statistics.median(self.rounds)

    @property
    def start(self) -> float:
        """Seconds beside the rounds: imports, loading, actors, what ends a run."""
        return self.wall - (len(self.rounds) + 1) * self.round


def _work(config: Mapping[str, Value], data: Path) -> dict[str, Any]:
    """Word what is to be done in the names of GCFL's authors, which fedgraph kept."""
    return {
        "dataset": config["dataset"],
        "datapath": str(data),
        "num_rounds": config["num-server-rounds"],
        "local_epoch": config["local-epochs"],
        "batch_size": config["batch-size"],
        "lr": config["learning-rate"],
        "weight_decay": config["weight-decay"],
        "hidden": config["hidden-dim"],
        "nlayer": config["num-layers"],
        "dropout": config["dropout"],
        "seed": config["seed"],
        "seed_split_data": config["split-seed"],
    }


def peer_config(config: Mapping[str, Value], cores: int, data: Path) -> dict[str, Any]:
    """Word our run config as the peer does; its actors share the cores."""
    clients = int(config["num-clients"])
    return {
        "fedgraph_task": "GC",
        "algorithm": "FedAvg",
        **_work(config, data),
        "is_multiple_dataset": False,
        "num_trainers": clients,
        "overlap": False,
        "convert_x": False,
        "gpu": False,
        "num_gpus_per_trainer": 0,
        # Ray counts in steps of 1e-4; if rounded up, the last actor would never start.
        "num_cpus_per_trainer": min(1.0, 10_000 * cores // clients / 10_000),
        "use_cluster": False,
        "save_files": False,
    }


def authors_config(
    config: Mapping[str, Value], code: Path, data: Path
) -> dict[str, Any]:
    """Word our run config as the code of GCFL's authors does; it has one process.

    Raises
    ------
    ConfigError
        The folder does not hold their code.
    """
    for name in ("setupGC.py", "server.py", "training.py"):
        if not (code / name).is_file():
            raise ConfigError(
                f"--gcfl-code {code} has no {name}; get the authors' code with: git"
                f" clone {AUTHORS} {code}"
            )
    several = config["partition"] == "datasets"
    return {
        "code": str(code.resolve()),
        **_work(config, data),
        "num_trainers": 0 if several else config["num-clients"],
        "threads": 1,
        "device": "cpu",
    }


def run_peer(python: str, given: Mapping[str, Any]) -> Run:
    """Train with the peer's code in a process of its own.

    Parameters
    ----------
    python : str
        Python of the environment that has the package.
    given : mapping
        Of :func:`peer_config` or :func:`authors_config`.

    Raises
    ------
    ConfigError
        There is no such Python, or a package is missing there.
    RunFailedError
        The run failed, or was not done after half an hour.
    """
    with tempfile.TemporaryDirectory() as folder:
        driver = shutil.copy(peer_driver.__file__, folder)
        # Workers of Ray find what the driver puts there, and nothing of ours.
        own = {**os.environ, "PYTHONPATH": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        begin = time.monotonic()
        try:
            done = subprocess.run(
                [python, driver, json.dumps(given)],
                cwd=folder, env=own, timeout=_LIMIT_S, check=False, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"--peer-python does not start: {error}") from None
        except subprocess.TimeoutExpired:
            raise RunFailedError(
                f"the peer was not done after {_LIMIT_S:.0f} s; try fewer --rounds"
            ) from None
        return read_answer(done.stdout, python, time.monotonic() - begin)


def read_answer(out: str, python: str, wall: float) -> Run:
    """Read what the driver and the peer's own code have printed.

    Raises
    ------
    ConfigError
        A package is missing; says which, and how to install it.
    RunFailedError
        The driver printed no result, or a client has no score.
    """
    log, mark, text = out.rpartition(f"\n{peer_driver.MARK}")
    answer: dict[str, Any] = json.loads(text.partition("\n")[0]) if mark else {}
    if missing := answer.get("missing"):
        pip = f"{python} -m pip install"
        raise ConfigError(
            f"{python} has no package {missing!r}; install what peers need:"
            f" {pip} {_NEEDS} && {pip} --no-deps fedgraph=={VERSION}"
        )
    accuracy = answer.get("accuracy")
    scores = re.findall(r"^\d+-\S+ +([\d.]+)$", log, re.MULTILINE)
    if accuracy is None and mark and len(scores) == len(answer["graphs"]):
        accuracy = statistics.fmean(map(float, scores))
    if accuracy is None:
        raise RunFailedError(f"the peer gave no result:\n{out[-3000:]}")
    if answer.get("version", VERSION) != VERSION or answer.get("stubs"):
        console.print(f"fedgraph {answer['version']}, empty: {answer['stubs']}")
    return Run(
        [after - before for before, after in itertools.pairwise(answer["ends"])],
        wall,
        accuracy,
        [(sum(sizes), sizes[-1]) for sizes in answer["graphs"]],
    )

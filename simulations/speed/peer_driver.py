"""Train with a peer's code, in an environment that need not have ours.

The peer is the package ``fedgraph``, or a folder with the code of GCFL's authors.

``peers.py`` copies this file to a folder of its own and runs it there; it imports
nothing of ours. The last line that it prints is ``MARK`` and a JSON object.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import sys
import time
import types
from pathlib import Path
from typing import Any

MARK = "peer-result "
# Imported when the package is, and used by its classification of nodes alone.
_STUBBED = "torch_sparse"


def main() -> int:
    """Run what the JSON of the first argument says; tell when each round ended."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    try:
        answer = _authors(given) if "code" in given else _package(given)
    except ModuleNotFoundError as error:
        answer = {"missing": error.name}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    return 0


def _package(given: dict[str, Any]) -> dict[str, Any]:
    stubs = _stub(Path(__file__).parent)
    attridict = importlib.import_module("attridict").AttriDict
    package = importlib.import_module("fedgraph")
    ends = _note_rounds(package.federated_methods.Monitor)
    arguments = attridict(given)
    data = package.data_process.data_loader(arguments)
    package.federated_methods.run_GC(arguments, data)
    version = package.__version__
    return {"version": version, "stubs": stubs, "graphs": _graphs(data), "ends": ends}


def _authors(given: dict[str, Any]) -> dict[str, Any]:
    sys.path.insert(0, given["code"])
    setup, server, training = map(
        importlib.import_module, ("setupGC", "server", "training")
    )
    torch, numpy = map(importlib.import_module, ("torch", "numpy"))
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(given["seed"])
    torch.set_num_threads(given["threads"])
    how = {"batchSize": given["batch_size"], "seed": given["seed_split_data"]}
    if clients := given["num_trainers"]:
        how["num_client"] = clients
        data, _ = setup.prepareData_oneDS(given["datapath"], given["dataset"], **how)
    else:
        data, _ = setup.prepareData_multiDS(given["datapath"], given["dataset"], **how)
    ends: list[float] = []
    average = server.Server.aggregate_weights

    def noted(self: Any, clients: Any) -> None:
        average(self, clients)
        ends.append(time.monotonic())

    server.Server.aggregate_weights = noted
    made, center, _ = setup.setup_devices(data, types.SimpleNamespace(**given))
    scores = training.run_fedavg(
        made, center, given["num_rounds"], given["local_epoch"]
    )
    graphs, accuracy = _graphs(data), float(scores["test_acc"].mean())
    return {"accuracy": accuracy, "graphs": graphs, "ends": ends}


def _graphs(data: Any) -> list[list[int]]:
    return [
        [len(loaders[split].dataset) for split in ("train", "val", "test")]
        for loaders, *_ in data.values()
    ]


def _stub(folder: Path) -> list[str]:
    """Put an empty module beside this file, where workers of Ray find it too."""
    if importlib.util.find_spec(_STUBBED):
        return []
    (folder / f"{_STUBBED}.py").touch()
    importlib.invalidate_caches()
    return [_STUBBED]


def _note_rounds(monitor: Any) -> list[float]:
    """Return a list that gains the second in which the server has averaged a round.

    The package then adds up what was sent. That call is noted.
    """
    ends: list[float] = []
    add = monitor.add_train_comm_cost

    def noted(self: Any, upload_mb: float, download_mb: float) -> None:
        if upload_mb:
            ends.append(time.monotonic())
        add(self, upload_mb=upload_mb, download_mb=download_mb)

    monitor.add_train_comm_cost = noted
    return ends


if __name__ == "__main__":
    sys.exit(main())

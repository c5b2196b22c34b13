"""Train with the package ``fedgraph``, in an environment that need not have ours.

``peers.py`` copies this file to a folder of its own and runs it there; it imports
nothing of ours. The last line that it prints is ``MARK`` and a JSON object.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

MARK = "peer-result "
# Imported when the package is, and used by its classification of nodes alone.
_STUBBED = "torch_sparse"


def main() -> int:
    """Run what the JSON of the first argument says; tell when each round ended."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    stubs = _stub(Path(__file__).parent)
    try:
        attridict = importlib.import_module("attridict").AttriDict
        package = importlib.import_module("fedgraph")
    except ModuleNotFoundError as error:
        return _tell({"missing": error.name})
    ends = _note_rounds(package.federated_methods.Monitor)
    arguments = attridict(given)
    data = package.data_process.data_loader(arguments)
    package.federated_methods.run_GC(arguments, data)
    graphs = [
        [len(loaders[split].dataset) for split in ("train", "val", "test")]
        for loaders, *_ in data.values()
    ]
    version = package.__version__
    return _tell({"version": version, "stubs": stubs, "graphs": graphs, "ends": ends})


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


def _tell(answer: dict[str, Any]) -> int:
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Settings of Flower's processes for which Flower has no option.

Python imports a module of this name when it starts, from a folder on ``PYTHONPATH``:
:func:`simulations.processes.environment` puts this one there. What is to be done is
told by environment variables; without them nothing is.

``FEDGRAPH_HEARTBEAT_S``: heartbeat of a SuperNode, 30 s without it; one that is gone is
noticed after two. Apps keep theirs, in one of which they must have started.
``FEDGRAPH_POLL_S``: how long a SuperNode waits before it asks for
a message again, 3 s without it. ``FEDGRAPH_WITNESS``: a file in which ClientApps write
down every noise they draw (:mod:`simulations.drill.witness`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class After(MetaPathFinder):
    """Do something when a module has been imported for the first time."""

    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self._name, self._action = name, action

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Let other finders find the module, and wrap its execution."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute: Any = spec.loader.exec_module
        loader: Any = spec.loader

        def then_act(module: ModuleType) -> None:
            execute(module)
            self._action(module)

        loader.exec_module = then_act
        return spec


def _beat(sender: Any) -> None:
    sender.HEARTBEAT_DEFAULT_INTERVAL = int(os.environ["FEDGRAPH_HEARTBEAT_S"])


def _hurry(supernode: Any) -> None:
    longest = float(os.environ["FEDGRAPH_POLL_S"])
    supernode.time = SimpleNamespace(sleep=lambda s: time.sleep(min(s, longest)))


def _watch(_: Any) -> None:
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: the bundle counts
    from simulations.drill.witness import keep_witness

    keep_witness(Path(os.environ["FEDGRAPH_WITNESS"]))


if os.environ.get("FEDGRAPH_HEARTBEAT_S"):
    for name in ("flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"):
        sys.meta_path.insert(0, After(name, _beat))
if os.environ.get("FEDGRAPH_POLL_S"):
    sys.meta_path.insert(0, After("flwr.supernode.start_client_internal", _hurry))
if os.environ.get("FEDGRAPH_WITNESS"):
    sys.meta_path.insert(0, After("fedgraph_flwr.client_app", _watch))

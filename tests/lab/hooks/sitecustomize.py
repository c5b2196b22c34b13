"""Settings of Flower's processes for which Flower has no option.

Python imports this module at its start, since ``federation.environment`` puts its
folder on ``PYTHONPATH``. Environment variables say what to do.

``FEDGRAPH_HEARTBEAT_S``: heartbeat of a SuperNode, 30 s by default. A dead one is
noticed after two. ``FEDGRAPH_POLL_S``: pause of a SuperNode between two questions for a
message, 3 s by default. ``FEDGRAPH_WITNESS``: file in which ClientApps write down each
noise that they draw (``witness.py``). ``FEDGRAPH_CURIOUS``: folder in which the
ServerApp writes down each reply (``curious_server.py``).
"""

import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace


class After(MetaPathFinder):
    """Do something when a module has been imported for the first time."""

    def __init__(self, name, action):
        self._name, self._action = name, action

    def find_spec(self, fullname, path, target=None):
        """Let other finders find the module, and wrap its execution."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        execute = spec.loader.exec_module

        def then_act(module):
            execute(module)
            self._action(module)

        spec.loader.exec_module = then_act
        return spec


def _beat(sender):
    sender.HEARTBEAT_DEFAULT_INTERVAL = int(os.environ["FEDGRAPH_HEARTBEAT_S"])


def _hurry(supernode):
    longest = float(os.environ["FEDGRAPH_POLL_S"])
    supernode.time = SimpleNamespace(sleep=lambda s: time.sleep(min(s, longest)))


def _watch(_):
    sys.path.append(str(Path(__file__).parents[1]))  # last: the bundle counts
    from witness import keep_witness

    keep_witness(Path(os.environ["FEDGRAPH_WITNESS"]))


def _record(_):
    sys.path.append(str(Path(__file__).parents[1]))
    from curious_server import keep_replies

    keep_replies(Path(os.environ["FEDGRAPH_CURIOUS"]))


for variable, action, modules in (
    (
        "FEDGRAPH_HEARTBEAT_S",
        _beat,
        ("flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"),
    ),
    ("FEDGRAPH_POLL_S", _hurry, ("flwr.supernode.start_client_internal",)),
    ("FEDGRAPH_WITNESS", _watch, ("fedgraph_flwr.client_app",)),
    ("FEDGRAPH_CURIOUS", _record, ("fedgraph_flwr.server_app",)),
):
    for name in modules if os.environ.get(variable) else ():
        sys.meta_path.insert(0, After(name, action))

"""Private names of Flower stand in ``core/flower_names.py``, and Flower has them."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PARTS = (
    "clients",
    "datasets",
    "fedgraph_flwr",
    "simulations",
    "strategies",
    "examples",
)
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
# In clients/classic.py: Flower's older signatures.
FREE = {"flwr.client.NumPyClient"}
LOGGERS = {"flwr", "flwr.fedgraph"}
HOME = "fedgraph_flwr/core/flower_names.py"
NAMES = {
    "flwr.proto.fleet_pb2.ActivateNodeRequest",
    "flwr.proto.fleet_pb2.DeactivateNodeRequest",
    "flwr.server.superlink.fleet.vce.vce_api.add_messages_to_queue",
    "flwr.server.superlink.fleet.vce.vce_api.put_message_into_state",
    "flwr.supercore.exit.ExitCode",
    "flwr.supercore.exit.add_exit_handler",
    "flwr.supercore.exit.flwr_exit",
    "flwr.supercore.interceptors.RuntimeVersionHttpInterceptor",
    "flwr.supercore.primitives.asymmetric.public_key_to_bytes",
    "flwr.supercore.task_identity.TaskIdentity",
    "flwr.superlink.grid.http_grid.HttpGrid",
    "flwr.superlink.grid.http_grid.pull_objects",
    "flwr.supernode.fleet_http_client.FleetHttpClient",
    "flwr.supernode.node_auth_http_interceptor.NodeAuthHttpInterceptor",
}


def private_names(source: str) -> set[str]:
    """Private names of Flower, or modules with such, in imports and texts."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} - LOGGERS
    found = {n for n in found if re.fullmatch(r"flwr(\.\w+)*|_message_id", n)} - FREE
    return {n for n in found if n.rpartition(".")[0] not in PUBLIC} - PUBLIC


def test_private_names_of_flower_stand_in_one_module():
    used = {
        path.relative_to(ROOT).as_posix(): names
        for part in PARTS
        for path in (ROOT / part).rglob("*.py")
        if (names := private_names(path.read_text()))
    }
    found = used.pop(HOME) - {"_message_id"}

    assert not used
    modules = {name.rpartition(".")[0] for name in NAMES}
    assert found <= NAMES | modules
    assert all(found & {name, name.rpartition(".")[0]} for name in NAMES)
    assert len((ROOT / HOME).read_text().splitlines()) <= 200


@pytest.mark.parametrize("name", sorted(NAMES))
def test_flower_has_each_private_name(name):
    module, _, attribute = name.rpartition(".")

    assert hasattr(import_module(module), attribute)
    assert attribute in (ROOT / HOME).read_text()

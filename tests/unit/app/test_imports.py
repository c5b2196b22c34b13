"""What an entry point imports: each message of a site starts a process anew."""

import json
import subprocess
import sys

import pytest

# Each takes a tenth of a second to two seconds, and few runs need it.
HEAVY = {
    "matplotlib",
    "networkx",
    "pandas",
    "ray",
    "rdkit",
    "scipy",
    "sklearn",
    "sympy",
    "torch_geometric",
}
LOAD = "from fedgraph_flwr.registry import METHODS, load_class as load\n"


def imported(code):
    """Names of all modules in a fresh process after ``code``."""
    code += "\nimport json, sys; print(json.dumps(list(sys.modules)))"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_no_entry_point_imports_torch_or_a_heavy_library():
    apps = "fedgraph_flwr.client_app, fedgraph_flwr.server_app"
    found = imported(f"import {apps}, simulations.run")

    assert not found & {*HEAVY, "torch"}
    assert not {m for m in found if m.startswith("clients.tasks")}


def test_a_message_that_is_handed_over_imports_next_to_nothing_of_ours():
    found = imported("import fedgraph_flwr.client_entry")

    assert "fedgraph_flwr.node.resident" in found
    assert not found & {"datasets", "strategies", "fedgraph_flwr.resolve"}


def test_a_sites_command_imports_no_other_commands():
    call = "main(['site', 'schema', '/no/such/folder', '--out', 'x'])"
    load = "from simulations.cli import main"

    found = imported(f"{load}\nassert {call} == 2")

    assert "fedgraph_flwr.site.schema" in found
    assert not found & {"flwr", "fedgraph_flwr.site.check", "simulations.run"}


@pytest.mark.slow
def test_no_client_imports_a_heavy_library():
    code = f"{LOAD}[load(c) for m in METHODS.values() for c in m.clients.values()]"

    found = imported(code)

    assert "torch" in found
    assert not found & HEAVY

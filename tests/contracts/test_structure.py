"""Rules of the house that code must keep."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import datasets
from fedgraph_flwr.files import project_root
from fedgraph_flwr.registry import METHODS

ROOT = project_root()
PACKAGES = ("fedgraph_flwr", "strategies", "clients", "datasets", "simulations")
MODULES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))


TREES = {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in MODULES}


def test_nothing_outside_the_registry_asks_for_a_method_by_name():
    names = set(METHODS) - {"local"}
    for path, tree in TREES.items():
        if path == "fedgraph_flwr/registry.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                found = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert not found & names, (path, ast.unparse(node))


def test_public_names_have_docstrings():
    for path, tree in TREES.items():
        assert ast.get_docstring(tree), path
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
                assert ast.get_docstring(node), (path, node.name)


def test_strategies_load_without_torch():
    code = (
        "import sys, strategies.gcfl, strategies.fedavg;"
        "sys.exit(any(m.split('.')[0] == 'torch' for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == 0


RELAY_MAY_IMPORT = {  # parts without numerics; from wire and report only types
    "__future__": {"annotations"},
    "collections.abc": {"Collection", "Iterable", "Mapping"},
    "logging": {"INFO", "WARNING"},
    "typing": {"Any", "final"},
    "typing_extensions": {"override"},
    "json": set(),
    "flwr.app": {"Message", "MetricRecord"},
    "flwr.common.logger": {"log"},
    "flwr.serverapp": {"Grid"},
    "fedgraph_flwr.errors": {"ConfigError"},
    "fedgraph_flwr.methods.multitask": {"RECORD", "RECORD_IDS"},  # names of records
    "fedgraph_flwr.methods.spreadgnn": {
        *("ALL", "FROM", "NEIGHBOURS", "PUBLIC_KEY", "SILENT", "TO", "UNUSABLE"),
        *("SpreadGNNParams", "is_mixing_round"),
    },
    "fedgraph_flwr.peers.topology": {"Network", "Topology", "build_topology"},
    "fedgraph_flwr.wire": {"NamedArrays", "Parcel", "Scalar"},
    ".base": {"AbstractGraphStrategy"},
    ".relay": {"Relay"},
    ".replies": {"Layout"},
    ".report": {"ClientInfo"},
}


def test_the_relay_imports_nothing_that_could_open_or_change_a_parcel():
    """Name by name: what it could reach by way of a module counts as well."""
    tree = ast.parse((ROOT / "strategies" / "spreadgnn.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {n.name for n in node.names} <= set(RELAY_MAY_IMPORT)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            allowed = RELAY_MAY_IMPORT.get(module, set())
            assert {n.name for n in node.names} <= allowed, module
        elif isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            assert name not in {"__import__", "import_module", "numpy", "tobytes"}


def test_datasets_is_ours_and_not_hugging_faces():
    assert Path(datasets.__file__) == ROOT / "datasets" / "__init__.py"


@pytest.mark.slow  # a process that loads torch
def test_a_foreign_datasets_package_is_named_with_the_cure(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import fedgraph_flwr.resolve"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"{tmp_path}/datasets/__init__.py" in done.stderr
    assert "env.sh" in done.stderr

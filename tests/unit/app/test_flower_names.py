"""Private names of Flower stand in CONTRIBUTING, all of them, and Flower has them."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("clients", "datasets", "fedgraph_flwr", "simulations", "strategies")
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
OURS = {"flwr", "flwr.fedgraph", "flwr.common.logger.log"}  # loggers; a log entry
MODULE = re.compile(r"flwr(\.\w+)*")


def private_names(source):
    """Private names of Flower that a source imports, reaches by texts, or changes.

    A module that a text names has the attributes that are taken of it, or set of any
    parameter; and other texts, if they are names that it has. Names that begin with "_"
    and are none of the source's own are of Flower's objects.
    """
    nodes = list(ast.walk(ast.parse(source)))
    found, taken, named = set(), [], {}
    public = set().union(*(vars(import_module(m)) for m in PUBLIC))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and MODULE.fullmatch(node.module or ""):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if MODULE.fullmatch(a.name)}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            named.setdefault(ast.unparse(target), []).append(ast.unparse(node.value))
        elif isinstance(node, ast.Attribute):
            taken.append(node)
    found = {n for n in found if n.rpartition(".")[0] not in PUBLIC}
    texts = {n.value for n in nodes if isinstance(n, ast.Constant)}
    texts = {t for t in texts if isinstance(t, str)} - OURS
    modules = {t for t in texts if MODULE.fullmatch(t)}
    for module in modules - PUBLIC:
        got = re.compile(rf"(import_module|sys\.modules\.get)\('{re.escape(module)}'\)")
        of = texts - public
        for node in taken:
            value = ast.unparse(node.value)
            is_it = any(got.fullmatch(v) for v in (value, *named.get(value, [])))
            if is_it or (isinstance(node.ctx, ast.Store) and value not in named):
                of |= {node.attr}
        found |= {f"{module}.{n}" for n in of & set(vars(import_module(module)))}
    if modules:
        own = {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
        own |= {n.attr for n in taken if ast.unparse(n.value) == "self"}
        found |= {n.attr for n in taken if re.match("_[a-z]", n.attr)} - own
    return found - OURS


def test_every_private_name_of_flower_stands_in_contributing():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("## The next Flower")[2].partition("\n## ")[0]
    listed = {
        (file, name)
        for file, names in re.findall(r"^\| `(\S+)` \| (.+?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\S+)`", names)
    }
    used = {
        (path.relative_to(ROOT).as_posix(), name)
        for part in PARTS
        for path in (ROOT / part).rglob("*.py")
        for name in private_names(path.read_text())
    }
    assert used == listed


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from flwr.supercore.exit import add", {"flwr.supercore.exit.add"}),
        ("from flwr.app import Message", set()),
        ("from flwr.common.logger import log", set()),
        (
            "m: Any = import_module('flwr.supercore.exit')\nm.add_exit_handler()",
            {"flwr.supercore.exit.add_exit_handler"},
        ),
        (
            "def f(m): m.add_exit_handler = 1\nafter('flwr.supercore.exit', f)",
            {"flwr.supercore.exit.add_exit_handler"},
        ),
        (
            "m = sys.modules.get('flwr.supercore.exit')\nget(m, 'add_exit_handler')",
            {"flwr.supercore.exit.add_exit_handler"},
        ),
        ("grid._client = 1\nx = 'flwr.superlink.grid.http_grid'", {"_client"}),
    ],
)
def test_a_private_name_is_seen(source, names):
    assert private_names(source) == names

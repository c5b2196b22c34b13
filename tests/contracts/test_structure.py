"""Rules of the house that code must keep."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import datasets
from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.registry import METHODS

ROOT = project_root()
PACKAGES = ("fedgraph_flwr", "strategies", "clients", "datasets", "simulations")
MODULES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))


TREES = {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in MODULES}


PAPERS = {n.rstrip("+").replace("-", "-?") for n in METHODS} - {
    *("local", "fedavg", "centralized"),
    "scaffold",  # of molecules: data are split by it
}
NAMED = re.compile("|".join(sorted(PAPERS)), re.IGNORECASE)
EXEMPT = {  # stems
    "config",  # the method that a run takes if it names none
}


def is_of_a_paper(path):
    """Whether a file is a paper's own: by its name, or as its method names it."""
    rows = [m.strategy for m in METHODS.values()]
    rows += [c for m in METHODS.values() for c in m.clients.values()]
    named = {n for row in rows for n in ((row,) if isinstance(row, str) else row)}
    modules = {n.partition(":")[0].replace(".", "/") + ".py" for n in named}
    stem = Path(path).stem.replace("_", "-")
    return (
        path.startswith("fedgraph_flwr/methods/")
        or path in modules
        or NAMED.match(stem) is not None
    )


def words_of(tree):
    """Names, imports and texts of a module, without its docstrings."""
    nodes = [*ast.walk(tree)]
    said = {
        id(n.body[0].value)
        for n in nodes
        if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)
        and n.body
        and isinstance(n.body[0], ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in said:
            yield str(node.value)
        for field in ("id", "attr", "name", "module", "arg"):
            yield str(getattr(node, field, ""))


def test_no_module_outside_a_papers_own_files_names_a_paper():
    """Citations stand in docstrings and comments, which may name any."""
    found = {
        path: sorted(words)
        for path, tree in TREES.items()
        if not is_of_a_paper(path) and Path(path).stem not in EXEMPT
        if (words := {w for w in words_of(tree) if NAMED.search(w)})
    }
    assert found == {}


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


def test_the_relay_has_nothing_with_which_a_parcel_could_be_opened_or_changed():
    """It passes arrays on without numerics: they may be sealed letters."""
    tree = ast.parse((ROOT / "strategies" / "spreadgnn.py").read_text())
    forbidden = {"numpy", "np", "torch", "tobytes", "__import__", "import_module"}
    forbidden |= {"decode_arrays", "safetensors", "cryptography", "struct"}
    fields = ("id", "attr", "module", "name")
    for node in ast.walk(tree):
        names = {getattr(node, field, None) for field in fields}
        assert not names & forbidden, ast.dump(node)[:80]


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


def test_the_house_has_at_most_eight_layers_and_no_circle():
    """Import-linter counts imports for types, too; here is what it is asked."""
    text = (ROOT / "pyproject.toml").read_text()
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    assert sum(len(c.get("layers", ())) for c in contracts) <= 8
    (circles,) = [c for c in contracts if c["type"] == "acyclic_siblings"]
    assert set(circles["ancestors"]) == set(PACKAGES)
    assert not {"ignore_imports", "skip_descendants", "depth"} & set().union(*contracts)


def test_a_module_has_its_name_alone_but_for_stems_of_papers_and_bases():
    papers = {p.stem for p in (ROOT / "fedgraph_flwr" / "methods").glob("*.py")}
    stems = Counter(p.stem for p in MODULES)
    shared = papers | {"__init__", "__main__", "base"}
    assert [s for s, n in stems.items() if n > 1 and s not in shared] == []


def test_every_test_of_the_table_of_guarantees_is_there():
    table = (ROOT / "tests" / "guarantees.md").read_text()
    rows = re.findall(r"^\| .* \| `(.+?)::(.+?)` \|$", table, re.MULTILINE)
    assert len(rows) > 40
    for file, name in rows:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (file, name)

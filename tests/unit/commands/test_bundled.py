"""The copy from which Flower makes the same bundle as from the project's folder."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import zipfile

import pytest
from flwr.cli.build import build_fab_from_disk

from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.results.provenance import git_commit
from simulations import bundled
from simulations.bundled import bundled_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),  # Flower's
]
CODE = ("clients", "datasets", "examples", "fedgraph_flwr/site", "strategies")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project with our rules of what the bundle holds."""
    root = tmp_path / "project"
    for folder in (*CODE, "plugins"):
        (root / folder).mkdir(parents=True)
        (root / folder / "code.py").write_text(f"NAME = {folder!r}\n")
    (root / "datasets" / "README.md").write_text("data\n")
    (root / "fedgraph_flwr" / "server_app.py").write_text("app = None\n")
    (root / "fedgraph_flwr" / "client_entry.py").write_text("app = None\n")
    for name in ("pyproject.toml", ".gitignore", "LICENSE"):
        shutil.copy(project_root() / name, root)
    monkeypatch.setattr(bundled, "project_root", lambda: root)
    return root


def made(root):
    """The bundle of a folder, or what Flower says of it."""
    try:
        return build_fab_from_disk(root)
    except ValueError as error:
        return str(error)


def test_a_plug_in_is_in_the_bundle_and_no_change_of_the_code(project, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_HOME", str(project))
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", "-C", project, *command], check=True)
    commit = git_commit()
    (project / "plugins" / "fgx.py").write_text("import os\nMETHOD = None\n")
    with bundled_files() as app, zipfile.ZipFile(io.BytesIO(made(app))) as bundle:
        assert "plugins/fgx.py" in bundle.namelist()
    assert git_commit() == commit
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "."]
    told = subprocess.run(ruff, cwd=project, capture_output=True, check=False).stdout
    assert b"clients/code.py" in told
    assert b"plugins" not in told
    (project / "examples" / "fgx.py").write_text("METHOD = None\n")
    assert git_commit() == f"{commit}+dirty"


def test_our_own_bundle_is_that_of_the_folder():
    with bundled_files() as app:
        bundle = build_fab_from_disk(app)
        assert not list(app.rglob("*.pyc"))
    assert bundle == build_fab_from_disk(project_root())

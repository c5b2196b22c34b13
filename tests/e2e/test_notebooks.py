"""The notebooks of the docs run from the first cell to the last."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from fedgraph_flwr.core.files import project_root

FOLDER = project_root() / "docs" / "notebooks"
NAMES = {"first-run", "own-method", "reading-results"}
CODE = ("clients", "datasets", "examples", "fedgraph_flwr", "plugins", "simulations",
        "strategies")  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_notebook_runs_as_a_reader_runs_it(name: str, tmp_path: Path) -> None:
    """In a copy of the project: a notebook writes into it, and other tests read it."""
    for part in (*CODE, "docs/notebooks"):
        shutil.copytree(project_root() / part, tmp_path / part)
    folder = tmp_path / "docs" / "notebooks"
    book = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    NotebookClient(
        book, timeout=240, resources={"metadata": {"path": str(folder)}}
    ).execute()
    assert book.cells[-1].execution_count == sum(
        c.cell_type == "code" for c in book.cells
    )


def test_notebooks_are_kept_without_outputs_and_all_are_tested() -> None:
    assert {p.stem for p in FOLDER.glob("*.ipynb")} == NAMES
    for path in FOLDER.glob("*.ipynb"):
        book = nbformat.read(path, as_version=4)
        nbformat.validate(book)
        assert not any(c.get("outputs") for c in book.cells)

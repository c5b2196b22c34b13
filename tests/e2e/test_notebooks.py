"""The notebooks of the docs run from the first cell to the last."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from fedgraph_flwr.results.provenance import project_root

FOLDER = project_root() / "docs" / "notebooks"
NAMES = {"first-run", "own-method", "reading-results"}
OWN = project_root() / "plugins" / "notebook_rooted.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_notebook_runs_as_a_reader_runs_it(name):
    try:
        book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        NotebookClient(
            book, timeout=240, resources={"metadata": {"path": str(FOLDER)}}
        ).execute()
    finally:
        OWN.unlink(missing_ok=True)
    assert book.cells[-1].execution_count == sum(
        c.cell_type == "code" for c in book.cells
    )


def test_notebooks_are_kept_without_outputs_and_all_are_tested():
    assert {p.stem for p in FOLDER.glob("*.ipynb")} == NAMES
    for path in FOLDER.glob("*.ipynb"):
        book = nbformat.read(path, as_version=4)
        nbformat.validate(book)
        assert not any(c.get("outputs") for c in book.cells)

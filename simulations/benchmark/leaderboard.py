"""The leaderboard: one page with a part for each suite, made from kept rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgraph_flwr.errors import ConfigError, FedGraphError
from fedgraph_flwr.results.reader import blaming

from ..markup import markdown, paragraph
from ..tables import file
from ..tables.report import Report
from ..tables.results import Result
from .runs import kept_path

_TITLE = "# Leaderboard"
_PART = "\n## "
_RULE = (
    "Each part is a suite, made by a command from kept rows. What the words mean:"
    " [benchmark](benchmark.md). A row is submitted as a change to this repository. It"
    " needs the module of the method in `examples/`, all pairs of the suite with"
    " `--keep`, and the same bytes when we run it again. A part without a row"
    " `majority` is older than that row."
)


def read_page(path: Path) -> dict[str, str]:
    """Parts of a page that :func:`write_page` wrote; none if there is no page yet.

    Raises
    ------
    ConfigError
        The file is something else, which writing the page would destroy.
    """
    if not path.exists():
        return {}
    with blaming(path):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if not text.startswith(_TITLE):
        raise ConfigError(
            f"--leaderboard must be a new file, or a page that begins with {_TITLE!r},"
            f" got {path}"
        )
    parts = (part.split("\n", 1) for part in text.split(_PART)[1:])
    return {name: body.strip() for name, body in parts}


def write_page(parts: Mapping[str, str]) -> str:
    """Write the page; parts are ordered by their suites' names."""
    texts = [f"## {name}\n\n{parts[name]}" for name in sorted(parts)]
    return "\n\n".join([_TITLE, paragraph(_RULE), *texts]) + "\n"


def suite_part(suite: str, reports: Sequence[Report], rows: Sequence[Result]) -> str:
    """Write a suite's part.

    Parameters
    ----------
    suite : str
    reports : sequence of Report
        What the benchmark says, as in its own page.
    rows : sequence of Result
        Everything that they are made from.

    Raises
    ------
    FedGraphError
        A row is not in the kept file.
    """
    path = kept_path(suite)
    kept = {r.key for r in file.read(path)} if path.is_file() else set()
    if missing := [r for r in rows if r.key not in kept]:
        raise FedGraphError(
            f"--leaderboard is made from kept rows, but {len(missing)} runs are not in"
            f" {path}; add --keep"
        )
    commits = ", ".join(sorted({r.commit for r in rows}))
    source = f"Rows: [{path.name}](runs/{path.name}), by the code of {commits}."
    texts = [paragraph(source)]
    texts += [markdown(f"{r.title}: {suite}", r.parts) for r in reports]
    return "\n\n".join(texts)

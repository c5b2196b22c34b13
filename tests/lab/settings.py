"""Write defaults into pyproject and docs: ``python tests/lab/settings.py``.

The tables of settings in the code are the source. Flower refuses keys that have no
default in ``pyproject.toml``, and readers look for them in ``docs/configuration.md``:
this command writes the defaults there, and key, default and allowed values here; and
into ``docs/methods.md`` the methods of each task. The last cell of a row is written by
hand; it is empty at first.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping

from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.core.tasks import TASKS
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import tables

_ROW = re.compile(r"^\| `([^`]+)` \| .* \|$")


def as_toml() -> str:
    """Write every default as TOML, a table each."""
    parts = []
    written = {t.TABLE: t for t in tables() if t.config_fields()}  # each table once
    for table in written.values():
        name = f".{table.TABLE}" if table.TABLE else ""
        lines = [
            f"{f.name.replace('_', '-')} = {json.dumps(f.default)}"  # TOML's too
            for f in table.config_fields().values()
        ]
        parts.append("\n".join([f"[tool.flwr.app.config{name}]", *lines]))
    return "\n\n".join(parts) + "\n\n"


def new_pyproject(text: str) -> str:
    """Put the defaults into the text of ``pyproject.toml``."""
    before, _, rest = text.partition("[tool.flwr.app.config]")
    after = re.search(r"^\[(?!tool\.flwr\.app\.config)", rest, re.MULTILINE)
    assert after is not None, "a table follows that of the app"
    return before + as_toml() + rest[after.start() :]


def new_page(text: str) -> str:
    """Put keys, defaults and allowed values into the text of the page of keys."""
    rows = {
        key: f"`{json.dumps(f.default)}` | {f.metadata['rule'].describe()}"
        for table in tables()
        for key, f in table.config_fields().items()
    }
    return _with_rows(text, rows)


def new_methods(text: str) -> str:
    """Put into the text of the page of methods which of them each task has."""
    rows = {
        task.key: ", ".join(f"`{name}`" for name in names)
        for task in TASKS
        if (names := [n for n, m in METHODS.items() if task in m.clients])
    }
    return _with_rows(text, rows)


def _with_rows(text: str, rows: Mapping[str, str]) -> str:
    """Write a table's rows but for their last cell, which is written by hand."""
    lines = text.splitlines(keepends=True)
    found = [m[1] if (m := _ROW.match(line)) else "" for line in lines]
    first = found.index(next(iter(rows)))
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    by_hand = {
        key: line.rstrip().rsplit(" | ", 1)[1].removesuffix(" |")
        for key, line in zip(found[first:last], lines[first:last], strict=True)
    }
    made = [f"| `{k}` | {row} | {by_hand.get(k, '')} |\n" for k, row in rows.items()]
    return "".join([*lines[:first], *made, *lines[last:]])


@command
def main() -> int:
    """Write the files."""
    root = project_root()
    for path, new in (
        (root / "pyproject.toml", new_pyproject),
        (root / "docs" / "configuration.md", new_page),
        (root / "docs" / "methods.md", new_methods),
    ):
        before = path.read_text(encoding="utf-8")
        after = new(before)
        path.write_text(after, encoding="utf-8")
        words = "as before" if after == before else "written"
        sys.stdout.write(f"{words}: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write defaults into pyproject and docs: ``python -m simulations.settings``.

The tables of settings in the code are the source. Flower refuses keys that have no
default in ``pyproject.toml``, and readers look for them in ``docs/configuration.md``:
this command writes the defaults there, and key, default and allowed values here. What a
key means is written by hand; a new key has an empty meaning at first.
"""

from __future__ import annotations

import json
import re
import sys

from fedgraph_flwr.command import command
from fedgraph_flwr.files import project_root
from fedgraph_flwr.resolve import tables

_ROW = re.compile(r"^\| `([^`]+)` \| .* \|$")


def as_toml() -> str:
    """Write every default as TOML, a table each."""
    parts = []
    for table in tables():
        if not table.config_fields():
            continue
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
    lines = text.splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if _ROW.match(line)]
    first = next(i for i in found if lines[i].startswith("| `method` |"))
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    meanings = {
        match[1]: line.rstrip().rsplit(" | ", 1)[1].removesuffix(" |")
        for line in lines[first:last]
        if (match := _ROW.match(line))
    }
    rows = [
        f"| `{key}` | `{json.dumps(f.default)}` | {f.metadata['rule'].describe()} |"
        f" {meanings.get(key, '')} |\n"
        for table in tables()
        for key, f in table.config_fields().items()
    ]
    return "".join([*lines[:first], *rows, *lines[last:]])


@command
def main() -> int:
    """Write both files."""
    root = project_root()
    for path, new in (
        (root / "pyproject.toml", new_pyproject),
        (root / "docs" / "configuration.md", new_page),
    ):
        before = path.read_text(encoding="utf-8")
        after = new(before)
        path.write_text(after, encoding="utf-8")
        words = "as before" if after == before else "written"
        sys.stdout.write(f"{words}: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

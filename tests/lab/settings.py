"""Write defaults into pyproject and docs: ``python tests/lab/settings.py``.

The tables of settings in the code are the source. Flower refuses keys that have no
default in ``pyproject.toml``; readers look for them in ``docs/configuration.md``. What
a key means is the text below its field. The methods of each task go into
``docs/methods.md``, where the last cell of a row is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from itertools import pairwise

from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.config import Settings
from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.core.rules import MOST, MOST_CLIENTS, MOST_ROUNDS, Rule
from fedgraph_flwr.core.tasks import TASKS
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import tables

_ROW = re.compile(r"^\| `([^`]+)` \| .* \|$")
_KINDS = {(bool, False): "true, false", (str, True): "absolute path"}
_MANY = 11


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
    """Put the table of all keys into the text of their page."""
    rows = {}
    for table in tables():
        meaning = meanings(table)
        for key, f in table.config_fields().items():
            allowed = _allowed(f.metadata["rule"], key)
            rows[key] = f"`{json.dumps(f.default)}`; {allowed} | {meaning[f.name]}"
    return _with_rows(text, rows)


def meanings(table: type[Settings]) -> dict[str, str]:
    """Read the text below each field of a table, by the field's name."""
    found = {}
    for cls in reversed(table.__mro__[: table.__mro__.index(Settings)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for one, other in pairwise(tree.body):
            match one, other:
                case (
                    ast.AnnAssign(target=ast.Name(name)),
                    ast.Expr(ast.Constant(str(what))),
                ):
                    found[name] = " ".join(what.split())
    return found


def _allowed(rule: Rule, key: str) -> str:
    """Say what a value may be; bounds that nobody reaches are left out."""
    if len(rule.choices) > _MANY:
        return f"[below](#{key.rstrip('s')}s)"
    if rule.choices:
        return ", ".join(f"`{name}`" for name in rule.choices)
    if rule.kind not in (int, float):
        return rule.words or _KINDS.get((rule.kind, rule.absolute), "text")
    bounds = [f"{'>' if rule.low_open else '≥'} {rule.low:g}"]
    if rule.high < min(MOST, MOST_CLIENTS, MOST_ROUNDS):
        bounds.append(f"{'<' if rule.high_open else '≤'} {rule.high:g}")
    return f"{'int' if rule.kind is int else 'number'} {', '.join(bounds)}"


def new_methods(text: str) -> str:
    """Put into the text of the page of methods which of them each task has."""
    lines = text.splitlines()
    by_hand = {
        m[1]: line.rsplit(" | ", 1)[1] for line in lines if (m := _ROW.match(line))
    }
    rows = {
        task.key: f"{', '.join(f'`{n}`' for n in names)} | {by_hand[task.key][:-2]}"
        for task in TASKS
        if (names := [n for n, m in METHODS.items() if task in m.clients])
    }
    return _with_rows(text, rows)


def _with_rows(text: str, rows: Mapping[str, str]) -> str:
    """Write the rows of the table that has the first of their keys."""
    lines = text.splitlines(keepends=True)
    start = f"| `{next(iter(rows))}` "
    first = next(i for i, line in enumerate(lines) if line.startswith(start))
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    made = [f"| `{key}` | {row} |\n" for key, row in rows.items()]
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

"""Read a schema file, and say what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.rules import shown
from fedgraph_flwr.toml_files import read_toml

from .schema import (
    CATEGORY,
    DATE,
    DROP,
    FORMAT,
    GRAPH_CSV,
    GRAPHS_CSV,
    INDICATOR,
    LABEL,
    MOST_CATEGORIES,
    MOST_COLUMNS,
    MOST_DEGREE,
    NUMBER,
    REFUSE,
    RESERVED,
    TARGET_KINDS,
    Feature,
    Schema,
    is_name,
)

_OF_FILE = ("format", "dataset", "degree", "outside")  # keys above the first section


def read_schema(path: Path) -> Schema:
    """Read and check a schema file.

    Raises
    ------
    DataError
        It is missing; or ConfigError, it is no TOML; or something in it is wrong. The
        message names the file, the line, the key and the cure.
    """
    if not path.is_file():
        raise DataError(
            f"there is no schema {path}; copy the schema.toml that all sites share to"
            " this place, or make one from one site's data: python -m"
            f" fedgraph_flwr.site schema {path.parent} --out {path}"
        )
    content = read_toml(path)
    return _Reader(path, path.read_text(encoding="utf-8")).schema(content)


class _Reader:
    """Turns the content of one file into a schema, and words what is wrong with it."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def schema(self, content: Mapping[str, Any]) -> Schema:
        top = _Table(self, "the file", "", 0, content)
        for section, heading in (("target", "[target]"), ("feature", "[[feature]]")):
            tables = content.get(section)
            tables = tables if isinstance(tables, list) else [tables]
            for n, table in enumerate(tables, 1):
                for key in _OF_FILE if isinstance(table, dict) else ():
                    if key in table:
                        raise self.refuse(
                            self.line_of(heading, n, key),
                            f"{heading} {n}" if section == "feature" else heading,
                            f"{key} is a key of the file, not of a section; move this"
                            " line above the first section, that is [target]",
                        )
        if "format" in content and content["format"] != FORMAT:
            raise top.wrong("format", f"{FORMAT}, the one that this version reads")
        top.allow(*_OF_FILE, "target", "feature")
        top.need("format", lambda v: v == FORMAT and type(v) is int, str(FORMAT))
        sets = (GRAPHS_CSV, GRAPH_CSV)
        dataset = top.need(
            "dataset", lambda v: v in sets, "'graphs-csv' or 'graph-csv'"
        )
        degree = top.get(
            "degree",
            0,
            lambda v: type(v) is int and 1 <= v <= MOST_DEGREE,
            f"an int from 1 to {MOST_DEGREE}",
        )
        outside = top.get("outside", "", lambda v: v == DROP, f"{DROP!r}, or left out")
        kind, targets, classes = self._target(top, content, str(dataset))
        given = content.get("feature", [])
        if not isinstance(given, list) or not all(isinstance(f, dict) for f in given):
            raise top.wrong("feature", "tables, each below a line [[feature]]")
        if len(given) > MOST_COLUMNS:
            raise top.wrong("feature", f"{MOST_COLUMNS} tables at most")
        features = [
            self._feature(_Table(self, f"[[feature]] {n}", "[[feature]]", n, table))
            for n, table in enumerate(given, 1)
        ]
        names = [f.column for f in features]
        for n, name in enumerate(names, 1):
            table = _Table(self, f"[[feature]] {n}", "[[feature]]", n, given[n - 1])
            if name in names[: n - 1]:
                raise table.wrong("column", "a column that no other feature has")
            if name in targets and dataset == GRAPH_CSV:
                raise table.wrong("column", "no column of [target]: it is the answer")
        if bool(degree) == bool(features):
            raise top.wrong(
                "degree",
                "there if and only if there is no [[feature]]: delete it, or all"
                " features"
                if degree
                else "an int such as 16, or add a [[feature]]",
            )
        return Schema(
            dataset=str(dataset),
            target_kind=kind,
            targets=targets,
            classes=classes,
            features=tuple(features),
            degree=int(degree),
            drops_outside=outside == DROP,
        )

    def _target(
        self, top: _Table, content: Mapping[str, Any], dataset: str
    ) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        if not isinstance(content.get("target"), dict):
            raise top.wrong("target", "a table [target]")
        table = _Table(self, "[target]", "[target]", 1, content["target"])
        table.allow("kind", "columns", "classes")
        allowed = TARGET_KINDS if dataset == GRAPHS_CSV else ("classes",)
        words = " or ".join(map(repr, allowed)) + f" for {dataset}"
        kind = str(table.need("kind", lambda v: v in allowed, words))
        targets = table.names("columns")
        is_nodes = dataset == GRAPH_CSV
        if is_nodes and targets != (LABEL,):
            raise table.wrong("columns", f"[{LABEL!r}] for {GRAPH_CSV}")
        if kind == "classes" and len(targets) > 1:
            raise table.wrong("columns", "one column if they are classes")
        if kind != "classes":
            if "classes" in content["target"]:
                raise table.wrong("classes", f"left out if kind is {kind!r}")
            return kind, targets, ()
        classes = table.names("classes")
        if len(classes) < 2:
            raise table.wrong("classes", "two classes or more")
        return kind, targets, classes

    def _feature(self, table: _Table) -> Feature:
        column = str(
            table.need(
                "column",
                lambda v: is_name(v) and v not in RESERVED,
                f"the name of a column of nodes, none of {', '.join(RESERVED)}",
            )
        )
        kinds = (NUMBER, CATEGORY, DATE)
        words = "'number' or 'category' or 'date'"
        kind = str(table.need("kind", lambda v: v in kinds, words))
        rules = (REFUSE, INDICATOR)
        missing = table.get(
            "missing", REFUSE, lambda v: v in rules, "'refuse' or 'indicator'"
        )
        if kind != CATEGORY:
            table.allow("column", "kind", "shift", "scale", "missing")
            return Feature(
                column=column,
                kind=kind,
                shift=float(table.get("shift", 0.0, _is_number, "a finite number")),
                scale=float(
                    table.get(
                        "scale",
                        1.0,
                        lambda v: _is_number(v) and v > 0,
                        "a finite number > 0",
                    )
                ),
                missing=str(missing),
            )
        table.allow("column", "kind", "categories", "other", "missing")
        return Feature(
            column=column,
            kind=CATEGORY,
            categories=table.names("categories"),
            other=bool(
                table.get("other", False, lambda v: type(v) is bool, "true or false")
            ),
            missing=str(missing),
        )

    def line_of(self, heading: str, number: int, key: str) -> int:
        """Line of a key in the ``number``-th table of a heading, or of the heading."""
        seen, place, inside = 0, 1, not heading
        for n, line in enumerate(self._lines, 1):
            words = "".join(line.split())
            if words.startswith("["):
                same = bool(heading) and words.startswith(heading)
                seen += same
                inside = same and seen == number
                if inside:
                    place = n
            elif inside and words.startswith(f"{key}="):
                return n
        return place

    def refuse(self, line: int, where: str, problem: str) -> DataError:
        """Word an error."""
        return DataError(f"{self._path}, line {line}: {where}: {problem}")


class _Table:
    """One table of the file; every complaint names its line."""

    def __init__(
        self,
        reader: _Reader,
        where: str,
        heading: str,
        number: int,
        values: Mapping[str, Any],
    ) -> None:
        self._reader, self._where, self._values = reader, where, values
        self._heading, self._number = heading, number

    def wrong(self, key: str, allowed: str) -> DataError:
        """Say what a key must be, what it is, and the cure."""
        line = self._reader.line_of(self._heading, self._number, key)
        got = shown(self._values[key]) if key in self._values else "nothing"
        return self._reader.refuse(
            line, self._where, f"{key} must be {allowed}, got {got}; correct it"
        )

    def allow(self, *keys: str) -> None:
        """Refuse other keys."""
        for key in self._values:
            if key not in keys:
                line = self._reader.line_of(self._heading, self._number, key)
                raise self._reader.refuse(
                    line,
                    self._where,
                    f"unknown key {shown(key)}; delete it, or correct it to one of"
                    f" {', '.join(keys)}",
                )

    def need(self, key: str, holds: Callable[[Any], bool], allowed: str) -> Any:
        """Return a value that must be there."""
        if key not in self._values or not _holds(holds, self._values[key]):
            raise self.wrong(key, allowed)
        return self._values[key]

    def get(
        self, key: str, default: Any, holds: Callable[[Any], bool], allowed: str
    ) -> Any:
        """Return a value, or the default if it is not there."""
        return self.need(key, holds, allowed) if key in self._values else default

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of different names, at least one."""
        words = (
            "a list of different names, printable and without spaces around them, at"
            f" most {MOST_CATEGORIES}"
        )

        def holds(value: Any) -> bool:
            return (
                isinstance(value, list)
                and 0 < len(value) <= MOST_CATEGORIES
                and all(is_name(name) for name in value)
                and len(set(value)) == len(value)
            )

        return tuple(self.need(key, holds, words))


def _holds(test: Callable[[Any], bool], value: Any) -> bool:
    try:
        return test(value)
    except TypeError:  # a list, which is in no tuple of texts
        return False


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )

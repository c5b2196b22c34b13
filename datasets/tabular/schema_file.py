"""The schema of own tables: what each column means, read from ``schema.toml``.

Sites share one ``schema.toml``. It names columns, their kinds and categories, how
numbers are scaled, and what is to be predicted. It holds no row of anybody's data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import is_there, replacing
from fedgraph_flwr.core.rules import read_toml, shown

GRAPHS_CSV, GRAPH_CSV = "graphs-csv", "graph-csv"  # names among the data sets
SCHEMA_FILE = "schema.toml"
FORMAT = 1
REFUSE, INDICATOR, DROP = "refuse", "indicator", "drop"
NUMBER, CATEGORY, DATE = "number", "category", "date"
TARGET_KINDS = ("classes", "binary", "regression")
SPLIT = "split"
LABEL = "label"  # column of classes of nodes
ALL = "*"  # in place of names of columns to predict: all that look like it
MOST_COLUMNS, MOST_CATEGORIES, MOST_DEGREE = 10_000, 100_000, 10_000
# Columns of the tables that are never features or targets.
KEYS = {"graphs": ("graph",), "nodes": ("graph", "node"), "edges": ("source", "target")}
RESERVED = ("graph", "node", SPLIT)
_HEADING = """\
# How every site reads its own graphs (docs/own-data.md). Give all sites this file.
# A number v becomes (v - shift) / scale. A category becomes one column for each name in
# categories; with other = true all other names share one more column. With
# missing = "indicator" a missing value is 0 and sets a column of its own to 1.
# A date is the number of days since 1970-01-01 (UTC), shifted and scaled like others.
"""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A column of ``nodes.csv`` and how it is encoded.

    Parameters
    ----------
    column : str
    kind : str
        "number", "category" or "date".
    shift, scale : float
        A number v is encoded as ``(v - shift) / scale``; scale > 0. A date is the
        number of days since 1970-01-01.
    categories : tuple of str
        Each has a column of zeros and ones.
    other : bool
        Whether all further categories share a column; else they are refused.
    missing : str
        "refuse" missing values, or encode them as zeros with an "indicator" column.
    """

    column: str
    kind: str
    shift: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    other: bool = False
    missing: str = REFUSE

    @property
    def width(self) -> int:
        """Number of columns after encoding."""
        values = len(self.categories) + self.other if self.kind == CATEGORY else 1
        return values + (self.missing == INDICATOR)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The content of a schema file.

    Parameters
    ----------
    dataset : str
        "graphs-csv" or "graph-csv".
    target_kind : str
        "classes", "binary" or "regression"; of nodes always "classes".
    targets : tuple of str
        Columns to predict; one if they are classes.
    classes : tuple of str
        Names of the classes in the order of their numbers; empty for other targets.
    features : tuple of Feature
        In the order of encoded columns.
    degree : int
        Without features: one-hot degrees up to this, larger ones counting as it. 0 if
        there are features.
    drops_outside : bool
        Whether rows that name a node or graph which is in no other table are meant to:
        they are dropped and counted, and are no misfits.
    """

    dataset: str
    target_kind: str
    targets: tuple[str, ...]
    classes: tuple[str, ...] = ()
    features: tuple[Feature, ...] = ()
    degree: int = 0
    drops_outside: bool = False

    @property
    def width(self) -> int:
        """Number of columns of the encoded node features."""
        return sum(f.width for f in self.features) or self.degree + 1

    @property
    def num_outputs(self) -> int:
        """Number of classes, or of targets."""
        return len(self.classes) or len(self.targets)

    @property
    def sha256(self) -> str:
        """Hash of what the schema says, not of comments or layout of its file."""
        return hashlib.sha256(to_toml(self).encode()).hexdigest()


def write_schema(schema: Schema, path: Path) -> None:
    """Write a schema file; ``schema_read.read_schema`` gives the same schema back.

    Raises
    ------
    DataError
        There is a file already.
    StorageError
        It cannot be written.
    """
    with replacing(path) as partial:
        if is_there(path):
            raise DataError(
                f"{path} is there already; sites may use it: choose another --out, or"
                " delete it first"
            )
        partial.write_text(_HEADING + to_toml(schema), encoding="utf-8")


def to_toml(schema: Schema) -> str:
    """Write a schema as TOML; equal schemas give equal texts."""
    lines = [f"format = {FORMAT}", f"dataset = {_text(schema.dataset)}"]
    if schema.degree:
        lines.append(f"degree = {schema.degree}")
    if schema.drops_outside:
        lines.append(f"outside = {_text(DROP)}")
    lines += ["", "[target]", f"kind = {_text(schema.target_kind)}"]
    lines.append(f"columns = {_list(schema.targets)}")
    if schema.classes:
        lines.append(f"classes = {_list(schema.classes)}")
    for feature in schema.features:
        lines += ["", "[[feature]]", f"column = {_text(feature.column)}"]
        lines.append(f"kind = {_text(feature.kind)}")
        if feature.kind != CATEGORY:
            lines += [f"shift = {feature.shift!r}", f"scale = {feature.scale!r}"]
        else:
            lines.append(f"categories = {_list(feature.categories)}")
            lines.append(f"other = {str(feature.other).lower()}")
        lines.append(f"missing = {_text(feature.missing)}")
    return "\n".join(lines) + "\n"


def is_name(text: object) -> bool:
    """Whether a text can stand in a schema: printable, without spaces around it."""
    return (
        isinstance(text, str)
        and bool(text)
        and text.isprintable()
        and text == text.strip()
    )


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


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

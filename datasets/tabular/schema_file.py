"""The schema of own tables: what each column means, read from ``schema.toml``.

Sites share one ``schema.toml``. It names columns, their kinds and categories, how
numbers are scaled, and what is to be predicted. It holds no row of anybody's data.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
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
Rule = tuple[str, Callable[[Any], bool]]  # what a value must be, in words, and its test


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
    """Write a schema file; ``read_schema`` gives the same schema back.

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
    head = {"format": FORMAT, "dataset": schema.dataset}
    head |= {"degree": schema.degree} if schema.degree else {}
    head |= {"outside": DROP} if schema.drops_outside else {}
    target = {"kind": schema.target_kind, "columns": schema.targets}
    target |= {"classes": schema.classes} if schema.classes else {}
    sections: list[tuple[list[str], Mapping[str, object]]] = [
        ([], head),
        (["", "[target]"], target),
    ]
    for feature in schema.features:
        keys = _feature_rules(feature.kind)
        sections.append((["", "[[feature]]"], {k: getattr(feature, k) for k in keys}))
    return "".join(
        f"{line}\n"
        for heading, values in sections
        for line in [
            *heading,
            *(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in values.items()),
        ]
    )


def is_name(text: object) -> bool:
    """Whether a text can stand in a schema: printable, without spaces around it."""
    return (
        isinstance(text, str)
        and bool(text)
        and text.isprintable()
        and text == text.strip()
    )


def _one_of(*allowed: str) -> Rule:
    return " or ".join(map(repr, allowed)), lambda v: v in allowed


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MOST_CATEGORIES
        and all(map(is_name, value))
        and len(set(value)) == len(value)
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_NAMES: Rule = (
    "a list of different names, printable and without spaces around them, at most"
    f" {MOST_CATEGORIES}",
    _are_names,
)
_OF_FILE: dict[str, Rule] = {  # keys above the first section
    "format": (
        f"{FORMAT}, the one that this version reads",
        lambda v: type(v) is int and v == FORMAT,
    ),
    "dataset": _one_of(GRAPHS_CSV, GRAPH_CSV),
    "degree": (
        f"an int from 1 to {MOST_DEGREE}",
        lambda v: type(v) is int and 1 <= v <= MOST_DEGREE,
    ),
    "outside": (f"{DROP!r}, or left out", lambda v: v == DROP),
    "target": ("a table [target]", lambda v: isinstance(v, dict)),
    "feature": (
        f"tables, each below a line [[feature]], {MOST_COLUMNS} at most",
        lambda v: (
            isinstance(v, list)
            and len(v) <= MOST_COLUMNS
            and all(isinstance(one, dict) for one in v)
        ),
    ),
}
_OF_TARGET: dict[str, Rule] = {
    "kind": _one_of(*TARGET_KINDS),
    "columns": _NAMES,
    "classes": _NAMES,
}


def _feature_rules(kind: object) -> dict[str, Rule]:
    """Return the keys of a feature of some kind, in the order of a file."""
    first: dict[str, Rule] = {
        "column": (
            f"the name of a column of nodes, none of {', '.join(RESERVED)}",
            lambda v: is_name(v) and v not in RESERVED,
        ),
        "kind": _one_of(NUMBER, CATEGORY, DATE),
    }
    if kind == CATEGORY:
        is_flag: Rule = "true or false", lambda v: isinstance(v, bool)
        first |= {"categories": _NAMES, "other": is_flag}
    else:
        is_scale: Rule = "a finite number > 0", lambda v: _is_number(v) and v > 0
        first |= {"shift": ("a finite number", _is_number), "scale": is_scale}
    return {**first, "missing": _one_of(REFUSE, INDICATOR)}


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
    top = _Section(path, read_toml(path))
    top.check(_OF_FILE, "format", "target")
    target = _Section(path, top.values["target"], "[target]")
    target.check(_OF_TARGET, "kind", "columns")
    given = [
        _Section(path, values, "[[feature]]", number)
        for number, values in enumerate(top.values.get("feature", []), 1)
    ]
    features = [_feature(section) for section in given]
    top.check(_OF_FILE, "dataset")
    schema = Schema(
        dataset=top.values["dataset"],
        target_kind=target.values["kind"],
        targets=tuple(target.values["columns"]),
        classes=tuple(target.values.get("classes", ())),
        features=tuple(features),
        degree=top.values.get("degree", 0),
        drops_outside="outside" in top.values,
    )
    is_nodes, names = schema.dataset == GRAPH_CSV, [f.column for f in features]
    if is_nodes and schema.target_kind != "classes":
        raise target.wrong("kind", f"'classes' for {GRAPH_CSV}")
    if is_nodes and schema.targets != (LABEL,):
        raise target.wrong("columns", f"[{LABEL!r}] for {GRAPH_CSV}")
    if schema.target_kind == "classes" and len(schema.targets) > 1:
        raise target.wrong("columns", "one column if they are classes")
    if schema.target_kind == "classes" and len(schema.classes) < 2:
        raise target.wrong("classes", "two classes or more")
    if schema.target_kind != "classes" and schema.classes:
        raise target.wrong("classes", f"left out if kind is {schema.target_kind!r}")
    for section, name in zip(given, names, strict=True):
        if names.index(name) != section.number - 1:
            raise section.wrong("column", "a column that no other feature has")
        if is_nodes and name in schema.targets:
            raise section.wrong("column", "no column of [target]: it is the answer")
    if bool(schema.degree) == bool(features):
        cure = "an int such as 16, or add a [[feature]]"
        if features:
            cure = "there if and only if there is no [[feature]]: delete it, or all"
            cure += " features"
        raise top.wrong("degree", cure)
    return schema


def _feature(section: _Section) -> Feature:
    rules = _feature_rules(section.values.get("kind"))
    needed = ("column", "kind", *(["categories"] if "categories" in rules else []))
    section.check(rules, *needed)
    found = dict(section.values)
    found |= {key: float(found[key]) for key in ("shift", "scale") if key in found}
    return Feature(**found | {"categories": tuple(found.get("categories", ()))})


class _Section:
    """One table of the file; every complaint names its line.

    ``number`` counts the tables of one heading, which is "" for the file itself.
    """

    def __init__(
        self, path: Path, values: Mapping[str, Any], heading: str = "", number: int = 1
    ) -> None:
        self._path, self._heading = path, heading
        self.values, self.number = values, number

    def check(self, rules: Mapping[str, Rule], *needed: str) -> None:
        """Refuse values that are wrong, keys without a rule, and a lack of others."""
        for key, (allowed, holds) in rules.items():
            if not holds(self.values[key]) if key in self.values else key in needed:
                raise self.wrong(key, allowed)
        for key in self.values:
            if key not in rules and key in _OF_FILE:
                raise self._refuse(
                    key,
                    f"{key} is a key of the file, not of a section; move this line"
                    " above the first section, that is [target]",
                )
            if key not in rules:
                raise self._refuse(
                    key,
                    f"unknown key {shown(key)}; delete it, or correct it to one of"
                    f" {', '.join(rules)}",
                )

    def wrong(self, key: str, allowed: str) -> DataError:
        """Say what a key must be, what it is, and the cure."""
        got = shown(self.values[key]) if key in self.values else "nothing"
        return self._refuse(key, f"{key} must be {allowed}, got {got}; correct it")

    def _refuse(self, key: str, problem: str) -> DataError:
        number = f" {self.number}" * (self._heading == "[[feature]]")
        where = f"{self._heading or 'the file'}{number}"
        return DataError(f"{self._path}, line {self._line_of(key)}: {where}: {problem}")

    def _line_of(self, key: str) -> int:
        """Line of a key, or of the heading."""
        seen, place, inside = 0, 1, not self._heading
        lines = self._path.read_text(encoding="utf-8").splitlines()
        for n, line in enumerate(lines, 1):
            words = "".join(line.split())
            if words.startswith("["):
                same = bool(self._heading) and words.startswith(self._heading)
                seen += same
                inside = same and seen == self.number
                place = n if inside else place
            elif inside and words.startswith(f"{key}="):
                return n
        return place

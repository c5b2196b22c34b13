"""The schema of own tables: what each column means, read from ``schema.toml``.

Sites share one ``schema.toml``. It names columns, their kinds and categories, how
numbers are scaled, and what is to be predicted. It holds no row of anybody's data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import is_there, replacing
from fedgraph_flwr.core.rules import read_toml, shown

from .table import SPLIT

GRAPHS_CSV, GRAPH_CSV = "graphs-csv", "graph-csv"  # names among the data sets
SCHEMA_FILE = "schema.toml"
FORMAT = 1
_OF_NUMBERS = ("shift", "scale")
Missing = Literal["refuse", "indicator"]
REFUSE: Missing = "refuse"
INDICATOR: Missing = "indicator"
DROP: Literal["drop"] = "drop"
NUMBER: Literal["number"] = "number"
CATEGORY: Literal["category"] = "category"
DATE: Literal["date"] = "date"
_TargetKind = Literal["classes", "binary", "regression"]
TARGET_KINDS = get_args(_TargetKind)
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
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # pydantic's names
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def is_name(text: str) -> bool:
    """Whether a text can stand in a schema: printable, without spaces around it."""
    return bool(text) and text.isprintable() and text == text.strip()


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not (names and all(map(is_name, names)) and len(set(names)) == len(names)):
        raise ValueError(
            "must be different names, printable and without spaces around them"
        )
    return names


def _column(name: str) -> str:
    if not is_name(name) or name in RESERVED:
        raise ValueError(
            f"must be the name of a column of nodes, none of {', '.join(RESERVED)}"
        )
    return name


_Names = Annotated[
    tuple[str, ...],
    Strict(False),
    Field(max_length=MOST_CATEGORIES),
    AfterValidator(_names),
]


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

    __pydantic_config__ = _STRICT

    column: Annotated[str, AfterValidator(_column)]
    kind: Literal["number", "category", "date"]
    shift: float = 0.0
    scale: Annotated[float, Field(gt=0)] = 1.0
    categories: _Names = ()
    other: bool = False
    missing: Missing = REFUSE

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
        own = ("categories", "other") if feature.kind == CATEGORY else _OF_NUMBERS
        keys = ("column", "kind", *own, "missing")
        sections.append((["", "[[feature]]"], {k: getattr(feature, k) for k in keys}))
    return "".join(
        f"{line}\n"
        for heading, values in sections
        for line in [
            *heading,
            *(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in values.items()),
        ]
    )


class _Target(BaseModel):
    """The section ``[target]``."""

    model_config = _STRICT

    kind: _TargetKind
    columns: _Names
    classes: _Names = ()


class _File(BaseModel):
    """A schema file as it is written."""

    model_config = _STRICT

    format: Literal[1]
    dataset: Literal["graphs-csv", "graph-csv"]
    target: _Target
    feature: Annotated[list[Feature], Field(max_length=MOST_COLUMNS)] = []
    degree: Annotated[int, Field(ge=1, le=MOST_DEGREE)] = 0
    outside: Literal["drop"] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        target, names = self.target, [f.column for f in self.feature]
        is_nodes, has_classes = self.dataset == GRAPH_CSV, target.kind == "classes"
        if is_nodes and not (has_classes and target.columns == (LABEL,)):
            raise ValueError(
                f"kind of [target] must be 'classes', and columns [{LABEL!r}], for"
                f" {GRAPH_CSV}, got {target.kind!r} and {list(target.columns)}"
            )
        if has_classes and (len(target.columns) > 1 or len(target.classes) < 2):
            raise ValueError(
                "[target] must have one column, and two classes or more, if kind is"
                " 'classes'"
            )
        if target.classes and not has_classes:
            raise ValueError(
                f"classes of [target] must be left out if kind is {target.kind!r}"
            )
        for number, one in enumerate(self.feature, 1):
            place, is_category = f"[[feature]] {number}", one.kind == CATEGORY
            if names.count(one.column) > 1 or (is_nodes and one.column == LABEL):
                raise ValueError(
                    f"column {one.column!r} of {place} must be of no other feature,"
                    " and not what is predicted"
                )
            is_scaled = (one.shift, one.scale) != (0, 1)
            if (is_category is not bool(one.categories)) or (
                is_scaled if is_category else one.other
            ):
                raise ValueError(
                    f"categories of {place} must be there, other may, and shift and"
                    f" scale must not, if and only if kind is {CATEGORY!r}"
                )
        if bool(self.degree) == bool(self.feature):
            raise ValueError(
                "degree must be there, as an int such as 16, if and only if there is no"
                " [[feature]]"
            )
        return self


def read_schema(path: Path) -> Schema:
    """Read and check a schema file.

    Raises
    ------
    DataError
        It is missing; or ConfigError, it is no TOML; or something in it is wrong. The
        message names the file, the key, what it must be, what it is, and the cure.
    """
    if not path.is_file():
        raise DataError(
            f"there is no schema {path}; copy the schema.toml that all sites share to"
            " this place, or make one from one site's data: fedgraph site schema"
            f" {path.parent} --out {path}"
        )
    try:
        text = json.dumps(read_toml(path), default=str)  # JSON has no Python classes
        found = _File.model_validate_json(text)
    except ValidationError as error:
        raise DataError(f"{path}: {_first_problem(error)}") from error
    return Schema(
        dataset=found.dataset,
        target_kind=found.target.kind,
        targets=found.target.columns,
        classes=found.target.classes,
        features=tuple(found.feature),
        degree=found.degree,
        drops_outside=found.outside == DROP,
    )


def _first_problem(error: ValidationError) -> str:
    """Say what the first wrong key is, what it must be, what it is, and the cure."""
    found = error.errors(include_url=False)
    first = min(found, key=lambda one: one["type"] not in _UNKNOWN)
    says = first["msg"].removeprefix("Value error, ")
    place, where = list(first["loc"]), "the file"
    if not place:
        return f"{says}; correct it"
    if len(place) > 1:
        where = f"[{place.pop(0)}]"
    if where == "[feature]":
        where = f"[[feature]] {int(place.pop(0)) + 1}"
    key = place[0] if place else "it"
    if first["type"] in _UNKNOWN:
        return (
            f"{where}: unknown key {shown(key)}; delete it, or move it above the first"
            " section, that is [target], if it is a key of the file"
        )
    is_there = first["type"] != "missing"
    must = says.replace("Input should be", "must be") if is_there else "must be there"
    got = shown(first["input"]) if is_there else "nothing"
    return f"{where}: {key} {must}, got {got}; correct it"

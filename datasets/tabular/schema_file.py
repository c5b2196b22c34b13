"""The schema of own tables: what each column means, read from ``schema.toml``.

Sites share one ``schema.toml``. It names columns, their kinds and categories, how
numbers are scaled, and what is to be predicted. It holds no row of anybody's data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from fedgraph_flwr.core.checked import (
    UNKNOWN,
    Wrong,
    at_most,
    between,
    checked,
    finite,
    positive,
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
KEEP: Literal["keep"] = "keep"
MERGE: Literal["merge"] = "merge"
NODE: Literal["node"] = "node"
NUMBER: Literal["number"] = "number"
CATEGORY: Literal["category"] = "category"
DATE: Literal["date"] = "date"
_TargetKind = Literal["classes", "binary", "regression"]
TARGET_KINDS = get_args(_TargetKind)
WEIGHT = "weight"  # column of weights of edges, where nothing else is said
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
        raise ValueError(f"must be the name of a column, none of {', '.join(RESERVED)}")
    return name


_Names = Annotated[tuple[str, ...], at_most(MOST_CATEGORIES), _names]


def _column_or_none(name: str) -> str:
    if name and (not is_name(name) or name in ("graph", *KEYS["edges"])):
        raise ValueError("must be the name of a column of edges, not of their ends")
    return name


_ColumnOrNone = Annotated[str, _column_or_none]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A column of a table and how it is encoded.

    Parameters
    ----------
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

    column: Annotated[str, _column]
    kind: Literal["number", "category", "date"]
    shift: Annotated[float, finite] = 0.0
    scale: Annotated[float, finite, positive] = 1.0
    categories: _Names = ()
    other: bool = False
    missing: Missing = REFUSE

    @property
    def width(self) -> int:
        """Number of columns after encoding."""
        values = len(self.categories) + self.other if self.kind == CATEGORY else 1
        return values + (self.missing == INDICATOR)


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The section ``[edges]``: what rows of ``edges.csv`` are.

    Parameters
    ----------
    directed : bool
        Whether source and target differ in their role.
    repeats : str
        Several rows with the same ends are several edges ("keep"), or one ("merge"):
        weights are added, features averaged, the earliest time counts; and the
        logarithm of the number of rows is one more feature.
    self_loops : bool
        Whether edges from a node to itself are kept.
    weight, time, label : str
        Columns; "" for none.
    classes : tuple of str
        Names of the labels' classes, in the order of their numbers.
    outside : str
        What becomes of an edge whose one end is in no table: "refuse", "drop", or
        "node", which makes a node without features and label of the end.
    """

    HYPHENS: ClassVar[bool] = True

    directed: bool = False
    repeats: Literal["keep", "merge"] = MERGE
    self_loops: bool = False
    weight: _ColumnOrNone = ""
    time: _ColumnOrNone = ""
    label: _ColumnOrNone = ""
    classes: tuple[str, ...] = ()
    outside: Literal["refuse", "drop", "node"] = "refuse"

    @property
    def is_simple(self) -> bool:
        """Whether no edge is repeated, or joins a node to itself."""
        return self.repeats == MERGE and not self.self_loops

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns beside both ends and features."""
        return tuple(c for c in (self.weight, self.time, self.label) if c)


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
    edges : Edges, optional
        Without it an edge counts in both directions, and once.
    edge_features, graph_features : tuple of Feature
        Columns of ``edges`` and of ``graphs``, in the order of encoded columns.
    time : str
        Column of graphs, or nodes, that says when each came about; "" for none.
    """

    dataset: str
    target_kind: str
    targets: tuple[str, ...]
    classes: tuple[str, ...] = ()
    features: tuple[Feature, ...] = ()
    degree: int = 0
    drops_outside: bool = False
    edges: Edges | None = None
    edge_features: tuple[Feature, ...] = ()
    graph_features: tuple[Feature, ...] = ()
    time: str = ""

    @property
    def width(self) -> int:
        """Number of columns of the encoded node features."""
        own = sum(f.width for f in self.features) or self.degree + 1
        return own + self.makes_nodes

    @property
    def makes_nodes(self) -> bool:
        """Whether ends of edges that are in no table become nodes."""
        return self.edges is not None and self.edges.outside == NODE

    @property
    def edge_width(self) -> int:
        """Number of columns of encoded edge features; a weight is none."""
        is_merged = self.edges is not None and self.edges.repeats == MERGE
        return sum(f.width for f in self.edge_features) + is_merged

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
    head |= {"time": schema.time} if schema.time else {}
    target = {"kind": schema.target_kind, "columns": schema.targets}
    target |= {"classes": schema.classes} if schema.classes else {}
    sections: list[tuple[list[str], Mapping[str, object]]] = [([], head)]
    if schema.targets:
        sections.append((["", "[target]"], target))
    if schema.edges:
        given = {f.name: getattr(schema.edges, f.name) for f in fields(Edges)}
        said = {k.replace("_", "-"): v for k, v in given.items() if v not in ("", ())}
        sections.append((["", "[edges]"], said))
    for heading, of_table in (
        ("[[feature]]", schema.features),
        ("[[edge_feature]]", schema.edge_features),
        ("[[graph_feature]]", schema.graph_features),
    ):
        for feature in of_table:
            own = ("categories", "other") if feature.kind == CATEGORY else _OF_NUMBERS
            keys = ("column", "kind", *own, "missing")
            sections.append((["", heading], {k: getattr(feature, k) for k in keys}))
    return "".join(
        f"{line}\n"
        for heading, values in sections
        for line in [
            *heading,
            *(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in values.items()),
        ]
    )


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The section ``[target]``."""

    kind: _TargetKind
    columns: _Names
    classes: _Names = ()


_Features = Annotated[tuple[Feature, ...], at_most(MOST_COLUMNS)]


@dataclass(frozen=True, kw_only=True)
class _File:
    """A schema file as it is written."""

    format: Literal[1]
    dataset: Literal["graphs-csv", "graph-csv"]
    target: _Target | None = None
    edges: Edges | None = None
    feature: _Features = ()
    edge_feature: _Features = ()
    graph_feature: _Features = ()
    time: str = ""
    degree: Annotated[int, between(1, MOST_DEGREE)] = 0
    outside: Literal["drop"] | None = None

    def __post_init__(self) -> None:
        target, is_nodes = self.target, self.dataset == GRAPH_CSV
        edges = self.edges or Edges()
        if target is None and not (is_nodes and edges.label):
            raise ValueError(
                "[target] must be there, unless classes of edges are learned, as label"
                f" of [edges] in {GRAPH_CSV}"
            )
        if target:
            _check_target(target, is_nodes=is_nodes)
        _check_edges(edges, is_nodes=is_nodes)
        if self.graph_feature and is_nodes:
            raise ValueError(f"[[graph_feature]] must not be there for {GRAPH_CSV}")
        answers = [*(target.columns if target else ()), self.time]
        _check_features("feature", self.feature, answers if is_nodes else [])
        _check_features("edge_feature", self.edge_feature, edges.columns)
        _check_features("graph_feature", self.graph_feature, answers)
        if bool(self.degree) == bool(self.feature):
            raise ValueError(
                "degree must be there, as an int such as 16, if and only if there is no"
                " [[feature]]"
            )


def _check_target(target: _Target, *, is_nodes: bool) -> None:
    has_classes = target.kind == "classes"
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


def _check_edges(edges: Edges, *, is_nodes: bool) -> None:
    columns = edges.columns
    if len({*columns}) < len(columns):
        raise ValueError("weight, time and label of [edges] must be different columns")
    has_label = bool(edges.label)
    if has_label and not is_nodes:
        raise ValueError(f"label of [edges] must be left out but for {GRAPH_CSV}")
    if has_label is not (len(_names(edges.classes) if edges.classes else ()) > 1):
        raise ValueError(
            "classes of [edges] must be there, two or more, if and only if label is"
        )
    if has_label and edges.repeats == MERGE:
        raise ValueError(
            "repeats of [edges] must be 'keep' with a label, as each row has its own"
        )
    if edges.outside == NODE and not is_nodes:
        raise ValueError(f"outside of [edges] must not be 'node' but for {GRAPH_CSV}")


def _check_features(
    section: str, features: Sequence[Feature], others: Sequence[str]
) -> None:
    """Refuse features that are named twice, serve otherwise, or contradict a kind."""
    names = [f.column for f in features]
    for number, one in enumerate(features, 1):
        place, is_category = f"[[{section}]] {number}", one.kind == CATEGORY
        if names.count(one.column) > 1 or one.column in others:
            raise ValueError(
                f"column {one.column!r} of {place} must be of no other feature,"
                " and not what is predicted, a weight or a time"
            )
        is_scaled = (one.shift, one.scale) != (0, 1)
        if (is_category is not bool(one.categories)) or (
            is_scaled if is_category else one.other
        ):
            raise ValueError(
                f"categories of {place} must be there, other may, and shift and"
                f" scale must not, if and only if kind is {CATEGORY!r}"
            )


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
        found: _File = checked(_File, read_toml(path))
    except Wrong as error:
        raise DataError(f"{path}: {_told(error)}") from error
    target, edges = found.target, found.edges
    if edges is None and found.edge_feature:
        edges = Edges()
    drops = found.outside == DROP or (edges is not None and edges.outside == DROP)
    return Schema(
        dataset=found.dataset,
        target_kind=target.kind if target else "classes",
        targets=target.columns if target else (),
        classes=target.classes if target else (),
        features=found.feature,
        degree=found.degree,
        drops_outside=drops,
        edges=edges,
        edge_features=found.edge_feature,
        graph_features=found.graph_feature,
        time=found.time,
    )


def _told(wrong: Wrong) -> str:
    """Say where the wrong key is, what it must be, what it is, and the cure."""
    place, where = list(wrong.place), "the file"
    if not place:
        return f"{wrong.must}; correct it"
    if len(place) > 1:
        where = f"[{place.pop(0)}]"
    if where.endswith("feature]"):
        where = f"[{where}] {int(place.pop(0)) + 1}"
    key = place[0] if place else "it"
    if wrong.must == UNKNOWN:
        return (
            f"{where}: unknown key {shown(key)}; delete it, or move it above the first"
            " section, that is [target], if it is a key of the file"
        )
    got = "nothing" if wrong.got is None else shown(wrong.got)
    return f"{where}: {key} {wrong.must}, got {got}; correct it"

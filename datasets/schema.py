"""The schema of users' own graphs: how every site turns its tables into numbers.

Sites share one ``schema.toml``. It names columns, their kinds and categories, how
numbers are scaled, and what is to be predicted. It holds no row of anybody's data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.files import is_there, replacing

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

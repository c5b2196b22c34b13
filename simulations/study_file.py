"""Studies: TOML files that say which runs stand in which table.

``paper``, ``rule`` (one of ``study_runs.RULES``), ``interval`` (``t``, the default,
``split-t``, ``corrected-t`` or ``bootstrap``), a table ``[targets]`` of the paper's
figures by row, and ``[[table]]`` entries with ``title``, ``rows`` and ``differences``
(pairs of rows; ``own round 0`` in place of the second is the first's start). An entry
with ``for``, a list of tables of words, stands for one table each, in which ``{word}``
is filled in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import ConfigError

from .intervals import INTERVALS
from .study_runs import RULES

FOLDER = Path(__file__).with_name("studies")
OWN_START = "own round 0"


@dataclass(frozen=True)
class StudyTable:
    """One table."""

    title: str
    rows: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Study:
    """A file's content."""

    name: str
    paper: str
    rule: str
    interval: str
    tables: tuple[StudyTable, ...]
    targets: Mapping[str, float]


def load_study(name: str, folder: Path = FOLDER) -> Study:
    """Read a study.

    Raises
    ------
    ConfigError
        The file does not keep to the format; a difference names no row.
    """
    path = folder / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        study = Study(
            name=name,
            paper=str(content["paper"]),
            rule=str(content["rule"]),
            interval=str(content.get("interval", "t")),
            tables=tuple(t for entry in content["table"] for t in _expand(entry)),
            targets={k: float(v) for k, v in content.get("targets", {}).items()},
        )
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: not a study ({error!r}); see simulations/study_file.py"
        ) from error
    for key, value, allowed in (
        ("rule", study.rule, RULES),
        ("interval", study.interval, tuple(INTERVALS)),
    ):
        if value not in allowed:
            raise ConfigError(f"{path}: {key} is {value!r}, allowed are {allowed}")
    for table in study.tables:
        for row in {row for pair in table.differences for row in pair}:
            if row not in (*table.rows, OWN_START):
                raise ConfigError(
                    f"{path}: table {table.title!r} subtracts {row!r}, which is none of"
                    " its rows; add it to rows"
                )
    return study


def _expand(entry: Mapping[str, Any]) -> Iterator[StudyTable]:
    for words in entry.get("for", [{}]):
        yield StudyTable(
            title=str(entry["title"]).format(**words),
            rows=tuple(str(row).format(**words) for row in entry["rows"]),
            differences=tuple(
                (str(a).format(**words), str(b).format(**words))
                for a, b in entry.get("differences", [])
            ),
        )

"""Studies: TOML files that say which results stand in which table.

Keys of a file:

- ``paper``: citation; ``rule``: measure of all differences; ``held_out``: share of the
  data that does not train, half of which tests (default 0.2);
- ``spread``: what stands after ±, ``runs`` (std of the runs' means, the default) or
  ``clients`` (mean of each client's std over runs, the metric of the GCFL paper);
- ``also``: heading -> further measure that differences are shown for; a verdict is
  what the rule and all of these say;
- ``task``: a task whose runs ``fedgraph compare`` shows with these columns and
  targets; ``any`` for all tasks that no other study names;
- ``results``: link from its page to what the tables say (default: its results page);
- ``controls``: presets beside whose runs rows without training can be computed;
- ``columns``: heading -> measure; ``rules`` stands for all rules;
- ``[targets]``: row -> the paper's score, ``[score, spread]``, or a table of measure ->
  either, with ``least-gain`` and ``not-worse`` for its gains over self-train;
- ``[[table]]``: ``title``, ``rows``, ``differences`` (pairs of rows; ``own round 0``
  as the second is the first's start), its own ``columns``, and ``notes``. With
  ``grid``, a list of words, a row stands for those whose names end with "-" and a
  word: a cell each, with ``spread = "clients"``;
- ``[[figure]]``: differences to draw, as a table with labels in third place.

A table or figure with ``for``, a list of tables of words, is repeated for each
of them, with ``{word}`` filled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.rules import read_toml

FOLDER = Path(__file__).parents[1] / "studies"
OWN_START = "own round 0"
COLUMNS = {
    "pairs": "pairs",
    "rounds": "rounds",
    "epsilon": "epsilon",
    "rules": "rules",
    "validation": "validation",
}


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """Rows and differences of one table or of one panel of a figure.

    ``labels`` are those of the differences, "" where the rows' names serve.
    """

    title: str
    rows: tuple[str, ...] = ()
    differences: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    grid: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Target:
    """The paper's scores of a row: measure -> (score, spread if given).

    ``gain``: smallest gain of a client over self-train, and clients not worse.
    """

    scores: Mapping[str, tuple[float, float | None]]
    gain: tuple[float, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A file's content."""

    name: str
    paper: str
    rule: str
    tables: tuple[StudyTable, ...]
    held_out: float = 0.2
    spread: str = "runs"
    also: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=lambda: COLUMNS)
    targets: Mapping[str, Target] = field(default_factory=dict)
    figure: tuple[StudyTable, ...] = ()
    task: str = ""
    controls: tuple[str, ...] = ()
    results: str = ""


def load_study(name: str, folder: Path = FOLDER) -> Study:
    """Read a study.

    Raises
    ------
    ConfigError
        The file does not keep to the format.
    """
    path = folder / f"{name}.toml"
    try:
        return _study(name, read_toml(path))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: not a study ({error!r}); see simulations/tables/studies.py"
        ) from error


def _study(name: str, content: dict[str, Any]) -> Study:
    given, rule = dict(content), str(content["rule"])
    targets = given.pop("targets", {})
    return Study(
        name=name,
        tables=tuple(map(_table, _expanded(given.pop("table")))),
        figure=tuple(map(_table, _expanded(given.pop("figure", [])))),
        targets={row: _target(value, rule) for row, value in targets.items()},
        **given,
    )


def _table(entry: dict[str, Any]) -> StudyTable:
    differences, grid = entry.pop("differences", []), tuple(entry.pop("grid", ()))
    rows = tuple(entry.pop("rows", ()))
    return StudyTable(
        rows=tuple(f"{r}-{word}" for r in rows for word in grid) if grid else rows,
        grid=grid,
        differences=tuple((a, b) for a, b, *_ in differences),
        labels=tuple("".join(label) for _, _, *label in differences),
        notes=tuple(entry.pop("notes", ())),
        **entry,
    )


def _target(value: Any, rule: str) -> Target:
    by_measure = dict(value) if isinstance(value, dict) else {rule: value}
    least, count = by_measure.pop("least-gain", None), by_measure.pop("not-worse", None)
    scores = {
        measure: (float(v[0]), float(v[1])) if isinstance(v, list) else (float(v), None)
        for measure, v in by_measure.items()
    }
    gain = None if least is None else (float(least), int(count))
    return Target(scores=scores, gain=gain)


def _expanded(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        rest = {key: value for key, value in entry.items() if key != "for"}
        for words in entry.get("for", [{}]):
            yield {key: _filled(value, words) for key, value in rest.items()}


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return value.format(**words)
    if isinstance(value, list):
        return [_filled(v, words) for v in value]
    if isinstance(value, dict):
        return {_filled(k, words): _filled(v, words) for k, v in value.items()}
    return value

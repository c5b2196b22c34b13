"""What a check found: rows of a table "problem, how to fix it"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..core.command import UNABLE
from ..core.errors import FedGraphError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
CacheDir = Annotated[str, typer.Option(help="Folder for converted data.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
OK, PROBLEM, UNKNOWN, SKIPPED = "ok", "problem", "could not look", "not asked"
_FINE, _PROBLEMS = 0, 1  # exit codes


class Findings:
    """A table with one row for each thing that was looked at.

    A row has ``what``, ``state``, ``found`` and ``cure``. The state is ``OK``,
    ``PROBLEM``, ``UNKNOWN`` (it was asked for, and could not be seen) or ``SKIPPED``
    (it was not asked for). The cure says how to fix a problem, or how to ask.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def add(self, what: str, found: str, cure: str = "", state: str = "") -> None:
        """Add a row; without ``state`` it is a problem if it has a cure."""
        state = state or (PROBLEM if cure else OK)
        row = {"what": what, "state": state, "found": found, "cure": cure}
        self.rows.append(row)

    def skip(self, what: str, option: str) -> None:
        """Say by which option somebody asks for what was skipped."""
        self.add(what, "nothing to look at", f"add {option}", SKIPPED)

    @contextmanager
    def looking(self, what: str, cure: str) -> Iterator[None]:
        """Go on after an error: what cannot be seen is a row too.

        A `FedGraphError` is a problem, whose text says the cure itself. Any other error
        means that nobody could look.
        """
        try:
            yield
        except FedGraphError as error:
            text, _, last = str(error).rpartition("; ")
            self.add(what, text or last, last if text else cure)
        except Exception as error:  # also what a library raises
            self.add(what, f"{type(error).__name__}: {error}", cure, UNKNOWN)

    def fails(self, *whats: str) -> bool:
        """Whether a row of one of these is a problem, or could not be seen."""
        return any(
            row["what"].startswith(whats) and row["state"] in (PROBLEM, UNKNOWN)
            for row in self.rows
        )

    @property
    def exit_code(self) -> int:
        """1 with a problem, else 2 if something could not be seen, else 0."""
        states = {row["state"] for row in self.rows}
        if PROBLEM in states:
            return _PROBLEMS
        return UNABLE if UNKNOWN in states else _FINE

    def as_json(self) -> str:
        """Write rows and exit code as JSON."""
        found = {"exit_code": self.exit_code, "findings": self.rows}
        return json.dumps(found, indent=2)

    def as_text(self) -> str:
        """Write rows as lines, each problem with its cure below."""
        states = [row["state"] for row in self.rows]
        width = max(map(len, states))
        lines = []
        for row in self.rows:
            text = f"{row['state']:<{width}}  {row['what']}: {row['found']}"
            lines.append(text.replace("\n", f"\n{'':<{width}}    "))
            if row["cure"] and row["state"] != OK:
                lines.append(f"{'':<{width}}    -> {row['cure']}")
        counts = states.count(PROBLEM), states.count(UNKNOWN)
        lines.append("{} problem(s), {} not looked at".format(*counts))
        return "\n".join(lines)

"""What a check found: rows of a table "problem, how to fix it"."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ..core.command import UNABLE
from ..core.errors import FedGraphError

OK, PROBLEM, UNKNOWN, SKIPPED = "ok", "problem", "could not look", "not asked"
_FINE, _PROBLEMS = 0, 1  # exit codes


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    what : str
    state : str
        ``OK``, ``PROBLEM``, ``UNKNOWN`` (it was asked for, and could not be seen) or
        ``SKIPPED`` (it was not asked for).
    found : str
        What is there.
    cure : str
        How to fix a problem, or how to ask for what was skipped.
    """

    what: str
    state: str
    found: str
    cure: str = ""


def look(what: str, see: Callable[[], Sequence[Finding]], cure: str) -> list[Finding]:
    """Look at something; what cannot be seen is a finding too.

    A `FedGraphError` is a problem, whose text says the cure itself. Any other error
    means that nobody could look.
    """
    try:
        return list(see())
    except FedGraphError as error:
        text, _, last = str(error).rpartition("; ")
        found = {"found": text, "cure": last} if text else {"found": last, "cure": cure}
        return [Finding(what=what, state=PROBLEM, **found)]
    except Exception as error:  # also what a library raises
        words = f"{type(error).__name__}: {error}"
        return [Finding(what=what, state=UNKNOWN, found=words, cure=cure)]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 with a problem, else 2 if something could not be seen, else 0."""
    states = {finding.state for finding in findings}
    if PROBLEM in states:
        return _PROBLEMS
    return UNABLE if UNKNOWN in states else _FINE


def as_json(findings: Sequence[Finding]) -> str:
    """Write findings and exit code as JSON."""
    rows = [asdict(finding) for finding in findings]
    return json.dumps({"exit_code": exit_code(findings), "findings": rows}, indent=2)


def as_table(findings: Sequence[Finding]) -> str:
    """Write findings as lines, each problem with its cure below."""
    width = max(len(finding.state) for finding in findings)
    lines = []
    for f in findings:
        more = f"\n{'':<{width}}    "
        lines.append(f"{f.state:<{width}}  {f.what}: {f.found}".replace("\n", more))
        if f.cure and f.state != OK:
            lines.append(f"{'':<{width}}    -> {f.cure}")
    counts = {s: sum(f.state == s for f in findings) for s in (PROBLEM, UNKNOWN)}
    lines.append(f"{counts[PROBLEM]} problem(s), {counts[UNKNOWN]} not looked at")
    return "\n".join(lines)

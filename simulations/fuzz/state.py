"""Damaged checkpoints, state files and results folders.

A run of two rounds is copied, one file of it is damaged, and the run goes on to round
four: refused, or completed with the weights of the run that nothing disturbed.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from datasets.cache import locked
from fedgraph_flwr.results.reader import load_summary

from ..inline import run_inline
from .cases import Judged, Place, small_run
from .mutations import of_file

_METHODS = ("gcfl+", "fgcl-once", "update-clip", "spreadgnn-sealed", "fedgkd", "local")
_BEFORE, _ROUNDS = 2, 4


def execute(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    """Damage a file, resume.

    Raises
    ------
    FedGraphError
        The resume is refused, or clients refuse it.
    Judged
        It completes: "unchanged" or "changed".
    """
    name = rng.choice(_METHODS)
    base = _base(name, place.shared)
    for part in ("results", "state"):
        shutil.copytree(base / part, place.work / part)
    (folder,) = (place.work / "results").iterdir()
    files = sorted(
        p
        for part in ("results", "state")
        for p in (place.work / part).rglob("*")
        if p.is_file() and p.suffix not in (".png", ".lock")
    )
    # Some of a kind are many; each kind of file is to be as likely.
    kind = rng.choice(sorted({_kind(p) for p in files}))
    path = rng.choice([p for p in files if _kind(p) == kind])
    what = _damage(rng, path, place.canary, [p for p in files if _kind(p) == kind])
    note(f"{name}: {path.relative_to(place.work)}: {what}")
    run_inline({**small_run(name, place.work, _ROUNDS), "resume": str(folder)})
    summary = load_summary(folder)
    expected = json.loads((base / "expected.json").read_text())
    is_equal = summary["weights_sha256"] == expected
    raise Judged("unchanged" if is_equal else "changed")


def _kind(path: Path) -> str:
    return "".join(c for c in f"{path.parent.name}/{path.name}" if not c.isdigit())


def _damage(rng: random.Random, path: Path, canary: Path, others: list[Path]) -> str:
    """Change one file; say how."""
    how = rng.choice(
        ["change"] * 6 + ["delete", "folder", "swap", "link", "unreadable"]
    )
    if how == "change":
        what, data = of_file(rng, path.name, path.read_bytes())
        path.write_bytes(data)
        return what
    if how == "swap":
        other = rng.choice(others)
        data = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
        return f"swap with {other.name} of {other.parent.name}"
    if how == "unreadable":
        path.chmod(0)
        return how
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(canary / "patients.txt")
    return how


def _base(name: str, shared: Path) -> Path:
    """Make the run to damage, once; return the hash that it must end with."""
    base = shared / f"state-{name}"
    with locked(base):
        if not (base / "expected.json").is_file():
            shutil.rmtree(base, ignore_errors=True)
            whole = run_inline(small_run(name, base / "whole", _ROUNDS))
            run_inline(small_run(name, base, _BEFORE))
            expected = load_summary(whole)["weights_sha256"]
            (base / "expected.json").write_text(json.dumps(expected))
    return base

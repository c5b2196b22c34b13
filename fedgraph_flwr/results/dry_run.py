"""The report of a dry run: seconds and bytes of one round, and nothing else."""

from __future__ import annotations

import shutil
from typing import Any

from strategies.base import AbstractGraphStrategy

from ..core.files import write_json
from .folder import RunFolder
from .reader import LEDGER, read_rows

REPORT = "dry-run.json"


def report(folder: RunFolder, strategy: AbstractGraphStrategy) -> dict[str, Any]:
    """Empty the folder of a dry run, but for a report of what its round took.

    Returns seconds and bytes of each client, and about those of the planned run.
    """
    settings, so_far = folder.resolved.settings, folder.so_far
    bytes_of: dict[int, dict[str, int]] = {c: {} for c in sorted(strategy.clients)}
    for number, of, direction, _, size in read_rows(folder.path / LEDGER):
        client = bytes_of.get(int(of))
        if client is not None and number == "1":
            way = f"bytes_{direction}"
            client[way] = client.get(way, 0) + int(size)
    rounds, seconds = settings.num_server_rounds, so_far.times["wall_s"]
    moved = sum(sum(entry.values()) for entry in bytes_of.values())
    found: dict[str, Any] = {
        "method": settings.method,
        "dataset": settings.dataset,
        "seconds": seconds,
        "bytes": moved,
        "clients": {
            str(c): {"seconds": strategy.compute_s.get(c), **entry}
            for c, entry in bytes_of.items()
        },
        "failures": so_far.failures,
        "planned_rounds": rounds,
        "planned_seconds": seconds * rounds,
        "planned_bytes": moved * rounds,
    }
    for entry in folder.path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    write_json(folder.path / REPORT, found)
    return found


def describe(found: dict[str, Any]) -> str:
    """Word the report for the log."""
    return (
        f"dry run: one round took {found['seconds']:.1f} s and moved"
        f" {found['bytes'] / 1e6:.2f} MB; {found['planned_rounds']} rounds would take"
        f" about {found['planned_seconds'] / 60:.1f} min and move"
        f" {found['planned_bytes'] / 1e6:.1f} MB. Each client is in {REPORT}"
    )

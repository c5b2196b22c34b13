"""Commands as they are typed, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from simulations.cli import main as fedgraph


def at_site(arguments: Sequence[str]) -> int:
    """Type ``fedgraph site ...``; returns the exit code."""
    return fedgraph(["site", *arguments])

"""Arguments that several measurements have."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Parts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_settings(part: argparse.ArgumentParser) -> None:
    """Add ``--set``."""
    part.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="a further run-config key; may be repeated",
    )  # fmt: skip


def add_repeats(part: argparse.ArgumentParser, default: int) -> None:
    """Add ``--repeats``."""
    part.add_argument("--repeats", type=int, default=default, help="to take medians of")

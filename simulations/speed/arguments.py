"""Arguments that several measurements have."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Parts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_repeats(part: argparse.ArgumentParser, default: int) -> None:
    """Add ``--repeats``."""
    part.add_argument("--repeats", type=int, default=default, help="to take medians of")

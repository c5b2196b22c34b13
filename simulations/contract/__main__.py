"""Say what holds of a method: ``python -m simulations.contract my_module:METHOD``.

Exits with 0 if everything holds, 1 if something does not, 2 if the method could not be
looked at.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import textwrap
import traceback
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.markup import escape

from fedgraph_flwr.command import command
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.registry import find_method
from fedgraph_flwr.tasks import Task

from ..run import add_settings
from .checks import CHECKS, Broken, Check
from .data import federation
from .lab import Lab, row

_HOLDS, _BROKEN = 0, 1
_WIDTH = 88
console = Console(highlight=False, soft_wrap=True)


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.contract",
        description="Try a method on small graphs, and say in words what holds of it.",
    )
    parser.add_argument(
        "method", metavar="METHOD", help="e.g. fedavg, or fgx:METHOD of plugins/fgx.py"
    )
    parser.add_argument(
        "--task", default="", help="one task only, by its key (default: all it can do)"
    )
    add_settings(parser)
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    arguments = make_parser().parse_args(argv)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    code = _HOLDS
    for task in _tasks(arguments.method, arguments.task):
        case = f"{arguments.method} {task.key}"
        console.print(f"[bold]{escape(arguments.method)}[/], {task.name}")
        with (
            tempfile.TemporaryDirectory(prefix="contract-") as folder,
            mock.patch("datasets.load_partition", federation),
            mock.patch("fedgraph_flwr.server_app.draw_all"),
        ):
            lab = Lab(Path(folder), dict(arguments.set))
            row(case)
            code = max(code, _check_all(lab, case))
    return code


def _tasks(method: str, key: str) -> list[Task]:
    """List the tasks to try."""
    tasks = [t for t in find_method(method).clients if key in ("", t.key)]
    if not tasks:
        known = ", ".join(t.key for t in find_method(method).clients)
        raise ConfigError(f"--task must be one of {known}, got {key!r}")
    return tasks


def _check_all(lab: Lab, case: str) -> int:
    """Run all checks and print a line of each; nothing more if it does not run."""
    code = _HOLDS
    for check in CHECKS:
        broken, words = _try(check, lab, case)
        word = "[red]BROKEN[/]" if broken else "[green]holds[/] "
        console.print(f"  {check.name:<9} {word} {check.holds}")
        for line in textwrap.wrap(words, _WIDTH - 20):
            console.print(f"{'':<19}{escape(line)}")
        if broken:
            code = _BROKEN
            if check is CHECKS[0]:
                console.print("  Nothing else was looked at.")
                break
    return code


def _try(check: Check, lab: Lab, case: str) -> tuple[bool, str]:
    """Return whether a check fails, and its words."""
    try:
        return False, check.function(lab, case) or ""
    except Broken as error:
        return True, str(error)
    except ConfigError:
        raise
    except Exception as error:  # whatever a method may raise is its own
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            True,
            f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})",
        )


if __name__ == "__main__":
    sys.exit(main())

"""``python -m fedgraph_flwr.site COMMAND``; each command is a module of this folder.

A command's module has a docstring, whose first line ``--help`` shows, and two
functions. One is ``add_arguments(parser)``. The other is ``run(args)``; it returns an
exit code: 0 (fine), 1 (problems were found) or 2 (the command could not look); after
Ctrl-C or SIGTERM it is 130. A `FedGraphError` that reaches this module is said on
stderr, with exit code 2. Each command has ``--json``: then stdout holds one JSON
object, also with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module

from fedgraph_flwr.core.command import UNABLE, command
from fedgraph_flwr.core.errors import FedGraphError

COMMANDS: tuple[str, ...] = ("schema", "check", "baseline", "predict", "audit")


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fedgraph_flwr.site",
        description="Commands for the operator of a site. Nothing leaves the site.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    given = list(sys.argv[1:] if argv is None else argv)
    chosen = [name for name in COMMANDS if name in given[:1]]
    for name in chosen or COMMANDS:  # imports of the others may take seconds
        module = import_module(f"fedgraph_flwr.site.{name.replace('-', '_')}")
        words = (module.__doc__ or "").strip()
        added = commands.add_parser(
            name, help=words.splitlines()[0].rstrip("."), description=words
        )
        module.add_arguments(added)
        added.add_argument("--json", action="store_true", help="print JSON instead")
        added.set_defaults(run=module.run)
    args = parser.parse_args(given)
    try:
        return int(args.run(args))
    except FedGraphError as error:
        if args.json:
            print(json.dumps({"exit_code": UNABLE, "error": str(error)}))
        raise


if __name__ == "__main__":
    sys.exit(main())

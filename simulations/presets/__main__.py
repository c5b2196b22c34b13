"""List presets: ``python -m simulations.presets [PART OF A NAME]``."""

from __future__ import annotations

import argparse
import signal
import sys

from fedgraph_flwr.core.command import command

from . import list_presets


@command
def main(argv: list[str] | None = None) -> int:
    """List presets whose name contains the given text: name and description."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.presets", description="List presets."
    )
    parser.add_argument("part", nargs="?", default="", help="of a preset's name")
    part = parser.parse_args(argv).part
    found = {n: text for n, text in list_presets().items() if part in n}
    width = max(map(len, found), default=0)
    for name, description in found.items():
        sys.stdout.write(f"{name:<{width}}  {description}\n")
    return 0 if found else 1


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as other commands before `| head`
    sys.exit(main())

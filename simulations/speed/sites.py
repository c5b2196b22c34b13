"""A round over SuperNodes of this machine, of two kinds, with and without a worker.

The same run inline is the work itself; what is beyond it are processes, messages and
waits. Flower's SuperNodes ask for messages every half second here, not every three. The
SuperLink keeps its database in a file, and for the last row in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from typing_extensions import override

from fedgraph_flwr.errors import RunFailedError
from fedgraph_flwr.results.reader import read_times
from fedgraph_flwr.rules import Value

from ..inline import run_inline
from ..processes import Federation, environment
from .arguments import Parts
from .timing import print_table

_LIMIT_S = 1800.0
_BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": ""}  # is kept, even if this shell wants none
# For those that wait by Flower's own rules.
_PROMPT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", "FEDGRAPH_POLL_S": "0.5"}


class Forgetful(Federation):
    """A federation whose SuperLink keeps its database in memory."""

    @override
    def superlink_command(self) -> list[str]:
        command = super().superlink_command()
        first = command.index("--database")
        return [*command[:first], *command[first + 2 :]]


_STAYS = " resident=true"
_KINDS: dict[str, tuple[bool, str, type[Federation]]] = {
    "flower-supernode": (False, "", Federation),
    "flower-supernode, resident=true": (False, _STAYS, Federation),
    "site/supernode.py": (True, "", Federation),
    "site/supernode.py, resident=true": (True, _STAYS, Federation),
    "the same, no --database": (True, _STAYS, Forgetful),
}


def add_sites(parts: Parts) -> None:
    """Declare ``sites`` and its arguments."""
    part = parts.add_parser("sites", help="a round over SuperNodes, resident or not")
    part.set_defaults(measure=measure_sites)
    part.add_argument("--sites", type=int, default=3)
    part.add_argument("--rounds", type=int, default=10, help="per run")
    part.add_argument("--method", default="fedavg")


def measure_sites(arguments: argparse.Namespace) -> int:
    """Print the median seconds of a round of each kind."""
    config: dict[str, Value] = {
        "method": arguments.method,
        "dataset": "synthetic",
        "num-clients": arguments.sites,
        "num-server-rounds": arguments.rounds,
        "patience": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = _measure(config, arguments.sites, Path(folder))
    title = f"{arguments.method} on synthetic, {arguments.sites} sites"
    print_table(f"{title}, {arguments.rounds} rounds", rows)
    return 0


def _measure(config: dict[str, Value], sites: int, root: Path) -> list[dict[str, str]]:
    places = {f"{k}-dir": str(root / "inline" / k) for k in ("results", "state")}
    found = {"inline, one process": run_inline({**config, **places})}
    for number, (kind, (is_warm, given, start)) in enumerate(_KINDS.items()):
        folder = root / str(number)
        folder.mkdir()
        nodes = [f'clients="{c}"{given}' for c in range(sites)]
        prompt = {} if is_warm else _PROMPT
        variables = {**environment(folder / "flwr"), **_BYTE_CODE, **prompt}
        warm = range(sites if is_warm else 0)
        with start(folder, variables, nodes, warm=warm) as federation:
            results = folder / "results"
            run_id = federation.submit({**config, "results-dir": str(results)})
            status = federation.wait(run_id, limit_s=_LIMIT_S)
            if status != "finished:completed":
                raise RunFailedError(f"{status}\n{federation.log(run_id)}")
        (found[kind],) = (p for p in results.iterdir() if p.is_dir())
    alone = read_times(found["inline, one process"])
    work = statistics.median(row.wall_s for row in alone)
    return [
        {
            "sites": kind,
            "first round s": f"{times[0]:.2f}",
            "later rounds s (median)": f"{statistics.median(times[1:]):.2f}",
            "least to most": f"{min(times[1:]):.2f} to {max(times[1:]):.2f}",
            "beside the work s": f"{statistics.median(times[1:]) - work:.2f}",
        }
        for kind, path in found.items()
        for times in [[row.wall_s for row in read_times(path)]]
    ]

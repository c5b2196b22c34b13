"""Runs of which nothing is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedgraph_flwr.rules import Value

from .flower import run_flower
from .inline import run_inline


@contextmanager
def finished_run(
    overrides: Mapping[str, Value], num_nodes: int = 0, num_gpus: float = 0.0
) -> Iterator[Path]:
    """Run in this process, or through Flower on ``num_nodes``; give the results folder.

    Files of clients lie in ``state``, beside ``results``. All go when this is left.

    Raises
    ------
    FedGraphError
        As :func:`~simulations.inline.run_inline` and
        :func:`~simulations.flower.run_flower`.
    """
    with tempfile.TemporaryDirectory() as folder:
        places = {f"{kind}-dir": f"{folder}/{kind}" for kind in ("results", "state")}
        given = {**overrides, **places}
        if num_nodes:
            yield run_flower(given, num_nodes=num_nodes, num_gpus=num_gpus)
        else:
            yield run_inline(given)

"""``fedgraph example-data``: example files of own data.

It writes three folders: ``graphs`` (whole graphs of three sites, one of which has two
bad rows), ``bank`` (one graph for each of two sites, whose nodes are classified) and
``molecules`` (a table of SMILES with numbers for each of two sites). The data are
generated, and the same each time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.seeding import numpy_rng

SITES = {"north": 60, "south": 80, "west": 100}  # graphs
BANKS = {"bank-a": 150, "bank-b": 200}  # nodes
LABS = {"lab-a": 40, "lab-b": 60}  # molecules
BAD_SITE = "west"
_PARTS = ("C", "CC", "N", "O", "C(=O)", "c1ccccc1", "C(C)", "CO", "S")


def write_examples(folder: Path) -> list[Path]:
    """Write all examples into a new or empty folder; return the three folders."""
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty; name a new folder")
    try:
        for name, count in SITES.items():
            _write_graphs(folder / "graphs" / name, name, count)
        for name, count in BANKS.items():
            _write_bank(folder / "bank" / name, name, count)
        for name, count in LABS.items():
            _write_molecules(folder / "molecules", name, count)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error}; name another folder"
        ) from error
    return [folder / "graphs", folder / "bank", folder / "molecules"]


def _write(path: Path, header: str, rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_graphs(folder: Path, name: str, count: int) -> None:
    """Machines; a worn one has more joints between parts, and warmer parts."""
    rng = numpy_rng(7, "example", name)
    graphs, nodes, edges = [], [], []
    for number in range(count):
        graph, worn = f"{name}-{number}", number % 3 == 0
        size = int(rng.integers(6, 13))
        graphs.append((graph, "worn" if worn else "fine"))
        for node in range(size):
            warmth = f"{rng.normal(48 if worn else 45, 3):.1f}"
            part = str(rng.choice(["gear", "shaft", "motor"]))
            nodes.append((graph, node, "" if rng.random() < 0.03 else warmth, part))
        edges += [(graph, node, node + 1, "bolt") for node in range(size - 1)]
        extra = rng.integers(0, size, (4 if worn else 1, 2))
        edges += [(graph, a, b, "weld") for a, b in extra.tolist() if a != b]
    if name == BAD_SITE:
        nodes[20] = (*nodes[20][:2], "warm", nodes[20][3])
        edges[40] = (edges[40][0], 99, *edges[40][2:])
    _write(folder / "graphs.csv", "graph,state", graphs)
    _write(folder / "nodes.csv", "graph,node,warmth,part", nodes)
    _write(folder / "edges.csv", "graph,source,target,joint", edges)


def _write_bank(folder: Path, name: str, count: int) -> None:
    """Accounts, joined by payments; a third of the labels are not known."""
    rng = numpy_rng(7, "example", name)
    is_fraud = rng.random(count) < 0.3
    names = [f"{name}-{number}" for number in range(count)]
    nodes = [
        (
            names[number],
            f"{rng.lognormal(6 + is_fraud[number], 1):.2f}",
            str(rng.choice(["private", "business"])),
            "" if rng.random() < 1 / 3 else "fraud" if is_fraud[number] else "ok",
        )
        for number in range(count)
    ]
    pairs = rng.integers(0, count, (3 * count, 2)).tolist()
    joined = [
        (names[a], names[b])
        for a, b in pairs
        if a != b and (is_fraud[a] == is_fraud[b] or rng.random() < 0.2)
    ]
    _write(folder / "nodes.csv", "node,turnover,segment,label", nodes)
    _write(folder / "edges.csv", "source,target", joined)


def _write_molecules(folder: Path, name: str, count: int) -> None:
    """Chains of groups; the number to predict falls with their carbon."""
    rng = numpy_rng(7, "example", name)
    rows = []
    for number in range(count):
        smiles = "".join(rng.choice(_PARTS, int(rng.integers(2, 7))))
        carbon = smiles.upper().count("C")
        rows.append((number + 1, smiles, f"{-0.3 * carbon + rng.normal(0, 0.2):.2f}"))
    _write(folder / f"{name}.csv", "id,smiles,solubility", rows)


def example_data(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
) -> int:
    """Write example files of own data into a new folder."""
    for made in write_examples(folder):
        found = sorted(made.rglob("*.csv"))
        sys.stdout.write(f"{made}: {len(found)} files\n")
    return 0

"""``fedgraph site explain``: what nodes and edges add to a prediction, as CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import datasets

from ..core.errors import ConfigError, DataError
from ..core.files import write_csv, write_text
from ..core.words import shortened
from ..trained import load_model
from ..trained.attribution import Explanation, explain
from .findings import AsJson, CacheDir, Device

_HEAD = ("item", "output", "part", "node", "other", "feature", "value")
_RED, _BLUE = np.array([0.9, 0.3, 0.2]), np.array([0.2, 0.45, 0.9])


def explain_items(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    folder: Annotated[Path, typer.Argument(help="Items, as for predict.")],
    *,
    items: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Which, with commas: names as in the first column of predictions.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The CSV file to write.")],
    output: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="A class, else the predicted one; or a target."
        ),
    ] = "",
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Molecules: a folder for a picture of each."),
    ] = None,
    name: Annotated[
        str,
        typer.Option("--model", metavar="NAME", help="Which of several models."),
    ] = "",
    device: Device = "cpu",
    cache_dir: CacheDir = "",
    as_json: AsJson = False,
) -> int:
    """Explain predictions by integrated gradients, as a CSV file.

    A row says how much a feature of a node, an edge or a feature of an edge adds to the
    log-odds of the output, or to the predicted number, on the way from the baseline:
    the same nodes, all features 0, no message along an edge. All rows of an item add up
    to the difference of both outputs but for a gap, which is told.
    """
    loaded = load_model(model, name, device=device, cache_dir=cache_dir)
    found = loaded.new_items(folder)
    chosen = [n.strip() for n in items.split(",") if n.strip()]
    if unknown := [n for n in chosen if n not in found.names]:
        raise DataError(
            f"{folder} has no {found.column} {unknown[0]!r} that can be predicted; it"
            f" has {shortened(', '.join(found.names))}: correct --items"
        )
    names = datasets.column_names(loaded.settings, loaded.about.schema)
    rows, told = list[tuple[Any, ...]](), list[dict[str, Any]]()
    for item in chosen:
        at = found.names.index(item)
        why = explain(loaded, found.graphs, at, output)
        nodes = list(map(str, range(len(why.of_nodes))))
        mol = datasets.molecule_at(loaded.settings, folder, item)
        if mol is not None:
            nodes = [f"{a.GetSymbol()}{a.GetIdx()}" for a in mol.GetAtoms()]
        elif found.column == "node":
            nodes = found.names
        if pictures and mol is None:
            raise ConfigError(
                f"--pictures draws molecules, and the model reads {found.column}s of"
                f" {loaded.settings.dataset!r}: leave it out"
            )
        if pictures:
            write_text(pictures / f"{item}.svg", draw(mol, why))
        rows += [(item, why.output, *row) for row in _rows(why, nodes, names)]
        keys = ("output", "value", "baseline", "gap")
        told.append({"item": item, **{k: getattr(why, k) for k in keys}})
    write_csv(out, (_HEAD, *rows))
    if as_json:
        print(json.dumps({"out": str(out), "items": told}))
        return 0
    for of in told:
        print(
            f"{found.column} {of['item']}, {of['output']}: {of['value']:.4g}, baseline"
            f" {of['baseline']:.4g}, gap {of['gap']:.1g}"
        )
    print(f"{len(rows)} rows: {out}")
    return 0


def _rows(
    why: Explanation, nodes: list[str], names: tuple[list[str], list[str]]
) -> Iterator[tuple[Any, ...]]:
    """Rows of one item: totals, then all contributions other than 0."""
    yield ("value", "", "", "", why.value)
    yield ("baseline", "", "", "", why.baseline)
    yield ("gap", "", "", "", why.gap)
    ends = [(nodes[u], nodes[v]) for u, v in why.edges.T.tolist()]
    for row, column in np.argwhere(why.of_nodes).tolist():
        value = why.of_nodes[row, column]
        yield ("node", nodes[row], "", _name(names[0], column), float(value))
    for row in np.flatnonzero(why.of_edges).tolist():
        yield ("edge", *ends[row], "", float(why.of_edges[row]))
    for row, column in np.argwhere(why.of_edge_features).tolist():
        value = why.of_edge_features[row, column]
        yield ("edge feature", *ends[row], _name(names[1], column), float(value))


def _name(names: list[str], column: int) -> str:
    return names[column] if column < len(names) else str(column)


def draw(mol: Any, why: Explanation) -> str:
    """Draw a molecule as SVG: red speaks for the output, blue against it."""
    from rdkit.Chem.Draw import rdMolDraw2D

    atoms = why.of_nodes.sum(1)
    bonds = why.of_edges + why.of_edge_features.sum(1)
    most = max(abs(np.append(atoms, bonds)).max(), 1e-12)
    colours = [
        {k: tuple(1 - abs(v) / most * (1 - (_RED if v > 0 else _BLUE))) for k, v in of}
        for of in (
            enumerate(atoms),
            [(mol.GetBondBetweenAtoms(int(u), int(v)).GetIdx(), b)
             for (u, v), b in zip(why.edges.T, bonds, strict=True)],
        )
    ]  # fmt: skip
    canvas = rdMolDraw2D.MolDraw2DSVG(420, 320)
    rdMolDraw2D.PrepareAndDrawMolecule(
        canvas,
        mol,
        legend=f"{why.output}: {why.value:.3g}",
        highlightAtoms=[*colours[0]],
        highlightAtomColors=colours[0],
        highlightBonds=[*colours[1]],
        highlightBondColors=colours[1],
    )
    canvas.FinishDrawing()
    return str(canvas.GetDrawingText())

"""What the inputs of a model are called: columns of features, and molecules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedgraph_flwr.core.config import RunSettings

from ..molecules import (
    BONDS,
    FEATURES,
    NUM_STEREO,
    ORDERS,
    SMILES_CSV,
    Mol,
    atom_column_names,
    feature_columns,
    order_free,
    parse_smiles,
)
from ..tabular.schema_file import INDICATOR, Feature
from ..tabular.table import read_rows
from .new_items import only_csv, reads_molecules, schema_of


def column_names(settings: RunSettings, schema: str) -> tuple[list[str], list[str]]:
    """Names of the columns of features of nodes and of edges; empty if they have none.

    ``schema`` is the text of the schema, if data have one.
    """
    if schema:
        read = schema_of(schema)
        return _of_tables(read.features), _of_tables(read.edge_features)
    if not reads_molecules(settings) or settings.features not in FEATURES:
        return [], []
    atoms = atom_column_names()
    bonds = [*(f"order={o.lower()}" for o in ORDERS), "order=other"]
    bonds += ["conjugated", "ring", *(f"stereo={k}" for k in range(NUM_STEREO))]
    return (
        [atoms[k] for k in feature_columns(settings.features)],
        bonds if settings.features == BONDS else [],
    )


def _of_tables(features: Sequence[Feature]) -> list[str]:
    """Names of encoded columns, in their order."""
    found = []
    for feature in features:
        values = [f"{feature.column}={c}" for c in feature.categories]
        values += [f"{feature.column}=other"] * feature.other
        found += values or [feature.column]
        found += [f"{feature.column} missing"] * (feature.missing == INDICATOR)
    return found


def molecule_at(settings: RunSettings, path: Path, line: str) -> Mol | None:
    """Read the molecule of a line, its atoms in the order of nodes; None of others."""
    if not reads_molecules(settings):
        return None
    rows = read_rows(only_csv(path))
    at = list(map(str, rows.lines)).index(line)
    mol = parse_smiles(rows.cells[settings.csv_smiles_column][at])
    return order_free(mol) if settings.dataset == SMILES_CSV else mol

"""Graphs, nodes or molecules that nobody has labelled yet, to be predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.tasks import EDGE_CLASSIFICATION, LINK_PREDICTION

from ..catalog import find_dataset, has_own_graphs, has_schema, reads_edges
from ..edge_items import as_items
from ..molecules import (
    SMILES_CSV,
    MoleculeBuilder,
    add_all,
    list_all,
    warn_left_out,
    warn_once,
)
from ..public.tu import load_tu
from ..tabular.encode import first_few
from ..tabular.rows import Names
from ..tabular.schema_file import GRAPHS_CSV, KEYS, SCHEMA_FILE, Schema, read_schema
from ..tabular.table import Table, find_tables, is_csv, no_column, read_rows
from .graph_tables import build
from .smiles import find_column

_PAIRS = "pairs.csv"  # beside the tables of a graph whose links are learned


@dataclass(frozen=True, kw_only=True)
class NewItems:
    """Items to be predicted.

    Parameters
    ----------
    graphs : GraphSet
        Its ``y`` means nothing.
    names : list of str
        Of each graph; of each node where nodes are classified.
    column : str
        What a name is: "line", "graph" or "node".
    unfit : list of (str, str)
        Names of what cannot be used, once for each reason, and the reason.
    """

    graphs: GraphSet
    names: list[str]
    column: str
    unfit: list[tuple[str, str]]


def load_new(
    settings: RunSettings, path: Path, tasks: list[str], *, schema: str = ""
) -> NewItems:
    """Read new items as a run with these settings reads its own.

    Parameters
    ----------
    settings : RunSettings
        Of the run that trained the model.
    path : Path
        A CSV file of SMILES, a folder with one, a folder with a TU set, or a folder of
        tables without targets.
    tasks : list of str
        Labels that the model predicts, for molecules.
    schema : str
        Text of the schema of tables; "" reads ``schema.toml`` in the folder.

    Raises
    ------
    ConfigError
        New items of that data set have no form.
    DataError
        A file is missing or wrong.
    """
    info = find_dataset(settings.dataset)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}; correct the path")
    if has_schema(settings):
        return _tables(settings, path, schema)
    if reads_molecules(settings):
        return _molecules(settings, only_csv(path), tasks)
    if has_own_graphs(settings):
        name = info.members[0]
        kept = load_tu(
            name,
            settings.features,
            with_edges=reads_edges(settings),
            data_dir=str(path),
            cache_dir=settings.cache_dir,
        )
        graphs = kept.take(np.arange(len(kept)))  # torch warns about read-only arrays
        names = [str(g + 1) for g in range(len(graphs))]  # as TU's files count
        return NewItems(graphs=graphs, names=names, column="graph", unfit=[])
    raise ConfigError(
        f"dataset {info.name!r} has no form for new items; --test predicts the test"
        " items of the run"
    )


def reads_molecules(settings: RunSettings) -> bool:
    """Whether new items are molecules."""
    kind = find_dataset(settings.dataset).kind
    return not has_schema(settings) and kind in ("binary", "regression", "")


def schema_of(text: str) -> Schema:
    """Read a schema from its text."""
    with TemporaryDirectory() as scratch:  # messages name the file and the line
        place = Path(scratch) / SCHEMA_FILE
        place.write_text(text, encoding="utf-8")
        return read_schema(place)


def _tables(settings: RunSettings, path: Path, schema: str) -> NewItems:
    read = schema_of(schema) if schema else read_schema(path / SCHEMA_FILE)
    made, names, unfit = build(
        path, read, bad_rows=settings.csv_bad_rows, needs_targets=False
    )
    for remark in made.remarks:
        warn_once(f"{path}: {remark}")
    if settings.task == LINK_PREDICTION.key:
        return _pairs(made, names, path / _PAIRS, [text for _, text in unfit])
    if settings.task == EDGE_CLASSIFICATION.key:
        assert made.edge_row is not None  # as the schema names a column of classes
        graphs = as_items(made)
        table = find_tables(path, whole_graphs=False).edges
        rows = made.edge_row[graphs.item_edge].tolist()
        names = [str(table.rows.lines[row]) for row in rows]
        unfit = _other_lines(table, rows, unfit)
        return NewItems(graphs=graphs, names=names, column="line", unfit=unfit)
    column = "graph" if read.dataset == GRAPHS_CSV else "node"
    return NewItems(graphs=made, names=names, column=column, unfit=unfit)


def _other_lines(
    table: Table, predicted: list[int], unfit: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Lines of a table of edges that are not predicted, and why.

    ``unfit`` says what is wrong with rows of edges, and with nodes by their names. The
    other direction of a predicted row is predicted with it.
    """
    said = {name or text.partition(", column ")[0]: text for name, text in unfit}
    ends = list(zip(*(table.rows.cells[end] for end in KEYS["edges"]), strict=True))
    known = {ends[row] for row in predicted}
    found = []
    for row in sorted({*range(len(ends))} - {*predicted}):
        line, (source, target) = table.rows.lines[row], ends[row]
        places = f"{table.name}, line {line}", source, target
        why = next((said[place] for place in places if place in said), "")
        if not why and source != target and (target, source) in known:
            continue
        none = "an end is in no table; outside of the schema drops such rows"
        if source == target:
            none = "it joins a node to itself; self-loops of [edges] drops such rows"
        found.append((str(line), why or none))
    return found


def _pairs(graphs: GraphSet, nodes: list[str], path: Path, bad: list[str]) -> NewItems:
    """Pairs of nodes that may be links: the rows of a file beside the tables."""
    if bad:
        warn_left_out(f"rows of {path.parent} do not fit the schema", bad)
    if not path.exists():
        raise DataError(
            f"there is no {path}; list the pairs to predict there, in columns source"
            " and target, or give --test"
        )
    rows, columns = read_rows(path), KEYS["edges"]
    for column in columns:
        if column not in rows.cells:
            raise no_column(str(path), column, rows.cells, "name a node in each row")
    number_of = {name: at for at, name in enumerate(nodes)}
    known = Names("node", number_of, "nodes.csv", drop=False)
    ends = np.stack([known.numbers(rows.cells[c]) for c in columns])
    unfit = [
        (str(rows.lines[row]), text)
        for column, found in zip(columns, ends, strict=True)
        for row, _, text in known.flaws(column, rows, found < 0)
    ]
    kept = np.flatnonzero((ends >= 0).all(axis=0))
    if not len(kept):
        found = first_few([text for _, text in unfit])
        raise DataError(f"{path} has no pair of nodes that are known: {found}")
    y = np.full((len(kept), 1), np.nan, np.float32)
    made = replace(
        graphs, pairs=ends[:, kept], y=y, num_classes=1, classes=[], time=None
    )
    names = [str(rows.lines[row]) for row in kept.tolist()]
    return NewItems(graphs=made, names=names, column="line", unfit=unfit)


def only_csv(path: Path) -> Path:
    """Return the one CSV file that a path leads to."""
    if path.is_file():
        return path
    found = sorted(filter(is_csv, path.iterdir()))
    if len(found) != 1:
        raise DataError(
            f"{path} has {len(found)} .csv files; give the path of the one to predict"
        )
    return found[0]


def _molecules(settings: RunSettings, path: Path, tasks: list[str]) -> NewItems:
    rows = read_rows(path)
    column = settings.csv_smiles_column
    find_column(column, rows, "csv-smiles-column", path)
    builder = MoleculeBuilder(as_written=settings.dataset != SMILES_CSV)
    kept, bad = add_all(builder, rows, column)
    names = [str(rows.lines[row]) for row in kept]
    unfit = [(str(line), why) for line, why in bad]
    if not names:
        raise DataError(
            f"{path} has no usable molecule; give a line of column names and a line for"
            f" each molecule{': ' * bool(unfit)}" + first_few(list_all(bad, "line"))
        )
    y = np.full((len(names), len(tasks)), np.nan, np.float32)
    made = builder.finish(settings.dataset, y, tasks, raw_sha256="", bad=[])
    graphs = made.take(np.arange(len(made)), settings.features)
    return NewItems(graphs=graphs, names=names, column="line", unfit=unfit)

"""The tables in a user's folder: CSV and Parquet files.

Everything comes out as text, cell by cell; ``encode`` turns it into numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

from ..tabular.schema_file import SPLIT
from ..tabular.table import (
    Rows,
    Table,
    Tables,
    as_rows,
    check_columns,
    read_csv,
)

CORRECT_PLACE = "correct data-dir (on a site: data-path of --node-config)"


def holds_tables(folder: Path, *, of_any_kind: bool = False) -> bool:
    """Whether a folder has tables itself, rather than folders of clients.

    A table of nodes is meant, or ``of_any_kind``.
    """
    stems = ("nodes", "edges", "graphs") if of_any_kind else ("nodes",)
    return any(_places(folder, stem) for stem in stems)


def wanted_tables(folder: Path) -> str:
    """Say which tables and columns a folder must have, and which files it has."""
    found = sorted(p.name for e in ("csv", "parquet") for p in folder.glob(f"*.{e}"))
    got = f"; got {shortened(', '.join(found))}: rename files and columns"
    sets = sorted(folder.glob("*_graph_indicator.txt"))
    if sets:
        name = sets[0].name.removesuffix("_graph_indicator.txt")
        got = (
            f"; a set in TU's layout lies here: put its files into {name}/raw, and set"
            f" dataset to 'tu:{name}' and partition to 'files'"
        )
    return (
        "one graph is nodes.csv (columns node, label, and what describes a node) and"
        " edges.csv (source, target); whole graphs are graphs.csv (graph, and what is"
        " to be predicted), nodes.csv (graph, node, ...) and edges.csv (graph, source,"
        f" target){got * bool(found or sets)}"
    )


def is_one_graph(folder: Path) -> bool:
    """Whether a folder has a table of nodes and none of graphs."""
    return any(_places(folder, "nodes")) and not any(_places(folder, "graphs"))


def find_tables(folder: Path, *, whole_graphs: bool) -> Tables:
    """Find the tables of one client.

    Parameters
    ----------
    folder : Path
        With ``nodes``, ``edges`` and, for whole graphs, ``graphs``, each as ``.csv`` or
        ``.parquet``.
    whole_graphs : bool

    Raises
    ------
    DataError
        A file is missing, there twice, or its first line names no usable columns.
    """
    return Tables(
        graphs=_table(folder, "graphs") if whole_graphs else None,
        nodes=_table(folder, "nodes"),
        edges=_table(folder, "edges"),
    )


def _places(folder: Path, stem: str) -> list[Path]:
    return [p for e in ("csv", "parquet") if (p := folder / f"{stem}.{e}").is_file()]


def _table(folder: Path, stem: str) -> Table:
    places = _places(folder, stem)
    if not places:
        raise DataError(
            f"{folder} has no {stem}.csv (nor {stem}.parquet): {wanted_tables(folder)};"
            f" write it as docs/own-data.md shows, or {CORRECT_PLACE}"
        )
    if len(places) > 1:
        raise DataError(
            f"{folder} has {stem}.csv and {stem}.parquet; delete one of them"
        )
    (path,) = places
    is_csv = path.suffix == ".csv"
    columns = next(read_csv(path), (0, []))[1] if is_csv else _parquet_columns(path)
    check_columns(path, columns)
    near = next((c for c in columns if c.lower() == SPLIT != c), None)
    if near is not None:
        raise DataError(
            f"{path}, line 1: column {near!r} is not read as {SPLIT!r}: call it so if"
            " it says which rows train, validate and test, and give it another name if"
            " not"
        )

    def read() -> Rows:
        if is_csv:
            return as_rows(columns, islice(read_csv(path), 1, None))
        return _parquet_rows(path, columns)

    unit = "line" if is_csv else "row"
    return Table(path, tuple(columns), read, unit=unit)


def _parquet_columns(path: Path) -> list[str]:
    try:
        from pyarrow import parquet

        return [str(name).strip() for name in parquet.read_schema(path).names]
    except ImportError as error:
        raise DataError(
            f"{path} needs the package pyarrow, which is not installed: pip install"
            " pyarrow, or save the table as .csv"
        ) from error
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise _no_parquet(path, error) from error


def _no_parquet(
    path: Path, error: Exception, row: int = 1, column: str = ""
) -> DataError:
    place = f"{path}, row {row}" + (f", column {column!r}" if column else "")
    return DataError(
        f"{place}: cannot be read as Parquet: {error}; write it again, with"
        " columns of numbers, texts or truth values"
    )


def _parquet_rows(path: Path, columns: Sequence[str]) -> Rows:
    import pyarrow
    from pyarrow import compute, parquet

    found: dict[str, list[str]] = {name: [] for name in columns}
    name = ""
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for name, column in zip(columns, batch.columns, strict=True):
                    texts = compute.fill_null(column.cast(pyarrow.string()), "")
                    kind = getattr(column.type, "value_type", column.type)
                    if pyarrow.types.is_boolean(kind):  # True, as CSV files have it
                        texts = compute.utf8_capitalize(texts)
                    found[name] += [cell.strip() for cell in texts.to_pylist()]
                name = ""
    except (OSError, ValueError, NotImplementedError) as error:
        done = min(map(len, found.values()))
        raise _no_parquet(path, error, done + 1, name) from error
    return Rows(range(1, len(found[columns[0]]) + 1), found)

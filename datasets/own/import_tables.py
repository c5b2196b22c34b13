"""Makes the tables of one graph from a table of edges and one of nodes, as they are.

Columns get the names that own tables have; cells stay as they are, but for decimal
commas. With a column of sites, each site has a folder of its own.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import unwritable, whole_folder

from ..tabular.cells import alike, by_look, is_missing
from ..tabular.schema_file import KEYS, is_name
from ..tabular.table import Table, no_column

_Columns = dict[str, Sequence[str]]


def import_tables(
    edges: Table,
    nodes: Table | None,
    out: Path,
    *,
    edge_names: Mapping[str, str],
    node_names: Mapping[str, str],
    site: str = "",
    drop: Sequence[str] = (),
    all_nodes: bool = False,
) -> list[str]:
    """Write ``nodes.csv`` and ``edges.csv``, into a folder for each site if there are.

    An edge between two sites goes to both: its other end is in no row of nodes there.
    Returns what was kept and left out, in words.

    Parameters
    ----------
    edges, nodes : Table
        Without nodes, each end of an edge is a node.
    out : Path
        A new folder.
    edge_names, node_names : mapping of str
        Column of the file by the name that it gets: source, target, node, label, ....
    site : str
        Column of nodes; "" makes one folder.
    drop : sequence of str
        Columns to leave out.
    all_nodes : bool
        Whether ends of edges that ``nodes`` lacks become nodes with empty cells.

    Raises
    ------
    DataError
        A table cannot be read or lacks a column; a node is there twice; or ends of
        edges are no nodes, but look like some, or all are none.
    StorageError
        ``out`` cannot be written.
    """
    joins = renamed(edges, edge_names, drop)
    items: _Columns = {"node": ()}
    if nodes:
        items = renamed(nodes, node_names, [*drop, site])
        check_unique(nodes, items["node"])
    notes = [note for table in (nodes, edges) if table for note in told(table)]
    ends = list(zip(*(joins[end] for end in KEYS["edges"]), strict=True))
    known = {*items["node"]}
    named = dict.fromkeys(name for pair in ends for name in pair)
    strangers = [n for n in named if n not in known and not is_missing(n)]
    if nodes:
        _check_names(edges, nodes, known, strangers, are_all=known.isdisjoint(named))
        if strangers and not all_nodes:
            notes.append(
                f"{len(strangers)} end(s) of edges, such as {strangers[0]!r}, are in no"
                f" row of {nodes.name}: --all-nodes makes them nodes; else the schema"
                " says what becomes of edges whose end is outside"
            )
    more = strangers if all_nodes or not nodes else []
    gap = [""] * len(more)
    items = {k: [*v, *(more if k == "node" else gap)] for k, v in items.items()}
    homes: list[str] = ["all"] * len(items["node"])
    if nodes and site:
        homes = [*column_of(nodes, site), *gap]
    folders = by_site(homes, [True] * len(homes), notes)
    home = dict(zip(items["node"], homes, strict=True))
    rows_of: dict[str, list[int]] = {name: [] for name in folders}
    between, num_lost = dict.fromkeys(folders, 0), 0
    for row, pair in enumerate(ends):
        found = {home.get(end, "") for end in pair}
        at_home = [name for name in found if name in rows_of]
        num_lost += not at_home
        for name in at_home:
            rows_of[name].append(row)
            between[name] += len(found) > 1
    if num_lost:
        notes.append(f"{num_lost} of {len(ends)} edges join no node, and are left out")
    with new_folder(out) as made:
        for name, rows in folders.items():
            place = name if site else ""
            write(made / place / "nodes.csv", items, rows)
            write(made / place / "edges.csv", joins, rows_of[name])
            notes.append(
                f"{out / place}: {len(rows)} nodes, {len(rows_of[name])} edges"
                + f", {between[name]} with one end elsewhere" * bool(between[name])
            )
    return notes


def _check_names(
    edges: Table, nodes: Table, known: set[str], strangers: list[str], *, are_all: bool
) -> None:
    """Refuse ends of edges that look like nodes, and edges that name no node at all."""
    looks = by_look(known)
    like = [n for n in strangers if alike(n) in looks]
    got = f"{edges.path}: got {(like or strangers or [''])[0]!r} where {nodes.path} has"
    cure = "write ids alike in both, or name their columns by --source, --target, --id"
    if like:
        raise DataError(
            f"{got} {looks[alike(like[0])]!r}, and {len(like)} such end(s); {cure}"
        )
    if strangers and are_all:
        raise DataError(
            f"{got} {next(iter(known), 'nothing')!r}; none is there; {cure}"
        )


def renamed(table: Table, names: Mapping[str, str], drop: Sequence[str]) -> _Columns:
    """Return the columns of a table by their new names, those with new names first.

    Raises
    ------
    DataError
        A column is missing, or another one has the new name of one.
    """
    found = {name: column_of(table, column) for name, column in names.items()}
    for column, cells in table.rows.cells.items():
        if column in ("", *names.values(), *drop):
            continue
        if column in found:
            raise DataError(
                f"{table.path}, line 1: column {column!r} is there beside"
                f" {names[column]!r}, which gets that name; leave it out by --drop"
                f" {column}, or rename it"
            )
        found[column] = cells
    return found


def told(table: Table) -> list[str]:
    """Say how a table was read, and what :func:`renamed` leaves out."""
    found = [table.rows.told] * bool(table.rows.told)
    found += ["a column without a name is left out"] * ("" in table.columns)
    return [f"{table.name}: {text}" for text in found]


def check_unique(table: Table, names: Sequence[str]) -> None:
    """Refuse subjects or nodes that are there twice, as in two banks."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"{table.path}: {twice[0]!r} is there twice, one of {len(twice)} such;"
            " delete rows, give each its own name, or name another column by --id"
        )


def column_of(table: Table, column: str) -> Sequence[str]:
    """Return the cells of a column; DataError if it is not there."""
    if column not in table.columns:
        cure = (
            "name the right one; if that line names no columns, use --header for edges"
        )
        raise no_column(f"{table.path}, line 1:", column, table.columns, cure)
    return table.rows.cells[column]


def by_site(
    cells: Sequence[str], is_used: Sequence[bool], notes: list[str]
) -> dict[str, list[int]]:
    """Return the rows that are used by the name of their site, which names a folder."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(cells):
        if is_used[row] and not is_missing(name):
            found.setdefault(name, []).append(row)
    odd = [n for n in found if not is_name(n) or n[0] == "." or {*n} & {*"/\\:"}]
    if odd or not found:
        raise DataError(
            f"the column of sites must name folders, got {(odd or ['nothing'])[0]!r};"
            " rename this site, or name another column by --site"
        )
    if few := len(cells) - sum(map(len, found.values())):
        notes.append(f"{few} of {len(cells)} rows have no site or matrix: left out")
    return dict(sorted(found.items()))


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give the place of a folder to make, which is ``out`` once it is whole."""
    try:
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise DataError(f"{out} is there already; name a new folder by --out")
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(out) as made:
            yield made
    except OSError as error:
        raise unwritable(out, error) from error


def write(path: Path, columns: _Columns, rows: Iterable[int]) -> None:
    """Write some rows of columns as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(columns)
        cells = list(columns.values())
        writer.writerows([column[row] for column in cells] for row in rows)

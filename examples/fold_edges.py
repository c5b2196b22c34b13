"""Folds a column of edges.csv into columns of nodes.csv, which models can read.

``python -m examples.fold_edges FOLDER amount --out NEW.csv`` adds to each node how
often it is source and target, and sum and largest of the amounts: money sent and
received. A file that is there already is not written over.
"""

import argparse
import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

from datasets.tabular.encode import need_columns, read_numbers
from datasets.tabular.table import find_tables
from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import is_there, replacing


def rows_of(table, *needed):
    """Give the line and the cells of each row; refuse a table without a column."""
    need_columns(table, needed)
    for at, line in enumerate(table.rows.lines):
        yield line, {column: cells[at] for column, cells in table.rows.cells.items()}


def number(cell, place):
    """Return an amount."""
    found = float(read_numbers([cell])[0])
    if not math.isfinite(found):
        raise DataError(
            f"{place}: must be a finite number such as 1503.59, without marks of"
            f" thousands or a unit, got {cell!r}; correct it, or delete this row"
        )
    return found


def fold(folder, column):
    """Return the rows of ``nodes.csv``, each with six columns more."""
    tables = find_tables(folder, whole_graphs=False)
    columns = tables.nodes.columns + tables.edges.columns
    owner = ["graph"] if "graph" in columns else []
    amounts = {end: defaultdict(list) for end in ("source", "target")}
    for line, edge in rows_of(tables.edges, *owner, *amounts, column):
        amount = number(edge[column], tables.edges.at(line, column))
        for end, of_node in amounts.items():
            of_node[edge.get("graph"), edge[end]].append(amount)
    rows = []
    for _, row in rows_of(tables.nodes, *owner, "node"):
        for end, of_node in amounts.items():
            own = of_node[row.get("graph"), row["node"]]
            made = {"count": len(own), "sum": sum(own), "max": max(own, default=0.0)}
            for what, value in made.items():
                if (name := f"{end}_{what}") in tables.nodes.columns:
                    raise DataError(
                        f"{tables.nodes.at(1)}: has a column {name!r}, which is to be"
                        " added; rename it, or fold into the table without it"
                    )
                row[name] = value
        rows.append(row)
    return rows


@command
def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m examples.fold_edges", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("column", metavar="COLUMN", help="numbers of edges.csv")
    parser.add_argument("--out", metavar="NEW.csv", type=Path, required=True)
    args = parser.parse_args(argv)
    if is_there(args.out):
        raise DataError(
            f"--out {args.out} is there already, and may be a table that is read;"
            " choose a new file, and put it in the place of nodes.csv afterwards"
        )
    rows = fold(args.folder, args.column)
    if not rows:
        raise DataError(f"nodes.csv in {args.folder} has no row; add nodes to it")
    with (
        replacing(args.out) as partial,
        partial.open("w", encoding="utf-8", newline="") as file,
    ):
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    sys.stdout.write(f"{args.out}: {len(rows)} rows of nodes, with 6 columns more\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

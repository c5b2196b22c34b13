"""Folds a column of edges.csv into columns of nodes.csv, which models can read.

``python -m examples.fold_edges FOLDER amount > nodes.csv`` adds to each node how often
it is source and target, and sum and largest of the amounts: money sent and received.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fold(folder, column):
    """Return the rows of ``nodes.csv``, each with six columns more."""
    amounts = {end: defaultdict(list) for end in ("source", "target")}
    for edge in rows_of(folder / "edges.csv"):
        for end, of_node in amounts.items():
            of_node[edge.get("graph"), edge[end]].append(float(edge[column]))
    rows = rows_of(folder / "nodes.csv")
    for row in rows:
        for end, of_node in amounts.items():
            own = of_node[row.get("graph"), row["node"]]
            row[f"{end}_count"] = len(own)
            row[f"{end}_sum"] = sum(own)
            row[f"{end}_max"] = max(own, default=0.0)
    return rows


if __name__ == "__main__":
    folded = fold(Path(sys.argv[1]), sys.argv[2])
    table = csv.DictWriter(sys.stdout, folded[0], lineterminator="\n")
    table.writeheader()
    table.writerows(folded)

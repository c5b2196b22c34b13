"""Make a schema.toml from one site's tables, to be read by all sites.

The operator reads the file before sharing it: it holds names of columns, categories and
classes that at least --min-count graphs (or nodes) have, and rounded means and standard
deviations of columns of numbers. It holds no row, no smallest or largest value and no
rare category.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from datasets.own.infer import infer_schema
from datasets.tabular.cells import MIN_COUNT
from datasets.tabular.schema_file import TARGET_KINDS, write_schema
from fedgraph_flwr.core.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=Path, help="folder with one client's tables")
    parser.add_argument(
        "--out", type=Path, required=True, help="file to write, e.g. schema.toml"
    )
    parser.add_argument(
        "--targets",
        default="",
        help="columns of graphs to predict, separated by commas (default: the only one"
        " that looks like it; '*': all that do)",
    )
    parser.add_argument(
        "--kind",
        choices=("auto", *TARGET_KINDS),
        default="auto",
        help="classes (one per graph), binary (0 or 1 in each column), regression",
    )
    parser.add_argument(
        "--min-count",
        type=int,
        default=MIN_COUNT,
        help="graphs, or nodes of one graph, that must have a category for it to be"
        f" named (default {MIN_COUNT})",
    )
    parser.add_argument(
        "--no-statistics",
        action="store_true",
        help="tell no mean and no standard deviation; numbers are then not scaled",
    )


def run(args: argparse.Namespace) -> int:
    """Write the schema and say what was decided; exit code 0."""
    if args.min_count < 1:
        raise ConfigError(f"--min-count must be at least 1, got {args.min_count}")
    schema, notes = infer_schema(
        args.folder,
        targets=[t.strip() for t in args.targets.split(",") if t.strip()],
        kind=args.kind,
        min_count=args.min_count,
        statistics=not args.no_statistics,
    )
    write_schema(schema, args.out)
    if args.json:
        facts = {
            "features": schema.width,
            "outputs": schema.num_outputs,
            "notes": notes,
        }
        print(json.dumps({"out": str(args.out), "sha256": schema.sha256, **facts}))
        return 0
    for note in notes:
        print(f"- {note}")
    print(
        f"{args.out}: {schema.width} column(s) of features,"
        f" {schema.num_outputs} {'class(es)' if schema.classes else 'target(s)'}."
        " Read it, correct it, then give it to all sites."
    )
    return 0

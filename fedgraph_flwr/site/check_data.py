"""A site's data, and one round of training on them, in this process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import datasets

from ..agreement import name_classes
from ..core.config import RunSettings
from ..core.data import SPLITS, GraphPartition, GraphSet
from ..core.errors import ConfigError
from ..core.words import shortened
from ..node.node_config import PLUGINS, POLICY
from ..resolve import Resolved
from ..results.dry_run import REPORT
from .check_link import run_one
from .findings import OK, PROBLEM, Finding

_FEW = 10  # test items, below which a score says nothing
# And of a class with less than a third; of many labels, mostly rare, each has some.
_FEW_OF_CLASS = {"classes": 5, "nodes": 5, "binary": 1}
_SHOWN = 5  # of rows that name nodes or graphs which are in no table
_PLAIN = "fedavg"  # stands in for a method that one client cannot run alone


def read(
    resolved: Resolved, folder: Path, client: int, cache_dir: str
) -> GraphPartition:
    """Load the client's data as a run does that leaves out bad rows.

    Raises
    ------
    ConfigError, DataError
    """
    settings = _own(resolved.settings, folder, cache_dir)
    datasets.check_hosted(settings, [client])
    return datasets.load_partition(settings, client)


def describe(
    partition: GraphPartition, label_kind: str, held_out: float
) -> list[Finding]:
    """Sizes, splits and duplicates."""
    graphs = partition.graphs
    is_nodes = label_kind == "nodes"
    count = graphs.num_nodes if is_nodes else len(graphs)
    edges = graphs.edge_index.shape[1] // (2 if graphs.is_undirected else 1)
    found = (
        f"{count} {'nodes' if is_nodes else 'graphs'}, {edges} edges,"
        f" {graphs.num_features} features,"
        f" {graphs.num_classes} {'targets' if graphs.has_tasks else 'classes'}"
    )
    if partition.left_out:
        found += f"; left out: {partition.left_out}"
    findings = [
        Finding(what="data", state=OK, found=found),
        _splits(partition, held_out, label_kind),
    ]
    return findings if is_nodes else [*findings, _duplicates(partition)]


def left_out(
    resolved: Resolved, folder: Path, client: int, cache_dir: str
) -> list[Finding]:
    """Name all rows of own tables that cannot be used, and cells that are not known.

    Such rows are a problem if the run refuses them (``csv-bad-rows``).
    """
    settings = _own(resolved.settings, folder, cache_dir)
    notes = datasets.list_remarks(settings, client)
    remarks = [Finding(what="cells", state=OK, found=f"note: {text}") for text in notes]
    bad = datasets.list_bad_rows(settings, client)
    if not bad:
        return remarks
    count = datasets.count_rows(bad)
    found = [f"{count} cannot be used, their graphs or nodes are left out:"]
    strangers = [text for text in bad if text.endswith(datasets.ADD_IT)]
    if len(strangers) > 1:
        bad = [text for text in bad if not text.endswith(datasets.ADD_IT)]
        bad += [text.removesuffix(datasets.ADD_IT) for text in strangers[:_SHOWN]]
        rest = len(strangers) - _SHOWN
        bad.append(
            f"{f'and {rest} more like these; ' if rest > 0 else ''}add them there, or"
            " delete these rows; if they are accounts (or other nodes) of other sites,"
            ' set outside = "drop" above [target] in schema.toml at all sites'
        )
    found += bad
    is_refused = resolved.settings.csv_bad_rows == "refuse"
    return [
        *remarks,
        Finding(
            what="rows",
            state=PROBLEM if is_refused else OK,
            found="\n".join(found),
            cure="correct them, or agree with all sites on csv-bad-rows 'skip'",
        ),
    ]


@contextlib.contextmanager
def rows_are_findings() -> Iterator[None]:
    """Keep warnings of rows that are left out from the log: a finding names them."""
    logger = logging.getLogger("flwr.fedgraph")

    def is_other(record: logging.LogRecord) -> bool:
        return getattr(record, "about", "") != datasets.LEFT_OUT

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def _own(settings: RunSettings, folder: Path, cache_dir: str) -> RunSettings:
    """Return settings of a run that reads this folder, and leaves out bad rows."""
    place = str(folder.expanduser().absolute())
    return replace(settings, data_dir=place, cache_dir=cache_dir, csv_bad_rows="skip")


def _splits(
    partition: GraphPartition, held_out: float, label_kind: str = "classes"
) -> Finding:
    sizes = {split: len(partition.positions(split)) for split in SPLITS}
    found = ", ".join(f"{n} to {_USE[split]}" for split, n in sizes.items())
    least = _FEW_OF_CLASS.get(label_kind, 0)
    if counts := _test_classes(partition, label_kind):
        listed = [f"{n} of {name!r}" for name, n in counts.items()]
        found += f" ({shortened(', '.join(listed))})"
    if sizes["test"] < _FEW or not all(sizes.values()):
        cure = f"add items: fewer than {_FEW} test items say nothing of a model"
    elif min(counts.values(), default=least) < min(least, sizes["test"] / 3):
        cure = (
            f"add items of such a class: fewer than {least} in the test set say nothing"
            " of how well it is found, whatever the score of all"
        )
    else:
        return Finding(what="splits", state=OK, found=found)
    if held_out < 1:
        cure += f"; or agree with all sites on a held-out above {held_out:g}"
    return Finding(what="splits", state=PROBLEM, found=found, cure=cure)


def _test_classes(partition: GraphPartition, label_kind: str) -> dict[str, int]:
    """Count test items by class, the rarest first; of numbers to predict none."""
    graphs = partition.graphs
    if label_kind == "regression":
        return {}
    y = graphs.y[partition.test]
    if graphs.has_tasks:
        words = {
            f"{partition.tasks[t]}: {word}": np.sum(y[:, t] == value)
            for t in partition.owned_tasks
            for value, word in enumerate(("no", "yes"))
        }
    else:
        names = name_classes(graphs.classes, graphs.num_classes)
        words = dict(zip(names, np.bincount(y, minlength=len(names)), strict=True))
    return {k: int(n) for k, n in sorted(words.items(), key=lambda pair: pair[1])}


_USE = {"train": "train", "val": "validate", "test": "test"}


def _duplicates(partition: GraphPartition) -> Finding:
    """Count graphs that are equal, and those that train and test."""
    prints = [fingerprint(partition.graphs, g) for g in range(len(partition.graphs))]
    again = len(prints) - len(set(prints))
    trained = {prints[g] for g in partition.train}
    leaked = sum(prints[g] in trained for g in partition.test)
    found = f"{again} of {len(prints)} graphs are there already"
    if not leaked:
        return Finding(what="duplicates", state=OK, found=found)
    found += f"; {leaked} of {len(partition.test)} test graphs are trained on too"
    cure = "delete copies, or (not of molecules) name the split in a column of tables"
    return Finding(what="duplicates", state=PROBLEM, found=found, cure=cure)


def fingerprint(graphs: GraphSet, at: int) -> bytes:
    """Hash of a graph's features and edges, as they are numbered; not of its label."""
    nodes = slice(*graphs.node_ptr[at : at + 2].tolist())
    edges = slice(*graphs.edge_ptr[at : at + 2].tolist())
    digest = hashlib.sha256(str(nodes.stop - nodes.start).encode())
    for part in (graphs.x[nodes], graphs.edge_index[:, edges]):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def one_round(
    resolved: Resolved,
    folder: Path,
    client: int,
    node: Mapping[str, Any],
    *,
    mbit: float,
) -> list[Finding]:
    """Train one round without the others; say what it costs in seconds and bytes.

    The site takes part as ``node`` says, the node-config of its SuperNode.
    """
    config = {**resolved.to_config(), "dry-run": True}
    kept = ("cache-dir", POLICY, PLUGINS)
    own, note = {key: str(node[key]) for key in kept if key in node}, ""
    if not resolved.method.strategy.TAKES_START:
        shared = RunSettings.config_fields()
        config = {k: v for k, v in config.items() if k in shared}
        config |= {"method": _PLAIN}
        own.pop(POLICY, None)  # which is for the run's own method
        note = f", by {_PLAIN}, as {resolved.settings.method} needs neighbours"
    with run_one(config, folder, client, own) as trial:
        report = json.loads((trial.results / REPORT).read_text())
    if failed := report["failures"]:
        raise ConfigError(
            f"one round of training failed: {failed}; see the lines above"
        )
    return [*_costs(report, client, mbit, note)]


def _costs(
    report: Mapping[str, Any], client: int, mbit: float, note: str
) -> list[Finding]:
    own, planned = report["clients"][str(client)], report["planned_rounds"]
    down, up = own.get("bytes_down", 0), own.get("bytes_up", 0)
    epochs = f"one round of training takes {own['seconds']:.2f} s here{note}"
    line = (
        f"{down / 1000:.1f} kB in and {up / 1000:.1f} kB out per round,"
        f" {8 * (down + up) / (mbit * 1e6):.2f} s at {mbit:g} Mbit/s; {planned} rounds"
        f" move {(down + up) * planned / 1e6:.1f} MB"
    )
    return [
        Finding(what="training", state=OK, found=epochs),
        Finding(what="line", state=OK, found=line),
    ]

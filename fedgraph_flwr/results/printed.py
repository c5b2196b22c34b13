"""The tables and lines that a run ends with, from its summary."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from datasets.target_scale import FAR, KEY, describe_far, suggest
from strategies.base import AbstractGraphStrategy
from strategies.round_report import ClientInfo

from ..core.data import MOST_TARGETS, TELLS, Statistics
from ..core.errors import ConfigError
from ..core.mixing import mixing_matrix, spectral_gap
from ..core.network import Network
from ..core.tasks import (
    CLASS_SCORES,
    CONFUSION,
    OF_COMMONEST,
    OF_MEAN,
    POOLED,
    THRESHOLD,
)
from ..core.words import client_ranges, name_clients, score_text, shortened

if TYPE_CHECKING:
    import pandas as pd


def network_facts(strategy: AbstractGraphStrategy) -> dict[str, Any] | None:
    """Describe the network of a run after roll call; None if clients have none."""
    network = strategy.network()
    if network is None or not strategy.clients:
        return None
    return facts_of(network, {c: i.num_train for c, i in strategy.clients.items()})


def facts_of(network: Network, num_examples: Mapping[int, int]) -> dict[str, Any]:
    """Describe a network, given the training graphs of its clients.

    ``spectral_gap`` is that of all clients together; ``rest`` are the sets of clients
    that reach each other without those that are gone.
    """
    topology = network.topology
    matrix = mixing_matrix(network.weights, topology, num_examples)
    rest = topology.components(network.gone)
    return {
        "kind": topology.kind,
        "edges": [list(edge) for edge in topology.edges],
        "weights": network.weights,
        "sealed": network.is_sealed,
        "spectral_gap": spectral_gap(matrix),
        "is_connected": topology.is_connected(),
        "isolated": topology.isolated,
        "dropped_out": sorted(network.gone),
        "missed_rounds": {str(c): list(r) for c, r in sorted(network.missed.items())},
        "without_mail_of": {
            str(c): list(js) for c, js in sorted(network.silent.items()) if js
        },
        "unusable_letters_of": {str(c): n for c, n in sorted(network.unusable.items())},
        "rest_is_connected": len(rest) <= 1,
        "rest": rest,
    }


def describe_seal(is_sealed: bool | None) -> str:
    """Say whether neighbours' letters were sealed; "" if there are none."""
    if is_sealed is None:
        return ""
    return f"letters {'sealed' if is_sealed else 'not sealed'}"


def describe_network(facts: Mapping[str, Any]) -> str:
    """Describe the network in one line."""
    words = [
        f"{facts['kind']} topology, {len(facts['edges'])} edges,"
        f" {'connected' if facts['is_connected'] else 'not connected'},"
        f" spectral gap {facts['spectral_gap']:.4f} with {facts['weights']} weights"
    ]
    if seal := describe_seal(facts["sealed"]):
        words.append(seal)
    if gone := facts["dropped_out"]:
        rest = facts["rest"]
        state = "connected" if facts["rest_is_connected"] else f"in parts {rest}"
        words.append(
            f"{len(gone)} dropped out ({name_clients(gone)}), the"
            f" {sum(map(len, rest))} others went on and are {state}"
        )
    for client, senders in facts["without_mail_of"].items():
        lacking = sorted(set(senders) - set(gone))
        if lacking and int(client) not in gone:
            named = ", ".join(map(str, lacking))
            words.append(f"client {client} has no mail of {named}, who take part")
    for client, count in facts["unusable_letters_of"].items():
        words.append(f"{count} letters of client {client} could not be used")
    return "; ".join(words)


_WIDTH = 80
_MOST_CLUSTERS, _MOST_LETTERS = 10, 300
_FAR_TARGETS = 10  # times larger, from which units may differ
ByTarget = Mapping[str, Mapping[str, float]]  # target -> client -> error


def summary_table(summary: dict[str, Any]) -> str:
    """Format the table at the end of a run, for terminals of 80 columns."""
    # A rule may have no score at all.
    is_pooled = any(str(POOLED) in summary[r]["per_client"] for r in summary["rules"])
    whose = "all clients together" if is_pooled else "unweighted client mean"
    table = Table(
        title=f"{summary['method']} on {summary['dataset']}, seed {summary['seed']},"
        f" {summary['num_clients']} clients, {summary['rounds']} rounds",
        caption=f"{summary['split']} {summary['metric']}, {whose}; split "
        + summary["split_hash"][:12],
    )
    columns = ("mean", "std", "min", "max")
    for column in ("rule", *columns):
        table.add_column(column)
    for rule in summary["rules"]:
        row = summary[rule]
        table.add_row(rule, *(score_text(row[k]) for k in columns))
    out = Console(file=io.StringIO(), width=_WIDTH, highlight=False)
    out.print(table)
    for rule in summary["rules"]:
        headline = " (headline)" * (rule == summary["rules"][0])
        out.print(f"{rule}: {summary[rule]['protocol']}{headline}")
    for line in (*_beside(summary), *score_lines(summary)):
        out.print(line)
    if rows := confusion_rows(summary):
        out.print(_confusion_table(rows))
    if summary.get("outweighing"):
        out.print(summary["outweighing"])
    ari = summary["adjusted_rand_index"]
    planted = "" if ari is None else f" · planted groups recovered: ARI {ari:.2f}"
    out.print(f"{_clusters(summary['clusters'])}{planted}")
    if inert := summary.get("inert"):
        out.print(f"{summary['method']} did nothing of its own: it {inert}")
    for entry in summary.get("clusters_held_up", []):
        pair = (entry[key] for key in ("cluster", "missing"))
        names, missing = (name_clients([*map(int, of)]) for of in pair)
        out.print(f"the cluster of {names} could not split without {missing}")
    if (seen := summary["own_and_unseen"]) is not None:
        out.print(_own_and_unseen(summary["metric"], seen))
    if summary["privacy"] is not None:
        out.print(summary["privacy"]["says"])
    if "disclosed" in summary:
        out.print(summary["disclosed"])
    if summary["network"] is not None:
        out.print(describe_network(summary["network"]))
    if summary["emd"] is not None:
        out.print(f"EMD of the partition {summary['emd']:.4f}")
    megabytes = [f"{summary[k] / 1e6:.1f} MB" for k in ("bytes_up", "bytes_down")]
    out.print(
        f"up {megabytes[0]} · down {megabytes[1]} · {summary['wall_s']:.1f} s, of which"
        f" no client was computing {summary['overhead_s']:.1f} s · weights"
        f" {summary['weights_sha256'][:12]}",
    )
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    return text


def _clusters(clusters: list[list[int]]) -> str:
    """Write clusters by ranges of clients; of many, the largest ones and the rest."""
    shown = sorted(clusters, key=len, reverse=True)[:_MOST_CLUSTERS]
    if len(clusters) <= _MOST_CLUSTERS:
        shown = clusters
    words = [shortened(client_ranges(c), _MOST_LETTERS) for c in shown]
    text = f"clusters {' | '.join(words)}" if words else "clusters: none"
    if (rest := len(clusters) - len(shown)) > 0:
        return f"{text} | and {rest} more, none larger"
    return text


def _beside(summary: dict[str, Any]) -> list[str]:
    """Say how clients that never train score, and models on all clients' test sets."""
    lines = []
    for key, words in (
        ("held_out_clients", "clients held out from training"),
        ("on_all_clients", "clients' models on the test sets of all clients"),
    ):
        row = summary.get(key)
        if row and row["mean"] is not None:
            lines.append(
                f"{row['num_clients']} {words}: {summary['metric']} {row['mean']:.4f},"
                f" min {row['min']:.4f}, max {row['max']:.4f} (last round)"
            )
    return lines


def _errors(summary: Mapping[str, Any]) -> list[str]:
    """For regression: the other error, and errors of predicting the means."""
    if summary.get("larger_is_better", True):
        return []
    lines = []
    for rule in summary["rules"]:
        found = summary[rule].get("also", {})
        others = [
            f"{name} {score_text(value)}"
            for name, value in found.items()
            if not name.endswith(OF_MEAN)
        ]
        if others:
            lines.append(f"{rule}: {', '.join(others)}")
    headline, metric = summary[summary["rules"][0]], summary["metric"]
    trivial = [
        f"{name.removesuffix(OF_MEAN)} {score_text(value)}"
        for name, value in headline.get("also", {}).items()
        if name.endswith(OF_MEAN)
    ]
    if trivial:
        split = summary["split"]
        lines.append(f"predict the mean of the {split} labels: {', '.join(trivial)}")
    by_task = headline.get("by_task", {})
    errors, of_mean = by_task.get(metric, {}), by_task.get(metric + OF_MEAN, {})
    if errors.keys() == of_mean.keys() and errors:
        lines += _by_target(metric, errors, of_mean)
    return lines


def _by_target(metric: str, errors: ByTarget, of_mean: ByTarget) -> list[str]:
    """Set each target beside its own mean; say what averages hide."""
    lines, worse = [], []
    means = {target: fmean(values.values()) for target, values in of_mean.items()}
    if len(errors) > 1:
        own = {target: fmean(values.values()) for target, values in errors.items()}
        for words, found in (("by target", own), ("of predicting the mean", means)):
            listed = ", ".join(f"{t} {score_text(v)}" for t, v in found.items())
            lines.append(f"{metric} {words}: {shortened(listed, _MOST_LETTERS)}")
    for target, values in errors.items():
        trivial = of_mean[target]
        if bad := [int(c) for c, v in values.items() if v > trivial.get(c, v)]:
            worse.append(f"{target} ({name_clients(bad)})")
    if worse:
        named = shortened(", ".join(worse), _MOST_LETTERS)
        lines.append(f"worse than to predict the mean: {named}")
    largest = max(means, key=lambda t: means[t])
    if means[largest] > _FAR_TARGETS * min(means.values()):
        lines.append(
            f"{metric} averages targets of unlike units, and {largest} weighs most:"
            " read it by target"
        )
    return lines


def score_lines(summary: Mapping[str, Any]) -> list[str]:
    """Say what stands beside the headline's score, and what of updates was seen."""
    kinds = ("robust", "secure_aggregation")
    said = [summary[kind]["says"] for kind in kinds if kind in summary]
    lines = [*_errors(summary), *class_lines(summary)] if summary.get("rules") else []
    return lines + said


def class_lines(summary: Mapping[str, Any]) -> list[str]:
    """Say the scores beside the headline's, and what needs no model to be reached."""
    rows: dict[str, Any] = {rule: summary[rule] for rule in summary.get("rules") or []}
    stated = {name for row in rows.values() for name in row.get("also") or {}}
    names = [name for name in CLASS_SCORES if name in stated]
    lines = [
        f"{rule}: {', '.join(_counted(row, name) for name in names)}"
        for rule, row in rows.items()
        if names and "also" in row
    ]
    for rule, head in list(rows.items())[:1]:
        if items := [*head.get("rare_test_items", {}).values()]:
            *first, last = map(str, items)
            listed = f"{', '.join(first)} and {last}" if first else last
            if len(items) > _MOST_CLUSTERS:
                listed = f"{min(items)} to {max(items)} at a client"
            name = summary["rarest_class"]["class"]
            lines.append(f"test items of class {name!r}, by client: {listed}")
        floor = (head.get("also") or {}).get(f"accuracy{OF_COMMONEST}")
        if floor is not None and head["mean"] is not None:
            words = "" if head["mean"] > floor else f"; {rule} is not above it"
            lines.append(f"predicts the commonest class: {score_text(floor)}{words}")
    for rule, row in rows.items():
        lines += [f"{rule}: {words}" for words in _constant(summary, row)]
    return lines


CONFUSION_HEADINGS = ("class", "client", THRESHOLD, "TP", "FP", "FN", "TN")


def confusion_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Count test items by the headline's rule, in a row for each client and for all.

    Columns are ``CONFUSION_HEADINGS``.
    """
    rules = summary.get("rules") or []
    found = summary[rules[0]].get("confusion") or {} if rules else {}
    rows = []
    for name, clients in found.items():
        counts = {c: [int(of[k]) for k in CONFUSION] for c, of in clients.items()}
        for client, of in clients.items():
            limit = score_text(of.get(THRESHOLD))
            rows.append([name, client, limit, *map(str, counts[client])])
        total = map(sum, zip(*counts.values(), strict=True))
        rows.append([name, "all", "", *map(str, total)])
    return rows


def _confusion_table(rows: list[list[str]]) -> Table:
    """Table of counts; of many clients or targets the sums alone."""
    if len(rows) > 2 * _MOST_CLUSTERS:
        rows = [row for row in rows if row[1] == "all"][:_MOST_CLUSTERS]
    table = Table(title="test items called so (P) or not (N)")
    for heading in CONFUSION_HEADINGS:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    return table


def _counted(row: Mapping[str, Any], name: str) -> str:
    """Mean of a score; over how many clients, if some have none."""
    score, known = row["also"].get(name), row["also_per_client"].get(name, {})
    among = f" ({len(known)} of {row['num_clients']} clients)"
    text = f"{CLASS_SCORES[name]} {score_text(score)}"
    return text + (among if 0 < len(known) < row["num_clients"] else "")


def _constant(summary: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    """Say whose test items are all predicted to be of one class."""
    of_class: dict[str, list[int]] = {}
    for client, name in row.get("one_class", {}).items():
        of_class.setdefault(name, []).append(int(client))
    for name, clients in sorted(of_class.items()):
        count = sum(summary["num_examples"][str(c)] for c in clients)
        is_all = len(clients) == row["num_clients"]
        whose = "" if is_all else f" of {name_clients(clients)}"
        yield f"all {count} predictions{whose} are class {name!r}"


def describe_unscored(summary: Mapping[str, Any]) -> list[str]:
    """Say, for each split, which tasks have no score; nothing if all have one."""
    everyone = list(range(summary.get("num_clients", 0)))
    lines = []
    for split, tasks in summary.get("tasks_without_score", {}).items():
        names = [
            name if clients == everyone else f"{name} ({name_clients(clients)})"
            for name, clients in tasks.items()
        ]
        lines.append(
            f"{summary['metric']} on {split} graphs leaves out {len(names)} of"
            f" {len(summary['tasks'])} tasks, whose labels there are missing or all of"
            f" one class: {', '.join(names)}"
        )
    return lines


def _own_and_unseen(metric: str, seen: dict[str, dict[str, float]]) -> str:
    names = {"post_training": "trained", "post_aggregation": "then mixed or averaged"}
    parts = []
    for point in (p for p in names if p in seen):
        own, other = (seen[point].get(k, math.nan) for k in ("own", "unseen"))
        parts.append(f"{names[point]}: own tasks {own:.4f}, others {other:.4f}")
    return f"{metric} {'; '.join(parts)}"


STATISTICS = "statistics.csv"
_APART = 3.0  # spreads, from which units may differ
_LISTS = {"counts": "count", "target_mean": "mean", "target_std": "std"}


def statistics_table(clients: Mapping[int, ClientInfo]) -> pd.DataFrame:
    """Make a table of what clients told: a row each, NaN for what it did not tell."""
    import pandas as pd  # here: it takes half a second

    rows = []
    for client, info in sorted(clients.items()):
        row: dict[str, float] = {"client": client}
        told = Statistics.from_json(info.introduced.get(TELLS, ""))
        for name, value in (asdict(told) if told else {}).items():
            if word := _LISTS.get(name):
                row |= {f"{word}_{k}": v for k, v in enumerate(value)}
            else:
                row[name] = value
        rows.append(row)
    return pd.DataFrame(rows)


def mean_degree(clients: Mapping[int, ClientInfo]) -> float:
    """Mean number of edges that leave a node of any client.

    Raises
    ------
    ConfigError
        A client does not tell it.
    """
    told = statistics_table(clients)
    if "degree" not in told or told["degree"].isna().any():
        raise ConfigError(
            "pna-degree is 0, and some client tells no statistics, from which it"
            " follows; set pna-degree in the run config"
        )
    return float(np.average(told["degree"], weights=told["num_nodes"]))


def unlike_targets(clients: Mapping[int, ClientInfo], *, is_scaled: bool) -> list[str]:
    """Say which targets have other units at some clients, or should be scaled.

    Only clients that told their statistics are compared. ``is_scaled`` says whether
    there is a scale for all sites already.
    """
    of_clients = {
        c: Statistics.from_json(i.introduced.get(TELLS, "")) for c, i in clients.items()
    }
    tasks = clients[min(clients)].tasks
    lines, pooled = [], {}
    for k, task in enumerate(tasks[:MOST_TARGETS]):
        known = {
            c: (max(s.num_graphs, 1), *pair)
            for c, s in sorted(of_clients.items())
            if s
            for pair in [*zip(s.target_mean, s.target_std, strict=False)][k : k + 1]
            if math.isfinite(sum(pair))
        }
        sizes = {c: math.hypot(mean, std) for c, (_, mean, std) in known.items()}
        if not sizes:
            continue
        low = min(sizes, key=lambda c: sizes[c])
        high = max(sizes, key=lambda c: sizes[c])
        weights, means, stds = zip(*known.values(), strict=True)
        odd, apart = max(_apart(known), key=lambda pair: pair[1])
        found = ""
        if sizes[high] > FAR * sizes[low]:
            found = f"are about {sizes[high]:.2g} at client {high} and"
            found += f" {sizes[low]:.2g} at client {low}"
        elif apart > _APART:
            found = (
                f"of client {odd} have mean {known[odd][1]:.3g}, far from the others'"
            )
        if found:
            lines.append(
                f"values of {task} {found}: if units, scales or signs differ, write one"
                " at all sites"
            )
        mean = float(np.average(means, weights=weights))
        around = np.square(np.subtract(means, mean)) + np.square(stds)
        pooled[task] = mean, math.sqrt(float(np.average(around, weights=weights)))
    if not is_scaled and (words := describe_far(pooled)):
        lines.append(
            f"over clients {words}: models learn such numbers badly, scale them by"
            f' {KEY}="{suggest(pooled)}"'
        )
    return lines


def _apart(
    known: Mapping[int, tuple[int, float, float]],
) -> Iterator[tuple[int, float]]:
    """Yield each client, and how many spreads its mean lies from the others' mean.

    Means of unlike sign, both further from 0 than their spread, lie infinitely far.
    """
    for client, (_, mean, std) in known.items():
        rest = [row for other, row in known.items() if other != client]
        if not rest:
            yield client, 0.0
            continue
        weights, means, stds = np.array(rest).T
        center = float(np.average(means, weights=weights))
        spread = math.sqrt(float(np.average(np.square(stds), weights=weights)))
        gap = abs(mean - center)
        is_turned = mean * center < 0 and abs(mean) > std and abs(center) > spread
        yield client, math.inf if is_turned else 2 * gap / (std + spread or 1e-300)

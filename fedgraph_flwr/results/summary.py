"""The content of ``summary.json``, and numbers for monitoring.

The textfile collector of node_exporter reads such files. Only sites that have a name
(node-config ``site-name``) have samples of their own.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from strategies.base import AbstractGraphStrategy
from strategies.round_report import ClientInfo, RoundReport

from ..agreement import class_names, describe_features, describe_left_out
from ..core.attack_settings import describe_attack
from ..core.errors import full_reason
from ..core.privacy_settings import describe, edge_totals
from ..core.robust_settings import describe_left
from ..core.secure_aggregation import KNOWN_BY, describe_sums
from ..core.tasks import AVERAGE_PRECISION, BY_TASK, OF_COMMONEST
from ..core.wire import NamedArrays
from ..core.words import clients_by_site
from ..resolve import Resolved
from . import selection
from .printed import network_facts
from .provenance import (
    Origins,
    class_table,
    hash_weights,
    partition_distance,
    split_hash,
)
from .record import RunRecord


class RunFacts(Protocol):
    """What a summary is made of: the results folder of a run has all of it."""

    resolved: Resolved
    so_far: RunRecord
    origins: Origins
    run_id: str
    lineage: list[Mapping[str, Any]]
    resumed_from: int | None

    @property
    def experiment(self) -> str:
        """Name under which clients keep their state."""


def summarise(
    folder: RunFacts,
    strategy: AbstractGraphStrategy,
    models: Mapping[str, NamedArrays],
    error: BaseException | None,
) -> dict[str, Any]:
    """Make ``summary.json`` from what was measured and what the strategy knows.

    Parameters
    ----------
    models : mapping
        The server's models by name, as in the folder.
    error : exception or None
        What stopped the run.
    """
    resolved, so_far = folder.resolved, folder.so_far
    s = resolved.settings
    return {
        "status": "completed" if error is None else "failed",
        "error": None if error is None else full_reason(error),
        "method": s.method,
        "dataset": s.dataset,
        "task": so_far.task.name,
        "metric": so_far.task.metric,
        "larger_is_better": so_far.task.larger_is_better,
        "split": so_far.task.headline,
        "rules": _rules(resolved),
        "num_clients": s.num_clients,
        "rounds": so_far.last_round,
        "seed": s.seed,
        "split_seed": s.split_seed,
        "split_hash": split_hash(strategy.clients),
        "num_examples": {
            str(c): i.num_test if so_far.task.headline == "test" else i.num_graphs
            for c, i in sorted(strategy.clients.items())
        },
        **_scores(folder, strategy, is_complete=error is None),
        **_clusters(so_far, strategy.clients),
        "inert": strategy.inert() if error is None else "",
        "rarest_class": _rarest(strategy),
        "bytes_up": so_far.bytes["up"],
        "bytes_down": so_far.bytes["down"],
        "bytes_up_evaluation": so_far.bytes["evaluation"],
        "wall_s": so_far.times["wall_s"],
        "client_compute_s": so_far.times["client_compute_s"],
        "overhead_s": so_far.times["wall_s"] - so_far.times["busy_s"],
        "weights_sha256": hash_weights(models, strategy.client_hashes),
        "failures": [_with_site(f, strategy.sites) for f in so_far.failures],
        "sites": clients_by_site(strategy.sites),
        "outweighing": strategy.outweighing,
        "fresh_starts": so_far.fresh_starts,
        "network": network_facts(strategy),
        "run_id": folder.run_id,
        "experiment": folder.experiment,
        "lineage": folder.lineage,
        "resumed_from_round": folder.resumed_from,
        "privacy": _spent(strategy, s.features),
        **describe_left(resolved.robust, so_far.counted()),
        **describe_sums(
            resolved.secagg,
            {
                c: strategy.clients[c].introduced.get(KNOWN_BY, "")
                for c in strategy.trainers()
            },
        ),
        **describe_attack(resolved.attack, s, so_far.trigger_shares(so_far.last_round)),
        **({"update_spread": spread} if (spread := so_far.spread()) else {}),
        **strategy.remarks(),
        "emd": partition_distance(strategy.clients),
        "class_counts": class_table(strategy.clients),
        "features": describe_features(strategy.clients),
        "left_out": describe_left_out(strategy.clients),
        "data_sha256": {
            str(c): i.raw_sha256 for c, i in sorted(strategy.clients.items())
        },
        "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": folder.origins.versions,
        "git_commit": folder.origins.git_commit,
        "config": resolved.to_config(),
    }


def _rules(resolved: Resolved) -> list[str]:
    """Rules of a run; snapshots of single clients are in no sum."""
    is_summed = resolved.secagg.scores == "sum"
    rules = resolved.method.task.rules_for(resolved.settings)
    return [r for r in rules if not (is_summed and r == "best_snapshot")]


def _scores(
    folder: RunFacts, strategy: AbstractGraphStrategy, *, is_complete: bool
) -> dict[str, Any]:
    """Results by each rule, the headline first, and which tasks had no score."""
    so_far, task = folder.so_far, folder.so_far.task
    settings = folder.resolved.settings
    honest = settings.num_training - len(strategy.hostile)
    resolved = folder.resolved
    is_one = resolved.task.pools or resolved.secagg.scores == "sum"
    expected = 1 if is_one else honest
    # A failed run has no closing evaluation: its last measured round is the one
    # before the last trained.
    last = so_far.last_round if is_complete else max(so_far.table(), default=0)
    by, score = _choosing(strategy, so_far)
    by_rule = {
        rule: selection.read(
            rule,
            so_far.table,
            snapshots=so_far.snapshots,
            last_round=last,
            larger_is_better=task.larger_is_better,
            first=strategy.first_choice,
            by=by,
            score=score,
        )
        for rule in _rules(resolved)
    }
    for rule, row in by_rule.items():
        read_at = row.get("round", last if rule == "final" else None)
        if task.also and read_at is not None:
            row |= so_far.also_at(read_at, rule)
            row |= _rare_items(strategy, row)
            row["confusion"] = so_far.confusion_at(read_at, rule, _counted(strategy))
        has_errors = not task.larger_is_better and strategy.clients
        if has_errors and read_at is not None:
            names = strategy.clients[min(strategy.clients)].tasks
            row["by_task"] = so_far.by_task_at(read_at, names)
        for client, number in row.get("one_class", {}).items():
            info = strategy.clients[int(client)]
            row["one_class"][client] = class_names(info)[number]
        few = row.get("num_clients_chosen_by", expected) < expected
        if few and by == AVERAGE_PRECISION:
            row["protocol"] += (
                "; a client has no such score if its validation labels are of one"
                " class, or its site keeps scores"
            )
        if rule == "final" and last < so_far.last_round:
            row["protocol"] = f"model of round {last}, the last that was measured"
        if 0 < row["num_clients"] < expected:
            row["protocol"] += f"; mean over {row['num_clients']} of {expected} clients"
    never = settings.never_train
    on_all = settings.evaluate_on == "all" and is_complete
    # Without their scores nobody knows how a common model does on their test sets.
    lost = any(failure["round"] > last for failure in so_far.failures)
    sizes = {c: i.num_test for c, i in strategy.clients.items()}
    return {
        **by_rule,
        "held_out_clients": so_far.held_out_at(last) if never else None,
        "on_all_clients": (
            so_far.on_all_at(last, sizes, is_one_model=strategy.ONE_MODEL and not lost)
            if on_all
            else None
        ),
        **_tasks(strategy, so_far.unscored),
        "own_and_unseen": so_far.own_and_unseen(last),
    }


def _rarest(strategy: AbstractGraphStrategy) -> dict[str, Any] | None:
    """Tell which class has fewest training labels; None where that is not known."""
    if (found := strategy.rarest) is None:
        return None
    name = class_names(strategy.clients[min(strategy.clients)])[found.number]
    return {"class": name, "share": found.share, "chooses_by_precision": found.chooses}


def _counted(strategy: AbstractGraphStrategy) -> dict[str, str]:
    """Name the class or targets whose test items are counted, by metrics' endings."""
    if not strategy.clients:
        return {}
    info = strategy.clients[min(strategy.clients)]
    if info.tasks:
        return {f"{BY_TASK}{k}": name for k, name in enumerate(info.tasks)}
    sought = strategy.rarest.number if strategy.rarest else 1
    return {"": class_names(info)[sought]} if sought < info.num_classes else {}


def _rare_items(
    strategy: AbstractGraphStrategy, row: Mapping[str, Any]
) -> dict[str, dict[str, int]]:
    """Count test items of the rarest of two classes, for each client that tells."""
    floors = row["also_per_client"].get(f"accuracy{OF_COMMONEST}", {})
    found, number = {}, strategy.rarest.number if strategy.rarest else -1
    for client, floor in floors.items() if strategy.rarest else ():
        info = strategy.clients.get(int(client))
        if info and len(counts := info.train_counts) == 2:  # what floor is the share of
            share = floor if counts.index(max(counts)) == number else 1 - floor
            found[client] = round(share * info.num_test)
    return {"rare_test_items": found} if found else {}


def _choosing(strategy: AbstractGraphStrategy, so_far: RunRecord) -> tuple[str, str]:
    """Tell which metric chooses rounds, "" for the task's, and name it."""
    rarest, metric = _rarest(strategy), so_far.task.metric
    if so_far.by == "loss":
        return so_far.by, "loss, in which targets are scaled"
    is_measured = any(so_far.table(m, "val") for m in (so_far.by, "loss"))
    if rarest and so_far.by and is_measured:
        words = f"class {rarest['class']!r} has {rarest['share']:.1%} of the training"
        return so_far.by, f"average precision ({words} labels)"
    is_known = any(i.train_counts for i in strategy.clients.values())
    if so_far.by:
        metric += " (no client tells its average precision)"
    elif so_far.task.has_classes and not is_known:
        metric += " (no site tells its classes)"
    return "", metric


def _clusters(so_far: RunRecord, clients: Mapping[int, ClientInfo]) -> dict[str, Any]:
    """Clusters after the last round, and how they agree with planted groups."""
    clusters = so_far.clusters.get(str(so_far.last_round), [])
    groups = {c: i.group for c, i in sorted(clients.items())}
    planted = groups if groups and min(groups.values()) >= 0 else None
    return {
        "num_clusters": len(clusters),
        "clusters": clusters,
        "planted_groups": planted and {str(c): g for c, g in planted.items()},
        "adjusted_rand_index": _rand_index(clusters, planted),
    }


def _with_site(failure: dict[str, Any], sites: Mapping[int, str]) -> dict[str, Any]:
    """Add the name of the client's site to a failure, if it has one."""
    site = sites.get(failure["client"])
    return {**failure, "site": site} if site else failure


def _tasks(
    strategy: AbstractGraphStrategy, unscored: Mapping[tuple[str, int], set[int]]
) -> dict[str, Any]:
    """Names of the tasks, whose labels each client has, and tasks without a score.

    Empty if graphs have no tasks.
    """
    infos = [i for _, i in sorted(strategy.clients.items())]
    if not infos or not infos[0].tasks:
        return {}
    without: dict[str, dict[str, list[int]]] = {}
    for (split, task), clients in sorted(unscored.items()):
        without.setdefault(split, {})[infos[0].tasks[task]] = sorted(clients)
    return {
        "tasks": list(infos[0].tasks),
        "tasks_without_score": without,
        "owned_tasks": {str(i.client): list(i.task_ids) for i in infos},
    }


def _spent(strategy: AbstractGraphStrategy, features: str) -> dict[str, Any] | None:
    """Say what clients have spent of their privacy; None if nothing is protected."""
    if not (words := describe(strategy.spent, features=features)):
        return None
    per_client = {str(c): s for c, s in sorted(strategy.spent.items()) if s}
    totals = edge_totals(strategy.spent)
    return {"says": words, "edge_epsilon_per": totals, "per_client": per_client}


def _rand_index(
    clusters: list[list[int]], planted: Mapping[int, int] | None
) -> float | None:
    """Agreement of clusters and planted groups; None if either is missing."""
    if not planted or not clusters:
        return None
    from sklearn.metrics import adjusted_rand_score  # here: it takes a second

    pairs = [(planted[c], k) for k, members in enumerate(clusters) for c in members]
    return float(adjusted_rand_score(*zip(*pairs, strict=True)))


METRICS = "metrics.prom"
RUNNING, COMPLETED, FAILED = 0, 1, 2
_Samples = list[tuple[Mapping[str, str], float]]


def metrics_text(
    folder: RunFacts,
    strategy: AbstractGraphStrategy,
    report: RoundReport | None,
    *,
    status: int = RUNNING,
) -> str:
    """Write the numbers of a run after a round, or at its end.

    Parameters
    ----------
    report : RoundReport or None
        The last round; None if there was none.
    status : int
        ``RUNNING``, ``COMPLETED`` or ``FAILED``.
    """
    s, so_far = folder.resolved.settings, folder.so_far
    run = {"run": folder.run_id}
    about = {**run, "method": s.method, "dataset": s.dataset}
    about["experiment"] = folder.experiment
    values: dict[str, tuple[str, float]] = {
        "run_status": ("0 while the run goes on, 1 completed, 2 failed", status),
        "round": ("Last completed round", so_far.last_round),
        "rounds": ("Rounds planned", s.num_server_rounds),
        "updated_timestamp_seconds": ("Unix time of this file", round(time.time(), 3)),
        "clients": ("Clients of the run", s.num_clients),
        "failures_total": ("Failures of clients, all rounds", len(so_far.failures)),
    }
    if report is not None:
        values |= {
            "round_seconds": ("Wall time of the last round", report.wall_s),
            "round_failures": ("Failures in the last round", len(report.failures)),
        }
    moved: _Samples
    moved = [({**run, "direction": d}, so_far.bytes[d]) for d in ("up", "down")]
    text = _family("run_info", "Always 1, with names as labels", [(about, 1)])
    for name, (words, value) in values.items():
        text += _family(name, words, [(run, value)])
    text += _family("bytes_total", "Bytes of messages", moved)
    text += _family("score", "Last mean over clients", _score_samples(folder, run))
    if report is None or not strategy.sites:
        return text
    return text + _of_sites(folder, strategy, report, run)


def _score_samples(folder: RunFacts, run: Mapping[str, str]) -> _Samples:
    """Last mean score on each split, and the one by which rounds are chosen."""
    so_far = folder.so_far
    found: _Samples = []
    shown = [(split, so_far.task.metric) for split in so_far.task.splits]
    for split, metric in [*shown, *([("val", so_far.by)] if so_far.by else [])]:
        if measured := so_far.table(metric, split):
            labels = {**run, "split": split, "metric": metric}
            found.append((labels, so_far.mean_score(max(measured), metric, split)))
    return found


def _of_sites(
    folder: RunFacts,
    strategy: AbstractGraphStrategy,
    report: RoundReport,
    run: Mapping[str, str],
) -> str:
    failures = Counter(f["client"] for f in folder.so_far.failures)
    rounds = strategy.last_rounds
    values: dict[str, tuple[str, Callable[[list[int]], float]]] = {
        "site_clients": ("Clients that a site hosts", len),
        "site_round_failures": (
            "Its clients that failed in the round",
            lambda members: sum(c in report.failures for c in members),
        ),
        "site_failures_total": (
            "Failures of its clients, all rounds",
            lambda members: sum(failures[c] for c in members),
        ),
        "site_last_round": (
            "Last round in which a site replied",
            lambda members: max(rounds.get(c, 0) for c in members),
        ),
        "site_seconds": ("Seconds of work of a site's last replies", strategy.load),
    }
    sites = clients_by_site(strategy.sites).items()
    return "".join(
        _family(name, words, [({**run, "site": s}, value(m)) for s, m in sites])
        for name, (words, value) in values.items()
    )


def _family(name: str, words: str, samples: _Samples) -> str:
    """Write one metric; a counter's name ends with ``_total``."""
    if not samples:
        return ""
    name, kind = f"fedgraph_{name}", "counter" if name.endswith("_total") else "gauge"
    lines = [f"# HELP {name} {words}.", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Escape what would end a label's value: a data set's name is the user's."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)

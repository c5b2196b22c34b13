"""Checks that every method must pass: functions of a laboratory and a case.

A check raises :class:`Broken`, which says in words what does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Message

import datasets
from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.data import GraphPartition
from fedgraph_flwr.errors import ConfigError, FedGraphError, RunFailedError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import ROUNDS, load_summary
from fedgraph_flwr.tasks import GRAPH_EMBEDDING

from ..inline import InlineGrid
from .data import with_other_test_labels
from .faults import (
    Killed,
    failing_client,
    forget,
    killed_at_checkpoint,
    other_global_generators,
)
from .lab import Lab, Run, has_buffers, own, row
from .privacy import first_difference, what_leaves

REASON = "ValueError: disk full"
_HALF: dict[str, Any] = {"min-fit-replies": 0.5}


class Broken(Exception):
    """A method does not keep what every method must keep."""


@dataclass(frozen=True)
class Check:
    """One check: a word for it, what holds if it passes, and the function."""

    name: str
    holds: str
    function: Callable[[Lab, str], str | None]


def completes(lab: Lab, case: str) -> str | None:
    """Train without a failure, with every score finite and on record."""
    try:
        finished = lab.once(case)
    except ConfigError:
        raise
    except FedGraphError as error:
        raise Broken(f"a plain run stops: {error}") from error
    if failures := finished.summary["failures"]:
        f = failures[0]
        raise Broken(f"client {f['client']} fails in round {f['round']}: {f['reason']}")
    seen, task = finished.values(), row(case).task
    # Round 0 is the common start; embeddings are evaluated after chosen rounds.
    measured = (0, 3) if task is GRAPH_EMBEDDING else (0, 1, 2, 3)
    wanted = [
        (str(r), c, split, "post_aggregation", task.metric)
        for r in measured
        for c in "012"
        for split in task.splits
    ]
    wanted += [(r, c, "train", "post_training", "loss") for r in "123" for c in "012"]
    for key in wanted:
        where = f"{key[4]} of client {key[1]} on {key[2]}, round {key[0]}, {key[3]}"
        if key not in seen:
            raise Broken(f"scores() gives no {where}")
        if not math.isfinite(seen[key]):
            raise Broken(f"{where} is {seen[key]}")
    for name, model in finished.models.items():
        for array, values in model.items():
            if not np.isfinite(values).all():
                raise Broken(f"{array} of model {name} holds NaN or infinity")
    return None


def keeps_settings(lab: Lab, case: str) -> str | None:
    """Resolve settings, write them down, and read the same again."""
    first = resolve({**defaults(), **own(case), **lab.settings})
    again = resolve({**defaults(), **first.to_config()})
    if again.to_config() != first.to_config():
        raise Broken("settings that were written to config.json are read otherwise")
    return None


def same_seed_same_bytes(lab: Lab, case: str) -> str | None:
    """Repeat the bytes of a seed, whatever global generators hold."""
    first = lab.once(case)
    with other_global_generators() as touched:
        again = lab.run(case)
    which = " and ".join(touched)
    cure = (
        "; draw from the generator that loss() is given, or from one made by"
        " fedgraph_flwr.seeding.derive_seed(seed, client, round, purpose); new layers"
        " of a model: in `with seeded(spec):`, as examples/sage.py does"
    )
    if _differ(first, again):
        why = f"it draws from the global generator of {which}{cure}" if which else (
            "something outlives a run: a global, a class attribute, a clock, an order"
            " of sets"
        )  # fmt: skip
        raise Broken(f"the same seed gives {_differ(first, again)}: {why}")
    if touched:
        raise Broken(f"the global generator of {which} is moved{cure}")
    return None


def other_seed_other_bytes(lab: Lab, case: str) -> str | None:
    """Give other weights for another seed."""
    if lab.run(case, seed=11).sha == lab.once(case).sha:
        raise Broken("seeds 10 and 11 give the same weights: the seed is not read")
    return None


def same_bytes_on_any_nodes(lab: Lab, case: str, *, nodes: int = 3) -> str | None:
    """Give the same bytes however clients are spread over nodes."""
    found = lab.run(case, nodes=nodes)
    if how := _differ(lab.once(case), found):
        raise Broken(
            f"{nodes} nodes instead of one give {how}: clients share something"
        )
    return None


def same_bytes_in_any_process(lab: Lab, case: str) -> str | None:
    """Give the same bytes if a process serves one message only, and replies mix.

    The module of a plug-in is loaded anew for every message, as at a site.
    """
    once = lab.once(case)
    deliver, pull = InlineGrid.deliver, InlineGrid.pull_messages

    def alone(self: InlineGrid, message: Message) -> Message:
        forget(case)
        return deliver(self, message)

    def turned(self: InlineGrid, ids: Any) -> list[Message]:
        return list(pull(self, ids))[::-1]

    try:
        with (
            mock.patch.object(InlineGrid, "deliver", alone),
            mock.patch.object(InlineGrid, "pull_messages", turned),
        ):
            found = lab.run(case, nodes=3)
    except FedGraphError as error:
        raise Broken(
            f"with a process of its own for every message the run stops: {error}"
        ) from error
    if how := _differ(once, found):
        raise Broken(
            f"a process of its own for every message gives {how}: something is kept on"
            " a class or in the module; keep it by extra_state() or in the strategy's"
            " state()"
        )
    return None


def rests_at_rate_zero(lab: Lab, case: str) -> str | None:
    """Leave weights as they are if nothing is learned."""
    still: dict[str, Any] = {"learning-rate": 0.0, "weight-decay": 0.0}
    short, long = (lab.run(case, **still, **_rounds(n)) for n in (1, 2))
    if has_buffers(case):  # statistics of the data, not of the training
        one, other = (next(iter(run.models.values())) for run in (short, long))
        moved = [
            n
            for n in one
            if "running_" not in n
            and "num_batches" not in n
            and not np.array_equal(one[n], other[n])
        ]
        if moved:
            raise Broken(f"with learning-rate 0, round 2 changes {', '.join(moved)}")
    elif long.sha != short.sha:
        raise Broken("with learning-rate 0, round 2 changes weights")
    return None


def learns(lab: Lab, case: str) -> str | None:
    """Train models that are not those of a run in which nothing is learned."""
    still: dict[str, Any] = {"learning-rate": 0.0, "weight-decay": 0.0}
    start = lab.run(case, **still, **_rounds(1)).models
    for name, model in lab.once(case).models.items():
        old = start.get(name, {})
        if all(n in old and np.array_equal(old[n], a) for n, a in model.items()):
            raise Broken(
                f"after 3 rounds, model {name} is what it was: step() sets no new"
                " model, weight() is 0 for all clients, or clients train no epoch"
            )
    return None


def learns_from_no_test_label(lab: Lab, case: str) -> str | None:
    """Train the same weights whatever the labels of test items are."""
    load = datasets.load_partition

    def other(settings: RunSettings, client: int) -> GraphPartition:
        return with_other_test_labels(load(settings, client))

    once = lab.once(case)
    with mock.patch("datasets.load_partition", other):
        found = lab.run(case)
    if found.sha != once.sha:
        raise Broken(
            "other labels of test items give other weights: it trains on them; a graph"
            " whose nodes are classified holds the labels of all, and loss() is to read"
            " those of batch.train alone"
        )
    return None


def resumes_exactly(lab: Lab, case: str, *, stop_after: int = 2) -> str | None:
    """Continue a finished run as if more rounds had been planned at once."""
    whole = lab.once(case, **_rounds(4))
    part = lab.run(case, **_rounds(stop_after))
    resumed = _resume(lab, case, part, **_rounds(4))
    if resumed.path != part.path:
        raise Broken("a resumed run has a folder of its own")
    if resumed.summary["resumed_from_round"] != stop_after:
        raise Broken(f"a run of {stop_after} rounds is not resumed from its last")
    _check_resumed(whole, resumed, f"a run that stops after round {stop_after}")
    if resumed.summary["bytes_up"] != whole.summary["bytes_up"]:
        raise Broken("a resumed run forgets the bytes that were sent before it")
    return None


def resumes_after_a_kill(
    lab: Lab, case: str, *, at: int = 3, num_rounds: int = 5
) -> str | None:
    """Continue a run whose server died while clients were a round further."""
    rounds = _rounds(num_rounds)
    whole = lab.once(case, **rounds)
    root = lab.root / f"killed-{case.replace(' ', '-').replace(':', '-')}-{at}"
    places: dict[str, Any] = {
        "results-dir": str(root / "results"),
        "state-dir": str(root / "state"),
    }
    with killed_at_checkpoint(at):
        try:
            lab.run(case, **rounds, **places)
        except Killed:
            pass
        else:
            raise Broken(f"the run ends before round {at}")
    (path,) = (root / "results").iterdir()
    resumed = _resume(lab, case, Run(path, {**rounds, **places}), **rounds)
    _check_resumed(whole, resumed, f"a run that is killed after round {at}")
    if failures := resumed.summary["failures"]:
        raise Broken(f"a run that is resumed after a kill counts failures: {failures}")
    return None


def survives_a_failed_client(lab: Lab, case: str) -> str | None:
    """Name and count a client that fails, and go on without it."""
    with failing_client():
        try:
            survived = lab.run(case, **_HALF).summary
        except Exception as error:  # whatever a method makes of a missing reply
            why = f"{type(error).__name__}: {error}"
            raise Broken(f"one failed client of three stops the run: {why}") from error
    expected = [{"round": 2, "client": 1, "reason": REASON}]
    if survived["status"] != "completed" or survived["failures"] != expected:
        raise Broken(
            f"one failure in round 2 is recorded as {survived['failures']}, the run as"
            f" {survived['status']}"
        )
    if len(survived["final"]["per_client"]) != 3:
        raise Broken("a client that failed once has no score at the end")
    return None


def stops_with_too_few_replies(lab: Lab, case: str) -> str | None:
    """Stop if too few clients reply, by name, and keep what was computed."""
    root = lab.root / f"few-{case.replace(' ', '-').replace(':', '-')}"
    where: dict[str, Any] = {"results-dir": str(root)}
    with failing_client():
        try:
            lab.run(case, **where)
        except RunFailedError as error:
            words = str(error)
        else:
            raise Broken("a failed client does not stop a run that needs all")
    if f"client 1: {REASON}" not in words or "min-fit-replies = 1 needs 3" not in words:
        raise Broken(f"the error does not name client, reason and setting: {words}")
    (folder,) = root.iterdir()
    summary = load_summary(folder)
    told = summary["status"], summary["rounds"], REASON in summary["error"]
    if told != ("failed", 1, True):
        raise Broken(f"the summary of a failed run says {told}")
    if "\n1,0,train,post_training,loss," not in (folder / ROUNDS).read_text():
        raise Broken("scores of rounds before the failure are lost")
    return None


def counts_bytes(lab: Lab, case: str) -> str | None:
    """Count every byte that travels, and say how many are sent."""
    finished = lab.once(case)
    for direction, key in (("up", "bytes_up"), ("down", "bytes_down")):
        rows = [int(r["bytes"]) for r in finished.ledger if r["direction"] == direction]
        if not finished.summary[key] == sum(rows) > 0:
            raise Broken(
                f"{key} is {finished.summary[key]}, the ledger says {sum(rows)}"
            )
    sent = {
        int(r["bytes"])
        for r in finished.ledger
        if (r["direction"], r["record"]) == ("up", "arrays") and r["round"] != "0"
    }
    least, most = min(sent, default=0), max(sent, default=0)
    size = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"arrays of {size} bytes a round and client"


def protects_updates(lab: Lab, case: str, **options: Any) -> str | None:
    """Send nothing but noisy updates, or refuse ``privacy.update-clip``."""
    protected = {**own(case), **lab.settings, "privacy.update-clip": 0.5, **options}
    try:
        resolve({**defaults(), **protected})
    except FedGraphError as error:
        return f"refused, which is allowed: {error}"
    try:
        ours, theirs = (
            what_leaves(lab, case, is_other=other, **options) for other in (False, True)
        )
    except FedGraphError as error:
        raise Broken(f"a run with privacy.update-clip stops: {error}") from error
    if ours.scores == theirs.scores:
        raise Broken("two worlds with other data are one: scores are equal")
    if what := first_difference(ours, theirs):
        raise Broken(
            f"with privacy.update-clip, {what} depends on a client's data beside its"
            " noisy update; send what uplink() is given, or refuse the setting in"
            " Settings.check()"
        )
    return None


CHECKS = (
    Check("runs", "trains without a failure; every score is on record", completes),
    Check("settings", "settings are read back as they were written", keeps_settings),
    Check("seeds", "a seed gives the same bytes again", same_seed_same_bytes),
    Check("seeds", "another seed gives other bytes", other_seed_other_bytes),
    Check("nodes", "three nodes give the bytes of one", same_bytes_on_any_nodes),
    Check("nodes", "so does a process for each message", same_bytes_in_any_process),
    Check("rest", "learning rate 0 changes nothing", rests_at_rate_zero),
    Check("learns", "training changes every model", learns),
    Check(
        "splits", "labels of test items change no weights", learns_from_no_test_label
    ),
    Check("resume", "a longer run goes on exactly", resumes_exactly),
    Check("resume", "so does a run that was killed", resumes_after_a_kill),
    Check(
        "failures", "a failed client is named, others go on", survives_a_failed_client
    ),
    Check("failures", "too few replies stop the run", stops_with_too_few_replies),
    Check("bytes", "every byte is counted", counts_bytes),
    Check("privacy", "update-clip lets only noisy updates out", protects_updates),
)


def _differ(one: Run, other: Run) -> str:
    """Say in which way two runs differ; "" if they do not."""
    if one.sha != other.sha:
        return "other weights"
    return "other scores" if one.rounds != other.rounds else ""


def _rounds(count: int) -> dict[str, Any]:
    return {"num-server-rounds": count}


def _resume(lab: Lab, case: str, part: Run, **overrides: Any) -> Run:
    forget(case)
    kept: dict[str, Any] = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    try:
        return lab.run(case, **{**kept, "resume": str(part.path), **overrides})
    except Exception as error:
        words = f"a run cannot be resumed: {type(error).__name__}: {error}"
        if isinstance(error, AttributeError):
            owner = type(error.obj).__name__
            words += f"; state() and restore() of {owner} must hold {error.name}"
        raise Broken(words) from error


def _check_resumed(whole: Run, resumed: Run, what: str) -> None:
    how = _differ(whole, resumed)
    if not how and resumed.clusters != whole.clusters:
        how = "other clusters"
    if how:
        raise Broken(
            f"{what} goes on to {how} than without the stop: state() and restore() of"
            " the strategy, or private_keys() and extra_state() of the client, forget"
            " something"
        )

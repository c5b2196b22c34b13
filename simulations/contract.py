"""``fedgraph contract``: say what holds of a method.

Each check is a function of a laboratory and a case. It raises :class:`Broken`, which
says in words what does not hold.
"""

from __future__ import annotations

import logging
import math
import random
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import typer
from flwr.app import Message
from rich.console import Console
from rich.markup import escape

import datasets
from clients.base import GraphClient
from clients.privacy.site import PrivateSite
from fedgraph_flwr import client_app
from fedgraph_flwr.core import plugins
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition
from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.core.secure_aggregation import LABEL, MASKED
from fedgraph_flwr.core.tasks import GRAPH_EMBEDDING
from fedgraph_flwr.core.wire import (
    COUNT,
    EVAL,
    SERVER_ROUND,
    TIMING,
    WEIGHTS_HASH,
    Parcel,
    pack,
    unpack,
)
from fedgraph_flwr.registry import find_method
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.folder import RunFolder
from fedgraph_flwr.results.run_file import Writing
from strategies.averaging import weighted_mean

from .inline import InlineGrid
from .run import KeyValues, read_settings
from .tiny_runs import Lab, Run, federation, own, row

REASON = "ValueError: disk full"
STILL: Mapping[str, Any] = {"learning-rate": 0.0, "weight-decay": 0.0}
_HALF: Mapping[str, Any] = {"min-fit-replies": 0.5}
_SENT = "up", "arrays"
NOISY: Mapping[str, Any] = {
    "privacy.update-clip": 0.5,
    "privacy.update-noise": 3.0,
    "num-server-rounds": 2,
}
# Sent exactly, as docs/privacy.md says: scores and losses with the counts that they are
# means over, how long it took, and the hash of the model that was scored last.
EXACT = (EVAL, COUNT, *TIMING, WEIGHTS_HASH)
_WIDTH = 88
console = Console(highlight=False, soft_wrap=True)


class Broken(Exception):
    """A method does not keep what every method must keep."""


# What is done to a run -------------------------------------------------------------


class Killed(BaseException):
    """An exception in place of a signal, which no handler catches."""


@contextmanager
def killed_at_checkpoint(
    server_round: int, error: BaseException | None = None
) -> Iterator[None]:
    """Stop the server before it writes a checkpoint; clients are a round further."""
    write = Writing.checkpoint

    def stop(self: Writing, number: int, *state: Any) -> int:
        if number == server_round:
            raise error or Killed
        return write(self, number, *state)

    finish = RunFolder.finish if error else lambda *_, **__: {}  # a killed server's
    with (
        mock.patch.object(Writing, "checkpoint", stop),
        mock.patch.object(RunFolder, "finish", finish),
    ):
        yield


@contextmanager
def failing_client(client: int = 1, server_round: int = 2) -> Iterator[None]:
    """Let a client raise when it trains in a round."""
    participate = GraphClient.participate

    def fail(self: GraphClient[Any], parcel: Any, header: Any) -> Any:
        if (self.job.client_id, header[SERVER_ROUND]) == (client, server_round):
            raise ValueError("disk full")
        return participate(self, parcel, header)

    with mock.patch.object(GraphClient, "participate", fail):
        yield


def _forget(case: str) -> None:
    """Unload the plug-in of a case, as if another process went on."""
    name = case.partition(" ")[0]
    if plugins.is_plugin(name):
        plugins.forget(plugins.split(name)[0])


@contextmanager
def _other_global_generators() -> Iterator[list[str]]:
    """Seed all global generators differently; name at the end which were used."""
    touched: list[str] = []
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002  the global one is meant
    torch.manual_seed(5)
    put = _generators()
    try:
        yield touched
    finally:
        touched += [name for name, state in _generators().items() if state != put[name]]
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def _generators() -> dict[str, Any]:
    legacy = np.random.get_state()  # noqa: NPY002
    return {
        "Python's random": random.getstate(),
        "NumPy": [np.asarray(part).tolist() for part in legacy],
        "torch": torch.get_rng_state().tolist(),
    }


# Checks ----------------------------------------------------------------------------


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
    trainers = "0" if row(case).strategy.IN_ONE_PLACE else "012"
    wanted += [
        (r, c, "train", "post_training", "loss") for r in "123" for c in trainers
    ]
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
    rows = [r for r in finished.ledger if (r["direction"], r["record"]) == _SENT]
    sent = sorted({int(r["bytes"]) for r in rows if r["round"] != "0"} or {0})
    ends = dict.fromkeys(f"{size:,}" for size in (sent[0], sent[-1]))
    return f"arrays of {' to '.join(ends)} bytes a round and client"


def same_seed_same_bytes(lab: Lab, case: str) -> str | None:
    """Repeat the bytes of a seed, whatever global generators hold."""
    first = lab.once(case)
    with _other_global_generators() as touched:
        again = lab.run(case)
    which = " and ".join(touched)
    cure = (
        "; draw from the generator that loss() is given, or from one made by"
        " fedgraph_flwr.core.seeding.derive_seed(seed, client, round, purpose); new"
        " layers of a model: in `with seeded(spec):`, as examples/sage.py does"
    )
    if how := _differ(first, again):
        why = "something outlives a run: a global, a class attribute, a clock, an order"
        why += " of sets"
        if which:
            why = f"it draws from the global generator of {which}{cure}"
        raise Broken(f"the same seed gives {how}: {why}")
    if touched:
        raise Broken(f"the global generator of {which} is moved{cure}")
    return None


def other_seed_other_bytes(lab: Lab, case: str) -> str | None:
    """Give other weights for another seed."""
    if lab.run(case, seed=11).sha == lab.once(case).sha:
        raise Broken("seeds 10 and 11 give the same weights: the seed is not read")
    return None


def same_bytes_in_any_process(lab: Lab, case: str) -> str | None:
    """Give the same bytes if a process serves one message only, and replies mix.

    The module of a plug-in is loaded anew for every message, as at a site.
    """
    once = lab.once(case)
    deliver, pull = InlineGrid.deliver, InlineGrid.pull_messages

    def alone(self: InlineGrid, message: Message) -> Message:
        _forget(case)
        return deliver(self, message)

    def turned(self: InlineGrid, ids: Any) -> list[Message]:
        return list(pull(self, ids))[::-1]

    try:
        with (
            mock.patch.object(InlineGrid, "deliver", alone),
            mock.patch.object(InlineGrid, "pull_messages", turned),
        ):
            how = _differ(once, lab.run(case, nodes=3))
    except FedGraphError as error:
        raise Broken(
            f"with a process of its own for every message the run stops: {error}"
        ) from error
    if how:
        raise Broken(
            f"a process of its own for every message gives {how}: something is kept on"
            " a class or in the module; keep it by extra_state() or in the strategy's"
            " state()"
        )
    return None


def rests_at_rate_zero(lab: Lab, case: str) -> str | None:
    """Leave weights as they are if nothing is learned."""
    if row(case).distil:
        return "its server trains, at a rate of its own"
    short, long = (lab.run(case, **STILL, **_rounds(n)) for n in (1, 2))
    one, other = (next(iter(run.models.values()), {}) for run in (short, long))
    # Buffers are statistics of the data, and not of the training.
    own = [n for n in one if "running_" not in n and "num_batches" not in n]
    moved = [n for n in own if not np.array_equal(one[n], other[n])]
    if moved or (len(own) == len(one) and long.sha != short.sha):
        names = f": {', '.join(moved)}" if moved else ""
        raise Broken(f"with learning-rate 0, round 2 changes weights{names}")
    return None


def learns(lab: Lab, case: str) -> str | None:
    """Train models that are not those of a run in which nothing is learned."""
    start = lab.run(case, **STILL, **_rounds(1)).models
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
        partition = load(settings, client)
        graphs, test = partition.graphs, partition.test
        y, old = graphs.y.copy(), graphs.y[test]
        y[test] = 1 - old if graphs.has_tasks else (old + 1) % graphs.num_classes
        return replace(partition, graphs=replace(graphs, y=y), data_hash="")

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
    if resumed.summary["resumed_from_round"] != stop_after:
        raise Broken(f"a run of {stop_after} rounds is not resumed from its last")
    _check_resumed(whole, resumed, f"a run that stops after round {stop_after}")
    return None


def resumes_after_a_kill(
    lab: Lab, case: str, *, at: int = 3, num_rounds: int = 5
) -> str | None:
    """Continue a run whose server died while clients were a round further."""
    rounds = _rounds(num_rounds)
    whole = lab.once(case, **rounds)
    root = Path(tempfile.mkdtemp(dir=lab.root))
    places: dict[str, Any] = {
        f"{what}-dir": str(root / what) for what in ("results", "state")
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
    try:
        with failing_client():
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


def protects_updates(lab: Lab, case: str, **options: Any) -> str | None:
    """Send nothing but noisy updates, or refuse ``privacy.update-clip``."""
    config = {**NOISY, **options}
    try:
        resolve({**defaults(), **own(case), **lab.settings, **config})
    except FedGraphError as error:
        return f"refused, which is allowed: {error}"
    try:
        ours, theirs = (
            _what_leaves(lab, case, load, config)
            for load in (federation, _other_federation)
        )
    except FedGraphError as error:
        raise Broken(f"a run with privacy.update-clip stops: {error}") from error
    for one, other in zip_longest(ours, theirs, fillvalue=("how much is sent", 0)):
        if one != other:
            raise Broken(
                f"with privacy.update-clip, {one[0]} depends on a client's data beside"
                " its noisy update; send what uplink() is given, or refuse the setting"
                " in Settings.check()"
            )
    return None


def adds_up_unseen(lab: Lab, case: str) -> str | None:
    """Make the same model of sums alone, or refuse ``secure-aggregation.on``."""
    config: dict[str, Any] = {"secure-aggregation.on": True, **_rounds(1)}
    try:
        resolve({**defaults(), **own(case), **lab.settings, **config})
    except FedGraphError as error:
        return f"refused, which is allowed: {error}"
    deliver, left = InlineGrid.deliver, set()

    def watched(self: InlineGrid, message: Message) -> Message:
        reply = deliver(self, message)
        for parcel in unpack(reply.content)[0].values():
            left.update({*parcel.arrays, *parcel.evaluation})
        return reply

    try:
        with mock.patch.object(InlineGrid, "deliver", watched):
            covered = lab.run(case, nodes=3, **config).models
    except FedGraphError as error:
        raise Broken(f"a run with secure-aggregation.on stops: {error}") from error
    if beside := left - {MASKED, LABEL}:
        raise Broken(
            f"arrays {sorted(beside)} leave a client beside its covered update"
        )
    plain = lab.once(case, **_rounds(1)).models
    if plain.keys() != covered.keys():  # clients mix the mean for themselves
        plain = {"mean": weighted_mean([*plain.values()], [1.0] * len(plain))}
    for name, model in plain.items():
        for array, values in model.items():
            if not np.allclose(values, covered[name][array], rtol=1e-5, atol=1e-6):
                raise Broken(
                    f"the sum makes another {array} of model {name} than the mean:"
                    " step() does more with replies than to average their models; say"
                    " why in NO_SUMS"
                )
    return None


class Check(NamedTuple):
    """One check: a word for it, what holds if it passes, and the function."""

    name: str
    holds: str
    function: Callable[[Lab, str], str | None]


CHECKS = (
    Check("runs", "trains without a failure; every score is on record", completes),
    Check("seeds", "a seed gives the same bytes again", same_seed_same_bytes),
    Check("seeds", "another seed gives other bytes", other_seed_other_bytes),
    Check(
        "nodes",
        "three nodes, and a process for each message, give the same bytes",
        same_bytes_in_any_process,
    ),
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
    Check("privacy", "update-clip lets only noisy updates out", protects_updates),
    Check("sums", "the server can do with sums of updates", adds_up_unseen),
)


def _differ(one: Run, other: Run) -> str:
    """Say in which way two runs differ; "" if they do not."""
    if one.sha != other.sha:
        return "other weights"
    return "other scores" if one.rounds != other.rounds else ""


def _rounds(count: int) -> dict[str, Any]:
    return {"num-server-rounds": count}


def _resume(lab: Lab, case: str, part: Run, **overrides: Any) -> Run:
    _forget(case)
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


# Two worlds: other data at every client, and the same noisy updates. Whatever differs
# between what leaves the clients of the two has gone around the mechanism that protects
# updates.


def _other_federation(settings: RunSettings, client_id: int) -> GraphPartition:
    """Make as many graphs or nodes as :func:`federation`, with other content."""
    own = federation(settings, client_id)
    other = replace(settings, split_seed=settings.split_seed + 1)
    graphs, y = federation(other, client_id).graphs, own.graphs.y.copy()
    if own.graphs.pairs is not None:  # as many pairs of nodes
        graphs = replace(own.graphs, x=own.graphs.x[::-1])
    y[: len(y) // 2] = y[0]
    return replace(own, graphs=replace(graphs, y=y), split_hash="", data_hash="")


def _what_leaves(
    lab: Lab, case: str, load: Any, config: Mapping[str, Any]
) -> list[tuple[str, object]]:
    """Run a case with noisy updates that are given, and note all that is sent."""
    found: list[tuple[str, object]] = []
    charge = PrivateSite.noisy_update

    def packed(parcels: Mapping[int, Parcel], *header: Any) -> Any:
        for client, p in parcels.items():
            arrays = {k: a.tobytes() for k, a in {**p.arrays, **p.evaluation}.items()}
            sent = {"the error": p.error, **p.metrics, **p.facts, **arrays}
            found.extend(
                (f"{name} of client {client}", value)
                for name, value in sent.items()
                if not name.startswith(EXACT)
            )
        return pack(parcels, *header)

    def given(self: PrivateSite, update: Any, partition: Any, **rest: Any) -> Any:
        charge(self, update, partition, **rest)
        rng = np.random.default_rng([rest["server_round"], partition.client_id])
        return [rng.normal(0, 0.01, a.shape).astype(a.dtype) for a in update]

    with (
        mock.patch("datasets.load_partition", load),
        mock.patch.object(PrivateSite, "noisy_update", given),
        mock.patch.object(client_app, "pack", packed),
    ):
        finished = lab.run(case, **config)
    for name, model in finished.models.items():
        found.extend((f"{k} of model {name}", a.tobytes()) for k, a in model.items())
    return found


# The command -----------------------------------------------------------------------


def contract(
    method: Annotated[
        str, typer.Argument(help="E.g. fedavg, or fgx:METHOD of plugins/fgx.py.")
    ],
    settings: KeyValues = None,
    *,
    task: Annotated[
        str, typer.Option(metavar="KEY", help="One task only, else all it can do.")
    ] = "",
) -> int:
    """Try a method on small graphs, and say in words what holds of it.

    The exit code is 0 if everything holds, 1 if something does not, 2 if the method
    could not be looked at.
    """
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    known = {one.key: one for one in find_method(method).clients}
    if task and task not in known:
        raise ConfigError(f"--task must be one of {', '.join(known)}, got {task!r}")
    own, code = read_settings(settings), 0
    for one in [known[task]] if task else known.values():
        console.print(f"[bold]{escape(method)}[/], {one.name}")
        with (
            tempfile.TemporaryDirectory(prefix="contract-") as folder,
            mock.patch("datasets.load_partition", federation),
            mock.patch("fedgraph_flwr.server_app.draw_all"),
        ):
            lab = Lab(Path(folder), own)
            code = max(code, _check_all(lab, f"{method} {one.key}"))
    return code


def _check_all(lab: Lab, case: str) -> int:
    """Run all checks and print a line of each; nothing more if it does not run."""
    code = 0
    for check in CHECKS:
        broken, words = _try(check, lab, case)
        word = "[red]BROKEN[/]" if broken else "[green]holds[/] "
        console.print(f"  {check.name:<9} {word} {check.holds}")
        for line in textwrap.wrap(words, _WIDTH - 20):
            console.print(f"{'':<19}{escape(line)}")
        code = max(code, int(broken))
        if broken and check is CHECKS[0]:
            console.print("  Nothing else was looked at.")
            break
    return code


def _try(check: Check, lab: Lab, case: str) -> tuple[bool, str]:
    """Return whether a check fails, and its words."""
    try:
        return False, check.function(lab, case) or ""
    except Broken as error:
        return True, str(error)
    except ConfigError:
        raise
    except Exception as error:  # whatever a method may raise is its own
        at = traceback.extract_tb(error.__traceback__)[-1]
        return True, f"{type(error).__name__}: {error} ({at.filename}:{at.lineno})"

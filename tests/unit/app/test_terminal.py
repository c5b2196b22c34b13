"""What a user sees: one line for a mistake, no long silence, how to go on."""

from __future__ import annotations

import logging
import sqlite3
import time

import pytest

import datasets
from clients import store
from fedgraph_flwr.core import process
from fedgraph_flwr.core.errors import DataError, RunFailedError
from fedgraph_flwr.core.process import announced, log_failure
from fedgraph_flwr.core.words import (
    client_ranges,
    shortened,
    tell_reasons,
    visible,
)
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.progress import Clock


@pytest.fixture
def logged(caplog):
    """Messages at level INFO and above, as a user reads them."""
    caplog.set_level(logging.INFO, "flwr")
    return caplog


def test_clients_with_one_reason_are_told_together():
    assert client_ranges([5, 0, 2, 1]) == "0-2, 5"
    assert client_ranges([]) == ""
    full = "StorageError: cannot write /state/run/client-{}/round-1: disk full"
    reasons = {c: full.format(c) for c in range(10)} | {10: "late", 12: "client 1 left"}
    assert tell_reasons(reasons) == (
        f"clients 0-9: {full.format('*')}; client 10: late; client 12: client 1 left"
    )


def test_a_foreseen_error_is_one_line_and_another_has_its_traceback(logged):
    for error in (DataError("no such folder"), ZeroDivisionError("a fault of ours")):
        try:
            raise error
        except Exception as raised:
            log_failure("run failed", raised)
    mistake, fault = [m for m in logged.messages if "run failed" in m]
    assert mistake == "run failed: DataError: no such folder"
    assert fault.startswith("run failed: ZeroDivisionError: a fault of ours\nTraceback")


EVIL = "\x1b[2J\u202e\x9b31m\u2028\nINFO : all is well\r"
SHOWN = r"\x1b[2J\u202e\x9b31m\u2028\nINFO : all is well\r"


def test_a_text_of_others_breaks_no_line_and_commands_no_terminal():
    assert shortened(EVIL) == SHOWN == visible(SHOWN)
    assert shortened(EVIL, 5) == r"\x1b[2J\u202e ... (30 characters)"
    assert visible("Größe\u00a0(µm) 10⁻³") == "Größe\u00a0(µm) 10⁻³"


def test_a_wait_is_announced_and_speaks_again(logged, monkeypatch):
    monkeypatch.setattr(process, "BEAT_S", 0.01)
    with announced("roll call", lambda: "2 of 3 are there"):
        time.sleep(0.2)
    first, *others = logged.messages
    assert first == "roll call"
    assert others[0] == "roll call · 2 of 3 are there · 0 s so far"
    time.sleep(0.05)
    assert len(logged.messages) == 1 + len(others)


def test_clients_that_cannot_load_are_told_once_without_tracebacks(
    run, toy_data, logged
):
    def nothing(settings, client_id):
        raise DataError("no graphs today")

    with toy_data.context() as patch:
        patch.setattr(datasets, "load_partition", nothing)
        with pytest.raises(
            DataError, match=r"client 0 on node .* is not ready.*no graphs today"
        ):
            run("fedavg")
    said = [m for m in logged.messages if "no graphs today" in m]
    assert said == ["clients 0-2 failed: DataError: no graphs today"]
    assert "Traceback" not in "".join(m for m in logged.messages)


def test_a_site_answers_when_its_states_are_on_the_disk(run, monkeypatch):
    def fails(*_) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store, "_write", fails)
    with pytest.raises(RunFailedError, match=rf"StorageError: .*{store.STATES} cannot"):
        run("fedavg")


def test_keys_of_another_method_are_named(run, logged):
    unread = resolve({**defaults(), "method": "fedavg", "fedprox.mu": 0.5}).warnings
    words = "fedprox.mu is set to 0.5, but method 'fedavg' does not read it"
    assert unread == (words,)
    assert (
        resolve({**defaults(), "method": "fedprox", "fedprox.mu": 0.5}).warnings == ()
    )
    run("fedavg", **{"fedprox.mu": 0.5})
    assert logged.messages.count(words) == 1


@pytest.mark.parametrize(
    ("dataset", "read", "unread"),
    [
        ("graph-csv", {"csv-bad-rows": "refuse"}, {"csv-label-kind": "binary"}),
        ("smiles-csv", {"csv-smiles-column": "s"}, {"dirichlet-alpha": 0.5}),
        ("Cora", {"partition": "louvain"}, {"csv-bad-rows": "refuse"}),
    ],
)
def test_keys_that_mean_nothing_for_the_data_are_named(dataset, read, unread):
    config = {**defaults(), "method": "fedavg", "dataset": dataset, **read}
    assert resolve(config).warnings == ()
    ((key, value),) = unread.items()
    resolved = resolve({**config, **unread})
    (words,) = resolved.warnings
    assert words.startswith(f"{key} is set to {value!r}, but dataset {dataset!r} with")
    assert resolve({**defaults(), **resolved.to_config()}).warnings == ()  # written out


def test_time_left_is_told_once_a_second_round_of_this_process_shows_the_pace():
    clock, resumed, long = Clock(10), Clock(10), Clock(102)
    assert [clock.left(n, s) for n, s in ((1, 40.0), (2, 2.0))] == ["", "0:16"]
    assert clock.left(3, 4.0) == "0:21"  # 7 rounds of 3 s
    assert [resumed.left(n, s) for n, s in ((8, 30.0), (9, 2.0))] == ["", "0:02"]
    assert [long.left(n, s) for n, s in ((1, 1.0), (2, 37.0))] == ["", "1:01:40"]

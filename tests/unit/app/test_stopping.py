"""A run that is stopped through Flower writes what it has computed."""

from __future__ import annotations

import threading

import pytest
from flwr.supercore.exit.exit_handler import trigger_exit_handlers

from clients.base import GraphClient
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.process import STOPPED, check_stop, delayed_stop
from fedgraph_flwr.results.reader import load_summary


def only_summary(folder):
    (path,) = (folder / "results").iterdir()
    return load_summary(path)


@pytest.fixture
def in_round_two(monkeypatch):
    """``in_round_two(action)``: client 0 does this before it trains in round 2."""

    def install(action):
        train = GraphClient.participate

        def patched(self, parcel, header):
            if (self.job.client_id, header["server-round"]) == (0, 2):
                action()
            return train(self, parcel, header)

        monkeypatch.setattr(GraphClient, "participate", patched)

    return install


def test_in_a_simulation_flower_waits_for_the_summary(run, in_round_two, tmp_path):
    """There the server's thread is not the one that Flower ends."""
    is_training, raised = threading.Event(), []

    def begin_to_end():
        handlers = threading.Thread(
            target=trigger_exit_handlers, kwargs={"run_before_force_exit": True}
        )
        handlers.start()
        ended.append(handlers)
        is_training.set()

    def serve():
        try:
            with delayed_stop():
                run("fedavg", **{"results-dir": str(tmp_path / "results")})
        except RunFailedError as error:
            raised.append(str(error))

    ended: list[threading.Thread] = []
    in_round_two(begin_to_end)
    server = threading.Thread(target=serve)
    server.start()
    assert is_training.wait(timeout=60)
    ended[0].join(timeout=60)  # Flower goes on to end the process only now
    summary = only_summary(tmp_path)
    assert (summary["status"], summary["rounds"]) == ("failed", 1)
    assert STOPPED in summary["error"]
    server.join(timeout=60)
    assert raised == [STOPPED]
    check_stop()  # a later run of this process is not stopped


def test_in_a_deployment_the_summary_is_there_before_flower_goes_on(
    run, in_round_two, tmp_path, monkeypatch
):
    """From then on Flower's own handlers may take all the time that it leaves."""
    told = []

    def go_on():
        told.append(only_summary(tmp_path)["status"])
        raise SystemExit(0)

    monkeypatch.setattr("fedgraph_flwr.core.flower_names.exit_process", go_on)
    in_round_two(lambda: trigger_exit_handlers(run_before_force_exit=True))
    with pytest.raises(SystemExit), delayed_stop():
        run("fedavg", **{"results-dir": str(tmp_path / "results")})
    assert told == ["failed"]
    assert STOPPED in only_summary(tmp_path)["error"]
    trigger_exit_handlers(
        run_before_force_exit=True
    )  # a run that is over hears nothing
    check_stop()

"""Every method computes on a device what it computes on the CPU."""

from __future__ import annotations

import device
import pytest

pytestmark = pytest.mark.slow
GIVEN = ["--device", "cpu", "--rounds", "1"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """One method of each kind of data."""
    names = ("moon", "fedgkd", "fgcl")
    monkeypatch.setattr(device, "METHODS", {n: device.METHODS[n] for n in names})
    monkeypatch.setattr(device.logging, "disable", lambda _: None)
    return names


def test_two_runs_on_the_cpu_agree_and_many_clients_are_timed(few, monkeypatch, capsys):
    monkeypatch.setattr(device, "in_own_process", lambda _, *given: (len(given), 5e8))
    assert device.main([*GIVEN, "--clients", "50"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*few, "0.0e+00", "agrees"))
    assert "50 clients: 3.000 s, 0.50 GB" in out


@pytest.mark.parametrize("wrong", ["a number", "a client"])
def test_a_device_that_computes_otherwise_is_named(monkeypatch, capsys, wrong):
    train, asked = device.train, []

    def off(overrides):
        models, seconds = train(overrides)
        asked.append(overrides["method"])
        if asked.count("fgcl") == 2:  # on the device
            name = max(n for n in models if n.startswith("model/"))
            if wrong == "a client":
                del models[name]
            else:
                next(iter(models[name].values()))[...] += 0.01
        return models, seconds

    monkeypatch.setattr(device, "train", off)
    assert device.main(GIVEN) == 1
    assert "DIFFERS by more than 0.001" in capsys.readouterr().out


def test_a_round_of_many_clients_has_a_time_and_a_size(monkeypatch):
    config = {"dataset": "synthetic", "num-clients": 2, "partition": "auto"}
    run = device.finished_run
    monkeypatch.setattr(device, "finished_run", lambda given: run({**given, **config}))
    seconds, peak = device.many("cpu", 50, 1)
    assert 0 < seconds < 60
    assert peak > 1e8

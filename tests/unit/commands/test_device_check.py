"""Every method computes on a device what it computes on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgraph_flwr.registry import METHODS
from simulations import device_check

TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture
def few(monkeypatch):
    """One method of each kind of data."""
    kept = {name: METHODS[name] for name in ("moon", "fedgkd", "fgcl")}
    monkeypatch.setattr(device_check, "METHODS", kept)
    return kept


def test_two_runs_on_the_cpu_agree(few, capsys):
    assert device_check.main(["--device", "cpu", "--rounds", "1"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (*few, "0.0e+00", "agrees"))


@pytest.mark.parametrize("wrong", ["a number", "a client"])
def test_a_device_that_computes_otherwise_is_told(few, monkeypatch, capsys, wrong):
    train, asked = device_check.train, []

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

    monkeypatch.setattr(device_check, "train", off)
    assert device_check.main(["--device", "cpu", "--rounds", "1"]) == 1
    assert "DIFFERS by more than 0.001" in capsys.readouterr().out


def test_a_data_set_is_tried_with_the_methods_that_it_fits(few, capsys):
    few.pop("fgcl")
    asked = ["--device", "cpu", "--rounds", "1", "--dataset", "planted"]
    assert device_check.main(asked) == 0
    assert "need another --dataset: moon" in capsys.readouterr().out

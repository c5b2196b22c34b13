"""`simulations.run --plan`: what a run will need, before it starts."""

from __future__ import annotations

import re

import pytest

from simulations import plan
from simulations.plan import Probe, num_actors, print_plan
from simulations.run import main

PROBE = Probe(seconds=4.0, compute=3.0, megabytes=500.0, moved=2.0)
RUN = {"method": "fedavg", "dataset": "synthetic", "num-clients": 4}
RUN |= {"num-server-rounds": 90}


@pytest.mark.parametrize(
    ("nodes", "gpus", "cores", "devices", "expected"),
    [
        (10, 0.0, 4, 0, 4),
        (3, 0.0, 4, 0, 3),
        (50, 0.1, 64, 1, 10),
        (50, 0.3, 64, 2, 6),
        (2, 0.5, 4, 0, 0),
    ],
)
def test_actors_are_as_many_as_there_is_room_for(nodes, gpus, cores, devices, expected):
    assert num_actors(nodes, gpus=gpus, cores=cores, devices=devices) == expected


def printed(capsys, **options):
    print_plan(RUN, **{"actors": 1, "num_runs": 1, "side_by_side": 1, **options})
    rows = re.findall(r"│ +(\S[^│]*?) +│ +(\S[^│]*?) +│", capsys.readouterr().out)
    return dict(rows)


def test_the_arithmetic(monkeypatch, capsys):
    monkeypatch.setattr(plan, "probe", lambda _: PROBE)
    alone = printed(capsys)
    assert alone["a run, about"] == "6 min to 6 min (90 rounds)"
    assert alone["memory in all, at most"] == "0.5 GB"
    assert alone["moved in a run"] == "180.0 MB"
    # Three actors share what the clients compute; the server is not shared.
    three = printed(capsys, actors=3, num_runs=5)
    assert three["a run, about"] == "3 min to 6 min (90 rounds)"
    assert three["5 run(s), about"] == "15 min to 30 min"
    assert three["memory in all, at most"] == "1.5 GB"
    two_at_a_time = printed(capsys, num_runs=5, side_by_side=2)
    assert two_at_a_time["5 run(s), about"] == "18 min to 18 min"


def test_no_room_for_an_actor_is_refused(capsys):
    assert main(["fedavg", "--plan", "--gpus", "0.5"]) == 2
    assert "leaves room for no actor" in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_measures_and_keeps_nothing(tmp_path, capsys):
    words = ["--set", "num-clients=3", "--set", "num-server-rounds=7"]
    words += ["--set", "hidden-dim=8", "--results", str(tmp_path / "results")]
    assert main(["fedavg", "--plan", "--engine", "inline", *words]) == 0
    out = capsys.readouterr().out
    assert "plan: fedavg on synthetic; nothing was kept" in out
    assert "(7 rounds)" in out
    seconds = float(re.search(r"\(measured\) │ +([0-9.]+) s", out)[1])
    assert 0 < seconds < 60
    assert float(re.search(r"at most │ +([0-9]+) MB", out)[1]) > 50
    assert not (tmp_path / "results").exists()

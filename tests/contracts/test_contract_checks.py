"""Every check sees a method that is broken in its way, and passes one that is not."""

from __future__ import annotations

import re

import pytest

from fedgraph_flwr.core.method import PLAIN
from simulations import contract
from simulations.cli import main as fedgraph
from simulations.contract import CHECKS, Broken
from simulations.tiny_runs import Lab

RIGHT = "broken_methods:RIGHT"
BROKEN = [
    ("OVERFLOWS", contract.completes, "array .* holds NaN or infinity"),
    ("REMEMBERS", contract.completes, "has no attribute 'before'"),
    ("DRAWS", contract.same_seed_same_bytes, "other weights: .* generator of torch;"),
    ("COUNTS", contract.same_seed_same_bytes, "weights: something outlives a run"),
    ("COUNTS", contract.same_bytes_in_any_process, "kept on a class or in the module"),
    ("RESTLESS", contract.rests_at_rate_zero, "rate 0, round 2 changes weights"),
    ("ROUNDS", contract.learns, "after 3 rounds, model global is what it was: step"),
    ("PEEKS", contract.learns_from_no_test_label, "items give other weights: it tr"),
    ("HEAVY", contract.resumes_exactly, "stops after round 2 goes on to other weights"),
    ("HEAVY", contract.resumes_after_a_kill, "killed after round 3 goes on to other"),
    ("FORGETS", contract.resumes_exactly, r"restore\(\) of Forgets must hold speed$"),
    ("FRAGILE", contract.survives_a_failed_client, "client of three stops .*KeyError"),
    (
        "TRIMS",
        contract.survives_a_failed_client,
        "strategy's model 'global' after round 2: array 'convs.*' holds NaN or infinity"
        r"; step\(\) of Trims had 2 replies of 3",
    ),
    ("LEAKS", contract.protects_updates, "shared/.* of client 0 depends on"),
    ("TELLS", contract.completes, "facts are .'zeros'., expected"),
]


@pytest.mark.parametrize(("name", "check", "words"), BROKEN)
def test_a_check_sees_what_is_broken_on_purpose(lab, name, check, words):
    with pytest.raises(Broken, match=words):
        check(lab, f"broken_methods:{name}")


@pytest.mark.slow
@pytest.mark.parametrize("check", dict.fromkeys(row[1] for row in BROKEN))
def test_the_same_check_passes_a_method_that_is_not_broken(lab, check):
    assert "refused" not in (check(lab, RIGHT) or "")


@pytest.mark.parametrize(
    ("case", "check", "encoder"),
    [
        ("gcfl+", contract.same_bytes_in_any_process, "sage"),
        ("fedavg multi-task", contract.resumes_exactly, "gin"),
        ("moon", contract.protects_updates, "graphconv"),
        ("fedprox node-classification", contract.learns_from_no_test_label, "pna"),
        ("self-weight link-prediction", contract.resumes_after_a_kill, "gcn"),
    ],
)
def test_checks_hold_with_encoders_that_a_run_chooses(
    toy_data, tmp_path, case, check, encoder
):
    keys = {"encoder": encoder, "direction": "separate", "pna-degree": 2.0}
    check(Lab(tmp_path, keys), case)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch:METHOD"], "plug-in 'nosuch' cannot be imported"),
        (["moon", "--task", "multi-task"], "--task must be one of graph-"),
        (["moon", "moon.mu=-1"], "moon.mu must be a finite number >= 0"),
    ],
)
def test_what_cannot_be_looked_at_exits_with_2(arguments, words, capsys):
    assert fedgraph(["contract", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "task"),
    [
        ("momentum", ""),
        *((m, "graph-classification") for m in ("placebo", "steady", "trimmed")),
        ("sage", "graph-classification"),
        ("gat_nodes", "node-classification"),
    ],
)
def test_the_command_finds_nothing_at_an_example(example, task, capsys):
    chosen = ["--task", task] if task else []
    assert fedgraph(["contract", f"examples.{example}:METHOD", *chosen]) == 0
    told = capsys.readouterr().out
    assert told.count(" holds ") == (1 if task else len(PLAIN)) * len(CHECKS)
    assert "BROKEN" not in told


def test_the_command_names_what_is_broken_and_goes_on(monkeypatch, capsys):
    few = [c for c in CHECKS if c.name in ("runs", "privacy", "seeds")]
    monkeypatch.setattr(contract, "CHECKS", few)
    assert fedgraph(["contract", "broken_methods:LEAKS"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "runs holds trains without a failure" in told
    assert re.search(r"arrays of [\d,]+ bytes a round and client", told)
    assert "privacy BROKEN update-clip lets only noisy updates out" in told

"""Command lines about nodes: what they print, and what they refuse."""

from __future__ import annotations

from fedgraph_flwr.core.tasks import NODE_CLASSIFICATION
from simulations import relatedness
from simulations.cli import main as fedgraph
from simulations.tiny_runs import OF_TASK

PLANTED = OF_TASK[NODE_CLASSIFICATION.name]


def test_statistics_of_clients_are_printed_one_by_one_or_refused(capsys):
    given = ["planted", "--clients", "4,6", "--each"]
    assert fedgraph(["show", "node-statistics", *given]) == 0
    out = capsys.readouterr().out
    assert [f"{n} (mean)" in out for n in (4, 5, 6)] == [True, False, True]
    assert out.count("  client ") == 4 + 6
    assert fedgraph(["show", "node-statistics", "synthetic"]) == 2
    told = capsys.readouterr().err
    assert "'synthetic' has no graph whose nodes are classified; name one" in told


def test_relatedness_of_a_run_is_printed(run, capsys):
    finished = run("fedgkd", **PLANTED)
    assert fedgraph(["show", "relatedness", str(finished.path)]) == 0
    out = capsys.readouterr().out
    found = relatedness.analyse(finished.path)
    for t in (1, max(found)):
        assert f"{found[t][1]:.2e}" in out
    plain = run("fedavg", **PLANTED)
    assert fedgraph(["show", "relatedness", str(plain.path)]) == 2
    assert "has no matrix 'R'; give the results folder" in capsys.readouterr().err

"""What a plug-in's classes override: how it must be written, and what it returns."""

from __future__ import annotations

import json

import pytest

from fedgraph_flwr.core.errors import RunFailedError


def overriding(base, body):
    """Source of a plug-in whose strategy or client overrides one method."""
    part = "clients={GRAPH_CLASSIFICATION: S}" if "Client" in base else "strategy=S"
    head = f"from fedgraph_flwr.api import *\nclass S({base}):\n    def {body}\n"
    return f"{head}METHOD = Method({part})\n"


def test_an_error_in_a_plug_in_is_told_with_its_line(write_plugin, lab):
    source = """\
        from fedgraph_flwr.api import *
        class Forgets(GraphClient):
            def loss(self, batch, generator):
                return self.round.stored["mine"]
        METHOD = Method(clients=on_every_task(Forgets))
        """
    write_plugin("plugins/fgf.py", source)
    with pytest.raises(RunFailedError, match=r"KeyError: 'mine' \(fgf.py, line 4\)"):
        lab.run("fgf:METHOD")


@pytest.mark.parametrize(
    ("base", "body", "words"),
    [
        ("FedAvg", "step(self, replies): pass", r"S.step\(\) takes 2 .* 3 were given"),
        ("FedAvg", "step(self, n, replies): self.mine", "no attribute 'mine'"),
        ("GraphClassifierClient", "loss(self, b): pass", r"S.loss\(\) takes 2 .*"),
    ],
)
def test_so_is_one_that_takes_other_arguments(
    write_plugin, lab, tmp_path, base, body, words
):
    write_plugin("plugins/fgx.py", overriding(base, body))
    with pytest.raises(Exception, match=words):
        lab.run("fgx:METHOD", **{"results-dir": str(tmp_path / "results")})
    (summary,) = tmp_path.glob("results/*/summary.json")
    assert "(fgx.py, line 3)" in json.loads(summary.read_text())["error"]


RETURNS = [
    ("FedAvg", "state(self): return self.theta", r"state\(\) of S must return two"),
    ("FedAvg", "state(self): return {}, {'k': {1}}", "a dict that JSON can hold"),
    (
        "AbstractPersonalStrategy",
        "personalise(self, n, replies): return [1 for r in replies]",
        r"personalise\(\) of S must return weights >= 0 .* \(3, 3\), .* a list",
    ),
    ("FedAvg", "weight(self, c): pass", r"weight\(\) of S must .* None for"),
    ("FedAvg", "weight(self, c): return -1", r"number >= 0, got -1 for client 0"),
    ("FedAvg", "step(self, n, r): self.theta = {}", "but is missing; step"),
    (
        "FedAvg",
        "step(self, n, r): return self.theta",
        r"step\(\) must set the strategy's models and return nothing, got a dict",
    ),
]


@pytest.mark.parametrize(("base", "body", "words"), RETURNS)
def test_what_a_method_returns_is_told_with_its_name(
    write_plugin, lab, base, body, words
):
    """A forgotten ``return`` of a weight trained nothing, and the run completed."""
    write_plugin("plugins/fgx.py", overriding(base, body))
    with pytest.raises(RunFailedError, match=words):
        lab.run("fgx:METHOD")

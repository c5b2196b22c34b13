"""Training on samples of a graph: bytes, and its limit case."""

from __future__ import annotations

import pytest
from stops import resumed

SOME = {"fanout": "3,2", "batch-size": 16}


@pytest.mark.parametrize(
    "task", ["node-classification", "edge-classification", "link-prediction"]
)
def test_samples_follow_the_seed_and_all_at_once_is_the_whole_graph(run, task):
    name = f"fedavg {task}"
    whole = run(name)
    assert run(name, fanout="all", **{"batch-size": 1000}).sha == whole.sha
    some = run(name, **SOME)
    assert some.sha == run(name, nodes=3, **SOME).sha
    others = run(name, **{**SOME, "fanout": "all"}), run(name, **SOME, seed=11)
    assert some.sha not in {other.sha for other in (whole, *others)}


def test_a_run_of_samples_goes_on_as_if_nothing_had_happened(run):
    name, more = "ditto node-classification", {**SOME, "num-server-rounds": 3}
    part = run(name, **{**more, "num-server-rounds": 2})
    assert resumed(run, part, name, **more).sha == run(name, **more).sha

"""What a checkpoint says of clusters: where they changed, not every round."""

import json

import pytest

from fedgraph_flwr.core.tasks import GRAPH_CLASSIFICATION
from fedgraph_flwr.results.record import RunRecord
from strategies.round_report import RoundReport

ONE, TWO = [[0, 1, 2]], [[0, 2], [1]]


def record(rounds):
    """Record of complete rounds with these clusters."""
    made = RunRecord(GRAPH_CLASSIFICATION.of("classes"))
    for number, clusters in enumerate(rounds, 1):
        report = RoundReport(server_round=number)
        report.facts["clusters"] = [list(members) for members in clusters]
        report.is_complete = True
        made.add(report)
    return made


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        ([ONE] * 5, {"1": ONE}),
        ([ONE, ONE, TWO, TWO, ONE], {"1": ONE, "3": TWO, "5": ONE}),
        ([], {}),
    ],
)
def test_clusters_are_told_where_they_change_and_come_back_for_every_round(
    rounds, told
):
    before = record(rounds)
    facts = json.loads(json.dumps(before.to_json()))
    after = RunRecord(before.task)
    after.restore(facts)

    assert facts["clusters"] == told
    assert after.clusters == before.clusters
    assert after.clusters == {str(n): c for n, c in enumerate(rounds, 1)}

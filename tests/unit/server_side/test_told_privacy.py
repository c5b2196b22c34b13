"""Privacy that clients tell as spent: what is believed, kept and refused."""

from __future__ import annotations

import math
import re

import pytest
from spoiling import LENIENT, VICTIM, deliver_with, number

from fedgraph_flwr.core.privacy_settings import PrivacySettings
from strategies.replies import check_privacy


def spent(**changes) -> dict[str, float]:
    told = {"edge-draws": 2, "edge-epsilon": 3.0, "edge-epsilon-lifetime": 4.0}
    told["edge-epsilon-site"] = 3.0
    return {f"privacy/{k}": v for k, v in {**told, "secret": 1.0, **changes}.items()}


EDGES = PrivacySettings(edge_epsilon=1.0, edge_post="clamp01")
OF_UPDATES = PrivacySettings(update_clip=1.0, edge_post="clamp01")


def check(metrics, before, *, of_run=EDGES, **named):
    return check_privacy(7, metrics, before, of_run=of_run, **named)


def test_privacy_that_was_spent_stays_spent():
    before, problem = check(spent(), {})
    assert problem == ""
    more, problem = check(spent(**{"edge-epsilon": 3.5}), before)
    assert (more["edge-epsilon"], problem) == (3.5, "")
    kept, problem = check(spent(**{"edge-epsilon": 1.0}), more)
    assert kept == more
    assert problem.startswith(
        "the ledger of client 7 says less than before: edge-epsilon was 3.5, is 1"
    )
    kept, problem = check({}, more)
    assert kept == more
    assert "says less than before: edge-draws was 2, is missing" in problem
    assert check({}, more, is_failure=True) == (more, "")
    exposed, problem = check(spent(secret=0.0), more)
    assert exposed["secret"] == 0.0
    assert check(spent(), exposed)[0]["secret"] == 0.0


UPDATES = {"privacy/update-epsilon": 1.0, "privacy/update-delta": 0.1}


@pytest.mark.parametrize(
    ("of_run", "told", "problem"),
    [
        *(
            (EDGES, spent(**{"edge-epsilon": v}), "is malformed: edge-epsilon is")
            for v in (math.nan, math.inf, -1.0)
        ),
        (None, spent(), "client 7 reports ['edge-draws'"),
        (OF_UPDATES, spent(), "client 7 reports ['edge-draws'"),
        (EDGES, {**spent(), **UPDATES}, "client 7 reports ['update-delta'"),
        (None, {**UPDATES, "privacy/secret": 1}, "client 7 reports ['update-delta'"),
    ],
)
def test_privacy_that_the_run_does_not_protect_or_is_no_number_is_not_kept(
    of_run, told, problem
):
    kept, found = check(told, {}, of_run=of_run)
    assert kept == {}
    assert problem in found


def test_no_client_makes_a_run_claim_privacy(run, monkeypatch):
    def boast(content):
        for name, value in spent().items():
            content = number(name, value)(content)
        return content

    deliver_with(monkeypatch, boast)
    found = run("fedavg", nodes=3, **LENIENT).summary
    assert found["privacy"] is None
    told = {(f["round"], f["client"]) for f in found["failures"]}
    assert told == {(1, VICTIM), (2, VICTIM)}


def test_a_client_that_no_longer_tells_what_it_spent_fails(run, monkeypatch):
    def silent(content):
        for name in filter(re.compile("privacy/").match, content[f"{VICTIM}/metrics"]):
            content = number(name, None)(content)
        return content

    deliver_with(monkeypatch, silent, rounds=(2,))
    noise = {"privacy.update-clip": 1.0, "privacy.update-noise": 1.0}
    (failure,) = run("fedavg", nodes=3, **LENIENT, **noise).summary["failures"]
    assert (failure["round"], failure["client"]) == (2, VICTIM)
    assert "says less than before: update-delta" in failure["reason"]

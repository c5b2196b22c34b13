"""FedAux over rounds: equal weights are FedAvg of its model, and say so."""

from __future__ import annotations

import numpy as np
import pytest

NODES = {"dataset": "planted", "num-server-rounds": 3, "evaluate-every": 3}


@pytest.mark.parametrize(
    ("given", "is_inert"),
    [
        ({"fedaux.alpha": 0.0}, True),
        ({}, True),  # at the published settings projections hardly differ
        ({"fedaux.compare": "apv-update"}, False),
    ],
)
def test_a_run_whose_weights_were_equal_says_so(run, given, is_inert):
    found = run("fedaux", **NODES, **given)
    words = found.summary["inert"]
    assert words.startswith("weighed all clients alike") == is_inert
    models = [*found.models.values()]
    assert len(models) > 1
    assert all(not name.startswith("masks") for name in models[0])
    apart = max(np.abs(models[0][n] - m[n]).max() for m in models for n in m)
    assert (apart == 0) == ("fedaux.alpha" in given)

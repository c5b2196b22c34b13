"""The demonstration's attacks, on replies that were recorded in a run."""

from __future__ import annotations

import curious_server
import numpy as np
import pytest

from simulations.inline import run_inline
from strategies import rounds


@pytest.mark.parametrize("pads", [False, True])
def test_a_client_of_one_graph_gives_its_label_away_unless_it_is_covered(
    data_dir, tmp_path, monkeypatch, pads
):
    monkeypatch.setattr(rounds.Round, "collect", rounds.Round.collect)
    monkeypatch.setenv("FEDGRAPH_DATA", data_dir)
    curious_server.keep_replies(tmp_path / "records")
    places = {f"{kind}-dir": str(tmp_path / kind) for kind in ("results", "state")}
    config = curious_server.configured("fedavg", 60, 1, pads=pads)
    run = run_inline({**config, **places, "data-dir": data_dir})
    rows = curious_server.score(
        tmp_path / "records" / run.name,
        "adam, 1 graph",
        1,
        pads=pads,
        inverted=0,
        steps=0,
    )
    found = {what: np.mean([row[what] for row in rows]) for what in rows[0]}
    assert len(rows) == 60
    if pads:
        assert found["labels"] <= found["labels, guessed"]
        assert found["kinds"] <= found["kinds, guessed"]
    else:
        assert found["labels"] > 0.95 > found["labels, guessed"]
        assert found["kinds"] == 1 > found["kinds, guessed"]

"""Maps of embeddings are drawn from whatever a results folder holds."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toys

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.view.embedding import draw_embeddings

pytestmark = pytest.mark.slow  # whole runs; the contracts are fast


def write_round(
    run, number, *, num_graphs=40, num_classes=2, num_clients=6, dim=8, **changes
):
    """Classes lie in different directions, clients do not; norms mean nothing."""
    rng = np.random.default_rng(number)
    labels = np.arange(num_graphs) % num_classes
    x = 3 * np.eye(num_classes, dim)[labels] + 0.4 * rng.normal(size=(num_graphs, dim))
    x *= rng.uniform(1, 1000, size=(num_graphs, 1))
    arrays = {
        "embeddings": x.astype(np.float32),
        "labels": labels,
        "clients": np.arange(num_graphs) // max(1, num_graphs // num_clients),
        "graph_ids": np.arange(num_graphs),
        **changes,
    }
    path = run / "embeddings" / f"round-{number:06d}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


DRAWN = {"config": {"embedding.figure-rounds": "0,1,3,12,20"}}


@pytest.fixture
def run(tmp_path):
    summary = {"method": "fclg", "dataset": "PROTEINS", "seed": 7, **DRAWN}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_draws_the_rounds_that_the_run_names(run):
    for number in (0, 5, 12):
        write_round(run, number)
    drawn = draw_embeddings(run)
    assert drawn == [run / f"embeddings-round-{t}.png" for t in (0, 12)]
    for path in drawn:
        toys.assert_drawn(path)
    assert len(list(run.glob("*.png"))) == 2
    chosen = draw_embeddings(run, [5, 5, 3])  # round 3 was not kept
    assert chosen == [run / "embeddings-round-5.png"]


def test_what_is_missing_is_left_out_and_what_is_damaged_refused(run):
    assert draw_embeddings(run) == []
    assert draw_embeddings(run / "nowhere") == []
    whole = write_round(run, 1).read_bytes()
    write_round(run, 5, embeddings=np.array([{}] * 40))  # would have to be unpickled
    folder = run / "embeddings"
    (folder / "round-000006.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "round-last.npz").write_bytes(whole)
    drawn = draw_embeddings(run, range(5))
    assert [p.name for p in drawn] == ["embeddings-round-1.png"]
    for number in (5, 6):
        with pytest.raises(DataError, match=f"round-00000{number}.npz cannot be read"):
            draw_embeddings(run, [number])
    (run / "summary.json").unlink()
    assert draw_embeddings(run, [1]) == drawn

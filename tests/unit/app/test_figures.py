"""Figures are drawn from whatever a results folder holds."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedgraph_flwr.core.files import write_json
from fedgraph_flwr.view import curves as of_run
from fedgraph_flwr.view import style

HEADER = "round,client,split,point,metric,value,num_examples"


def write_run(
    folder: Path,
    *,
    method: str = "gcfl+",
    seed: int = 1,
    shift: float = 0.0,
    norms: bool = True,
) -> Path:
    """Four clients, six rounds, a split after round 3."""
    folder.mkdir(parents=True)
    rows = [HEADER]
    for t, c in product(range(1, 7), range(4)):
        value = min(1.0, 0.4 + 0.05 * t + 0.02 * c + shift)
        rows.append(f"{t},{c},test,post_aggregation,accuracy,{value},20")
        rows.append(f"{t},{c},val,post_aggregation,accuracy,0.1,20")
        rows.append(f"{t},{c},test,post_aggregation,loss,{(2 + c - shift) / t},20")
        if norms:
            rows.append(f"{t},{c},train,update,update_norm,{(1 + c % 2) / t},160")
    (folder / "rounds.csv").write_text("\n".join(rows) + "\n")
    whole, split = [[0, 1, 2, 3]], [[0, 2], [1, 3]]
    rounds = {str(t): whole if t < 3 else split for t in range(1, 7)}
    write_json(folder / "clusters.json", {"rounds": rounds})
    per_client = {str(c): 0.7 + 0.02 * c + shift for c in range(4)}
    told = {"status": "completed", "method": method, "dataset": "synthetic"}
    told |= {"seed": seed, "num_clients": 4, "split_seed": 123, "clusters": split}
    told |= {"adjusted_rand_index": 1.0}
    told |= {"final": {"mean": 0.7, "per_client": per_client}}
    write_json(folder / "summary.json", told)
    return folder


def test_figure_shows_mean_clusters_and_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def keep(figure: Figure, path: Path) -> Path:
        kept.append(figure)
        return path

    monkeypatch.setattr(of_run, "save", keep)
    of_run.draw_run(write_run(tmp_path / "run"))
    accuracy, norms = (figure.axes[0] for figure in kept)
    lines = {line.get_label(): line for line in accuracy.get_lines()}
    # round 1: 0.45 + 0.02 * mean of (0, 1, 2, 3); of clients 1, 3
    assert lines["mean over clients"].get_ydata()[0] == pytest.approx(0.48)
    assert lines["cluster 1: clients 1, 3"].get_ydata()[0] == pytest.approx(0.49)
    assert list(lines["cluster split"].get_xdata()) == [3, 3]
    assert accuracy.get_title(loc="left") == "gcfl+ on synthetic, seed 1"
    by_cluster = [line.get_color() for line in norms.get_lines()[:4]]
    assert by_cluster == [*style.PALETTE[:2]] * 2  # clients 0 and 2, 1 and 3


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    no_norms = write_run(tmp_path / "a", norms=False)
    assert [p.name for p in of_run.draw_run(no_norms)] == ["accuracy.png"]
    bare = write_run(tmp_path / "b")
    (bare / "summary.json").unlink()
    (bare / "clusters.json").write_text("{ cut")
    assert len(of_run.draw_run(bare)) == 2
    (bare / "rounds.csv").unlink()
    assert of_run.draw_run(bare) == []
    assert of_run.draw_run(tmp_path / "nowhere") == []

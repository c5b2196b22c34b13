"""Figures are drawn from whatever a results folder holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toys
from matplotlib.figure import Figure
from safetensors.numpy import save_file

from fedgraph_flwr.results.reader import (
    MATRICES,
    present_clusters,
    read_partitions,
    read_series,
    split_rounds,
)
from fedgraph_flwr.view import curves as of_run
from fedgraph_flwr.view import gain, matrices, style

HEADER = "round,client,split,point,metric,value,num_examples\n"


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
    rows = []
    for t in range(1, 7):
        for c in range(4):
            value = min(1.0, 0.4 + 0.05 * t + 0.02 * c + shift)
            rows.append(f"{t},{c},test,post_aggregation,accuracy,{value},20")
            rows.append(f"{t},{c},val,post_aggregation,accuracy,0.1,20")
            rows.append(f"{t},{c},test,post_aggregation,loss,{(2 + c - shift) / t},20")
            if norms:
                rows.append(f"{t},{c},train,update,update_norm,{(1 + c % 2) / t},160")
    (folder / "rounds.csv").write_text(HEADER + "\n".join(rows) + "\n")
    whole, split = [[0, 1, 2, 3]], [[0, 2], [1, 3]]
    rounds = {str(t): whole if t < 3 else split for t in range(1, 7)}
    (folder / "clusters.json").write_text(json.dumps({"rounds": rounds}))
    per_client = {str(c): 0.7 + 0.02 * c + shift for c in range(4)}
    (folder / "summary.json").write_text(
        json.dumps(
            {
                "status": "completed",
                "method": method,
                "dataset": "synthetic",
                "seed": seed,
                "num_clients": 4,
                "split_seed": 123,
                "clusters": split,
                "adjusted_rand_index": 1.0,
                "final": {"mean": 0.7, "per_client": per_client},
            }
        )
    )
    return folder


def test_clusters_have_the_numbers_of_their_models() -> None:
    series = {c: {1: 0.5} for c in (0, 2, 3)}
    assert present_clusters([[0], [1], [2, 3]], series) == {0: [0], 2: [2, 3]}


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
    assert by_cluster == [
        *[style.PALETTE[0]] * 2,
        *[style.PALETTE[1]] * 2,
    ]


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


def test_half_written_and_single_rows_do_not_stop_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "rounds.csv").write_text(
        HEADER + "1,0,test,post_training,accuracy,0.5,20\n"
        "1,1,test,post_training,accuracy,nan,20\n2,0,test,post_training,accu"
    )
    series = read_series(run, split="test", point="post_training", metric="accuracy")
    assert series == {0: {1: 0.5}}
    assert [p.name for p in of_run.draw_run(run)] == ["accuracy.png"]


def test_a_single_round_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run of one round there is one norm for each client."""
    drawn: list[Figure] = []
    monkeypatch.setattr(of_run, "save", lambda figure, _: drawn.append(figure))
    run = write_run(tmp_path / "run")
    rows = (run / "rounds.csv").read_text().splitlines()
    kept = [row for row in rows if row.startswith(("round", "1,"))]
    (run / "rounds.csv").write_text("\n".join(kept) + "\n")
    of_run.draw_run(run)
    assert len(drawn) == 2
    for figure in drawn:
        (axes,) = figure.axes
        points = [line for line in axes.lines if list(line.get_xdata()) == [1]]
        assert points
        assert {line.get_marker() for line in points} == {"o"}
        assert list(axes.get_xticks()) == [1]


def test_gains_of_many_clients_fit_a_picture_that_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(gain, "save", lambda figure, _: drawn.append(figure))
    many = {str(c): 0.5 for c in range(2000)}
    runs = [write_run(tmp_path / name) for name in ("a", "local")]
    for run in runs:
        summary = json.loads((run / "summary.json").read_text())
        summary["final"]["per_client"] = many
        (run / "summary.json").write_text(json.dumps(summary))
    gain.draw_gain({"gcfl+": runs[:1]}, runs[1:], tmp_path / "gain.png")
    (figure,) = drawn
    assert figure.get_figwidth() * figure.dpi < 10_000
    assert len(figure.axes[0].get_xticks()) < 100


def test_splits_are_where_the_number_of_clusters_grows(tmp_path: Path) -> None:
    assert split_rounds(read_partitions(write_run(tmp_path / "run"))) == [3]
    assert split_rounds({9: [[0], [1]], 10: [[0], [1]], 2: [[0, 1]]}) == [9]
    assert split_rounds({}) == []


def test_gain_is_paired_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = [
        write_run(tmp_path / f"l{s}", method="local", seed=s, norms=False)
        for s in (1, 2)
    ]
    runs = [
        write_run(tmp_path / f"g{s}", seed=s, shift=shift)
        for s, shift in ((1, 0.1), (2, -0.2), (3, 0.5))
    ]
    kept = []
    monkeypatch.setattr(gain, "gain_figure", lambda *args: kept.append(args))
    monkeypatch.setattr(gain, "save", lambda _, path: path)
    gain.draw_gain({"gcfl+": runs}, local, tmp_path / "gain.png")
    panels, dataset, rule, metric, unit = kept[0]
    assert (unit.name, unit.as_text(10.04)) == ("points", "+10.0")
    assert (dataset, rule, metric) == ("synthetic", "final", "accuracy")
    # seed 3 has no partner
    assert [g[0] for g in panels["gcfl+"]] == [pytest.approx(10), pytest.approx(-20)]


def test_gain_is_drawn_or_left_out(tmp_path: Path) -> None:
    local = write_run(tmp_path / "l", method="local", norms=False)
    run = write_run(tmp_path / "g", shift=0.1)
    out = tmp_path / "figures" / "gain.png"
    assert gain.draw_gain({"gcfl+": [run]}, [], out) is None
    assert not out.exists()
    rows = {"gcfl+": [run], "local": [local]}
    assert gain.draw_gain(rows, [local], out) == out
    toys.assert_drawn(out)


def test_libraries_are_imported_only_to_draw() -> None:
    code = (
        "import sys, fedgraph_flwr.view.drawers;"
        "sys.exit(bool({'matplotlib', 'sklearn', 'torch'} & {*sys.modules}))"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_relations_of_a_run_that_failed_say_so(tmp_path, monkeypatch):
    (tmp_path / MATRICES).mkdir()
    save_file({"R": np.eye(3)}, tmp_path / MATRICES / "round-000001.safetensors")
    summary = {"method": "fedgkd", "dataset": "toy", "seed": 7, "status": "failed"}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    titles = []
    monkeypatch.setattr(
        matrices, "save", lambda figure, _: titles.append(figure.get_suptitle().strip())
    )
    matrices.draw_relations(tmp_path)
    assert titles == ["relatedness R: fedgkd on toy, seed 7 (FAILED)"]

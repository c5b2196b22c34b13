"""Hand-made runs of graph embedding in the tables of ``simulations.study fclg``."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from made_runs import write_summary
from toys import random_graphs

from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.embedding_scores import (
    METRICS,
    TRANSFORMS,
    cluster_scores,
    probe_scores,
)
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.results.selection import best_labelled, final
from simulations.cli import main as fedgraph
from simulations.presets import load_preset
from simulations.tables import controls
from simulations.tables.controls import (
    control_results,
    trivial_features,
)
from simulations.tables.frame import hash_data, read, read_results, records
from simulations.tables.runs import find_runs
from simulations.tables.studies import load_study

DATA = "feed" * 16


def write_run(
    root: Path,
    preset: str,
    seed: int,
    accuracy: dict[int, float],
    *,
    config: dict[str, object] | None = None,
    values: dict[str, float] | None = None,
    sizes: dict[int, int] | None = None,
    **entries: object,
) -> Path:
    """Write a run whose accuracy after a round is given.

    Where accuracy by l2 is a, it is a / 2 by raw and a - 0.3 by log1p; macro-F1 is
    0.1 below accuracy; ``values`` set other metrics in all rounds.
    """
    last, table = max(accuracy), {}
    rows = ["round,client,split,point,metric,value,num_examples"]
    rows.append("1,0,train,post_training,loss,9.0,3")
    for at, a in accuracy.items():
        scores = {}
        for t, acc in {"l2": a, "raw": a / 2, "log1p": a - 0.3}.items():
            of_t = {"accuracy": acc, "macro-f1": acc - 0.1, "nmi": 0.25, "ari": 0.125}
            of_t |= {"smallest-cluster": 0.4, **(values or {})}
            scores |= {f"{m}-{t}": v for m, v in of_t.items()}
        scores |= {m: scores[f"{m}-l2"] for m in METRICS}
        if at in (0, last):
            probe = 0.6 if at == 0 else 0.7
            scores |= {"probe-accuracy": probe, "svm-accuracy": probe + 0.1}
        table[at] = {-1: scores["accuracy"]}
        of_all = f"{at},-1,all,post_aggregation"
        size = (sizes or {}).get(at, 8)
        rows += [
            f"{of_all},{metric},{value},{size}" for metric, value in scores.items()
        ]
    chosen = {**load_preset(preset), "seed": seed, **(config or {})}
    entries = {
        "task": "unsupervised graph embedding",
        "split": "all",
        "rules": ["final", "best_labelled"],
        "rounds": last,
        "split_seed": 0,
        "final": final(table, last),
        "best_labelled": best_labelled(table),
        "data_sha256": {str(c): DATA for c in range(chosen.get("num-clients", 6))},
        "git_commit": "0123456789abcdef",
        **entries,
    }
    folder = root / f"20260101T000000Z-{preset}-{seed}-{len(list(root.glob('*')))}"
    write_summary(folder, chosen, **entries)
    (folder / "rounds.csv").write_text("\n".join([*rows, ""]))
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """FCLG, Intra-FedAvg and InfoGraph on seeds 1 to 3."""
    root = tmp_path / "results"
    rounds = {1: (0.5, 0.7, 0.6), 2: (0.5, 0.6, 0.7), 3: (0.6, 0.5, 0.8)}
    for seed, (first, middle, last) in rounds.items():
        write_run(root, "fclg-proteins", seed, {0: first, 1: middle, 2: last})
        write_run(root, "intra-fedavg-proteins", seed, {0: first, 2: last - 0.05})
        infograph = {0: 0.5, 2: last + 0.01 * seed}
        write_run(root, "infograph-fedavg-proteins", seed, infograph)
    return root


def results_of(root: Path) -> tuple[list[dict[str, object]], list[str]]:
    found, problems = read_results(find_runs([root]), per_client=False)
    return records(found), problems


def tables_of(capsys: pytest.CaptureFixture[str], root: Path, *options: str) -> str:
    assert fedgraph(["study", "fclg", str(root), *options]) == 0
    return capsys.readouterr().out


def cells_of(out: str, label: str, table: int = 0) -> list[str]:
    lines = [line for line in out.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in lines[table].strip("|").split("|")]


# Numbers ---------------------------------------------------------------------------


def test_a_run_tells_all_its_measures(tmp_path):
    write_run(tmp_path, "fclg-proteins", 1, {0: 0.5, 1: 0.7, 2: 0.6})
    ((found,), problems) = results_of(tmp_path)
    assert problems == []
    assert (found["row"], found["data"]) == (
        "fclg-proteins",
        hash_data({str(c): DATA for c in range(6)}, 6),
    )
    expected = {
        **{"final": 0.6, "start": 0.5, "best_labelled": 0.7},
        **{"round-1": 0.7, "round-2": 0.6},
        **{"final:accuracy-l2": 0.6, "final:accuracy-raw": 0.3},
        **{"final:accuracy-log1p": 0.3, "start:accuracy-raw": 0.25},
        **{"final:macro-f1": 0.5, "start:macro-f1": 0.4, "final:macro-f1-raw": 0.2},
        **{"final:nmi": 0.25, "final:ari-log1p": 0.125, "start:smallest-cluster": 0.4},
        **{"final:probe-accuracy": 0.7, "start:probe-accuracy": 0.6},
        **{"final:svm-accuracy": 0.8, "start:svm-accuracy": 0.7},
    }
    known = {m: v for m, v in found.items() if m in expected}
    assert known == pytest.approx(expected)
    # each metric by each transform and by the run's own, and two probes
    of_end = [m for m in found if m.startswith("final:")]
    assert len(of_end) == len(METRICS) * (len(TRANSFORMS) + 1) - 1 + 2


def test_rows_stand_beside_the_paper(results, capsys):
    out = tables_of(capsys, results)
    assert cells_of(out, "fclg-proteins") == [
        "fclg-proteins",
        "1, 2, 3",
        "0.7000 ± 0.1000",
        "0.6000 ± 0.1000",
        "0.5333 ± 0.0577",
        "0.4333 ± 0.0577",
        "0.7333 ± 0.0577",  # rounds 1, 2 and 2, chosen by the labels
        "0.6990 ± 0.0259",
        "0.6912 ± 0.0197",
    ]
    assert cells_of(out, "fclg-proteins", table=1) == [
        "fclg-proteins",
        "0.2500 ± 0.0000",
        "0.1250 ± 0.0000",
        "0.4000 ± 0.0000",
        "0.4000",
        "0.7000 ± 0.1000",
        "0.3500 ± 0.0500",
        "0.4000 ± 0.1000",
        "0.7000 ± 0.0000",
        "0.6000 ± 0.0000",
        "0.8000 ± 0.0000",
        "0.7000 ± 0.0000",
    ]
    # 10, 20, 20: mean 50/3, std sqrt(100/3), 4.302653 standard errors of 10/3
    points = "+16.67 [+2.32, +31.01]"
    half, probe = "+8.33 [+1.16, +15.50]", "+10.00 [+10.00, +10.00]"
    verdict = "not shown (n=3 < 5)"
    assert cells_of(out, "fclg-proteins - own round 0")[1:] == [
        *("3", points, points, half, half, points, points, probe, verdict, "-"),
    ]
    other = cells_of(out, "fclg-proteins - infograph-fedavg-proteins")
    assert other[1:3] == ["3", "-2.00 [-4.48, +0.48]"]
    assert other[-1] == "+7.50"  # 69.90 - 62.40
    assert "Not run: control-one-class-proteins" in out
    assert "1, 2, 3 on split aaaaaaaaaaaa (split seed 0)" in " ".join(out.split())


def test_a_file_has_all_that_tables_and_figures_need(results, tmp_path, capsys):
    path = tmp_path / "fclg.csv"
    # 0.7123 by all digits, 0.7124 by the six of the file
    write_run(results, "fclg-h-proteins", 1, {0: 0.5, 2: 0.71234997})
    from_runs = tables_of(capsys, results, "--csv", str(path))
    assert fedgraph(["study", "fclg", "--csv", str(path)]) == 0
    assert capsys.readouterr().out == from_runs
    folder = tmp_path / "img"
    assert (
        fedgraph(["study", "fclg", "--csv", str(path), "--figures", str(folder)]) == 0
    )
    assert [p.name for p in folder.iterdir()] == ["fclg-differences.png"]


# What is left out ------------------------------------------------------------------


def test_left_out_runs_are_listed(results, capsys):
    scores = {0: 0.5, 1: 0.6, 2: 0.7}
    name = "fclg-h-proteins"
    write_run(results, name, 1, scores, status="failed", error="boom")
    write_run(results, name, 3, scores, sizes={2: 7})
    write_run(results, name, 4, scores, rounds=5)
    write_run(results, name, 6, scores, values={"nmi": math.nan})
    (write_run(results, name, 7, scores) / "rounds.csv").unlink()
    (results / "killed").mkdir()
    (results / "killed" / "rounds.csv").write_text("round,client\n")
    for options in (["study", "fclg"], ["compare", "--markdown"]):
        assert fedgraph([*options, str(results)]) == 0
        out, err = capsys.readouterr()
        assert f"| {name} |" not in out
        assert "nodes" not in out
        for words in (
            "failed: boom",
            "after the last round, 2, 7 of 8 graphs were evaluated",
            "no accuracy after the last round, 5",
            "a score is not finite",
            "rounds.csv is not usable",
            "killed: unfinished",
        ):
            assert words in err


def test_a_partial_round_is_dropped_and_said(tmp_path):
    scores = {0: 0.5, 1: 0.9, 2: 0.6}
    write_run(tmp_path, "fclg-proteins", 1, scores, sizes={1: 5})
    ((found,), (problem,)) = results_of(tmp_path)
    assert "round-1" not in found
    assert "round 1: 5 of 8 graphs" in problem
    other = tmp_path / "other"
    write_run(other, "fclg-proteins", 1, scores, sizes={0: 5})
    ((found,), _) = results_of(other)
    assert not [m for m in found if m.startswith("start")]


# Controls --------------------------------------------------------------------------


@pytest.mark.parametrize("dense", [False, True])
def test_trivial_features_are_sums_over_nodes(dense):
    graphs = random_graphs(9, dense=dense)
    found = trivial_features(graphs)
    for g in range(len(graphs)):
        nodes = slice(graphs.node_ptr[g], graphs.node_ptr[g + 1])
        x = graphs.x[nodes] if dense else np.eye(4)[graphs.x[nodes]]
        edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
        adjacency = np.zeros((len(x), len(x)))
        adjacency[edges[1], edges[0]] = 1
        both = np.concatenate([x.sum(axis=0), (adjacency @ x).sum(axis=0)])
        expected = (
            x.sum(axis=0),
            x.mean(axis=0),
            np.sign(both) * np.log1p(np.abs(both)),
        )
        for features, row in zip(found.values(), expected, strict=True):
            assert features[g] == pytest.approx(row, abs=1e-6)


@pytest.fixture
def toy_tu(monkeypatch: pytest.MonkeyPatch) -> GraphSet:
    graphs = random_graphs(20)
    object.__setattr__(graphs, "raw_sha256", DATA)

    def load(name: str, features: str) -> GraphSet:
        assert (name, features) == ("PROTEINS", "labels")
        return graphs

    monkeypatch.setattr(controls, "load_tu", load)
    controls.load_graphs.cache_clear()
    controls.scores_of.cache_clear()
    yield graphs
    controls.load_graphs.cache_clear()
    controls.scores_of.cache_clear()


@pytest.mark.slow
def test_controls_are_rows_of_the_file(results, toy_tu, tmp_path, capsys, monkeypatch):
    path = tmp_path / "fclg.csv"
    out = tables_of(capsys, results, "--csv", str(path), "--controls")
    features = trivial_features(toy_tu)["mean-x"]
    direct = [
        cluster_scores(features, toy_tu.y, num_classes=2, seed=s)["accuracy"]
        for s in (1, 2, 3)
    ]
    cells = cells_of(out, "control-mean-x-proteins")
    mean, std = np.mean(direct), np.std(direct, ddof=1)
    assert cells[1:3] == ["1, 2, 3", f"{mean:.4f} ± {std:.4f}"]
    untrained = cells_of(out, "control-untrained-proteins")
    assert untrained[2:5] == ["0.5333 ± 0.0577", "0.4333 ± 0.0577", "-"]
    assert cells_of(out, "control-untrained-proteins", table=1)[8] == "0.6000 ± 0.0000"
    known = {(r["row"], r["seed"]): r for r in records(read(path))}
    probed = probe_scores(features, toy_tu.y, seed=1)
    scores = known["control-mean-x-proteins", 1]
    assert scores["final:svm-accuracy"] == pytest.approx(
        probed["svm-accuracy"], abs=1e-6
    )
    assert {r for r, _ in known if r.startswith("control")} == {
        f"control-{name}-proteins" for name in controls.NAMES
    }
    # a second time nothing is computed, and no data are needed
    with_none = monkeypatch.context()
    before = path.read_bytes()
    with with_none as patch:
        patch.setattr(controls, "scores_of", None)
        assert fedgraph(["study", "fclg", "--csv", str(path), "--controls"]) == 0
    assert path.read_bytes() == before


def test_controls_need_plain_fclg_with_its_round_0(tmp_path):
    write_run(tmp_path, "intra-fedavg-proteins", 1, {0: 0.5, 2: 0.6})
    write_run(tmp_path, "fclg-h-proteins", 1, {0: 0.5, 2: 0.6})
    write_run(tmp_path, "fclg-proteins", 1, {2: 0.6})
    write_run(tmp_path, "fclg-proteins", 2, {0: 0.6}, config={"local-epochs": 1})
    found, _ = read_results(find_runs([tmp_path]), per_client=False)
    with pytest.raises(DataError, match=r"needs runs, with their round 0, of presets"):
        control_results(found, load_study("fclg").controls)


# simulations.compare ---------------------------------------------------------------


def test_compare_takes_embedding_runs(results, capsys):
    assert fedgraph(["compare", str(results), "--markdown", "--rule", "final"]) == 0
    out = capsys.readouterr().out
    assert "PROTEINS: all accuracy, 6 clients" in out
    row = "| fclg (evaluation=pooled) | 1, 2, 3 | 0.7000 ± 0.1000 | 0.6000 ± 0.1000 |"
    assert row in out
    assert "self-train" not in out  # of the GCFL paper, which has none of these methods

"""Hand-made runs of graph embedding in the tables of ``fedgraph study fclg``."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from made_runs import write_summary
from toys import random_graphs

from fedgraph_flwr.core.embedding_scores import (
    METRICS,
    TRANSFORMS,
)
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.results.selection import read as read_rule
from simulations.cli import main as fedgraph
from simulations.presets import load_preset
from simulations.tables.controls import (
    control_results,
    trivial_features,
)
from simulations.tables.frame import hash_data, read_results, records
from simulations.tables.runs import find_runs
from simulations.tables.studies import load_study

DATA = "feed" * 16


def write_run(
    root: Path,
    preset: str,
    seed: int,
    accuracy: dict[int, float],
    *,
    nmi: float = 0.25,
    sizes: dict[int, int] | None = None,
    **entries: object,
) -> Path:
    """Write a run whose accuracy after a round is given.

    Where accuracy by l2 is a, it is a / 2 by raw and a - 0.3 by log1p; macro-F1 is
    0.1 below accuracy.
    """
    last, table = max(accuracy), {}
    rows = ["round,client,split,point,metric,value,num_examples"]
    for at, a in accuracy.items():
        scores = {"probe-accuracy": 0.6, "svm-accuracy": 0.7} if at in (0, last) else {}
        for t, acc in {"l2": a, "raw": a / 2, "log1p": a - 0.3}.items():
            of_t = {"accuracy": acc, "macro-f1": acc - 0.1, "nmi": nmi, "ari": 0.125}
            of_t["smallest-cluster"] = 0.4
            scores |= {f"{m}-{t}": v for m, v in of_t.items()}
        scores |= {m: scores[f"{m}-l2"] for m in METRICS}
        table[at] = {-1: scores["accuracy"]}
        size = (sizes or {}).get(at, 8)
        rows += [
            f"{at},-1,all,post_aggregation,{metric},{value},{size}"
            for metric, value in scores.items()
        ]
    chosen = {**load_preset(preset), "seed": seed}
    entries = {
        "task": "unsupervised graph embedding",
        "split": "all",
        "rules": ["final", "best_labelled"],
        "rounds": last,
        "split_seed": 0,
        **{
            rule: read_rule(rule, lambda: table, snapshots=(), last_round=last)
            for rule in ("final", "best_labelled")
        },
        "data_sha256": {str(c): DATA for c in range(6)},
        **entries,
    }
    folder = root / f"20260101T000000Z-{preset}-{seed}-{len(list(root.glob('*')))}"
    write_summary(folder, chosen, **entries)
    (folder / "rounds.csv").write_text("\n".join([*rows, ""]))
    return folder


def results_of(root: Path) -> tuple[list[dict[str, object]], list[str]]:
    found, problems = read_results(find_runs([root]), per_client=False)
    return records(found), problems


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
        **{"final:probe-accuracy": 0.6, "start:svm-accuracy": 0.7},
    }
    known = {m: v for m, v in found.items() if m in expected}
    assert known == pytest.approx(expected)
    # each metric by each transform and by the run's own, and two probes
    of_end = [m for m in found if m.startswith("final:")]
    assert len(of_end) == len(METRICS) * (len(TRANSFORMS) + 1) - 1 + 2


def test_left_out_runs_are_listed(tmp_path, capsys):
    scores = {0: 0.5, 1: 0.6, 2: 0.7}
    write_run(tmp_path, "fclg-proteins", 1, scores)
    name = "fclg-h-proteins"
    write_run(tmp_path, name, 1, scores, status="failed", error="boom")
    write_run(tmp_path, name, 3, scores, sizes={2: 7})
    write_run(tmp_path, name, 4, scores, rounds=5)
    write_run(tmp_path, name, 6, scores, nmi=math.nan)
    (write_run(tmp_path, name, 7, scores) / "rounds.csv").unlink()
    assert fedgraph(["study", "fclg", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "| fclg-proteins |" in out
    assert f"| {name} |" not in out
    for words in (
        "failed: boom",
        "after the last round, 2, 7 of 8 graphs were evaluated",
        "no accuracy after the last round, 5",
        "a score is not finite",
        "rounds.csv is not usable",
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


def test_controls_need_plain_fclg_with_its_round_0(tmp_path):
    write_run(tmp_path, "intra-fedavg-proteins", 1, {0: 0.5, 2: 0.6})
    write_run(tmp_path, "fclg-h-proteins", 1, {0: 0.5, 2: 0.6})
    write_run(tmp_path, "fclg-proteins", 1, {2: 0.6})
    found, _ = read_results(find_runs([tmp_path]), per_client=False)
    with pytest.raises(DataError, match=r"needs runs, with their round 0, of presets"):
        control_results(found, load_study("fclg").controls)

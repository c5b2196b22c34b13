"""Hand-made embedding runs: every number of the tables can be checked by hand."""

from __future__ import annotations

import csv
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from toys import random_graphs

from fedgraph_flwr.data import GraphSet
from fedgraph_flwr.embedding_scores import METRICS, cluster_scores, probe_scores
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.selection import best_labelled, final
from simulations import compare, embedding_controls, embedding_table
from simulations.embedding_controls import trivial_features, trivial_scores
from simulations.embedding_figures import draw_embedding_figures
from simulations.embedding_rows import EmbeddingGroup, group_embeddings, name_rows
from simulations.embedding_runs import find_embeddings
from simulations.embedding_stats import (
    TARGETS,
    Difference,
    Row,
    Spread,
    load_target,
    make_claims,
    make_row,
    target_split,
    untrained_row,
)

POOLED = {"embedding.evaluation": "pooled"}
COUNTS = [[3, 1], [1, 3]]
NON_IID = 0.5774  # of PROTEINS in the paper's table II


@pytest.fixture(autouse=True)
def no_real_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)


def write_run(
    root: Path,
    method: str,
    seed: int,
    accuracy: dict[int, float | list[float]],
    *,
    when: str = "20260101T000000Z",
    dataset: str = "PROTEINS",
    config: dict[str, object] | None = None,
    clients: int = 6,
    split: str = "a",
    emd: float | None = NON_IID,
    status: str = "completed",
    values: dict[str, float] | None = None,
    sizes: dict[int, int] | None = None,
    probes: tuple[float, float] = (0.6, 0.7),
    **entries: object,
) -> Path:
    """Write a run whose accuracy after a round is given; a list is of clients apart.

    Where accuracy by l2 is a, it is a / 2 by raw and a - 0.3 by log1p; macro-F1 is
    0.1 below accuracy; ``values`` set other metrics in all rounds.
    """
    apart = any(isinstance(a, list) for a in accuracy.values())
    chosen = {
        **defaults(),
        "method": method,
        "dataset": dataset,
        "seed": seed,
        "num-clients": clients,
        **({} if apart else POOLED),
        **(config or {}),
    }
    settings = resolve(chosen).to_config()
    folder = root / f"{when}-{method}-{dataset}-{seed}-{len(list(root.glob('*')))}"
    folder.mkdir(parents=True)
    last = max(accuracy)
    headline = settings["embedding.transform"]
    table: dict[int, dict[int, float]] = {}
    with (folder / "rounds.csv").open("w", newline="") as file:
        write = csv.writer(file)
        columns = ("round", "client", "split", "point", "metric", "value")
        write.writerow((*columns, "num_examples"))
        write.writerow((1, 0, "train", "post_training", "loss", 9.0, 3))
        for at, given in accuracy.items():
            of_clients = dict(enumerate(given)) if apart else {-1: given}
            for client, a in of_clients.items():
                scores = {}
                for t, acc in {"l2": a, "raw": a / 2, "log1p": a - 0.3}.items():
                    of_t = {"accuracy": acc, "macro-f1": acc - 0.1}
                    of_t |= {"nmi": 0.25, "ari": 0.125, "smallest-cluster": 0.4}
                    of_t |= values or {}
                    scores |= {f"{m}-{t}": v for m, v in of_t.items()}
                scores |= {m: scores[f"{m}-{headline}"] for m in METRICS}
                if at in (0, last):
                    which = probes[0 if at == 0 else 1]
                    scores |= {"probe-accuracy": which, "svm-accuracy": which + 0.1}
                table.setdefault(at, {})[client] = scores["accuracy"]
                for metric, value in scores.items():
                    size = (sizes or {}).get(at, 8)
                    row = (at, client, "all", "post_aggregation", metric, value, size)
                    write.writerow(row)
    facts = {} if emd is None or apart else {"emd": emd, "class_counts": COUNTS}
    summary = {
        "status": status,
        "error": "boom" if status != "completed" else None,
        "method": method,
        "dataset": dataset,
        "task": "unsupervised graph embedding",
        "metric": "accuracy",
        "split": "all",
        "rules": ["final", "best_labelled"],
        "num_clients": clients,
        "rounds": last,
        "seed": seed,
        "split_seed": 123,
        "split_hash": split * 64,
        "final": final(table, last),
        "best_labelled": best_labelled(table),
        "num_clusters": 1,
        "adjusted_rand_index": None,
        "wall_s": 1.0,
        "weights_sha256": "0",
        "failures": [],
        "data_sha256": {"0": "feed"},
        "git_commit": "0123456789abcdef",
        "config": settings,
        **facts,
        **entries,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """FCLG, Intra-FedAvg and InfoGraph on seeds 1 to 3."""
    rounds = {1: (0.5, 0.7, 0.6), 2: (0.5, 0.6, 0.7), 3: (0.6, 0.5, 0.8)}
    for seed, (first, middle, last) in rounds.items():
        write_run(tmp_path, "fclg", seed, {0: first, 1: middle, 2: last})
        intra = {"fclg.inter": "none"}
        write_run(tmp_path, "fclg", seed, {0: first, 2: last - 0.05}, config=intra)
        write_run(tmp_path, "infograph", seed, {0: 0.5, 2: last + 0.01 * seed})
    return tmp_path


def groups_of(root: Path) -> list[EmbeddingGroup]:
    return group_embeddings(find_embeddings([root]))


def rows_of(root: Path, transform: str = "l2") -> dict[str, Row]:
    (group,) = groups_of(root)
    return {
        str(name): make_row(name, runs, transform, load_target(group, name))
        for name, runs in group.rows.items()
    }


def toml_targets() -> dict[str, Any]:
    return tomllib.loads(TARGETS.read_text(encoding="utf-8"))


def cells_of(out: str, label: str, table: int = 0) -> list[str]:
    lines = [line for line in out.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in lines[table].strip("|").split("|")]


# Numbers ---------------------------------------------------------------------------


def test_row_of_three_seeds(results: Path) -> None:
    row = rows_of(results)["FCLG"]
    assert row.seeds == (1, 2, 3)
    assert row.last["accuracy"].mean == pytest.approx(70)  # 60, 70, 80
    assert row.last["accuracy"].std == pytest.approx(10)
    assert row.last["macro-f1"].mean == pytest.approx(60)
    assert row.last["accuracy-raw"].mean == pytest.approx(35)
    assert row.last["accuracy-log1p"].mean == pytest.approx(40)
    assert row.last["nmi"].mean == pytest.approx(0.25)
    assert row.last["smallest-cluster"].mean == pytest.approx(40)
    assert row.first["accuracy"].mean == pytest.approx(160 / 3)
    assert row.first["probe-accuracy"].mean == pytest.approx(60)
    assert row.last["svm-accuracy"].mean == pytest.approx(80)
    assert row.gain.values == pytest.approx((10, 20, 20))
    # rounds 1, 2 and 2, chosen by the labels
    assert row.best_rounds == (1, 2, 2)
    assert row.best.values == pytest.approx((70, 70, 80))


def test_another_transform_changes_all_headline_columns(results: Path) -> None:
    row = rows_of(results, "raw")["FCLG"]
    assert row.last["accuracy"].mean == pytest.approx(35)
    assert row.last["macro-f1"].mean == pytest.approx(25)
    assert row.first["accuracy"].mean == pytest.approx(80 / 3)
    assert row.gain.values == pytest.approx((5, 10, 10))
    assert row.best.values == pytest.approx((35, 35, 40))


@pytest.mark.parametrize("values", [(10.0, 20.0, 20.0), (-1.0, 0.5, 0.25, 3.0, 2.0)])
def test_interval_is_students(values: tuple[float, ...]) -> None:
    found = Difference(values=values)
    expected = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values)
    )
    assert found.interval == pytest.approx(expected)
    assert found.mean == pytest.approx(np.mean(values))


def test_interval_by_hand() -> None:
    # mean 50/3, std sqrt(100/3), 4.302653 standard errors of 10/3
    low, high = Difference(values=(10.0, 20.0, 20.0)).interval
    half = 4.302652729696142 * 10 / 3
    assert (low, high) == pytest.approx((50 / 3 - half, 50 / 3 + half))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.0, 1.1, 0.9, 1.0, 1.0), "shown"),
        ((-1.0, -1.1, -0.9, -1.0, -1.0), "contradicted"),
        ((1.0, -1.0, 0.5, 0.0, 0.0), "not shown"),
        ((5.0,), "not shown (n=1 < 5)"),
        ((1.0, 1.1, 0.9, 1.0), "not shown (n=4 < 5)"),
        ((0.0,) * 5, "not shown"),
        ((1e-14,) * 5, "not shown"),
        ((2.0,) * 5, "shown"),
    ],
)
def test_verdicts(values: tuple[float, ...], verdict: str) -> None:
    assert Difference(values=values).verdict == verdict


def test_one_value_has_no_std_and_no_interval() -> None:
    assert Spread(values=(3.0,)).std is None
    assert Difference(values=(3.0,)).interval is None


def test_claims_are_paired_by_seed(results: Path) -> None:
    write_run(results, "infograph", 9, {0: 0.5, 2: 0.0})  # no FCLG with this seed
    (group,) = groups_of(results)
    own, infograph, mvgrl, intra = make_claims(group, "l2")
    assert own.text == "FCLG minus its own round 0"
    assert own.accuracy.values == pytest.approx((10, 20, 20))
    assert own.accuracy.verdict == "not shown (n=3 < 5)"
    assert infograph.text == "FCLG minus InfoGraph-FedAvg"
    assert infograph.accuracy.values == pytest.approx((-1, -2, -3))
    assert infograph.macro_f1.values == pytest.approx((-1, -2, -3))
    assert infograph.accuracy.interval == pytest.approx((-4.4841, 0.4841), abs=1e-4)
    assert (mvgrl.accuracy, mvgrl.missing) == (None, "no row MVGRL-FedAvg")
    assert intra.accuracy.values == pytest.approx((5, 5, 5))


def test_a_claim_takes_the_row_with_the_same_settings(tmp_path: Path) -> None:
    for epochs in (1, 5):
        for inter, value in (("graphs", 0.7), ("none", 0.6 + 0.01 * epochs)):
            config = {"local-epochs": epochs, "fclg.inter": inter}
            write_run(tmp_path, "fclg", 1, {0: 0.5, 2: value}, config=config)
    (group,) = groups_of(tmp_path)
    found = {claim.text: claim.accuracy for claim in make_claims(group, "l2")}
    assert found["FCLG minus Intra-FedAvg"].values == pytest.approx((5,))
    text = "FCLG (local-epochs=1) minus Intra-FedAvg (local-epochs=1)"
    assert found[text].values == pytest.approx((9,))


def test_no_common_seed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "fclg", 1, {0: 0.5, 2: 0.6})
    write_run(tmp_path, "mvgrl", 2, {0: 0.5, 2: 0.6})
    assert embedding_table.main([str(tmp_path), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert cells_of(out, "FCLG minus its own round 0")[1:3] == [
        "+10.00 (n=1)",
        "not shown (n=1 < 5)",
    ]
    claim = cells_of(out, "FCLG minus MVGRL-FedAvg")
    assert claim[1:3] == ["-", "not shown (no common seed)"]
    assert "rows differ in seeds" in out


# Rows and groups -------------------------------------------------------------------


def test_rows_have_the_papers_names(tmp_path: Path) -> None:
    scores = {0: 0.5, 2: 0.6}
    inters = ("graphs", "nodes", "none", "kl", "mse", "previous-round")
    for inter in inters:
        write_run(tmp_path, "fclg", 1, scores, config={"fclg.inter": inter})
    for method in ("infograph", "mvgrl"):
        write_run(tmp_path, method, 1, scores)
        mu = {f"{method}.proximal-mu": 0.1}
        write_run(tmp_path, method, 1, scores, config=mu)
    write_run(tmp_path, "fclg", 1, scores, config={"fclg.temperature": 0.2})
    write_run(tmp_path, "fclg-local", 1, {0: [0.5] * 6, 2: [0.6] * 6})
    write_run(tmp_path, "fclg", 1, {0: [0.5] * 6, 2: [0.6] * 6})
    one = {"clients": 1, "split": "c", "emd": 0.0}
    write_run(tmp_path, "fclg", 1, scores, **one)
    write_run(tmp_path, "infograph", 1, scores, **one)
    (group,) = groups_of(tmp_path)
    assert [str(name) for name in group.rows] == [
        "InfoGraph-FedAvg",
        "InfoGraph-FedProx (proximal-mu=0.1)",
        "MVGRL-FedAvg",
        "MVGRL-FedProx (proximal-mu=0.1)",
        "FCLG",
        "FCLG (inter=previous-round)",
        "FCLG (temperature=0.2)",
        "FCLG-H",
        "Intra-FedAvg",
        "Intra-KL",
        "Intra-MSE",
        "FCLG, per client",
        "FCLG, scored per client",
        "FCLG, centralised",
        "InfoGraph, centralised",
    ]
    assert {str(name) for name in group.guests} == {
        "FCLG, centralised",
        "InfoGraph, centralised",
    }


def test_shared_settings_are_named_where_runs_of_the_data_set_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {"hidden-dim": 32, "local-epochs": 1}
    write_run(tmp_path, "fclg", 1, {0: 0.5, 2: 0.6}, config=quick)
    names = name_rows(find_embeddings([tmp_path]).runs)
    assert [str(n) for n in names] == ["FCLG"]
    embedding_table.main([str(tmp_path), "--markdown"])
    note = "settings off the method's defaults: hidden-dim=32, local-epochs=1 (FCLG)."
    assert note in capsys.readouterr().out
    write_run(tmp_path, "mvgrl", 1, {0: 0.5, 2: 0.6}, split="b", emd=0.1)
    names = name_rows(find_embeddings([tmp_path]).runs)
    assert sorted(map(str, names)) == [
        "FCLG (hidden-dim=32, local-epochs=1)",
        "MVGRL-FedAvg",
    ]


def test_groups_by_split_clients_and_emd(tmp_path: Path) -> None:
    scores = {0: 0.5, 2: 0.6}
    write_run(tmp_path, "fclg", 1, scores)
    write_run(tmp_path, "fclg", 1, scores, split="b", emd=0.0022)
    write_run(tmp_path, "fclg", 1, scores, split="d", clients=12)
    write_run(tmp_path, "fclg", 1, scores, split="e", dataset="DHFR")
    # knows no EMD, but shares the split
    write_run(tmp_path, "fclg-local", 1, {0: [0.5] * 6, 2: [0.6] * 6})
    found = [
        (g.dataset, g.num_clients, g.split_hash[0], g.emd, len(g.rows))
        for g in groups_of(tmp_path)
    ]
    assert found == [
        ("DHFR", 6, "e", NON_IID, 1),
        ("PROTEINS", 6, "a", NON_IID, 2),
        ("PROTEINS", 12, "d", NON_IID, 1),
        ("PROTEINS", 6, "b", 0.0022, 1),
    ]


def test_centralised_runs_alone_have_a_table(tmp_path: Path) -> None:
    write_run(tmp_path, "fclg", 1, {0: 0.5, 2: 0.6}, clients=1, emd=0.0)
    (group,) = groups_of(tmp_path)
    assert [str(name) for name in group.rows] == ["FCLG, centralised"]
    assert not group.guests


def test_clients_apart_are_averaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "fclg-local", 1, {0: [0.5, 0.7], 2: [0.6, 0.9]}, clients=2)
    row = rows_of(tmp_path)["FCLG, per client"]
    assert row.last["accuracy"].mean == pytest.approx(75)
    assert row.gain.mean == pytest.approx(15)
    assert embedding_table.main([str(tmp_path), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "not comparable with the other rows" in out
    assert "EMD unknown" in out
    assert "no row FCLG: no claims" in out
    assert "no untrained encoder" in out


def test_the_newest_of_equal_runs_is_used(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = {"when": "20270101T000000Z", "config": {"embedding.probe": False}}
    again = write_run(results / "again", "fclg", 1, {0: 0.5, 2: 0.9}, **later)
    assert rows_of(results)["FCLG"].last["accuracy"].values[0] == pytest.approx(90)
    embedding_table.main([str(results), "--markdown"])
    assert f"same row (FCLG) and seed as the newer {again.name}" in (
        capsys.readouterr().err
    )


def test_untrained_encoder_is_round_0_of_fclg(results: Path) -> None:
    (group,) = groups_of(results)
    row = untrained_row(group, "l2")
    assert row.last["accuracy"].values == pytest.approx((50, 50, 60))
    assert row.last["probe-accuracy"].mean == pytest.approx(60)
    assert row.gain is None


def test_untrained_encoder_of_a_variant(tmp_path: Path) -> None:
    config = {"fclg.inter": "kl"}
    write_run(tmp_path, "fclg", 1, {0: 0.55, 2: 0.6}, config=config)
    write_run(tmp_path, "infograph", 1, {0: 0.1, 2: 0.6})
    row = untrained_row(groups_of(tmp_path)[0], "l2")
    assert row.last["accuracy"].values == pytest.approx((55,))
    # FCLG itself goes first
    write_run(tmp_path, "fclg", 1, {0: 0.45, 2: 0.6})
    row = untrained_row(groups_of(tmp_path)[0], "l2")
    assert row.last["accuracy"].values == pytest.approx((45,))


@pytest.mark.parametrize(("is_normalised", "count"), [(True, 1), (False, 0)])
def test_a_softmax_over_embeddings_of_unit_length_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_normalised: bool, count: int
) -> None:
    config = {"fclg.inter": "kl", "fclg.distill-normalize": is_normalised}
    write_run(tmp_path, "fclg", 1, {0: 0.55, 2: 0.6}, config=config)
    assert embedding_table.main([str(tmp_path), "--markdown"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("softmax over embeddings of unit length") == count


def test_runs_on_other_data_share_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "fclg", 1, {0: 0.55, 2: 0.6})
    other = {"data_sha256": {"0": "beef"}}
    write_run(tmp_path, "infograph", 1, {0: 0.1, 2: 0.6}, **other)
    assert embedding_table.main([str(tmp_path)]) == 2
    assert "were made on different data" in " ".join(capsys.readouterr().err.split())


# What is left out ------------------------------------------------------------------


def test_left_out_runs_are_listed(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {0: 0.5, 1: 0.6, 2: 0.7}
    write_run(results, "mvgrl", 1, scores, status="failed")
    write_run(results, "mvgrl", 2, scores, task="graph classification")
    write_run(results, "mvgrl", 3, scores, sizes={2: 7})
    write_run(results, "mvgrl", 4, scores, rounds=5)
    write_run(results, "mvgrl", 5, scores, final={"mean": 0.1, "per_client": {}})
    write_run(results, "mvgrl", 6, scores, values={"nmi": math.nan})
    (write_run(results, "mvgrl", 7, scores) / "rounds.csv").unlink()
    (results / "killed").mkdir()
    (results / "killed" / "rounds.csv").write_text("round,client\n")
    cut = write_run(results, "mvgrl", 8, scores) / "rounds.csv"
    lines = cut.read_text().splitlines(keepends=True)
    cut.write_text("".join(line for line in lines if "nmi-raw" not in line))
    pooled = write_run(results, "mvgrl", 11, scores) / "rounds.csv"
    pooled.write_text(pooled.read_text().replace(",-1,", ",0,"))
    assert embedding_table.main([str(results), "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert "| MVGRL-FedAvg |" not in out
    for words in (
        "failed: boom",
        "task 'graph classification'; its table is python -m simulations.compare",
        "after the last round, 2, 7 of 8 graphs were evaluated",
        "no accuracy after the last round, 5",
        "but summary.json says 0.1",
        "nmi-l2 after round 0 is nan",
        "rounds.csv is not usable",
        "killed: unfinished",
        "nmi-raw is missing in a round that has accuracy",
        "do not fit embedding.evaluation",
    ):
        assert words in err


def test_a_partial_round_is_dropped_and_said(tmp_path: Path) -> None:
    write_run(tmp_path, "fclg", 1, {0: 0.5, 1: 0.9, 2: 0.6}, sizes={1: 5})
    found = find_embeddings([tmp_path])
    assert found.runs[0].rounds == [0, 2]
    assert "round 1: 5 of 8 graphs" in found.left_out[0]


def test_nothing_usable_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embedding_table.main([str(tmp_path)]) == 2
    assert "no run found" in capsys.readouterr().err
    write_run(tmp_path, "fclg", 1, {0: 0.5}, status="failed")
    assert embedding_table.main([str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "none of the 1 runs found is a completed run of unsupervised" in err
    assert "failed: boom" in err


def test_mixed_headlines_need_a_choice(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {"embedding.transform": "raw"}
    write_run(results, "mvgrl", 1, {0: 0.5, 2: 0.9}, config=raw)
    assert embedding_table.main([str(results)]) == 2
    assert "choose the headline with --transform" in capsys.readouterr().err
    options = ["--markdown", "--transform", "raw"]
    assert embedding_table.main([str(results), *options]) == 0
    out = capsys.readouterr().out
    assert cells_of(out, "MVGRL-FedAvg")[2] == "45.00 ± -"
    assert "transform raw" in out


# Controls --------------------------------------------------------------------------


@pytest.mark.parametrize("dense", [False, True])
def test_trivial_features_are_sums_over_nodes(dense: bool) -> None:
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


def test_trivial_scores_are_those_of_clustering() -> None:
    graphs = random_graphs(20)
    found = trivial_scores(graphs, [3, 1])
    features = trivial_features(graphs)["trivial: sum of x"]
    for seed in (1, 3):
        direct = cluster_scores(features, graphs.y, num_classes=2, seed=seed)
        scores = found["trivial: sum of x"][seed]
        assert {m: scores[f"{m}-raw"] for m in METRICS} == direct


@pytest.fixture
def toy_tu(monkeypatch: pytest.MonkeyPatch) -> GraphSet:
    graphs = random_graphs(20)
    object.__setattr__(graphs, "raw_sha256", "feed")

    def load(name: str, features: str, *, data_dir: str) -> GraphSet:
        assert (name, features, data_dir) == ("PROTEINS", "labels", "/toys")
        return graphs

    monkeypatch.setattr(embedding_controls, "load_tu", load)
    embedding_controls._load.cache_clear()
    embedding_controls._scores.cache_clear()
    yield graphs
    embedding_controls._load.cache_clear()
    embedding_controls._scores.cache_clear()


def test_control_rows_have_the_seeds_of_the_runs(
    results: Path, toy_tu: GraphSet, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--markdown", "--data-dir", "/toys"]
    assert embedding_table.main([str(results), *options]) == 0
    out = capsys.readouterr().out
    features = trivial_features(toy_tu)["trivial: mean of x"]
    direct = [
        100 * cluster_scores(features, toy_tu.y, num_classes=2, seed=s)["accuracy"]
        for s in (1, 2, 3)
    ]
    cells = cells_of(out, "trivial: mean of x")
    assert cells[1] == "1, 2, 3"
    assert cells[2].startswith(f"{np.mean(direct):.2f} ± {np.std(direct, ddof=1):.2f}")
    assert cells_of(out, "trivial: mean of x", table=1)[-4:] == ["-"] * 4
    assert "untrained encoder" in out
    of_seed_1 = [str(path) for path in results.glob("*-fclg-*-1-*")]
    embedding_table.main([*of_seed_1, *options, "--control-probes"])
    cells = cells_of(capsys.readouterr().out, "trivial: mean of x", table=1)
    probed = probe_scores(features, toy_tu.y, seed=1)
    for cell, name in ((-4, "probe-accuracy"), (-2, "svm-accuracy")):
        assert cells[cell] == f"{100 * probed[name]:.2f} ± -"


def test_controls_on_other_data_are_refused(
    results: Path,
    toy_tu: GraphSet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    object.__setattr__(toy_tu, "raw_sha256", "beef")
    monkeypatch.setenv("FEDGRAPH_DATA", "/toys")
    assert embedding_table.main([str(results), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| trivial" not in out
    assert "no control rows of trivial features: the data in /toys are not" in out


def test_why_there_are_no_controls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "fclg", 1, {0: 0.5, 2: 0.6})
    embedding_table.main([str(tmp_path), "--markdown"])
    assert "no data: set --data-dir or FEDGRAPH_DATA" in capsys.readouterr().out
    options = ["--markdown", "--data-dir", str(tmp_path)]
    assert embedding_table.main([str(tmp_path), *options]) == 0
    assert "DataError" in capsys.readouterr().out


def test_synthetic_data_have_no_trivial_controls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = {"dataset": "synthetic", "clients": 10}
    write_run(tmp_path, "fclg", 1, {0: 0.5, 2: 0.6}, **of)
    options = ["--markdown", "--data-dir", str(tmp_path)]
    assert embedding_table.main([str(tmp_path), *options]) == 0
    assert "synthetic is not one TU data set" in capsys.readouterr().out


# Words -----------------------------------------------------------------------------


def test_markdown_row_stands_beside_the_paper(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embedding_table.main([str(results), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert cells_of(out, "FCLG") == [
        "FCLG",
        "1, 2, 3",
        "70.00 ± 10.00 (60.00 to 80.00)",
        "60.00 ± 10.00 (50.00 to 70.00)",
        "53.33 ± 5.77",
        "43.33 ± 5.77",
        "+16.67 [+2.32, +31.01] (n=3)",
        "73.33 ± 5.77 (rounds 1, 2, 2)",
        "69.90 ± 2.59",
        "69.12 ± 1.97",
    ]
    assert cells_of(out, "FCLG", table=1) == [
        "FCLG",
        "0.250 ± 0.000",
        "0.125 ± 0.000",
        "40.0 (40.0)",
        "70.00 ± 10.00",
        "35.00 ± 5.00",
        "40.00 ± 10.00",
        "70.00 ± 0.00",
        "60.00 ± 0.00",
        "80.00 ± 0.00",
        "70.00 ± 0.00",
    ]
    claim = cells_of(out, "FCLG minus its own round 0")
    assert claim[1:3] == ["+16.67 [+2.32, +31.01] (n=3)", "not shown (n=3 < 5)"]


def test_every_table_states_its_protocol(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedding_table.main([str(results), "--markdown"])
    out = capsys.readouterr().out
    protocols = [line for line in out.splitlines() if line.startswith("Protocol: ")]
    assert len(protocols) == 3
    for line in protocols:
        for words in (
            "seeds 1, 2, 3",
            "split aaaaaaaaaaaa (dominance, dominance 0.8, split seed 123)",
            "EMD 0.5774",
            "6 clients, 8 graphs",
            "2 rounds of 5 local epochs",
            "transform l2",
            "k-means++ with 10 starts of at most 300 steps",
            "k = number of classes (2)",
            "evaluated rounds 0, 1, 2 or 0, 2",
            "commits 01234567",
        ):
            assert words in line
    assert "All in one class: ACC 50.00, F1 33.33" in out  # counts 4 and 4
    assert "arXiv:2411.12098, table II, 10 runs" in out
    assert "fewer than 5 pairs" in out


def test_what_a_reader_must_not_overlook(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(
        results,
        "mvgrl",
        1,
        {2: 0.6},
        values={"smallest-cluster": 0.001},
        git_commit="fedcba9876543210+dirty",
        failures=[{"round": 1, "client": 0, "reason": "x"}],
    )
    embedding_table.main([str(results), "--markdown"])
    out = capsys.readouterr().out
    for words in (
        "MVGRL-FedAvg: in 1 of 1 seeds the smallest cluster has less than 1 %",
        "MVGRL-FedAvg: 0 of 1 seeds have a round 0",
        "runs in which clients failed: 20260101T000000Z-mvgrl",
        "1 of 10 runs are of code with local changes",
        "runs were made at different commits",
        "commits 01234567, fedcba98+dirty",
    ):
        assert words in out


def test_the_least_share_of_the_smallest_cluster_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, share in ((1, 0.3), (2, 0.5)):
        values = {"smallest-cluster": share}
        write_run(tmp_path, "fclg", seed, {0: 0.5, 2: 0.6}, values=values)
    embedding_table.main([str(tmp_path), "--markdown"])
    assert cells_of(capsys.readouterr().out, "FCLG", table=1)[3] == "40.0 (30.0)"


def test_terminal_shows_the_same(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embedding_table.main([str(results)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("Intra-FedAvg", "PROTEINS, 6 clients, EMD 0.5774: claims", "shown"):
        assert words in out


# The paper's figures ---------------------------------------------------------------


@pytest.mark.parametrize("dataset", ["PROTEINS", "ENZYMES", "DHFR", "NCI1"])
@pytest.mark.parametrize("kind", ["non-iid", "iid"])
def test_targets_are_complete(dataset: str, kind: str) -> None:
    content = toml_targets()[dataset][kind]
    assert content["table"] == {"non-iid": "II", "iid": "III"}[kind]
    assert set(content["rows"]) == {
        *(f"{m}-{s}" for m in ("InfoGraph", "MVGRL") for s in ("FedAvg", "FedProx")),
        *("FCLG", "FCLG-H", "Intra-FedAvg", "Intra-KL", "Intra-MSE"),
    }
    for entry in content["rows"].values():
        assert 0 < entry["f1"][0] <= entry["acc"][0] + 0.2 < 75
        assert 0 <= min(entry["acc"][1], entry["f1"][1]) < 5


def test_the_papers_split_is_known_by_emd_and_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {0: 0.5, 2: 0.6}
    write_run(tmp_path, "fclg", 1, scores, emd=0.57743)
    write_run(tmp_path, "fclg", 1, scores, emd=0.0022, split="b")
    write_run(tmp_path, "fclg", 1, scores, emd=0.4, split="c")
    write_run(tmp_path, "fclg", 1, scores, clients=12, split="d")
    write_run(tmp_path, "fclg", 1, scores, dataset="MUTAG")
    found = {
        (g.dataset, g.num_clients, g.emd): target_split(g) for g in groups_of(tmp_path)
    }
    assert found == {
        ("MUTAG", 6, NON_IID): None,
        ("PROTEINS", 6, 0.57743): "non-iid",
        ("PROTEINS", 12, NON_IID): None,
        ("PROTEINS", 6, 0.4): None,
        ("PROTEINS", 6, 0.0022): "iid",
    }
    embedding_table.main([str(tmp_path), "--markdown"])
    headed = capsys.readouterr().out.split("### ")
    assert sum("| paper ACC | paper F1 |" in part for part in headed) == 2
    iid = next(g for g in groups_of(tmp_path) if g.emd == 0.0022)
    target = load_target(iid, next(iter(iid.rows)))
    assert target.accuracy == (70.30, 2.10)
    assert target.macro_f1 == (69.07, 1.54)


# Figures ---------------------------------------------------------------------------


def test_figures_that_the_runs_allow(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures"
    command = [str(results), "--markdown", "--figures", str(out)]
    assert embedding_table.main(command) == 0
    assert [p.name for p in out.iterdir()] == ["rounds-PROTEINS-6-aaaaaa.png"]
    scores = {0: 0.5, 2: 0.6}
    write_run(results, "fclg", 1, scores, config={"local-epochs": 1})
    config = {"dominance": 0.6}
    write_run(results, "fclg", 1, scores, config=config, emd=0.2, split="b")
    write_run(results, "fclg", 1, scores, clients=12, split="d", emd=0.57)
    write_run(results, "fclg", 1, scores, clients=1, split="e", emd=0.0)
    write_run(results, "fclg-local", 1, {0: [0.5] * 6, 2: [0.6] * 6})
    assert embedding_table.main(command) == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "clients-PROTEINS-dominance-0.8.png",
        "emd-PROTEINS-6-clients.png",
        "local-epochs-PROTEINS-6-aaaaaa.png",
        "rounds-PROTEINS-12-dddddd.png",
        "rounds-PROTEINS-6-aaaaaa.png",
        "rounds-PROTEINS-6-bbbbbb.png",
    ]
    told = capsys.readouterr().err
    for path in out.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"drawn: {path}" in told


def test_lines_of_the_figures(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}

    def keep(lines: object, path: Path, **words: object) -> Path:
        drawn[path.name] = (lines, words)
        return path

    monkeypatch.setattr("simulations.embedding_figures._draw", keep)
    write_run(results, "fclg", 1, {0: 0.5, 2: 0.4}, config={"local-epochs": 1})
    write_run(results, "fclg", 1, {0: 0.5, 2: 0.3}, emd=0.2, split="b")
    write_run(results, "fclg-local", 1, {0: [0.5] * 6, 2: [0.6] * 6})
    draw_embedding_figures(groups_of(results), results, transform="l2")
    lines, words = drawn["rounds-PROTEINS-6-aaaaaa.png"]
    assert lines["FCLG"][1] == pytest.approx([70, 60, 50])
    assert "FCLG, per client" not in lines
    assert "rows per client left out" in words["facts"]
    lines, _ = drawn["local-epochs-PROTEINS-6-aaaaaa.png"]
    assert set(lines) == {"FCLG"}  # the others have one value only
    assert lines["FCLG"] == {1: pytest.approx([40]), 5: pytest.approx([60, 70, 80])}
    lines, _ = drawn["emd-PROTEINS-6-clients.png"]
    assert lines == {
        "FCLG": {0.2: pytest.approx([30]), NON_IID: pytest.approx([60, 70, 80])}
    }


# simulations.compare ---------------------------------------------------------------


def test_compare_takes_embedding_runs(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(results, "fclg-local", 1, {0: [0.5] * 6, 2: [0.6] * 6})
    for rule in ("final", "best_val", "best_snapshot"):
        assert compare.main([str(results), "--markdown", "--rule", rule]) == 0
        out = capsys.readouterr().out
        assert "PROTEINS: all accuracy, 6 clients" in out
        assert "| fclg (evaluation=pooled) | 1, 2, 3 | 0.7000 ± 0.100 | - | - |" in out
        assert "python -m simulations.embedding_table" in out
        # nothing of the GCFL paper, which has none of these methods
        assert "Paper:" not in out
        assert "the paper has 10 clients" not in out
    assert compare.main([str(results)]) == 0
    png = results / "gain.png"
    assert compare.main([str(results), "--figure", str(png)]) == 2
    assert "was not drawn" in capsys.readouterr().err


def test_unknown_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FedGraphError, match="is not a folder"):
        find_embeddings([tmp_path / "no-such"])

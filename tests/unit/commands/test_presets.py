"""Presets have the numbers that papers publish, and every one configures a run."""

from __future__ import annotations

import math
import re
from functools import cache

import pytest

from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.methods.spreadgnn import SpreadGNNParams
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from simulations.presets import list_presets, load_preset
from strategies.spreadgnn import make_topology

NAMES = list(list_presets())
GCFL_ROWS = r"(local|fedavg|fedavg-all|fedprox|gcfl|gcfl-plus)"


def gcfl(data: str, clients: int, mean: float, largest: float, d: int) -> list:
    """Settings of one data set in the GCFL authors' runnerfile."""
    many = data in ("molecules", "biochem", "mix")
    shared = {
        "dataset": data if many else data.upper(),
        "num-clients": clients,
        "num-server-rounds": 200,
        "partition": "datasets" if many else "chunks",
    }
    parts = {"shared-group": "convs"}  # as the authors' code; named where it is not
    thresholds = {
        "gcfl.mean-norm-threshold": mean,
        "gcfl.max-norm-threshold": largest,
        "gcfl.seq-length": d,
    }
    return [
        (rf"{GCFL_ROWS}-{data}(-[^i].*)?", shared),
        (rf"(?!fedavg-all){GCFL_ROWS}-{data}(-[^i].*)?", parts),
        (rf"gcfl(-plus)?-{data}(-.*)?", thresholds),
    ]


def molecules(dataset: str, clients: int, alpha: float) -> dict:
    """A MoleculeNet set: clients, and the alpha of its quantity skew."""
    return {"dataset": dataset, "num-clients": clients, "dirichlet-alpha": alpha}


def nodes(dataset: str) -> dict:
    """FedGKD, Sec. 5.1 and App. B: what all rows of Table 2 have in common."""
    return {
        "dataset": dataset,
        "partition": "metis",
        "split-seed": 1234,
        "held-out": 0.7,
        "features": "row-normalized",
        "num-server-rounds": 200,
        "optimizer": "adam",
        "weight-decay": 1e-6,
        "persist-optimizer": True,
        "hidden-dim": 128,
        "num-layers": 2,
        "dropout": 0.5,
        "weighting": "uniform",
        "patience": 20,
        "min-rounds": 50,
    }


GCFL_DATA = r"(nci1|proteins|imdb-binary|molecules|biochem|mix|synthetic|letter-low)"
PAPERS = "cora|citeseer|photo|computers"  # data of FedGKD's tables
HETEROPHILOUS = "actor|chameleon|squirrel"
ON_NODES = rf"-({PAPERS}|{HETEROPHILOUS})-\d+"
ROWS = r"(fclg|fclg-h|intra-\w+|fclg-moon|local-fclg|centralized-fclg)"
BASELINES = r"(infograph|mvgrl)-\w+"
SPREAD = r"(fedgmtl|fedavg|fedavg-kept|local|centralized|spreadgnn)-(sage|gat)"
NOISY = r"(fed-noise|two-views|fgcl)"
ENCODER = r"(gcn|kgnn|tag|lightgcn)"
ROWS_CLEAN = r"(centralized|fedavg|no-edges)"
CLEAN = rf"{ROWS_CLEAN}-{ENCODER}"
SPREAD_RUN: dict[str, Value] = {
    "local-epochs": 1,
    "hidden-dim": 64,
    "num-layers": 2,
    "dropout": 0.3,
    "weight-decay": 0.0,
}
# Pattern of a preset's whole name, and the settings that it resolves to. What several
# patterns say of one preset holds together.
PUBLISHED: list[tuple[str, dict[str, Value]]] = [
    # GCFL (Xie et al. 2021), Tables 3 and 4
    *gcfl("nci1", 30, 0.04, 0.08, 5),
    *gcfl("proteins", 10, 0.03, 0.06, 10),
    *gcfl("imdb-binary", 10, 0.025, 0.045, 5),
    *gcfl("molecules", 7, 0.07, 0.28, 5),
    *gcfl("biochem", 10, 0.07, 0.35, 5),
    *gcfl("mix", 13, 0.08, 0.4, 5),
    (r"gcfl-(?!plus).*", {"method": "gcfl"}),
    (r"gcfl-plus-.*", {"method": "gcfl+"}),
    *(
        (rf"{method}-{GCFL_DATA}(-.*)?", {"method": method})
        for method in ("local", "fedavg", "fedprox")
    ),
    (r".*-letter-low", {"dataset": "tu:Letter-low", "learning-rate": 0.005}),
    (r"fedavg-letter-low", {"shared-group": "convs"}),
    (r"fedavg-all-.*", {"method": "fedavg", "shared-group": "all"}),
    (rf"fedprox-{GCFL_DATA}", {"fedprox.mu": 0.01}),
    (r"local-(nci1|proteins|imdb-binary)-paper", {"local.epochs": 50}),
    (r"local-(molecules|biochem|mix)-paper", {"local.epochs": 100}),
    (r".*-standardized", {"gcfl.standardize": True}),
    (r".*-last-grad-norm", {"gcfl.seq-source": "last-grad-norm"}),
    (rf"{GCFL_ROWS}-synthetic", {"dataset": "synthetic", "shared-group": "all"}),
    # A user's own tables: ours
    (
        rf"({GCFL_ROWS}|moon)-csv",
        {"dataset": "graphs-csv", "partition": "files", "shared-group": "all"},
    ),
    (r".*-graph-csv", {"dataset": "graph-csv", "learning-rate": 0.01}),
    (r"gcfl(-plus)?-csv", {"gcfl.max-norm-threshold": 0.28}),
    (r"gcfl(-plus)?-graph-csv", {"gcfl.max-norm-threshold": 3.0}),
    # FCLG (Li et al. 2024), Sec. 5, Tables II and III
    (
        rf"({ROWS}|{BASELINES})-(proteins|enzymes|dhfr|nci1)(-iid)?",
        {
            "split-seed": 0,
            "num-server-rounds": 20,
            "local-epochs": 5,
            "batch-size": 64,
            "learning-rate": 1e-3,
            "held-out": 0.0,
            "dominance": 0.8,
        },
    ),
    (
        rf"{ROWS}-(proteins|enzymes|dhfr|nci1)(-iid)?",
        {
            "num-layers": 3,
            "hidden-dim": 64,
            "optimizer": "adamw",
            "weight-decay": 0.01,
        },
    ),
    (
        rf"((?!centralized|local){ROWS}|{BASELINES})-[a-z0-9]+(-iid)?",
        {"num-clients": 6, "embedding.evaluation": "pooled"},
    ),
    (rf"({ROWS}|{BASELINES})-(proteins|dhfr|nci1)-iid", {"partition": "iid-classwise"}),
    (rf"({ROWS}|{BASELINES})-enzymes-iid", {"partition": "iid"}),
    (rf"({ROWS}|{BASELINES})-[a-z0-9]+(?<!-iid)", {"partition": "dominance"}),
    (r"fclg-(?!h-|moon-).*", {"method": "fclg", "fclg.inter": "graphs"}),
    (r"fclg-h-.*", {"method": "fclg", "fclg.inter": "nodes"}),
    (r"fclg-moon-.*", {"method": "fclg", "fclg.inter": "previous-round"}),
    (r"intra-fedavg-.*", {"method": "fclg", "fclg.inter": "none"}),
    (r"intra-kl-.*", {"method": "fclg", "fclg.inter": "kl"}),
    (r"intra-mse-.*", {"method": "fclg", "fclg.inter": "mse"}),
    (r"local-fclg-.*", {"method": "local", "fclg.inter": "none", "num-clients": 6}),
    (r"local-fclg-.*", {"task": "graph-embedding", "embedding.evaluation": "local"}),
    (r"centralized-fclg-.*", {"fclg.inter": "none", "num-clients": 1}),
    (r"infograph-.*", {"method": "infograph", "hidden-dim": 32, "num-layers": 5}),
    (r"mvgrl-.*", {"method": "mvgrl", "hidden-dim": 512, "num-layers": 4}),
    (r"infograph-fedprox-.*", {"infomax.proximal-mu": 0.01}),
    (r"infograph-moon-.*", {"infomax.moon-mu": 1.0}),
    (r"mvgrl-fedprox-.*", {"infomax.proximal-mu": 0.01}),
    (r"mvgrl-moon-.*", {"infomax.moon-mu": 1.0}),
    # FGCL (Yang et al. 2022), Table III; rounds and rate are ours
    (
        rf"({CLEAN}|{NOISY}-{ENCODER})-.*",
        {
            "method": "fgcl",
            "privacy.noise-mode": "once",
            "features": "atoms-no-degree",
            "learning-rate": 0.005,
            "local-epochs": 1,
            "hidden-dim": 64,
            "num-layers": 2,
            "dropout": 0.3,
            "optimizer": "adam",
            "weight-decay": 0.0,
            "persist-optimizer": False,
            "patience": 0,
            "split-seed": 0,
        },
    ),
    *(
        (rf"({ROWS_CLEAN}|{NOISY})-{encoder}-.*", {"fgcl.encoder": encoder})
        for encoder in ("gcn", "kgnn", "tag", "lightgcn")
    ),
    *(
        (
            rf"{NOISY}-{ENCODER}-\w+-{re.escape(eps)}",
            {"privacy.edge-epsilon": float(eps)},
        )
        for eps in ("100", "10", "1", "0.1", "200", "20", "2", "0.2")
    ),
    (rf"{CLEAN}-\w+", {"privacy.edge-epsilon": 0.0}),
    *(
        (rf"({CLEAN}|{NOISY}-{ENCODER})-{name.lower()}(-.*)?", {"dataset": name})
        for name in ("SIDER", "BACE", "ClinTox", "BBBP", "Tox21")
    ),
    (rf"centralized-{ENCODER}-.*", {"fgcl.views": "clean", "num-clients": 1}),
    (rf"fedavg-{ENCODER}-.*", {"fgcl.views": "clean"}),
    (rf"no-edges-{ENCODER}-.*", {"fgcl.views": "no-edges"}),
    (r"fed-noise-.*", {"fgcl.views": "one", "fgcl.contrast-weight": 0.1}),
    (r"two-views-.*", {"fgcl.views": "two", "fgcl.contrast-weight": 0.0}),
    (rf"fgcl-{ENCODER}-.*", {"fgcl.views": "two", "fgcl.contrast-weight": 0.1}),
    (
        rf"{NOISY}-{ENCODER}-sider-.*",
        {**molecules("SIDER", 4, 0.2), **{"num-server-rounds": 200}},
    ),
    (
        rf"{NOISY}-{ENCODER}-bace-.*",
        {**molecules("BACE", 4, 0.5), **{"num-server-rounds": 250}},
    ),
    (rf"{NOISY}-{ENCODER}-clintox-.*", molecules("ClinTox", 4, 0.5)),
    (rf"{NOISY}-{ENCODER}-bbbp-.*", molecules("BBBP", 4, 2.0)),
    (rf"{NOISY}-{ENCODER}-tox21-.*", molecules("Tox21", 8, 3.0)),
    # FedGKD (Pan et al. 2023), Table 2; rates and epochs were chosen by validation
    (r"[a-z-]+-cora-\d+", nodes("Cora")),
    (r"[a-z-]+-citeseer-\d+", nodes("CiteSeer")),
    (r"[a-z-]+-photo-\d+", nodes("Photo")),
    (r"[a-z-]+-computers-\d+", nodes("Computers")),
    (r"[a-z-]+-actor-\d+", {"dataset": "actor", "features": "raw"}),
    (r"[a-z-]+-chameleon-\d+", {"dataset": "chameleon_filtered"}),
    (r"[a-z-]+-squirrel-\d+", {"dataset": "squirrel_filtered"}),
    (rf"fedgta{ON_NODES}", {"method": "fedgta"}),
    (r"fedgta-cora-\d+", {"fedgta.moment-orders": 6, "fedgta.epsilon": 0.5}),
    (r"fedgta-citeseer-\d+", {"fedgta.moment-orders": 20, "fedgta.epsilon": 0.6}),
    (rf"adafgl{ON_NODES}", {"method": "adafgl", "adafgl.federated-rounds": 180}),
    *((rf".*{ON_NODES}(?<=-{n})", {"num-clients": n}) for n in (5, 10, 20)),
    (rf"(?!fedper).*{ON_NODES}", {"shared-group": "all"}),
    (rf"fedper{ON_NODES}", {"method": "fedavg", "shared-group": "convs"}),
    (rf"fedprox{ON_NODES}", {"method": "fedprox", "fedprox.mu": 0.001}),
    (rf"fedpub{ON_NODES}", {"method": "fedpub"}),
    (rf"fedsage-plus{ON_NODES}", {"method": "fedsage+"}),
    *(
        (rf"{method}{ON_NODES}", {"method": method})
        for method in ("local", "fedavg", "fedsage", "self-weight", "fedgkd", "fedstar")
    ),
    # SpreadGNN and FedGMTL (He et al. 2021), Table 2, Figures 4 to 8
    (rf"{SPREAD}-sider.*", {**SPREAD_RUN, "dataset": "SIDER", "dirichlet-alpha": 0.2}),
    (
        rf"{SPREAD}-tox21.*",
        {**SPREAD_RUN, **{"dataset": "Tox21", "dirichlet-alpha": 0.1}},
    ),
    (rf"{SPREAD}-muv.*", {**SPREAD_RUN, "dataset": "MUV", "dirichlet-alpha": 0.3}),
    (rf"{SPREAD}-qm8.*", {**SPREAD_RUN, "dataset": "QM8", "dirichlet-alpha": 0.5}),
    (rf"(?!centralized){SPREAD}-sider(?!-8).*", {"num-clients": 4}),
    (rf"(?!centralized){SPREAD}-(tox21|muv|qm8).*", {"num-clients": 8}),
    (rf"(?!centralized){SPREAD}-.*", {"task-masks": "exclusive"}),
    (rf"{SPREAD}-(sider|tox21|qm8).*", {"learning-rate": 1.5e-3}),
    (r"[a-z-]+-sage-muv.*", {"learning-rate": 1e-3}),
    (r"[a-z-]+-gat-muv.*", {"learning-rate": 2.5e-3}),
    (r"[a-z-]+-sage-.*", {"multitask.encoder": "sage"}),
    (r"[a-z-]+-gat-.*", {"multitask.encoder": "gat"}),
    (rf"{SPREAD}-(?!.*paper).*", {"batch-size": 32}),
    (rf"{SPREAD}-.*-paper", {"batch-size": 1}),
    (rf"{SPREAD}-(?!.*(period|never)).*", {"num-server-rounds": 150}),
    (r"spreadgnn-.*-(period-\d+|never)", {"num-server-rounds": 151}),
    (r"(local)-(sage|gat)-.*", {"method": "local"}),
    (r"fedavg(-kept)?-(sage|gat)-.*", {"method": "fedavg"}),
    (r"fedavg-kept-.*", {"optimizer": "amsgrad", "persist-optimizer": True}),
    (
        r"(fedavg|fedgmtl)-(sage|gat)-.*",
        {"optimizer": "adam", "persist-optimizer": False},
    ),
    (r"centralized-(sage|gat)-.*", {"method": "fedavg", "num-clients": 1}),
    (r"centralized-(sage|gat)-.*", {"task-masks": "all"}),
    (r"fedgmtl-[a-z]+-[a-z0-9]+", {"method": "fedgmtl", "fedgmtl.task-reg": 1e-4}),
    (r"fedgmtl-.*-(sider|tox21)-paper", {"fedgmtl.task-reg": 1e-3}),
    (r"fedgmtl-.*-qm8-paper", {"fedgmtl.task-reg": 0.3}),
    (r"fedgmtl-sage-muv-paper", {"fedgmtl.task-reg": 1e-3}),
    (r"fedgmtl-gat-muv-paper", {"fedgmtl.task-reg": 2e-3}),
    (r"spreadgnn-.*", {"method": "spreadgnn", "optimizer": "amsgrad"}),
    (r"spreadgnn-.*", {"persist-optimizer": True}),
    (r"spreadgnn-[a-z]+-[a-z0-9]+", {"spreadgnn.task-reg": 1e-4}),
    (r"spreadgnn-[a-z]+-[a-z0-9]+", {"spreadgnn.topology": "complete"}),
    (r"spreadgnn-.*-(sider|tox21)-paper", {"spreadgnn.task-reg": 1e-3}),
    (r"spreadgnn-.*-qm8-paper", {"spreadgnn.task-reg": 0.3}),
    (r"spreadgnn-sage-muv-paper", {"spreadgnn.task-reg": 1e-3}),
    (r"spreadgnn-gat-muv-paper", {"spreadgnn.task-reg": 2e-3}),
    (r".*-no-reg", {"spreadgnn.task-reg": 0.0}),
    (r".*-samples", {"spreadgnn.weights": "samples"}),
    (r".*-owners", {"spreadgnn.head-sync": "owners"}),
    *(
        (rf".*-lambda-{x}", {"spreadgnn.task-reg": float(x)})
        for x in ("1e-5", "1e-3", "1e-2")
    ),
    *((rf".*-period-{tau}", {"spreadgnn.period": tau}) for tau in (1, 5, 10, 15)),
    (r".*-never", {"spreadgnn.period": 0}),
    (r"spreadgnn-.*-ring", {"spreadgnn.topology": "ring"}),
    (r"spreadgnn-.*-star", {"spreadgnn.topology": "star"}),
    (r"spreadgnn-.*-8-.*", {"num-clients": 8}),
    (r".*-8-ring", {"spreadgnn.topology": "ring"}),
    (r".*-8-complete", {"spreadgnn.topology": "complete"}),
    (r".*-8-random-2", {"spreadgnn.topology": "random-regular", "spreadgnn.degree": 2}),
    (r".*-8-random-4", {"spreadgnn.topology": "random-regular", "spreadgnn.degree": 4}),
]


@cache
def configured(name: str) -> Resolved:
    """Resolve a preset as a run would."""
    return resolve({**defaults(), **load_preset(name)})


def test_presets_resolve_to_the_published_numbers() -> None:
    for name in NAMES:
        config = configured(name).to_config()
        rules = [numbers for about, numbers in PUBLISHED if re.fullmatch(about, name)]
        assert rules, f"no line of the table is about {name}"
        for expected in rules:
            found = {key: config[key] for key in expected}
            assert found == expected, name


def test_every_line_of_the_table_is_about_a_preset() -> None:
    for pattern, _ in PUBLISHED:
        assert [name for name in NAMES if re.fullmatch(pattern, name)], pattern


def test_the_families_have_all_their_members() -> None:
    """A combination that ``only`` rules out by mistake is missed here."""
    families = {
        "GCFL": rf"{GCFL_ROWS}-{GCFL_DATA}(-.*)?",
        "FCLG": rf"({ROWS}|{BASELINES})-(proteins|enzymes|dhfr|nci1)(-iid)?",
        "FGCL": rf"({CLEAN}|{NOISY}-{ENCODER})-.*",
        "FedGKD": rf".*{ON_NODES}",
        "SpreadGNN": rf"{SPREAD}-.*",
        "own data": r".*-csv",
    }
    found = {
        family: sum(re.fullmatch(pattern, name) is not None for name in NAMES)
        for family, pattern in families.items()
    }
    assert found == {
        "GCFL": 5 * 7 + 8 + 3 + 3,  # FedAvg with all tensors; Letter-low
        "FCLG": 14 * 4 * 2 - 4,  # one client has no IID split
        "FGCL": (3 + 3 * 4 + 4) * 4 * 5,
        "FedGKD": (14 * 4 + 12 * 3) * 3,  # no GCFL on heterophilous graphs
        "SpreadGNN": 64 + 100,  # FedGMTL and baselines; SpreadGNN
        "own data": 6 + 11,  # whole graphs; one graph
    }
    assert sum(found.values()) == len(NAMES)


def test_rates_and_epochs_on_nodes_are_of_the_grid_of_the_paper() -> None:
    """FedGKD, App. B.3; a product of tau and clients above 5 leaves one model."""
    for name in NAMES:
        if re.fullmatch(f".*{ON_NODES}", name):
            config = configured(name).to_config()
            assert config["learning-rate"] in (0.005, 0.01)
            assert config["local-epochs"] in (1, 3, 5, 7)
            assert config.get("fedgkd.tau", 0.1) * config["num-clients"] <= 5


@pytest.mark.parametrize("clients", [5, 10, 20])
def test_the_control_of_fedgkd_has_its_weight_and_its_training(
    clients: int,
) -> None:
    ours = configured(f"self-weight-cora-{clients}").to_config()
    theirs = configured(f"fedgkd-cora-{clients}").to_config()
    grown = math.exp(theirs["fedgkd.tau-s"])
    a = (grown - 1) / (grown + clients - 1)
    assert ours["self-weight.a"] == pytest.approx(a, abs=5e-4)
    for key in ("learning-rate", "local-epochs"):
        assert ours[key] == theirs[key]
    pull = theirs["fedgkd.proximal-lambda"]
    assert ours["self-weight.proximal-lambda"] == pull


def test_the_random_pairs_of_figure_5_fall_into_two_parts() -> None:
    """A connected graph with two neighbours each would be the ring again."""
    params = configured("spreadgnn-sage-sider-8-random-2").params
    assert isinstance(params, SpreadGNNParams)
    topology = make_topology(8, params)
    assert sorted(map(len, topology.components())) == [3, 5]
    other = configured("spreadgnn-sage-sider-8-random-4").params
    assert isinstance(other, SpreadGNNParams)
    assert make_topology(8, other).is_connected()

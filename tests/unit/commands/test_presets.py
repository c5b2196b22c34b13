"""Presets name real settings, and the loader refuses what it does not know."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.methods.spreadgnn import SpreadGNNParams
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from simulations.presets import FOLDER, list_presets, load_preset, main
from strategies.spreadgnn import make_topology

METHODS = {
    "local": "local",
    "fedavg": "fedavg",
    "fedprox": "fedprox",
    "gcfl": "gcfl",
    "gcfl-plus": "gcfl+",
}
# num-clients, epsilon_1, epsilon_2, d: the settings table of the GCFL specification
PUBLISHED = {
    "nci1": ("NCI1", 30, 0.04, 0.08, 5),
    "proteins": ("PROTEINS", 10, 0.03, 0.06, 10),
    "imdb-binary": ("IMDB-BINARY", 10, 0.025, 0.045, 5),
    "molecules": ("molecules", 7, 0.07, 0.28, 5),
    "biochem": ("biochem", 10, 0.07, 0.35, 5),
    "mix": ("mix", 13, 0.08, 0.4, 5),
}
GCFL = {f"{m}-{d}": (m, d) for m, d in product(METHODS, [*PUBLISHED, "synthetic"])}
GCFL_VARIANTS = {f"local-{d}-paper" for d in PUBLISHED} | {
    "gcfl-plus-proteins-last-grad-norm",
    "gcfl-plus-proteins-standardized",
}
# Rows of the FCLG paper, and ours: what each adds to its data set's settings
ROWS: dict[str, dict[str, Value]] = {
    "fclg": {"method": "fclg", "fclg.inter": "graphs"},
    "fclg-h": {"method": "fclg", "fclg.inter": "nodes"},
    "intra-fedavg": {"method": "fclg", "fclg.inter": "none"},
    "intra-kl": {"method": "fclg", "fclg.inter": "kl"},
    "intra-mse": {"method": "fclg", "fclg.inter": "mse"},
    "fclg-moon": {"method": "fclg", "fclg.inter": "previous-round"},
    "infograph-fedavg": {"method": "infograph", "infograph.proximal-mu": 0.0},
    "infograph-fedprox": {"method": "infograph", "infograph.proximal-mu": 0.01},
    "infograph-moon": {"method": "infograph", "infograph.moon-mu": 1.0},
    "mvgrl-fedavg": {"method": "mvgrl", "mvgrl.proximal-mu": 0.0},
    "mvgrl-fedprox": {"method": "mvgrl", "mvgrl.proximal-mu": 0.01},
    "mvgrl-moon": {"method": "mvgrl", "mvgrl.moon-mu": 1.0},
    "local-fclg": {
        "method": "fclg-local",
        "fclg.inter": "none",
        "embedding.evaluation": "local",
    },
    "centralized-fclg": {"method": "fclg", "fclg.inter": "none", "num-clients": 1},
}
DATA = ("PROTEINS", "ENZYMES", "DHFR", "NCI1")
# name -> row, data set, whether IID
FCLG = {
    f"{row}-{data.lower()}{'-iid' * iid}": (row, data, iid)
    for row, data, iid in product(ROWS, DATA, (False, True))
    if not (row == "centralized-fclg" and iid)  # one client: no split
}


ENCODERS = ("gcn", "kgnn", "tag", "lightgcn")
MOLECULES = ("SIDER", "BACE", "ClinTox", "BBBP", "Tox21")
CLEAN = {"centralized": "clean", "fedavg": "clean", "no-edges": "no-edges"}
NOISY = {"fed-noise": "one", "two-views": "two", "fgcl": "two"}
EPSILONS = ("100", "10", "1", "0.1")
TOTALS = ("200", "20", "2", "0.2")  # of FGCL, for the one view of Fed+Noise
# name -> row, encoder, data set, epsilon
FGCL = {
    "-".join(filter(None, (row, encoder, data.lower(), epsilon))): (
        row,
        encoder,
        data,
        float(epsilon or 0),
    )
    for row, encoder, data, epsilon in (
        *product(CLEAN, ENCODERS, MOLECULES, [""]),
        *product(NOISY, ENCODERS, MOLECULES, EPSILONS),
        *product(["fed-noise"], ENCODERS, MOLECULES, TOTALS),
    )
}
# Rows of FedGKD's table 2 on METIS parts: name -> method, data set, clients
NODE_METHODS = {
    **METHODS,
    "fedper": "fedper",
    "fedsage": "fedsage",
    "self-weight": "self-weight",
    "fedgkd": "fedgkd",
    "fedpub": "fedpub",
    "fedstar": "fedstar",
    "fedsage-plus": "fedsage+",
}
NODE_DATA = ("Cora", "CiteSeer", "Photo", "Computers")
NODES = {
    f"{row}-{data.lower()}-{clients}": (NODE_METHODS[row], data, clients)
    for row, data, clients in product(NODE_METHODS, NODE_DATA, (5, 10, 20))
}


# name -> row, encoder, data set, whether as published
GMTL_ROWS: dict[str, dict[str, Value]] = {
    "fedgmtl": {"method": "fedgmtl"},
    "fedavg": {"method": "fedavg-multitask", "optimizer": "adam"},
    "fedavg-kept": {
        "method": "fedavg-multitask",
        "optimizer": "amsgrad",
        "persist-optimizer": True,
    },
    "local": {"method": "local-multitask"},
    "centralized": {"method": "fedavg-multitask", "num-clients": 1},
}
GMTL_DATA = {  # clients, alpha: the settings table of the SpreadGNN specification
    "SIDER": (4, 0.2),
    "Tox21": (8, 0.1),
    "MUV": (8, 0.3),
    "QM8": (8, 0.5),
}
FEDGMTL = {
    "-".join(filter(None, (row, encoder, data.lower(), variant))): (
        row,
        encoder,
        data,
        variant == "paper",
    )
    for row, encoder, data, variant in product(
        GMTL_ROWS, ("sage", "gat"), GMTL_DATA, ("", "paper")
    )
    if not (variant and row in ("local", "centralized"))
}


VARIANTS: dict[str, dict[str, Value]] = {
    "": {},
    "no-reg": {"spreadgnn.task-reg": 0.0},
    "samples": {"spreadgnn.weights": "samples"},
    "owners": {"spreadgnn.head-sync": "owners"},
    "lambda-1e-5": {"spreadgnn.task-reg": 1e-5},
    "lambda-1e-3": {"spreadgnn.task-reg": 1e-3},
    "lambda-1e-2": {"spreadgnn.task-reg": 1e-2},
    "paper": {"batch-size": 1, "spreadgnn.task-reg": 1e-3},
}
PUBLISHED_REG = {"qm8": (0.3, 0.3), "muv": (1e-3, 2e-3)}  # of GraphSAGE and GAT
STUDIES: dict[str, dict[str, Value]] = {  # of SIDER and Tox21
    **{  # the last round mixes, whichever the period
        f"period-{tau}": {"spreadgnn.period": tau, "num-server-rounds": 1 + 10 * 15}
        for tau in (1, 5, 10, 15)
    },
    "never": {"spreadgnn.period": 0, "num-server-rounds": 1 + 10 * 15},
    "ring": {"spreadgnn.topology": "ring"},
    "star": {"spreadgnn.topology": "star"},
}
EIGHT: dict[str, dict[str, Value]] = {  # of SIDER
    "8-complete": {"spreadgnn.topology": "complete"},
    "8-ring": {"spreadgnn.topology": "ring"},
    "8-random-2": {"spreadgnn.topology": "random-regular", "spreadgnn.degree": 2},
    "8-random-4": {"spreadgnn.topology": "random-regular", "spreadgnn.degree": 4},
}
SPREADGNN_DATA = {  # clients, alpha, rates of GraphSAGE and GAT
    "sider": ("SIDER", 4, 0.2, (1.5e-3, 1.5e-3)),
    "tox21": ("Tox21", 8, 0.1, (1.5e-3, 1.5e-3)),
    "muv": ("MUV", 8, 0.3, (1e-3, 2.5e-3)),
    "qm8": ("QM8", 8, 0.5, (1.5e-3, 1.5e-3)),
}
# name -> encoder, data set, variant
SPREADGNN = {
    "-".join(filter(None, ("spreadgnn", encoder, data, variant))): (
        encoder,
        data,
        variant,
    )
    for encoder, (data, variant) in product(
        ("sage", "gat"),
        (
            *product(SPREADGNN_DATA, VARIANTS),
            *product(("sider", "tox21"), STUDIES),
            *product(("sider",), EIGHT),
        ),
    )
}


def configured(name: str) -> Resolved:
    """Resolve a preset as a run would."""
    return resolve({**defaults(), **load_preset(name)})


def test_the_list_is_complete() -> None:
    everything = {*GCFL, *GCFL_VARIANTS, *FCLG, *FGCL, *NODES, *FEDGMTL, *SPREADGNN}
    assert list(list_presets()) == sorted(everything)


def test_descriptions_are_lines_that_tell_presets_apart() -> None:
    lines = list(list_presets().values())
    assert all(lines)
    assert not [line for line in lines if "\n" in line or "{" in line]
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gcfl-nci1", "GCFL on NCI1 in 30 chunks"),
        (
            "local-mix",
            "Self-train on the 13 data sets of mix, one per client,"
            " as many local epochs as the federated runs",
        ),
        (
            "local-synthetic",
            "Self-train on the built-in data: planted groups, no download",
        ),
        ("fclg-enzymes-iid", "FCLG on ENZYMES, IID"),
        ("fclg-proteins", "FCLG on PROTEINS, non-IID by class with dominance 0.8"),
        (
            "centralized-fclg-dhfr",
            "Upper mark: intra-contrast at one client that has all graphs, on DHFR",
        ),
    ],
)
def test_descriptions(name: str, text: str) -> None:
    assert list_presets()[name] == text


# GCFL ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*GCFL, *GCFL_VARIANTS])
def test_every_gcfl_preset_configures_a_run(name: str) -> None:
    settings = configured(name).settings
    method, data = next((m, d) for n, (m, d) in GCFL.items() if name.startswith(n))
    assert settings.method == METHODS[method]
    assert settings.dataset.lower() == data


@pytest.mark.parametrize(
    ("method", "data"), list(product(("gcfl", "gcfl-plus"), PUBLISHED))
)
def test_published_settings_of_gcfl(method: str, data: str) -> None:
    dataset, num_clients, mean, largest, seq_length = PUBLISHED[data]
    many = data in ("molecules", "biochem", "mix")
    assert load_preset(f"{method}-{data}") == {
        "method": METHODS[method],
        "dataset": dataset,
        "num-clients": num_clients,
        "num-server-rounds": 200,
        "partition": "datasets" if many else "chunks",
        "gcfl.mean-norm-threshold": mean,
        "gcfl.max-norm-threshold": largest,
        "gcfl.seq-length": seq_length,
    }


def test_variants_of_gcfl() -> None:
    assert load_preset("gcfl-plus-synthetic") == {
        "method": "gcfl+",
        "dataset": "synthetic",
    }
    assert load_preset("fedprox-mix")["fedprox.mu"] == 0.01
    assert load_preset("local-nci1-paper")["local.epochs"] == 50
    assert load_preset("local-mix-paper")["local.epochs"] == 100
    assert load_preset("gcfl-plus-proteins-standardized")["gcfl.standardize"] is True
    variant = load_preset("gcfl-plus-proteins-last-grad-norm")
    assert variant["gcfl.seq-source"] == "last-grad-norm"
    assert variant["gcfl.seq-length"] == 10


# FCLG ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parts"), FCLG.items())
def test_every_fclg_preset_configures_a_run(
    name: str, parts: tuple[str, str, bool]
) -> None:
    row, data, iid = parts
    equal = "iid" if data == "ENZYMES" else "iid-classwise"
    expected: dict[str, Value] = {
        "dataset": data,
        "partition": equal if iid else "dominance",
        "dominance": 0.8,
        "split-seed": 0,
        "num-clients": 6,
        "num-server-rounds": 20,
        "local-epochs": 5,
        "batch-size": 64,
        "learning-rate": 1e-3,
        "embedding.evaluation": "pooled",
        **ROWS[row],
    }
    config = configured(name).to_config()
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    "name", [n for n, (row, *_) in FCLG.items() if "fclg.inter" in ROWS[row]]
)
def test_published_settings_of_fclg(name: str) -> None:
    expected: dict[str, Value] = {
        "num-layers": 3,
        "hidden-dim": 64,
        "optimizer": "adamw",
        "weight-decay": 0.01,
        "fclg.temperature": 0.5,
        "fclg.inter-temperature": 0.5,
        "fclg.diffusion": "ppr",
        "fclg.ppr-alpha": 0.2,
        "fclg.threshold": 0.01,
    }
    config = configured(name).to_config()
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize("name", FCLG)
def test_fclg_presets_leave_the_rest_to_auto(name: str) -> None:
    """What the method sets has one place; here stand the split and the row only."""
    assert set(load_preset(name)) <= {
        "method",
        "dataset",
        "num-clients",
        "partition",
        "dominance",
        "split-seed",
        "embedding.evaluation",
        "fclg.inter",
        "infograph.proximal-mu",
        "infograph.moon-mu",
        "mvgrl.proximal-mu",
        "mvgrl.moon-mu",
    }


@pytest.mark.parametrize("name", FGCL)
def test_every_fgcl_preset_configures_a_run(name: str) -> None:
    row, encoder, data, epsilon = FGCL[name]
    run = configured(name)
    config = run.to_config()
    expected = {
        "method": "fgcl",
        "dataset": data,
        "fgcl.views": (CLEAN | NOISY)[row],
        "fgcl.encoder": encoder,
        "fgcl.contrast-weight": 0.0 if row == "two-views" else 0.1,
        "privacy.edge-epsilon": epsilon,
        "privacy.noise-mode": "once",
        "features": "atoms-no-degree",
        "learning-rate": 0.005,
        "split-seed": 0,
    }
    assert {key: config[key] for key in expected} == expected
    assert (config["num-clients"] == 1) == (row == "centralized")


def test_published_settings_of_fgcl() -> None:
    """Sec. 3 of our specification: clients, alpha, and what FedGraphNN's code sets."""
    clients = {"sider": (4, 0.2), "bace": (4, 0.5), "clintox": (4, 0.5)}
    for data, expected in {**clients, "bbbp": (4, 2.0), "tox21": (8, 3.0)}.items():
        s = configured(f"fgcl-gcn-{data}-1").settings
        assert (s.num_clients, s.dirichlet_alpha) == expected
        found = (s.hidden_dim, s.num_layers, s.dropout, s.local_epochs, s.optimizer)
        assert found == (64, 2, 0.3, 1, "adam")
        assert (s.weight_decay, s.persist_optimizer) == (0.0, False)
        # Ours: until validation hardly improves, instead of the paper's 20 to 50.
        assert (s.num_server_rounds, s.patience) == (200 if data == "sider" else 250, 0)


# FedGKD's comparison ------------------------------------------------------------------


@pytest.mark.parametrize("name", NODES)
def test_every_node_preset_configures_a_run(name: str) -> None:
    """Sec. 3 and 7 of our specification of FedGKD."""
    method, data, clients = NODES[name]
    config = configured(name).to_config()
    expected = {
        "method": method,
        "dataset": data,
        "num-clients": clients,
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
    assert {key: config[key] for key in expected} == expected
    assert config["shared-group"] == ("convs" if method == "fedper" else "all")
    assert config.get("fedprox.mu", 0.001) == 0.001
    assert config.get("fedpub.alpha", 3.0) == 3.0
    assert config.get("fedgkd.tau", 0.1) * clients <= 5
    assert config["learning-rate"] in (0.005, 0.01)  # the paper's grid, App. B.3
    assert config["local-epochs"] in (1, 3, 5, 7)


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


# FedGMTL ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parts"), FEDGMTL.items())
def test_every_fedgmtl_preset_configures_a_run(
    name: str, parts: tuple[str, str, str, bool]
) -> None:
    row, encoder, data, as_published = parts
    run = configured(name)
    config = run.to_config()
    table = "fedgmtl" if row == "fedgmtl" else "multitask"
    clients, alpha = GMTL_DATA[data]
    rates = {("MUV", "sage"): 1e-3, ("MUV", "gat"): 2.5e-3}
    expected = {
        "dataset": data,
        f"{table}.encoder": encoder,
        "num-clients": clients,
        "dirichlet-alpha": alpha,
        "task-masks": "all" if row == "centralized" else "exclusive",
        "learning-rate": rates.get((data, encoder), 1.5e-3),
        "num-server-rounds": 150,
        "batch-size": 1 if as_published else 32,
        "persist-optimizer": False,
        "weight-decay": 0.0,
        "local-epochs": 1,
        "hidden-dim": 64,
        "num-layers": 2,
        "dropout": 0.3,
        **GMTL_ROWS[row],
    }
    if row == "fedgmtl":
        published = {"QM8": 0.3, "MUV": 2e-3 if encoder == "gat" else 1e-3}
        expected["fedgmtl.task-reg"] = (
            published.get(data, 1e-3) if as_published else 1e-4
        )
    assert {key: config[key] for key in expected} == expected
    assert run.method.task.metric == ("mae" if data == "QM8" else "roc-auc")


@pytest.mark.parametrize(("name", "parts"), SPREADGNN.items())
def test_every_spreadgnn_preset_configures_a_run(
    name: str, parts: tuple[str, str, str]
) -> None:
    encoder, data, variant = parts
    dataset, num_clients, alpha, rates = SPREADGNN_DATA[data]
    config = configured(name).to_config()
    expected: dict[str, Value] = {
        "method": "spreadgnn",
        "dataset": dataset,
        "num-clients": 8 if variant in EIGHT else num_clients,
        "dirichlet-alpha": alpha,
        "learning-rate": rates[encoder == "gat"],
        "task-masks": "exclusive",
        "num-server-rounds": 150,
        "local-epochs": 1,
        "batch-size": 32,
        "hidden-dim": 64,
        "num-layers": 2,
        "dropout": 0.3,
        "weight-decay": 0.0,
        "optimizer": "amsgrad",
        "persist-optimizer": True,
        "spreadgnn.encoder": encoder,
        "spreadgnn.topology": "complete",
        "spreadgnn.period": 1,
        "spreadgnn.task-reg": 1e-4,
        **{**VARIANTS, **STUDIES, **EIGHT}[variant],
    }
    if variant == "paper" and data in PUBLISHED_REG:
        expected["spreadgnn.task-reg"] = PUBLISHED_REG[data][encoder == "gat"]
    assert {key: config[key] for key in expected} == expected


def test_the_random_pairs_of_figure_5_fall_into_two_parts() -> None:
    """A connected graph with two neighbours each would be the ring again."""
    params = configured("spreadgnn-sage-sider-8-random-2").params
    assert isinstance(params, SpreadGNNParams)
    topology = make_topology(8, params)
    assert sorted(map(len, topology.components())) == [3, 5]
    other = configured("spreadgnn-sage-sider-8-random-4").params
    assert isinstance(other, SpreadGNNParams)
    assert make_topology(8, other).is_connected()


# The loader ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["gcfl", "gcfl.family", "../presets/gcfl-nci1", "gcfl+-proteins"]
)
def test_unknown_preset_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown preset") as caught:
        load_preset(name)
    message = str(caught.value)
    assert f"Nearest of {len(list_presets())}: " in message
    assert "gcfl-" in message.partition("Nearest")[2]
    assert "`python -m simulations.presets` lists them" in message
    assert str(FOLDER) in message


@pytest.mark.parametrize(
    ("got", "near"),
    [
        ("gcfl-plus-protein", "gcfl-plus-proteins"),
        ("fclg-enzyme-iid", "fclg-enzymes-iid"),
    ],
)
def test_nearest_preset_is_named(got: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{near}'"):
        load_preset(got)


@pytest.mark.parametrize("content", [b"config = '\xff'", b"config = " + b"[" * 5000])
@pytest.mark.parametrize("name", ["odd.toml", "odd.family.toml"])
def test_a_file_that_no_parser_takes_is_refused(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{tmp_path / name} is not valid TOML: "):
        list_presets(tmp_path)


def test_a_file_is_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'description = "Mine"\n[config]\nseed = 4\n[config.gcfl]\nmin-round = 5\n'
    )
    assert list_presets(tmp_path) == {"mine": "Mine"}
    assert load_preset("mine", tmp_path) == {"seed": 4, "gcfl.min-round": 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[config", "not valid TOML"),
        ('method = "gcfl"', r"unknown entries method in the preset; .* in config$"),
        ("config = 1", r"\[config\] must be a table, got 1"),
        ("[config]\nseeds = [1, 2]", r"seeds must be .* got \[1, 2\] in \[config\]"),
        ("[config.gcfl]\nx = {y = 1}", "gcfl.x must be"),
        ('axes = ["a"]', "called <name>.family.toml; rename"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_preset("mine", tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "mine.toml"))


# Families -----------------------------------------------------------------------------

FAMILY = """
description = "{b} by {a}{c}"
axes = ["a", "b", "c"]
config = { seed = 1, gcfl = { min-round = 2, seq-length = 3 } }

[a.x]
text = "X"
config = { seed = 2, num-clients = 4, gcfl.min-round = 9 }
[a.x-y]
text = "X and Y"

[b.""]
text = "nothing"
[b.z]
text = "Z"
config = { num-clients = 5, gcfl.standardize = true }

[c.""]
[[c.v]]
only = { a = ["x-y"], b = ["z"] }
text = ", first"
config = { dropout = 0.5 }
[[c.v]]
only = { b = ["z"] }
text = ", second"
"""


def write_family(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.family.toml"
    path.write_text(text)
    return path


def test_a_family_is_the_product_of_its_axes(tmp_path: Path) -> None:
    write_family(tmp_path, FAMILY)
    assert list_presets(tmp_path) == {
        "x": "nothing by X",
        "x-y": "nothing by X and Y",
        "x-y-z": "Z by X and Y",
        "x-y-z-v": "Z by X and Y, first",
        "x-z": "Z by X",
        "x-z-v": "Z by X, second",
    }


def test_later_axes_override_earlier_ones_and_all_the_common(tmp_path: Path) -> None:
    write_family(tmp_path, FAMILY)
    common = {"seed": 1, "gcfl.min-round": 2, "gcfl.seq-length": 3}
    x = {**common, "seed": 2, "num-clients": 4, "gcfl.min-round": 9}
    z = {"num-clients": 5, "gcfl.standardize": True}
    assert load_preset("x-y", tmp_path) == common
    assert load_preset("x", tmp_path) == x
    assert load_preset("x-z", tmp_path) == {**x, **z}
    assert load_preset("x-z-v", tmp_path) == {**x, **z}
    assert load_preset("x-y-z-v", tmp_path) == {**common, **z, "dropout": 0.5}


def test_the_order_of_axes_is_that_of_the_list(tmp_path: Path) -> None:
    write_family(tmp_path, FAMILY.replace('"a", "b", "c"', '"c", "b", "a"'))
    assert "v-z-x-y" in list_presets(tmp_path)
    assert load_preset("z-x", tmp_path)["num-clients"] == 4


def test_presets_do_not_share_their_configuration(tmp_path: Path) -> None:
    write_family(tmp_path, FAMILY)
    load_preset("x", tmp_path)["seed"] = 7
    assert load_preset("x", tmp_path)["seed"] == 2


def test_one_name_may_come_from_one_place_only(tmp_path: Path) -> None:
    write_family(tmp_path, FAMILY)
    (tmp_path / "x-z.toml").write_text("[config]\nseed = 1\n")
    with pytest.raises(ConfigError, match=r"'x-z', which .*rename") as caught:
        list_presets(tmp_path)
    assert str(tmp_path / "x-z.toml") in str(caught.value)
    assert str(tmp_path / "mine.family.toml") in str(caught.value)


def test_families_may_not_make_one_name(tmp_path: Path) -> None:
    write_family(tmp_path, FAMILY)
    write_family(tmp_path, FAMILY, "other")
    with pytest.raises(ConfigError, match="names are unique in the folder"):
        load_preset("x-z", tmp_path)


def test_a_family_may_not_make_a_name_twice(tmp_path: Path) -> None:
    write_family(tmp_path, FAMILY.replace("x-y", "x-z"))  # x + z and x-z + ""
    with pytest.raises(ConfigError, match="makes preset 'x-z', which"):
        load_preset("x", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('axes = ["a", "b", "c"]', "", "axes must list .* each once.* got None"),
        ('"a", "b", "c"', "", r"axes must list .* got \[\]"),
        ('"a", "b", "c"', '"a", "b", "b"', "axes must list .* each once"),
        ('"a", "b", "c"', '"a", "b", 3', "axes must list"),
        ('"a", "b", "c"', '"a", "b", "config"', "none called .*config"),
        ('"a", "b", "c"', '"a", "b"', "unknown entries c in the family; allowed are"),
        ('"a", "b", "c"', '"a", "b", "c", "d"', "'d' has no options; add a table"),
        ("{b} by", "{e} by", r"description may have \{a\}, \{b\}, \{c\} in braces"),
        ("{b} by", "{b by", "description may have"),
        ("{b} by", "{b:d} by", "description may have"),
        ('"Z"', '"Z"\nnum-clients = 5', r"num-clients in \[b.z\]; .* in config$"),
        ('text = "nothing"', "nothing = 1", r'unknown entries nothing in \[b.""\]'),
        ("seed = 1,", "seed = [1],", r"seed must be .* in \[config\]"),
        ("dropout = 0.5", "dropout = []", r"dropout must be .* \[c.v\] case 1 config"),
        ("{ dropout = 0.5 }", "0.5", r"\[c.v\] case 1 config must be a table"),
        ('[a.x-y]\ntext = "X and Y"', "[a]\nx-y = 3", r"\[a.x-y\] must be a table"),
        ('{ b = ["z"] }', '["z"]', r"\[c.v\] case 2 only must be a table"),
        ('{ b = ["z"] }', '{ d = ["z"] }', "has d = .*; name one of .*: a, b$"),
        ('{ b = ["z"] }', '{ c = ["v"] }', "has c = .*; name one of the other axes"),
        ('{ b = ["z"] }', '{ b = ["u"] }', r"has b = \['u'\]; list some of \"\", z$"),
        ('{ b = ["z"] }', '{ b = "z" }', "has b = 'z'; list some of"),
        ('{ b = ["z"] }', "{ b = [] }", "has b = .*; list some of"),
        (
            '{ a = ["x-y"], b = ["z"] }',
            "{}",
            r"\[c.v\] case 2 makes no preset: .* an earlier case .*; correct only",
        ),
        ("[a.x]", '[a.""]', "a preset has no name, .*; name one of them"),
    ],
)
def test_bad_families_are_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert FAMILY.count(old) == 1
    path = write_family(tmp_path, FAMILY.replace(old, new))
    with pytest.raises(ConfigError, match=message) as caught:
        load_preset("x", tmp_path)
    assert str(caught.value).startswith(f"{path}: ")


def test_the_command_lists_names_and_descriptions(capsys) -> None:
    assert main(["mvgrl-fedprox-nci1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "mvgrl-fedprox-nci1",
        "mvgrl-fedprox-nci1-iid",
    ]
    assert all("NCI1" in line for line in lines)
    assert main(["no such preset"]) == 1

"""Presets name real settings, and the loader refuses what it does not know."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.registry import defaults, resolve
from simulations.presets import FOLDER, list_presets, load_preset

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


def test_the_list_is_complete() -> None:
    plain = {f"{m}-{d}" for m, d in product(METHODS, [*PUBLISHED, "synthetic"])}
    assert set(list_presets()) == plain | {f"local-{d}-paper" for d in PUBLISHED} | {
        "gcfl-plus-proteins-last-grad-norm",
        "gcfl-plus-proteins-standardized",
    }
    assert all(list_presets().values())


@pytest.mark.parametrize("name", list(list_presets()))
def test_every_preset_configures_a_run(name: str) -> None:
    resolved = resolve({**defaults(), **load_preset(name)})
    method, data = next(
        (METHODS[m], name.removeprefix(f"{m}-"))
        for m in sorted(METHODS, key=len, reverse=True)
        if name.startswith(f"{m}-")
    )
    assert resolved.settings.method == method
    assert data.startswith(resolved.settings.dataset.lower())


@pytest.mark.parametrize(
    ("method", "data"), list(product(("gcfl", "gcfl-plus"), PUBLISHED))
)
def test_published_settings(method: str, data: str) -> None:
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


def test_variants() -> None:
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


@pytest.mark.parametrize("name", ["_nci1", "../presets/gcfl-nci1", "gcfl+-proteins"])
def test_unknown_preset_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown preset") as caught:
        load_preset(name)
    assert "gcfl-plus-nci1" in str(caught.value)
    assert str(FOLDER) in str(caught.value)


def test_nearest_preset_is_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'gcfl-plus-proteins'"):
        load_preset("gcfl-plus-protein")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[config", "not valid TOML"),
        ('method = "gcfl"', "unknown entries method"),
        ('extends = "_none"', "does not exist"),
        ('extends = "gcfl-nci1"', "only a base"),
        ("[config]\nseeds = [1, 2]", r"seeds must be .* got \[1, 2\]"),
        ("[config.gcfl]\nx = {y = 1}", "gcfl.x must be"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_preset("mine", tmp_path)


def test_a_preset_overrides_its_base(tmp_path: Path) -> None:
    (tmp_path / "_base.toml").write_text(
        "[config]\nseed = 1\n[config.gcfl]\nmin-round = 2\nseq-length = 3\n"
    )
    (tmp_path / "mine.toml").write_text(
        'extends = "_base"\n[config]\nseed = 4\n[config.gcfl]\nmin-round = 5\n'
    )
    assert load_preset("mine", tmp_path) == {
        "seed": 4,
        "gcfl.min-round": 5,
        "gcfl.seq-length": 3,
    }

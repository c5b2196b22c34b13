"""The loader of presets refuses what it does not know; families are products."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedgraph_flwr.core.errors import ConfigError
from simulations.cli import main as fedgraph
from simulations.presets import list_presets, load_preset

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
    assert "`fedgraph presets` lists them" in message


def test_a_file_is_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'description = "Mine"\n[config]\nseed = 4\n[config.gcfl]\nmin-round = 5\n'
    )
    assert list_presets(tmp_path) == {"mine": "Mine"}
    assert load_preset("mine", tmp_path) == {"seed": 4, "gcfl.min-round": 5}


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


def write(folder: Path, text: str = FAMILY, name: str = "mine.family.toml") -> None:
    (folder / name).write_text(text)


def test_a_family_is_the_product_of_its_axes(tmp_path: Path) -> None:
    write(tmp_path)
    assert list_presets(tmp_path) == {
        "x": "nothing by X",
        "x-y": "nothing by X and Y",
        "x-y-z": "Z by X and Y",
        "x-y-z-v": "Z by X and Y, first",
        "x-z": "Z by X",
        "x-z-v": "Z by X, second",
    }


def test_later_axes_override_earlier_ones_and_all_the_common(tmp_path: Path) -> None:
    write(tmp_path)
    common = {"seed": 1, "gcfl.min-round": 2, "gcfl.seq-length": 3}
    x = {**common, "seed": 2, "num-clients": 4, "gcfl.min-round": 9}
    z = {"num-clients": 5, "gcfl.standardize": True}
    assert load_preset("x-y", tmp_path) == common
    assert load_preset("x", tmp_path) == x
    assert load_preset("x-z", tmp_path) == {**x, **z}
    assert load_preset("x-z-v", tmp_path) == {**x, **z}
    assert load_preset("x-y-z-v", tmp_path) == {**common, **z, "dropout": 0.5}


def test_the_command_lists_names_and_descriptions(capsys) -> None:
    assert fedgraph(["presets", "mvgrl-fedprox-nci1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "mvgrl-fedprox-nci1",
        "mvgrl-fedprox-nci1-iid",
    ]
    assert all("NCI1" in line for line in lines)
    assert fedgraph(["presets", "no such preset"]) == 1


def test_the_page_on_own_data_lists_its_presets() -> None:
    root = Path(__file__).resolve().parents[3]
    page = (root / "docs/own-data.md").read_text(encoding="utf-8")
    listed = re.findall(r"`([a-z-]+-csv)`", page)
    own = {name for name in list_presets() if name.endswith("-csv")}
    assert own == set(listed) - {"graphs-csv", "graph-csv", "smiles-csv"}

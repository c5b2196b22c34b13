"""Documented hashes are found on pages and in files, and compared with a new run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgraph_flwr import server_app
from fedgraph_flwr.files import project_root
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import load_summary
from simulations import replay
from simulations.inline import run_inline

SMALL = {"num-server-rounds": 1, "hidden-dim": 8, "seed": 3}
COMMAND = "python -m simulations.run fedavg-synthetic --seeds 3" + "".join(
    f" --set {k}={v}" for k, v in SMALL.items() if k != "seed"
)


@pytest.fixture(scope="module", autouse=True)
def _no_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_app, "draw_all", lambda _: None)
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    """Weights of the command, run by hand on the built-in data."""
    root = tmp_path_factory.mktemp("documented")
    places = {"results-dir": str(root / "r"), "state-dir": str(root / "s")}
    own = {"method": "fedavg", "dataset": "synthetic", **SMALL, **places}
    summary = load_summary(run_inline(own))
    return summary["weights_sha256"][:12]


def page(folder: Path, weights: str) -> Path:
    text = f"| run | weights |\n|---|---|\n| `{COMMAND}` | `{weights}`, twice |\n"
    (folder / "page.md").write_text(f"# Replaying\n\n{text}\nNo `{'0' * 12}` here.\n")
    return folder


@pytest.mark.slow
def test_a_hash_that_holds_and_one_that_does_not(tmp_path, weights, capsys) -> None:
    assert replay.main(["--docs", str(page(tmp_path, weights))]) == 0
    assert f"same     {weights}  page.md: fedavg-synthetic" in capsys.readouterr().out
    assert replay.main(["--docs", str(page(tmp_path, "0" * 12))]) == 1
    out = capsys.readouterr().out
    assert f"DIFFERS  {weights}, not 000000000000  page.md" in out
    assert "0 of 1 runs gave the same bytes" in out
    assert "Another kind of processor gives other bytes" in out


def test_a_command_may_be_wrapped(tmp_path) -> None:
    wrapped = COMMAND.replace(" ", "\n  ", 3)
    (tmp_path / "page.md").write_text(f"- `{wrapped}`: weights `{'0' * 12}`.\n")
    (found,) = replay.find_runs(tmp_path)
    assert found.name == COMMAND.removeprefix("python -m simulations.run ")
    assert found.overrides["seed"] == 3


def test_nothing_to_run_is_said(tmp_path, capsys) -> None:
    assert replay.main(["--docs", str(tmp_path)]) == 2
    assert "0 of 0" in capsys.readouterr().out


def test_runs_of_a_file_are_those_of_its_presets(tmp_path) -> None:
    (tmp_path / "study.csv").write_text(
        "row,seed,split_seed,weights,wall_s\n"
        '"gcfl-plus-proteins (gcfl.standardize=true, num-server-rounds=5)",10,7,abc,9\n'
        "gcfl-plus-proteins,10,123,def,70\n"
        "control-proteins,10,0,,0\n"
    )
    found, slow = replay.find_runs(tmp_path)
    assert (found.weights, found.wall_s) == ("abc", 9.0)
    config = resolve({**defaults(), **found.overrides}).to_config()
    assert config["gcfl.standardize"] is True
    assert (config["num-server-rounds"], config["split-seed"]) == (5, 7)
    assert replay.quick([slow, found]) == [found]


def test_the_hashes_of_this_project_are_found_and_can_be_run() -> None:
    """Every documented run still has a configuration that is accepted."""
    found = replay.find_runs(project_root() / "docs")
    pages = {run.place for run in found}
    assert {"gcfl-kept.md", "fclg-kept.md", "fedgkd.csv", "spreadgnn.csv"} <= pages
    for run in {run.name.split(", seeds")[0]: run for run in found}.values():
        resolve({**defaults(), **run.overrides})

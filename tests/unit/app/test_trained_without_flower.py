"""A trained model predicts on a machine that has no Flower."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import toys

from simulations.inline import run_inline

PROJECT = Path(__file__).parents[3]
BLOCK_FLOWER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flwr", "ray"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
"""


@pytest.mark.slow
def test_five_lines_predict_new_molecules_without_flower(tmp_path):
    molecules = ["CCO", "CCN", "CCC", "c1ccccc1", "CC=O", "CNC", "COC", "CCCl", "CN"]
    rows = "".join(f"{m},{i % 2}\n" for i, m in enumerate(molecules * 2))
    (tmp_path / "data.csv").write_text("smiles,toxic\n" + rows)
    (tmp_path / "new.csv").write_text("id,smiles\n7,CCO\n8,nonsense\n9,CCBr\n1\n")
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results", "cache")}
    own = {"dataset": "smiles-csv", "data-dir": str(tmp_path / "data.csv")}
    small = {"num-clients": 1, "num-server-rounds": 1, "shared-group": "all"}
    config = {**toys.TINY, "method": "fedavg", **places, **own, **small}
    path = run_inline(config)
    lines = f"""
from fedgraph_flwr.trained import load_model
predictions = load_model({str(path / "models")!r}).predict_folder("new.csv")
predictions.write("out.csv")
assert "flwr" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", BLOCK_FLOWER + lines],
        cwd=tmp_path, env={"PYTHONPATH": str(PROJECT)}, check=True,
    )  # fmt: skip
    told = toys.csv_rows(tmp_path / "out.csv")
    assert [row["line"] for row in told] == ["2", "4", "3", "5"]
    assert [row["problem"] for row in told] == [
        "", "", "not a SMILES string", "1 cells, the header has 2"
    ]  # fmt: skip
    for row in told[:2]:
        assert row["prediction(toxic)"] == str(int(float(row["p(toxic)"]) >= 0.5))

"""Methods of your own on real SuperNodes: from the bundle, and from a site's disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import toys

from fedgraph_flwr.config import Value
from simulations.drill.trials import read_summary
from simulations.inline import run_inline
from simulations.processes import Federation, environment

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
RUN: dict[str, Value] = {
    "dataset": "synthetic",
    "num-clients": 2,
    "num-server-rounds": 1,
    "hidden-dim": 8,
}
SITES = ['clients="0" plugins="outside_fgx"', 'clients="1"']


def test_a_bundled_plug_in_runs_and_an_installed_one_needs_every_sites_consent(
    tmp_path: Path,
) -> None:
    (tmp_path / "outside_fgx.py").write_text(toys.PLUGIN)
    variables = environment(tmp_path / "flwr")
    path = [variables.get("PYTHONPATH", ""), str(tmp_path)]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    own: dict[str, Value] = {
        **RUN,
        "method": "examples.pulled:METHOD",
        "plugin.params": "mu = 0.5",
    }
    outside: dict[str, Value] = {**RUN, "method": "outside_fgx:METHOD"}
    places = {f"{kind}-dir": str(tmp_path / kind) for kind in ("results", "state")}
    inline = read_summary(run_inline({**own, **places}))
    logs = tmp_path / "federation"
    logs.mkdir()
    with Federation(logs, variables, SITES) as federation:
        run_id = federation.submit({**own, "results-dir": str(tmp_path / "own")})
        status = federation.wait(run_id, limit_s=600)
        assert status == "finished:completed", federation.log(run_id)
        refused = federation.submit(
            {**outside, "results-dir": str(tmp_path / "outside")}
        )
        federation.wait(refused, limit_s=600)
        told = federation.log(refused)

    (folder,) = (tmp_path / "own").glob("2*")
    deployed = read_summary(folder)
    assert deployed["weights_sha256"] == inline["weights_sha256"]
    for key in ("plugin.params", "plugin.method-sha256"):
        assert deployed["config"][key] == inline["config"][key]
    assert "the run's method is in module 'outside_fgx', which is not in" in told
    assert "--node-config 'plugins=" in told
    assert not list((tmp_path / "outside").glob("2*"))  # no round, no folder

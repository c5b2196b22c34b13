"""``metrics.prom``: Prometheus's text format, and the numbers of the run."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch

import pytest
from deployment_files import EXAMPLES

from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.results import folder as folder_module
from fedgraph_flwr.results.summary import METRICS

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(
    rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)?\}})? ([^ ]+)( -?[0-9]+)?"
)


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Read Prometheus's text format 0.0.4 as strictly as its documentation."""
    assert text.endswith("\n")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    family, kinds = "", {}
    for line in text.splitlines():
        if line.startswith("#"):
            mark, word, name, rest = line.split(" ", 3)
            assert (mark, word) in {("#", "HELP"), ("#", "TYPE")}
            assert re.fullmatch(_NAME, name)
            if word == "TYPE":
                assert rest in {"counter", "gauge"}
                assert name not in kinds, f"two blocks of {name}"
                assert name.endswith("_total") == (rest == "counter")
                family, kinds[name] = name, rest
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == family, f"{line} does not follow its TYPE"
        pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
        labels = tuple(sorted(pairs))
        assert labels not in found.get(family, {}), f"twice: {line}"
        found.setdefault(family, {})[labels] = float(match[3])
    return found


def value(found, name, **labels):
    """The one sample of a metric with these labels, whatever its run."""
    wanted = set(labels.items())
    (number,) = (v for k, v in found[f"fedgraph_{name}"].items() if wanted <= set(k))
    return number


NODES = [
    {"clients": "0,2", "site-name": "north", "state-dir": "/s"},
    {"clients": "1", "site-name": "south", "state-dir": "/s"},
]


def test_the_file_has_the_numbers_of_the_summary(once):
    finished = once("fedavg")
    summary, found = finished.summary, parsed((finished.path / METRICS).read_text())
    assert value(found, "run_status") == 1
    assert value(found, "run_info", method="fedavg", run=summary["run_id"]) == 1
    assert value(found, "round") == value(found, "rounds") == summary["rounds"]
    assert value(found, "bytes_total", direction="up") == summary["bytes_up"]
    assert value(found, "bytes_total", direction="down") == summary["bytes_down"]
    assert value(found, "score", split="test") == summary["final"]["mean"]
    assert value(found, "failures_total") == 0
    assert not [name for name in found if "_site_" in name]  # none has a name


def test_it_is_written_after_every_round_for_the_dashboard_and_names_sites(
    run, tmp_path, monkeypatch
):
    texts = []
    real = folder_module.write_text

    def spy(path, text):
        real(path, text)
        if path.name == METRICS:
            texts.append(parsed(text))

    monkeypatch.setattr(folder_module, "write_text", spy)
    nodes = [{**node, "state-dir": str(tmp_path / node["site-name"])} for node in NODES]
    finished = run("fedavg", node_configs=nodes)
    assert [value(f, "round") for f in texts] == [0, 1, 2, 3, 3, 3]
    assert [value(f, "run_status") for f in texts] == [0, 0, 0, 0, 0, 1]
    last = texts[-1]
    assert value(last, "site_clients", site="north") == 2
    assert value(last, "site_last_round", site="south") == 3
    assert value(last, "site_failures_total", site="south") == 0
    assert finished.summary["sites"] == {"north": [0, 2], "south": [1]}
    board = json.loads((EXAMPLES / "grafana.json").read_text())
    queries = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    assert len(queries) >= 9
    assert set(re.findall(r"fedgraph_\w+", " ".join(queries))) <= set(last)


def test_the_collector_of_the_guide_reads_folders_of_runs_alone(once):
    """A file among them, as the server's audit log, counts as a scrape error."""
    guide = (EXAMPLES.parents[1] / "docs" / "deployment.md").read_text()
    (pattern,) = re.findall(r"textfile\.directory=\S+/(\S+?)\"", guide)
    assert fnmatch(once("fedavg").path.name, pattern)
    assert not fnmatch("audit.jsonl", pattern)


@pytest.mark.parametrize("name", ["a b", 7, "", "x\n"])
def test_a_site_with_an_odd_name_is_refused_at_roll_call(run, tmp_path, caplog, name):
    node = {**NODES[0], "clients": "0,1,2", "site-name": name}
    with pytest.raises(RunFailedError, match=r"ConfigError: see docs/configuration"):
        run("fedavg", node_configs=[{**node, "state-dir": str(tmp_path)}])
    assert "node-config site-name must be 1 to 40 letters" in caplog.text

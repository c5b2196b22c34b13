"""Methods and data sets of your own: where they may come from, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import toys
from flwr.app import Context, Message, RecordDict

from datasets import load_partition
from examples import trimmed
from fedgraph_flwr.client_app import app
from fedgraph_flwr.core import plugins
from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.core.wire import Parcel, pack, select, unpack
from fedgraph_flwr.resolve import defaults, resolve

METHOD = toys.PLUGIN


def config(method="fgx:METHOD", **more):
    return {**defaults(), **toys.TINY, "method": method, **more}


def refused(words, method="fgx:METHOD", **more):
    with pytest.raises(ConfigError, match=words):
        resolve(config(method, **more))


def test_the_examples_give_what_they_say(once):
    def sha(method, **more):
        return once(method, **more).sha

    assert sha("examples.placebo:METHOD") == sha("fedavg")
    half, prox = {"plugin.params": "mu = 0.5"}, {"fedprox.mu": 0.5}
    assert sha("examples.pulled:METHOD", **half) == sha("fedprox", **prox)
    assert sha("examples.pulled:METHOD") == sha("fedprox")
    others = "rooted", "norm_gin", "sage", "placebo"
    seen = {sha(f"examples.{m}:METHOD") for m in others}
    assert len(seen | {sha("fedavg", weighting="uniform")}) == 5
    for file in (plugins._ROOT / "examples").glob("*.py"):
        text = file.read_text()
        assert len(text.splitlines()) <= 41 or "__main__" in text, file.name


@pytest.mark.slow  # a process that loads torch
def test_a_plug_in_that_moves_into_the_folder_of_methods_is_a_built_in(tmp_path):
    """With no other edit, and to the byte; it reads ``plugin.params`` as before."""
    methods, results = tmp_path / "methods", tmp_path / "results"
    methods.mkdir()
    shutil.copy(plugins._ROOT / "examples" / "pulled.py", methods)
    given = ["num-server-rounds=2", "num-clients=2", "plugin.params=mu = 0.5"]
    code = f"""
        import fedgraph_flwr.methods
        fedgraph_flwr.methods.__path__.append({str(methods)!r})
        from simulations.cli import main
        for method in ("pulled", "examples.pulled:METHOD"):
            results = {str(results)!r}
            given = ["run", method, "--inline", "--results", results, *{given}]
            assert main(given) == 0
        """
    subprocess.run([sys.executable, "-c", dedent(code)], cwd=plugins._ROOT, check=True)
    found = [json.loads(s.read_text()) for s in results.glob("*/summary.json")]
    assert {s["method"] for s in found} == {"pulled", "examples.pulled:METHOD"}
    assert len({s["weights_sha256"] for s in found}) == 1


@pytest.mark.parametrize(
    ("share", "count", "mean"), [(0.2, 5, 3), (0.5, 4, 1.5), (0.5, 1, 1)]
)
def test_the_trimmed_mean_by_hand(share, count, mean):
    numbers = [1, 1, 2, 6, 10][:count]
    replies = {
        c: Parcel(arrays={"shared/w": np.float32([n, -n]), "shared/n": np.int64(7)})
        for c, n in enumerate(sorted(numbers, key=lambda n: n % 5))
    }
    params = trimmed.Params(share=share)
    strategy = trimmed.Trimmed(toys.run_settings(), params, experiment="x")
    strategy.theta = select("shared/", replies[0].arrays)
    strategy.step(1, replies)
    assert strategy.theta["w"].tolist() == [mean, -mean]
    assert (strategy.theta["w"].dtype, strategy.theta["n"]) == (np.float32, 7)


def test_a_run_says_which_source_it_had_and_what_its_parameters_were(once):
    run = once("examples.pulled:METHOD", **{"plugin.params": "mu = 1"})
    told = run.summary["config"]
    assert told["plugin.params"] == "mu = 1.0"
    assert told["plugin.method-sha256"] == plugins.sha256("examples.pulled")
    assert told["plugin.dataset-sha256"] == ""
    assert resolve({**defaults(), **told}).to_config() == told
    assert not [key for key in once("fedavg").summary["config"] if "plugin" in key]


# Where modules come from -------------------------------------------------------------


def test_data_have_one_name_however_a_run_spells_it(write_plugin):
    """A site's account of its edges goes by that name: none may begin afresh."""
    source = (Path(toys.__file__).parents[1] / "examples" / "rings.py").read_text()
    write_plugin("plugins/fgx/__init__.py", source + "TWICE = DATA\n")
    spelt = ["fgx:DATA", "fgx:TWICE", "plugins.fgx:DATA", "fgx.__init__:DATA"]
    settings = [resolve(config("fedavg", dataset=name)).settings for name in spelt]
    names = {load_partition(s, 0).graphs.name for s in settings}
    assert names == {"fgx:DATA"}


@pytest.mark.parametrize(
    "name",
    ["fgx:", "./fgx.py:METHOD", "/abs/fgx:METHOD", "..fgx:METHOD", "fgx:METHOD\n"],
)
def test_what_is_no_name_of_a_plug_in(write_plugin, name):
    write_plugin("plugins/fgx.py")
    refused("a plug-in is named module:NAME", name)


def made(arguments, before=""):
    """Source of a method with these arguments."""
    return f"from fedgraph_flwr.api import *\n{before}\nMETHOD = Method({arguments})\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (", "cannot be imported: SyntaxError"),
        ("import nosuchpackage", "cannot be imported: ModuleNotFoundError: No module"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("METHOD = 3", "must be a Method of module 'fgx', but it is a int"),
        (METHOD.replace("METHOD", "OTHER"), "it has none; what it has: OTHER"),
        (made("strategy=3"), "strategy of method fgx:METHOD must be a class"),
        (
            made("strategy=AbstractGraphStrategy"),
            "AbstractGraphStrategy lacks initialise, models, outgoing, restore, state",
        ),
        (
            made("clients={GRAPH_CLASSIFICATION: GraphClient}"),
            "task 'graph-classification' .*GraphClient lacks build_model, loss, scores",
        ),
        (
            made("params=P", "class P(Settings): mu: float = number(0, 0)"),
            "P must be decorated with @dataclass",
        ),
    ],
)
def test_a_faulty_plug_in_is_refused_with_its_cure(write_plugin, source, words):
    write_plugin("plugins/fgx.py", source)
    refused(words)


@pytest.mark.parametrize("name", ["test_fgx", "fgx_test"])
def test_what_flower_leaves_out_of_its_bundle_is_refused_before_it_is_missed(
    write_plugin, name
):
    """In one process it ran, and in a simulation it was to be put where it was."""
    write_plugin(f"plugins/{name}.py")
    refused("is named as a test is; rename it", f"{name}:METHOD")


def test_a_module_that_nobody_has_is_refused_with_where_it_was_looked_for(write_plugin):
    write_plugin("plugins/fgy.py")
    refused("No module named 'fgx'; put fgx.py into .*plugins, .* or install it")


# Faults of a plug-in while it runs ----------------------------------------------------


def test_an_error_in_a_plug_in_is_told_with_its_line(write_plugin, lab):
    source = """\
        from fedgraph_flwr.api import *
        class Forgets(GraphClient):
            def loss(self, batch, generator):
                return self.round.stored["mine"]
        METHOD = Method(clients=on_every_task(Forgets))
        """
    write_plugin("plugins/fgf.py", source)
    with pytest.raises(RunFailedError, match=r"KeyError: 'mine' \(fgf.py, line 4\)"):
        lab.run("fgf:METHOD")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("state(self): return self.theta", r"state\(\) of S must return two"),
        ("state(self): return {}, {'k': {1}}", "a dict that JSON can hold"),
        (
            "step(self, n, r): return self.theta",
            r"step\(\) must set the strategy's models and return nothing, got a dict",
        ),
        ("step(self, n, replies): self.mine", "no attribute 'mine'"),
    ],
)
def test_what_a_method_of_a_strategy_does_wrong_is_told(write_plugin, lab, body, words):
    write_plugin(
        "plugins/fgx.py",
        f"from fedgraph_flwr.api import *\nclass S(FedAvg):\n    def {body}\n"
        "METHOD = Method(strategy=S)\n",
    )
    with pytest.raises(Exception, match=words):
        lab.run("fgx:METHOD")


# Sites -------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Have a module installed that leaves a trace when it is imported."""
    folder, trace = tmp_path / "installed", tmp_path / "imported"
    folder.mkdir()
    source = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n"
    (folder / "outside_fgx.py").write_text(source + METHOD)
    monkeypatch.syspath_prepend(str(folder))
    yield trace
    plugins.forget("outside_fgx")


def test_a_site_imports_no_module_of_its_own_unless_its_operator_allows_it(
    lab, outside
):
    """The server is trusted to import; in this process the module's trace tells."""
    from fedgraph_flwr.node.node_config import check_plugins

    run_config = config("outside_fgx:METHOD")
    for node in ({"clients": "0"}, {"clients": "0", "plugins": "json, outside"}):
        with pytest.raises(ConfigError, match="'outside_fgx', which is not in folder"):
            check_plugins(run_config, node)
    assert not outside.exists()
    check_plugins(run_config, {"clients": "0", "plugins": "json, outside_fgx"})
    check_plugins(run_config, {"partition-id": 0, "num-partitions": 1})
    check_plugins(config("examples.placebo:METHOD"), {"clients": "0"})
    with pytest.raises(ConfigError, match="the run's dataset is in module 'os'"):
        check_plugins(config("fedavg", dataset="os:DATA"), {"clients": "0"})


@pytest.mark.usefixtures("task_identity")
@pytest.mark.parametrize("key", ["method", "dataset"])
@pytest.mark.parametrize("policy", [{}, {"methods": ["fedavg"], "datasets": ["MUTAG"]}])
def test_a_message_imports_nothing_before_the_site_allows_it(
    tmp_path, outside, key, policy
):
    """To write its audit log, too, a site reads the run config."""
    node = {"clients": "0", "state-dir": str(tmp_path / "state")}
    node |= toys.policy(tmp_path, **policy) if policy else {}
    run_config = {**defaults(), "method": "fedavg", key: "outside_fgx:METHOD"}
    asked = Message(pack({}, {"experiment": "e"}), 1, "query")
    reply = app(asked, Context(1, 1, node, RecordDict(), run_config))
    assert unpack(reply.content)[1]["error"].startswith(("PolicyError", "ConfigError"))
    assert not outside.exists()
    (asked, answered) = (tmp_path / "state" / "audit.jsonl").read_text().splitlines()
    assert '"event": "asked"' in asked
    assert '"outcome": "refused"' in answered
    assert "outside_fgx" in answered


def test_ends_with_different_sources_are_refused(lab, monkeypatch):
    from fedgraph_flwr.node import introduce

    tell = introduce.tell_plugins
    monkeypatch.setattr(
        introduce, "tell_plugins", lambda p: dict.fromkeys(tell(p), "0" * 64)
    )
    words = r"source of the plug-in \(method-sha256\) is \w{12} at the server and 0{12}"
    with pytest.raises(ConfigError, match=words):
        lab.run("examples.placebo:METHOD")


# Source ------------------------------------------------------------------------------


def hash_of(module):
    plugins.forget()
    return plugins.sha256(module)


def test_the_hash_covers_the_package_of_a_plug_in_and_no_more(write_plugin):
    files = {"fgx/__init__": METHOD, "fgx/deep/one": "", "other": ""}
    for name, text in files.items():
        write_plugin(f"plugins/{name}.py", text)
    first, found = hash_of("fgx"), {}
    for name, text in files.items():
        write_plugin(f"plugins/{name}.py", f"{text}# more\n")
        found[name] = hash_of("fgx")
        write_plugin(f"plugins/{name}.py", text)
    assert found.pop("other") == first
    assert len({first, *found.values()}) == 3


def test_a_resume_with_another_source_or_other_parameters_is_refused(write_plugin, lab):
    source = (plugins.Path(__file__).parents[3] / "examples" / "pulled.py").read_text()
    write_plugin("plugins/fgx.py", source)
    part = lab.run("fgx:METHOD", **{"num-server-rounds": 1})
    kept = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    again = {**kept, "resume": str(part.path), "num-server-rounds": 2}
    with pytest.raises(ConfigError, match=r"plugin.params was 'mu = 0.01' and is now"):
        lab.run("fgx:METHOD", **again, **{"plugin.params": "mu = 0.02"})
    assert lab.run("fgx:METHOD", **again).summary["resumed_from_round"] == 1
    write_plugin("plugins/fgx.py", source + "# changed\n")
    plugins.forget()
    with pytest.raises(ConfigError, match=r"plugin.method-sha256 was '\w+' and is now"):
        lab.run("fgx:METHOD", **again)


def test_a_source_may_be_demanded(write_plugin):
    write_plugin("plugins/fgx.py")
    known = hash_of("fgx")
    assert resolve(config(**{"plugin.method-sha256": known})).plugin is not None
    refused("but 'fgx' has", **{"plugin.method-sha256": "0" * 64})
    refused("but dataset is not a plug-in", **{"plugin.dataset-sha256": "0" * 64})
    refused("64 hexadecimal digits", **{"plugin.method-sha256": "abc"})


# Parameters --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("mu", r"key = value, .*got 'mu'"),
        ("mu = 1, mu = 2", "key = value"),
        ("mu = [1]", "give each a text, number"),
        ("mu = 'high'", "mu must be a finite number >= 0 .*got 'high'"),
        ("mu = nan", "mu must be a finite number"),
        ("MU = 1", "unknown parameter 'MU'. Did you mean 'mu'"),
        ("mu = " + "[" * 5000, "key = value"),
    ],
)
def test_faulty_parameters_are_refused_by_name(given, words):
    refused(words, "examples.pulled:METHOD", **{"plugin.params": given})

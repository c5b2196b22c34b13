"""Methods and data sets of your own: where they may come from, and what is refused."""

from __future__ import annotations

import json
import os
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
from fedgraph_flwr.core.config import Settings
from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.core.wire import Parcel, pack, select, unpack
from fedgraph_flwr.resolve import defaults, resolve
from strategies.fedavg import FedAvg

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
    ("share", "count", "mean"),
    [(0, 5, 4), (0.2, 5, 3), (0.5, 5, 2), (0.5, 4, 1.5), (0.5, 1, 1)],
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


def test_a_module_of_the_bundle_wins_over_an_installed_one(write_plugin, tmp_path):
    write_plugin("plugins/json.py")
    assert resolve(config("json:METHOD")).method.strategy is FedAvg
    assert plugins.origin("json") == tmp_path / "plugins" / "json.py"


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


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (", "cannot be imported: SyntaxError"),
        ("import nosuchpackage", "cannot be imported: ModuleNotFoundError: No module"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("METHOD = 3", "must be a Method of module 'fgx', but it is a int"),
        (METHOD.replace("METHOD", "OTHER"), "it has none; what it has: OTHER"),
        (
            METHOD.replace("()", "(strategy=3)"),
            "strategy of method fgx:METHOD must be a class",
        ),
        (METHOD.replace("()", "(clients={})"), "to classes, got {}"),
        (
            METHOD.replace("()", "(strategy=AbstractGraphStrategy)"),
            "AbstractGraphStrategy lacks initialise, models, outgoing, restore, state",
        ),
        (
            METHOD.replace("()", "(clients={GRAPH_CLASSIFICATION: GraphClient})"),
            "task 'graph-classification' .*GraphClient lacks build_model, loss, scores",
        ),
        (
            METHOD.replace("()", "(clients={'graphs': GraphClient})"),
            "mapping from tasks, e.g.",
        ),
        (
            "from fedgraph_flwr.api import *\nclass P(Settings):\n"
            "    mu: float = number(0, 0)\nMETHOD = Method(params=P)\n",
            "P must be decorated with @dataclass",
        ),
        (
            "from dataclasses import dataclass\nfrom fedgraph_flwr.api import *\n"
            "@dataclass(frozen=True, kw_only=True)\nclass P(Settings):\n"
            "    mu: float = 0.1\nMETHOD = Method(params=P)\n",
            "field 'mu' says nothing of the values",
        ),
        (
            "from fedgraph_flwr.api import *\nclass C(GraphClient):\n"
            "    def uplink(self, trained): ...\n"
            "METHOD = Method(clients=on_every_task(C))\n",
            r"has uplink\(\), which nothing calls; .* belongs into update\(\)",
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


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (
            "def outgoing(self, n):\n        return {1: super().outgoing(n)[1]}",
            r"outgoing\(\) of S must have .* round 1, but has none for \[0, 2\]; add",
        ),
        (
            "",
            r"holds \['n'\], expected .* or uplink\(\) of a plug-in's strategy expects",
        ),
    ],
)
def test_parts_of_a_plug_in_that_do_not_go_together_are_told_so(
    write_plugin, lab, strategy, words
):
    source = f"""
        from fedgraph_flwr.api import *
        import numpy as np
        class S(FedAvg):
            {strategy.replace(chr(10), chr(10) + " " * 8) or "pass"}
        class C(GraphClient):
            def update(self, trained):
                sent = super().update(trained).arrays
                return Parcel(arrays=sent | {{"n": np.ones(1)}})
        METHOD = Method(strategy=S, clients=on_every_task(C))
        """
    write_plugin("plugins/fgx.py", source)
    with pytest.raises(RunFailedError, match=words):
        lab.run("fgx:METHOD")


def test_a_module_that_nobody_has_is_refused_with_where_it_was_looked_for(write_plugin):
    write_plugin("plugins/fgy.py")
    refused("no plug-in 'fgx': .*plugins holds fgy, and no module .* installed")


def test_a_foreign_package_called_plugins_is_named(write_plugin, tmp_path, monkeypatch):
    write_plugin("plugins/fgx.py")
    other = tmp_path / "other"
    (other / "plugins").mkdir(parents=True)
    (other / "plugins" / "__init__.py").touch()
    (other / "plugins" / "fgx.py").write_text(METHOD)
    monkeypatch.syspath_prepend(str(other))
    refused(rf"imported from {other}/plugins/fgx.py, expected {tmp_path}/plugins")


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


def test_a_run_at_sites_is_refused_by_name_and_goes_on_if_allowed(lab, outside):
    sites = [{"clients": "0,1"}, {"clients": "2"}]
    with pytest.raises(Exception, match="ConfigError: see docs"):
        lab.run("outside_fgx:METHOD", node_configs=sites)
    allowed = [{**site, "plugins": "outside_fgx"} for site in sites]
    found = lab.run("outside_fgx:METHOD", node_configs=allowed)
    assert found.sha == lab.once("fedavg").sha


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


def test_the_hash_covers_what_a_plug_in_imports_of_the_bundle_and_no_more(write_plugin):
    write_plugin(
        "plugins/fgx.py", f"from plugins import near\nfrom .far import X\n{METHOD}"
    )
    write_plugin("plugins/near.py", "import plugins.deep.one\n")
    write_plugin("plugins/far.py", "X = 1\n")
    write_plugin("plugins/deep/one.py", "")
    write_plugin("plugins/deep/two.py", "")
    write_plugin("plugins/other.py", "")
    first = hash_of("fgx")
    write_plugin("plugins/other.py", "Y = 1\n")
    assert hash_of("fgx") == first
    seen = {first}
    for name in ("fgx", "near", "far", "deep/two"):
        write_plugin(f"plugins/{name}.py", f"{METHOD}X = {len(seen)}\n" * 2)
        if name == "fgx":
            write_plugin("plugins/fgx.py", f"from . import near, far\n{METHOD}# more\n")
        seen.add(hash_of("fgx"))
        if name == "near":
            write_plugin("plugins/near.py", "import plugins.deep.one # more\n")
            hash_of("fgx")
    assert len(seen) == 5


def test_tests_within_a_package_are_not_in_its_hash_as_they_do_not_travel(
    write_plugin,
):
    """The hash in one process was another one than that of the same run in Flower."""
    write_plugin("plugins/lab/__init__.py", f"from .core import X\n{METHOD}")
    write_plugin("plugins/lab/core.py", "X = 1\n")
    alone = hash_of("lab")
    write_plugin("plugins/lab/test_core.py", "")
    write_plugin("plugins/lab/tests/core_test.py", "")
    (plugins._ROOT / "plugins/lab/tests/__init__.py").unlink()
    assert hash_of("lab") == alone


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_link_that_a_plug_in_imports_is_refused(write_plugin, tmp_path, is_folder):
    """What lay in a linked folder was not in the hash: it changed unseen."""
    write_plugin("plugins/lab/__init__.py", f"from .far.core import X\n{METHOD}")
    write_plugin("elsewhere/far/core.py", "X = 1\n")
    if is_folder:
        (tmp_path / "plugins/lab/far").symlink_to(tmp_path / "elsewhere/far")
    else:
        (tmp_path / "plugins/lab/far").mkdir()
        core = tmp_path / "plugins/lab/far/core.py"
        core.symlink_to(tmp_path / "elsewhere/far/core.py")
    refused(
        "far/core.py is a link, .* to .*elsewhere/far/core.py; put the", "lab:METHOD"
    )


def test_what_lies_in_a_package_and_is_no_python_stops_no_run(write_plugin, tmp_path):
    """A template, or the lock of an editor, ended the run with a bare traceback."""
    write_plugin("plugins/lab/__init__.py", METHOD)
    write_plugin("plugins/lab/template.py", "def {{ name }}(: pass\n")
    (tmp_path / "plugins/lab/.#core.py").symlink_to("user@host.1:2")
    assert hash_of("lab")


def test_a_folder_that_does_not_travel_is_refused_or_not_in_the_hash(write_plugin):
    """Flower leaves out what .gitignore names: no client found the module."""
    write_plugin("plugins/lab/__init__.py", METHOD)
    alone = hash_of("lab")
    write_plugin("plugins/lab/build/core.py", "X = 1\n")
    assert hash_of("lab") == alone
    write_plugin("plugins/lab/__init__.py", f"from .build.core import X\n{METHOD}")
    plugins.forget()
    refused(".py lies in a folder build; rename that, as", "lab:METHOD")


def test_byte_code_of_another_source_is_not_taken(write_plugin, tmp_path, monkeypatch):
    """Of the same length and second, as tools leave that copy or unpack files."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    found = []
    for number in (1, 2):
        write_plugin("plugins/fgx.py", f"from plugins import near\n{METHOD}")
        write_plugin("plugins/near.py", f"X = {number}\n")
        for file in ("fgx.py", "near.py"):
            os.utime(tmp_path / "plugins" / file, (1.7e9, 1.7e9))
        plugins.forget()
        found.append((plugins._import("fgx").near.X, plugins.sha256("fgx")))
    assert [x for x, _ in found] == [1, 2]
    assert found[0][1] != found[1][1]


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
        ("mu = 1 } \n x = { y = 1", "; give each a text, number"),
        ("mu = [1]", "mu = .1.*; give each a text, number"),
        ("mu = 'high'", "mu must be a finite number >= 0 .*got 'high'"),
        ("mu = nan", "mu must be a finite number"),
        ("MU = 1", "unknown parameter 'MU'. Did you mean 'mu'"),
        ("learning-rate = 1", "unknown parameter 'learning-rate'"),
        ("mu = " + "[" * 5000, "key = value"),
    ],
)
def test_faulty_parameters_are_refused_by_name(given, words):
    refused(words, "examples.pulled:METHOD", **{"plugin.params": given})


def test_parameters_of_a_method_without_any_are_refused_or_told():
    one = {"plugin.params": "mu = 1"}
    refused("has no parameters of its own", "examples.placebo:METHOD", **one)
    (told,) = resolve(config("fedavg", **one)).warnings
    assert told.startswith("plugin.params is set to 'mu = 1', but method 'fedavg'")


def test_parameters_survive_being_written(write_plugin):
    write_plugin(
        "plugins/fgx.py",
        """
        from dataclasses import dataclass
        from fedgraph_flwr.api import *

        @dataclass(frozen=True, kw_only=True)
        class P(Settings):
            TABLE = "fgx"
            inner_width: int = integer(3, 1, 9)
            mode: str = choice("a", "a", "it's \\"b\\"\\\\ \\x7f é😀")
            is_on: bool = flag(False)

        METHOD = Method(params=P)
        """,
    )
    text = 'inner-width = 4, is-on = true, mode = "it\'s \\"b\\"\\\\ \\u007f é😀"'
    first = resolve(config(**{"plugin.params": text}))
    assert first.params.mode == 'it\'s "b"\\ \x7f é😀'
    assert (first.params.inner_width, first.params.is_on) == (4, True)
    again = resolve({**defaults(), **first.to_config()})
    assert again == first


def test_a_built_in_table_is_read_from_its_own_keys(write_plugin):
    write_plugin(
        "plugins/fgx.py",
        "from fedgraph_flwr.api import *\n"
        "from fedgraph_flwr.methods.fedavg import FedProxParams\n"
        "METHOD = Method(params=FedProxParams)\n",
    )
    assert resolve(config(**{"fedprox.mu": 0.25})).params.mu == 0.25
    assert issubclass(resolve(config()).method.params, Settings)

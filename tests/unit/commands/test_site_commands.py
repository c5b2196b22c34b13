"""Commands of a site on small data of its own: check, baseline, predict."""

from __future__ import annotations

import json
import re
import shutil
import sys

import numpy as np
import pytest
import toys
from commands import at_site

from datasets.tabular.schema_file import read_schema
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.site.findings import OK, PROBLEM, UNKNOWN, Findings
from fedgraph_flwr.trained.model_folder import read_about
from simulations.example_data import write_examples
from simulations.inline import run_inline

CONFIG = (
    'dataset="smiles-csv" num-clients=2 num-server-rounds=2 hidden-dim=8 num-layers=1'
    ' learning-rate=0.05 held-out=0.5 device="cpu"'
)
FEDAVG = f'method="fedavg" {CONFIG}'
ATOMS = ["C", "N", "O", "CC", "CN", "CO", "CCl", "CBr", "CCC", "CCN", "CCO", "CNC"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two sites' molecules, and a run of both with the state that each keeps."""
    root = tmp_path_factory.mktemp("site")
    (root / "data").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_CACHE", str(root / "cache"))
        for number, tail in enumerate(("F", "I")):
            rows = [f"{a}S{b}{tail}" for a in ATOMS for b in ("C", "N", "O", "CC")]
            text = "".join(f"{m},{int('N' in m)}\n" for m in rows)
            place = root / "data" / f"site-{number}.csv"
            place.write_text("smiles,amine\n" + text)
        results, local = (
            run_inline({
                "method": method, "dataset": "smiles-csv", "num-clients": 2,
                "num-server-rounds": 2, "hidden-dim": 8, "num-layers": 1,
                "device": "cpu", "learning-rate": 0.05, "held-out": 0.5,
                **{f"{k}-dir": str(root / k) for k in ("data", "results", "state")},
            })
            for method in ("fedavg", "local")
        )  # fmt: skip
        yield root, results, local


def own_model(site, client=1):
    root, results, _ = site
    return root / "state" / results.name / f"client-{client}" / "model"


def score(path, client):
    summary = load_summary(path)
    return summary["final"]["per_client"][str(client)]


# baseline -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(site, tmp_path_factory):
    """What training alone at site 1 leaves."""
    out = tmp_path_factory.mktemp("alone") / "model"
    data = str(site[0] / "data" / "site-1.csv")
    given = ["baseline", data, "--run-config", FEDAVG, "--client", "1"]
    assert at_site([*given, "--out", str(out)]) == 0
    return out


def test_training_alone_gives_what_the_method_local_gives_in_a_run(site, alone):
    about = read_about(alone)
    assert about.scores["test roc-auc"] == score(site[2], 1)
    theirs = site[0] / "state" / site[2].name / "client-1/model/client-1.safetensors"
    assert (alone / "client-1.safetensors").read_bytes() == theirs.read_bytes()


def test_join_or_not_is_read_from_the_sites_own_test_items(site, alone, capsys):
    data = str(site[0] / "data" / "site-1.csv")
    given = ["baseline", data, "--out", str(alone), "--against", str(own_model(site))]
    assert at_site([*given, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["federated"] == score(site[1], 1)
    assert told["alone"] == score(site[2], 1)
    assert told["gain"] == told["federated"] - told["alone"]
    assert (told["low"], told["high"], told["verdict"]) == (None, None, "cannot tell")
    assert at_site(given) == 0
    words = capsys.readouterr().out
    assert "no interval: no resample of these items moves the gain" in words


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([], "give --run-config before a run, or --against after it"),
        (["--run-config", 'method="nope"'], "unknown method 'nope'"),
        (["--run-config", "method=fedavg"], "--run-config cannot be read"),
        (
            ["--run-config", "x = ["],
            r"--run-config has 'x = \[', which Flower leaves out",
        ),
        (
            ["--run-config", "/no/such.toml"],
            "--run-config cannot be read: .*No such file.*no.such.toml",
        ),
        (
            ["--run-config", f'method="infograph" {CONFIG}'],
            "is for unsupervised graph embedding",
        ),
        (
            ["--run-config", FEDAVG, "--client", "2"],
            "client id must be in 0..1",
        ),
        (["--against", "/no/such/model"], "is not a model folder"),
    ],
)
def test_what_cannot_be_a_baseline_is_refused(site, tmp_path, words, match, capsys):
    data = str(site[0] / "data" / "site-1.csv")
    code = at_site(["baseline", data, "--out", str(tmp_path / "out"), *words])
    assert code == 2
    assert re.search(match, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_what_flower_leaves_out_of_a_node_config_is_named(tmp_path, capsys):
    """A site with spaces around = of its policy had none, and the check said ok."""
    given = ["check", "--node-config", "clients=\"0\", policy = '/p' resident=true"]
    assert at_site(given) == 2
    words = r"--node-config has \"policy = '/p'\", which Flower .* without spaces"
    assert re.search(words, capsys.readouterr().err)
    assert at_site(["check", str(tmp_path / "gone")]) == 1
    assert f"data: there is no {tmp_path / 'gone'}" in capsys.readouterr().out


def test_models_of_other_protocols_are_not_compared(site, alone, tmp_path, capsys):
    data = str(site[0] / "data" / "site-1.csv")
    copy = tmp_path / "other"
    shutil.copytree(own_model(site), copy)
    code = at_site(["baseline", data, "--out", str(copy), "--against", str(alone)])
    assert code == 2
    assert "holds a model of method 'fedavg'" in capsys.readouterr().err
    again = ["--run-config", FEDAVG]
    used = ["baseline", data, "--out", str(alone), *again]
    assert at_site(used) == 2
    assert "is there already" in capsys.readouterr().err


# predict --------------------------------------------------------------------------


def test_test_items_are_predicted_with_the_score_of_the_run(site, tmp_path, capsys):
    data, out = str(site[0] / "data" / "site-1.csv"), tmp_path / "p.csv"
    code = at_site(["predict", str(own_model(site)), data, "--test", "--out", str(out)])
    assert code == 0
    assert f"items: {score(site[1], 1)!r}" in capsys.readouterr().out
    rows = toys.csv_rows(out)
    assert {row["label(amine)"] for row in rows} == {"0", "1"}


def test_new_items_that_do_not_fit_leave_exit_code_1(site, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("smiles\nCCO\nnonsense\n")
    given = ["predict", str(site[1] / "models"), str(tmp_path / "new.csv")]
    assert at_site([*given, "--out", str(tmp_path / "p.csv")]) == 1
    assert "not predicted: line 3: not a SMILES string" in capsys.readouterr().out
    assert at_site([*given, "--out", str(tmp_path / "p.csv"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    why = [{"line": "3", "problem": "not a SMILES string"}]
    assert (told["items"], told["score"], told["not_predicted"]) == (1, None, why)


def test_data_of_the_training_calibrate_and_tell_what_is_unlike(site, tmp_path, capsys):
    data, out = str(site[0] / "data" / "site-1.csv"), tmp_path / "p.csv"
    (tmp_path / "new.csv").write_text("smiles\nCSCI\nC[Si](C)(C)C\n")
    trusting = ["--trained-on", data, "--out", str(out)]
    model = shutil.copytree(own_model(site), tmp_path / "model")
    given = ["predict", str(model), data, "--test", "--out", str(out)]
    assert at_site(given) == 0
    plain, told = toys.csv_rows(out), capsys.readouterr().out
    before = re.search(r"test expected calibration error: (0\.\d+)\n", told)[1]
    assert at_site(["predict", str(model), data, "--test", *trusting]) == 0
    told = capsys.readouterr().out
    assert f", {before} without a temperature" in told
    assert "kept beside the model" in told
    assert re.search(r"temperature of amine: \d.*, fitted on 10 validation items", told)
    assert "test expected calibration error: 0." in told
    calibrated = toys.csv_rows(out)
    assert at_site(given) == 0  # by the temperature that was kept
    assert "fitted on 10 validation items" in capsys.readouterr().out
    again = toys.csv_rows(out)
    for row, other, kept in zip(calibrated, plain, again, strict=True):
        assert row["prediction(amine)"] == other["prediction(amine)"]
        assert row["p(amine)"] == kept["p(amine)"] != other["p(amine)"]
        assert "unlike" in row
        assert "unlike" not in kept
    path = next(model.glob("*.temperature.json"))
    fitted = json.loads(path.read_text())
    wrong = [{"temperatures": t} for t in ([0], [1e-320], [1, 2, 3])]
    for change in (*wrong, {"weights": "0" * 64}, None):
        path.write_text(json.dumps(fitted | change) if change else "{")
        assert at_site(given) == 2
        assert "delete it, then fit anew by --trained-on" in capsys.readouterr().err
    models = shutil.copytree(site[1] / "models", tmp_path / "models")
    shared = [str(models), str(tmp_path / "new.csv"), *trusting]
    assert at_site(["predict", *shared]) == 2
    assert "by --client ID" in capsys.readouterr().err
    assert at_site(["predict", *shared, "--client", "1"]) == 0
    known, new = toys.csv_rows(out)
    assert float(known["unseen"]) == 0 < float(new["unseen"])
    assert float(known["unlike"]) < 1 == float(new["unlike"])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "there is no file or folder"),
        ("", "is empty"),
        ("molecule\nCCO\n", "has no column 'smiles'"),
        ("smiles\nnonsense\n", "has no usable molecule.*line 2"),
        ("smiles,smiles\nC,C\n", "two columns 'smiles'"),
    ],
)
def test_files_that_cannot_be_predicted_are_named(site, tmp_path, text, match, capsys):
    place = tmp_path / "new.csv"
    if text is not None:
        place.write_text(text)
    given = ["predict", str(site[1] / "models"), str(place)]
    assert at_site([*given, "--out", str(tmp_path / "p.csv")]) == 2
    assert re.search(match, capsys.readouterr().err)
    assert not (tmp_path / "p.csv").exists()


# explain --------------------------------------------------------------------------


def test_a_molecule_is_explained_atom_by_atom_and_drawn(site, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("smiles\nCNSF\nC[Br\nC\n")
    given = ["explain", str(site[1] / "models"), str(tmp_path / "new.csv"), "--items"]
    out = ["--out", str(tmp_path / "why.csv"), "--pictures", str(tmp_path / "why")]
    assert at_site([*given, "2,4", *out, "--json"]) == 0
    told = {row["item"]: row for row in json.loads(capsys.readouterr().out)["items"]}
    predict = ["predict", *given[1:3], "--out", str(tmp_path / "p.csv")]
    assert at_site(predict) == 1
    for row in toys.csv_rows(tmp_path / "p.csv")[:2]:
        p = float(row["p(amine)"])
        assert told[row["line"]]["value"] == pytest.approx(np.log(p / (1 - p)), 1e-3)
    rows = [r for r in toys.csv_rows(tmp_path / "why.csv") if r["item"] == "2"]
    total = sum(float(r["value"]) for r in rows if r["part"] in ("node", "edge"))
    difference = told["2"]["value"] - told["2"]["baseline"]
    assert total + told["2"]["gap"] == pytest.approx(difference, abs=1e-5)
    assert {r["node"][0] for r in rows if r["part"] == "node"} == {*"CNSF"}
    assert {r["feature"] for r in rows if r["node"][:1] == "F"} >= {"atomic_number=9"}
    assert (tmp_path / "why" / "2.svg").read_text().rstrip().endswith("</svg>")
    assert at_site([*given, "3", *out]) == 2
    assert "has no line '3' that can be predicted; it has 2, 4" in (
        " ".join(capsys.readouterr().err.split())
    )


# every command --------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("schema", "/none", "--out", "s.toml"),
        ("check", "/none", "--run-config", "="),
        ("baseline", "/none", "--out", "alone"),
        ("predict", "/none", "/none", "--out", "p.csv"),
        ("explain", "/none", "/none", "--items", "1", "--out", "p.csv"),
        ("audit", "/none"),
    ],
    ids=lambda words: words[0],
)
def test_a_program_reads_from_json_why_a_command_could_not_look(words, capsys):
    assert at_site([*words, "--json"]) == 2
    told, error = capsys.readouterr()
    found = json.loads(told)
    assert found["exit_code"] == 2
    assert error == f"error: {found['error']}\n"


# check ----------------------------------------------------------------------------


def check(words, capsys):
    code = at_site(["check", *words, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    return code, {f["what"]: f for f in told["findings"]}


def test_rows_left_out_and_doubts_of_the_run_are_findings(tmp_path, capsys):
    (made, *_) = write_examples(tmp_path / "example")
    west = made / "west"
    assert at_site(["schema", str(made / "north"), "--out", f"{west}/schema.toml"]) == 0
    capsys.readouterr()
    run_config = (
        'method="gcfl+" dataset="graphs-csv" csv-label-kind="classes" num-clients=3'
        ' num-server-rounds=2 hidden-dim=8 num-layers=1 held-out=0.1 device="cpu"'
        " gcfl.mean-norm-threshold=0.1 gcfl.max-norm-threshold=0.1 gcfl.seq-length=2"
    )
    node = f'clients="2" cache-dir="{tmp_path}/cache"'
    words = [str(west), "--run-config", run_config, "--node-config", node]
    _, found = check(words, capsys)
    assert found["rows"]["state"] == OK
    assert found["rows"]["found"].startswith("2 cannot be used")
    assert "nodes.csv, line" in found["rows"]["found"]
    assert "no cluster can be split" in found["run"]["found"]
    assert found["splits"]["state"] == PROBLEM
    assert "a held-out above 0.1" in found["splits"]["cure"]
    in_folds = [*words, "--run-config", f"{run_config} folds=20"]
    assert check(in_folds, capsys)[1]["splits"]["state"] == OK
    _, found = check(
        [*words, "--run-config", run_config.replace("=2 h", "=21 h")], capsys
    )
    assert "run" not in found
    assert "cells" not in found
    nodes = west / "nodes.csv"
    nodes.write_text(nodes.read_text().replace(",warm,", ",NA,"))
    _, found = check(words, capsys)
    assert found["rows"]["found"].startswith("1 cannot be used")
    assert "warmth of nodes.csv: 1 of 922 cells (0.1%)" in found["cells"]["found"]


def test_a_schema_alone_says_how_the_data_are_read(tmp_path, capsys):
    write_examples(tmp_path)
    own, schema = tmp_path / "bank", tmp_path / "bank" / "schema.toml"
    site = own / "bank-a"
    assert at_site(["schema", str(site), "--out", str(schema), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sha256"] == read_schema(schema).sha256
    words = [str(site), "--schema", str(schema)]
    found = check(words, capsys)[1]
    assert (found["schema"]["state"], found["data"]["state"]) == (PROBLEM, PROBLEM)
    assert found["schema"]["cure"] == f"cp {schema} {site / 'schema.toml'}"
    shutil.copy(schema, site)
    assert check(words, capsys)[1]["data"]["state"] == OK
    with (site / "edges.csv").open("a") as edges:
        edges.writelines(f"bank-a-{n},nobody\n" for n in range(1, 9))
    code, found = check(words, capsys)
    assert (code, found["rows"]["state"]) == (1, PROBLEM)
    told = found["rows"]["found"]
    assert told.count("is not in nodes.csv") == 8
    assert "; left out: " in found["data"]["found"]
    (site / "schema.toml").write_text("format = 2")
    for place in (site, own):  # of this site, or of one of several
        assert at_site(["check", str(place)]) == 1
        told = capsys.readouterr().out
        assert f"problem    schema: {site / 'schema.toml'}" in told


def test_what_edges_carry_and_their_classes_are_counted(tmp_path, capsys):
    (tmp_path / "nodes.csv").write_text(
        "node,x\n" + "".join(f"{n},{n % 3}.5\n" for n in range(20))
    )
    rows = (
        f"{n % 20},{n * 7 % 19},{n}.5,{n},{'bad' if n % 7 else 'fine'}\n"
        for n in range(200)
    )
    (tmp_path / "edges.csv").write_text(
        "source,target,amount,time,label\n" + "".join(rows)
    )
    assert not at_site(
        ["schema", str(tmp_path), "--out", str(tmp_path / "schema.toml")]
    )
    capsys.readouterr()
    found = check([str(tmp_path)], capsys)[1]
    about = "20 nodes, 190 edges (direction, repeated edges or loops, features, times)"
    assert found["data"]["found"].startswith(about)
    assert found["splits"]["found"].endswith("(3 of 'fine', 16 of 'bad')")
    assert "fewer than 5 in the test set" in found["splits"]["cure"]
    nodes = (tmp_path / "nodes.csv").read_text().splitlines()  # with classes, too
    nodes = [
        f"{row},{'label' if n == 0 else 'ab'[n % 2]}\n" for n, row in enumerate(nodes)
    ]
    (tmp_path / "nodes.csv").write_text("".join(nodes))
    (tmp_path / "schema.toml").unlink()
    command = ["schema", str(tmp_path), "--out", str(tmp_path / "schema.toml")]
    assert not at_site([*command, "--min-count", "5"])
    capsys.readouterr()
    assert check([str(tmp_path)], capsys)[1]["training"]["state"] == OK


def test_a_site_that_is_ready_passes(site, tmp_path, capsys):
    root = site[0]
    (tmp_path / "state").mkdir(mode=0o700)
    node = (
        f'clients="1" data-path="{root}/data/site-1.csv" state-dir="{tmp_path}/state"'
    )
    words = ["--run-config", FEDAVG, "--node-config", node]
    code, found = check(words, capsys)
    assert code == 0, found
    assert found["splits"]["found"] == (
        "20 to train, 10 to validate, 10 to test (2 of 'amine: no', 8 of 'amine: yes')"
    )
    assert "kB in and" in found["training"]["found"]
    assert found["SuperLink"]["state"] == "not asked"
    assert list((tmp_path / "state").iterdir()) == []  # nothing is left behind


def test_fewer_examples_than_the_policy_asks_for_are_a_problem(site, tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    data = f"{site[0]}/data/site-1.csv"
    words = ["--run-config", FEDAVG, "--node-config"]
    words.append(f'clients="1" data-path="{data}" policy="{policy}"')
    policy.write_text("min-examples = 20")  # as many as there are
    assert check(words, capsys)[0] == 0
    policy.write_text("min-examples = 21")
    code, found = check(words, capsys)
    assert code == 1
    assert found["data"]["state"] == PROBLEM
    assert "20 labelled training examples; it needs 21" in found["data"]["found"]
    assert found["data"]["cure"].startswith("run without that client")
    policy.write_text("min-example = 21")
    assert check(words, capsys)[1]["node-config"]["cure"].startswith("correct that fil")


def test_a_folder_that_others_can_read_is_a_problem(site, tmp_path, capsys):
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state").chmod(0o755)
    node = f'clients="0" state-dir="{tmp_path}/state" cache-dir="{tmp_path}/cache"'
    words = [f"{site[0]}/data/site-0.csv", "--node-config", node]
    code, found = check([*words, "--run-config", FEDAVG], capsys)
    assert code == 1
    assert "others can read it" in found["state folder"]["found"]
    assert "chmod 700" in found["state folder"]["cure"]


def test_molecules_that_are_left_out_are_a_finding(tmp_path, capsys):
    own = tmp_path / "own.csv"
    good = "".join(f"{'C' * n}O,{n % 2}\n" for n in range(1, 30))
    own.write_text(f"smiles,amine\nnonsense,0\n{good}" + "C(,1\n" * 9)
    words = [str(own), "--node-config", f'cache-dir="{tmp_path}"']
    config = FEDAVG
    _, found = check([*words, "--run-config", config], capsys)
    assert found["rows"]["state"] == OK
    assert found["training"]["state"] == OK
    told, *rows = found["rows"]["found"].splitlines()
    assert told.startswith("10 cannot be used")
    lines = [2, *range(32, 41)]
    for row, line in zip(rows, lines, strict=True):
        assert row.startswith(f"own.csv, line {line}: ")
    _, found = check(
        [*words, "--run-config", f'{config} csv-bad-rows="refuse"'], capsys
    )
    assert found["rows"]["state"] == PROBLEM
    assert "'skip'" in found["rows"]["cure"]
    assert "training" not in found


@pytest.mark.parametrize(
    ("node", "match"),
    [
        ('client="0"', "unknown node-config key 'client'"),
        ('clients="9"', "clients must be ids below 2"),
        ('clients="0" colour="red"', "keys colour mean nothing here"),
        ('clients="0" resident="true"', "resident must be true or false"),
        ('clients="0" site-name="north"', "this site was started without data-path"),
    ],
)
def test_a_node_config_that_would_not_hold_is_a_problem(node, match, capsys):
    words = ["--node-config", node, "--run-config", FEDAVG]
    code, found = check(words, capsys)
    assert code == 1
    assert match in found["node-config"]["found"]


def test_what_the_site_allows_is_tried_as_it_allows_it(
    site, tmp_path, capsys, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "outside_checked.py").write_text(toys.PLUGIN)
    words = [f"{site[0]}/data/site-1.csv", "--run-config"]
    words += [f'{CONFIG} method="outside_checked:METHOD"', "--node-config"]
    assert at_site(["check", *words, 'clients="1"']) == 2
    assert "outside_checked" not in sys.modules
    allowed = 'clients="1" plugins="outside_checked"'
    assert check([*words, allowed], capsys)[1]["training"]["state"] == OK


def test_a_round_of_one_site_has_no_pads(site, tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    policy.write_text('secure-aggregation = "first-seen"')
    node = f'clients="1" data-path="{site[0]}/data/site-1.csv" policy="{policy}"'
    config = FEDAVG.replace("num-clients=2", "num-clients=4")
    config += " secure-aggregation.on=true"
    code, found = check(["--run-config", config, "--node-config", node], capsys)
    assert code == 0, found
    assert "s here, without pads" in found["training"]["found"]


def test_an_unwritable_state_folder_is_a_problem(tmp_path, capsys):
    for place in ("relative", "/proc/fedgraph"):
        code, found = check(["--node-config", f'state-dir="{place}"'], capsys)
        assert code == 1
        assert found["state folder"]["state"] == PROBLEM
    assert "install -d -m 700 -o " in found["state folder"]["cure"]


def test_states_give_exit_codes():
    table = Findings()
    table.add("x", "fine")
    table.skip("x", "--more")
    assert (table.exit_code, table.fails("x")) == (0, False)
    with table.looking("x", "see"):
        raise ZeroDivisionError
    assert (table.rows[-1]["state"], table.exit_code) == (UNKNOWN, 2)
    assert "ZeroDivisionError" in table.rows[-1]["found"]
    with table.looking("y", "see"):
        raise ConfigError("it is wrong; mend it")
    assert table.rows[-1] == {
        "what": "y", "state": PROBLEM, "found": "it is wrong", "cure": "mend it"
    }  # fmt: skip
    assert (table.exit_code, table.fails("z")) == (1, False)

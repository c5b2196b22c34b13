"""Trained models as folders: what they predict is what their runs measured."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import toys
from safetensors.numpy import save_file

import datasets
from fedgraph_flwr.core.errors import ConfigError, DataError, FedGraphError
from fedgraph_flwr.core.tasks import CONFUSION, GRAPH_EMBEDDING, THRESHOLD
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.results.model_files import read_start
from fedgraph_flwr.trained import load_model
from fedgraph_flwr.trained.model_folder import read_about

PREDICTING = sorted(
    n for n, m in METHODS.items() if set(m.clients) != {GRAPH_EMBEDDING}
)


CANNOT = {"fedsage+": "generator is not kept"}


def own_folder(found: toys.Run, client: int) -> Path:
    """Give the model folder that a client of a run keeps."""
    state = Path(found.overrides["state-dir"])
    return state / found.path.name / f"client-{client}" / "model"


def last_scores(found: toys.Run) -> dict[tuple[int, str], float]:
    """Test scores of the last model, by client and metric."""
    rows = toys.csv_rows(found.path / "rounds.csv")
    last = max(int(row["round"]) for row in rows)
    return {
        (int(row["client"]), row["metric"]): float(row["value"])
        for row in rows
        if (int(row["round"]), row["split"], row["point"])
        == (last, "test", "post_aggregation")
    }


def items(found: toys.Run, client: int, model=None):
    return (model or load_model(own_folder(found, client))).predict_test(
        "/toys", client=client
    )


@pytest.mark.parametrize("method", PREDICTING)
def test_a_clients_own_model_repeats_its_test_score_exactly(once, method):
    found = once(method)
    if method in CANNOT:
        with pytest.raises(DataError, match=CANNOT[method]):
            load_model(own_folder(found, 0))
        return
    if found.summary["privacy"]:
        with pytest.raises(ConfigError, match="measured its model on noisy edges"):
            items(found, 0)
        return
    scores = last_scores(found)
    for client in range(3):
        predicted = items(found, client)
        assert predicted.score() == scores[client, found.summary["metric"]]
        told = found.summary["final"]["confusion"]
        of_client = {name: of[str(client)] for name, of in told.items()}
        assert predicted.called() == {
            name: {k: of[k] for k in CONFUSION}
            for name, of in of_client.items()
            if THRESHOLD in of
        }
        if predicted.kind in ("classes", "nodes"):
            assert np.allclose(predicted.probabilities.sum(1), 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fgcl", "fgcl.views": "clean", "privacy.edge-epsilon": 0.0},
        {"dataset": "ESOL", "multitask.encoder": "gat", "shared-group": "all"},
        {"method": "fedsage", "num-layers": 1},
        {"method": "adafgl", "adafgl.federated-rounds": 9},  # no round of its own
        {"method": "adafgl", "shared-group": "convs"},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_so_do_models_of_other_settings(run, settings):
    others = {k: v for k, v in settings.items() if k != "method"}
    found = run(settings.get("method", "fedavg"), **others)
    scores = last_scores(found)
    for client in range(3):
        expected = scores[client, found.summary["metric"]]
        assert items(found, client).score() == expected


def test_the_servers_models_predict_where_all_tensors_are_shared(run):
    found = run("gcfl+", **{"shared-group": "all", "gcfl.min-round": 0,
        "gcfl.min-cluster-size": 2, "gcfl.mean-norm-threshold": 1e6,
        "gcfl.max-norm-threshold": 0.0, "gcfl.seq-length": 2})  # fmt: skip
    folder = found.path / "models"
    about = read_about(folder)
    assert len(about.models) > 1  # it did split
    assert sorted(c for ids in about.models.values() for c in ids) == [0, 1, 2]
    for name, clients in about.models.items():
        for client in clients:
            predicted = items(found, client, load_model(folder, name))
            assert predicted.score() == last_scores(found)[client, "accuracy"]
    with pytest.raises(DataError, match="choose one of them by --model NAME"):
        load_model(folder)
    common = max(about.models, key=lambda n: len(about.models[n]))
    model = load_model(folder, common)
    with pytest.raises(ConfigError, match="say whose test items by --client ID"):
        model.predict_test("/toys")


def test_shared_tensors_alone_are_refused_and_the_cure_is_named(once):
    found = once("fedavg")  # convs alone are shared
    with pytest.raises(DataError, match="the others are private; take the model that"):
        load_model(found.path / "models")


# Damage ---------------------------------------------------------------------------


@pytest.fixture
def folder(once, tmp_path):
    """Give a copy of a client's model folder, to be damaged."""
    place = tmp_path / "copied"
    shutil.copytree(own_folder(once("fedavg"), 0), place)
    return place


def swap(path, old, new):
    path.write_bytes(path.read_bytes().replace(old, new, 1))


def relist(folder):
    """Make the hashes those of the files again, as somebody with tools would."""
    names = sorted(p.name for p in folder.iterdir() if p.name != "SHA256SUMS")
    sums = [hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names]
    text = "".join(f"{h}  {n}\n" for h, n in zip(sums, names, strict=True))
    (folder / "SHA256SUMS").write_text(text)


def edit(folder, change):
    about = json.loads((folder / "model.json").read_text())
    change(about)
    (folder / "model.json").write_text(json.dumps(about))
    relist(folder)


def bracketed(path):
    """Write weights whose metadata no reader gets to the end of."""
    about = {"about": "[" * 100_000}
    save_file({"w": np.zeros(1, np.float32)}, path, metadata=about)


def listed(change):
    """A change with hashes that are right afterwards."""
    return lambda folder: (change(folder), relist(folder))


DAMAGES = [
    (lambda f: (f / "model.json").unlink(), "is not a model folder"),
    (lambda f: (f / "SHA256SUMS").unlink(), "SHA256SUMS cannot be read"),
    (
        lambda f: swap(f / "model.json", b"fedavg", b"fedprx"),
        "model.json is not the file that SHA256SUMS names",
    ),
    (
        lambda f: swap(f / "client-0.safetensors", b"\x00", b"\x01"),
        "client-0.safetensors is not the file",
    ),
    (
        listed(lambda f: (f / "model.json").write_text("[" * 100_000)),
        "model.json cannot be read",
    ),
    (
        listed(lambda f: bracketed(f / "client-0.safetensors")),
        "model .* cannot be read",
    ),
]
CHANGES = [  # of model.json, with hashes that are right
    (lambda a: a.update(format=9), "a wrong value of format"),
    (lambda a: a.pop("kind"), "a wrong value of kind"),
    (
        lambda a: a["config"].update(method="os.system"),
        "cannot be built: unknown method 'os.system'",
    ),
    (
        lambda a: a["architecture"].update(num_features=10**9),
        r"size mismatch for pre.weight: .*1000000000",
    ),
    (lambda a: a["architecture"].pop("num_features"), "built: .*'num_features'"),
    (lambda a: a.update(models={"../client-0": [0]}), "a wrong value of models"),
    (lambda a: a.update(outputs=["a"]), "names 1 outputs, but has 2"),
    (lambda a: a.update(thresholds={"global": {"x": 0.5}}), "thresholds of .'x'"),
    (lambda a: a.update(thresholds={"global": {"0": 1.5}}), "of thresholds, .*0 to 1"),
    (lambda a: a.update(lineage=[{"model": [[]]}]), "a wrong value of lineage"),
    (lambda a: a["config"].update(dataset="this:DATA"), "outside of this project"),
    (lambda a: a["config"].update(method="this:METHOD"), "outside of this project"),
]


HOSTILE = (None, -1, 2**70, float("nan"), "../x", [[]], {"a": {}}, "\x1b[31m\n")
HOSTILE += ("\ud800",)


@pytest.mark.parametrize("hostile", HOSTILE, ids=repr)
def test_no_value_of_the_description_ends_in_anything_but_a_refusal(folder, hostile):
    """The hashes are right: a stranger made them too."""
    whole = json.loads((folder / "model.json").read_text())
    inner = {("architecture", key) for key in whole["architecture"]}
    used = {("config", key) for key in ("method", "seed", "privacy.edge-epsilon")}
    init = {"init-from": str(folder)}
    for table, key in {(key, "") for key in whole} | inner | used:
        about = copy.deepcopy(whole)
        (about[table] if key else about)[key or table] = hostile
        (folder / "model.json").write_text(json.dumps(about))
        relist(folder)
        with suppress(FedGraphError):
            found = load_model(folder).predict_test("/toys", client=0)
            found.score()
            found.table()
        with suppress(FedGraphError):
            read_start(toys.resolved(**init))


def test_no_cell_of_the_table_is_a_formula(folder, tmp_path):
    names = ["=HYPERLINK(0)", "@SUM(1)"]
    edit(folder, lambda a: a.update(outputs=names, thresholds={}))
    load_model(folder).predict_test("/toys", client=0).write(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert any(cell in ("'=HYPERLINK(0)", "'@SUM(1)") for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]


@pytest.mark.parametrize(
    ("change", "match"),
    [*DAMAGES, *((partial(edit, change=c), match) for c, match in CHANGES)],
)
def test_a_damaged_or_made_up_folder_is_refused_by_name(folder, change, match):
    load_model(folder)
    change(folder)
    with pytest.raises(DataError, match=match):
        load_model(folder)


def test_data_of_other_features_are_refused(folder, monkeypatch):
    other = toys.make_partition(0, num_features=7)
    monkeypatch.setattr(datasets, "load_partition", lambda *_: other)
    with pytest.raises(DataError, match=r"the model reads 4 features .* have 7"):
        load_model(folder).predict_test("/toys")


def test_no_path_of_the_machine_is_in_the_folder(once):
    found = once("fedavg")
    for place in (own_folder(found, 0), found.path / "models"):
        for file in place.glob("*.*"):
            for key in ("state-dir", "results-dir", "cache-dir"):
                assert found.overrides[key].encode() not in file.read_bytes()

"""Run configuration: every bad value is refused by name, before anything runs."""

from __future__ import annotations

import math
import tomllib

import pytest

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.core.process import choose_device
from fedgraph_flwr.core.rules import Rule, read_toml
from fedgraph_flwr.resolve import defaults, resolve, tables

FIELDS = {k: f for table in tables() for k, f in table.config_fields().items()}


def bad_values(rule: Rule) -> list[object]:
    """Values that must be refused."""
    if rule.kind is bool:
        return [1, "true"]
    if rule.kind is str and rule.allows(
        3
    ):  # a text in which a number stands for itself
        return [True, 1.5, -1, "no/such"]
    if rule.kind is str:
        closed = rule.choices or rule.absolute or rule.pattern
        return [3, *(["no/such"] if closed else [])]
    bad: list[object] = ["12", True, math.nan, math.inf]
    if rule.kind is int:
        bad.append(1.5)
    if rule.low > -math.inf:
        bad.append(rule.low if rule.low_open else int(rule.low) - 1)
    if rule.high < math.inf:
        bad.append(rule.high if rule.high_open else int(rule.high) + 1)
    return bad


BAD = [(k, v) for k, f in FIELDS.items() for v in bad_values(f.metadata["rule"])]


def refuse(match: str, **overrides) -> None:
    with pytest.raises(ConfigError, match=match):
        resolve({**defaults(), **overrides})


def test_pyproject_has_every_key_with_its_default():
    app = tomllib.loads((project_root() / "pyproject.toml").read_text())["tool"]
    written = {}
    for key, value in app["flwr"]["app"]["config"].items():
        nested = value if isinstance(value, dict) else None
        written |= (
            {f"{key}.{k}": v for k, v in nested.items()} if nested else {key: value}
        )
    assert written == defaults()


def test_a_bad_value_is_refused_with_key_value_and_cure():
    assert len(BAD) > 500
    for key, bad in BAD:
        with pytest.raises(ConfigError) as error:
            resolve({**defaults(), key: bad})
        text = str(error.value)
        assert key in text, bad
        assert repr(bad) in text or str(bad) in text, key
        assert "run config" in text


UNPUBLISHED = (
    "gcfl.mean-norm-threshold, gcfl.max-norm-threshold, gcfl.seq-length are 'auto', but"
    " no value is published .*; set in the run config: gcfl.mean-norm-threshold to a"
    " finite number .*To choose: run once"
)


@pytest.mark.parametrize(
    ("match", "overrides"),
    [
        ("num-clients must be an int >= 1 .* or 'auto', got 0", {"num-clients": 0}),
        ("data-dir must be an absolute path", {"data-dir": "relative/folder"}),
        (r"unknown method 'gcfl\+\+'. Did you mean 'gcfl\+'\?", {"method": "gcfl++"}),
        ("unknown dataset 'protein'. Did you mean 'PROTEINS'", {"dataset": "protein"}),
        ("'lerning-rate'. Did you mean 'learning-rate'", {"lerning-rate": 1.0}),
        (UNPUBLISHED, {"dataset": "MUTAG"}),
        ("set num-clients to 7", {"dataset": "molecules", "num-clients": 5}),
    ],
)
def test_what_users_get_wrong(match, overrides):
    refuse(match, **overrides)


def test_the_first_task_that_fits_the_data_is_taken():
    def task(**overrides):
        return resolve({**defaults(), **overrides}).settings.task

    assert task(method="local") == "graph-classification"
    assert task(method="local", dataset="BACE") == "multi-task"
    assert task(method="fedavg", dataset="Cora") == "node-classification"
    chosen = {"dataset": "PROTEINS", "task": "graph-embedding"}
    assert task(method="local", **chosen) == "graph-embedding"
    refuse(
        "task must be 'auto' or one of those .*'graph-class", method="fedavg", **chosen
    )
    refuse("is for node classification", method="local", task="node-classification")
    # Not what it takes for graphs, such as a way to share them out.
    refuse("'fclg' is for unsupervised graph embedding", method="fclg", dataset="Cora")


def test_a_missing_key_is_an_error():
    config = defaults()
    del config["seed"]
    with pytest.raises(ConfigError, match="key 'seed' is missing"):
        resolve(config)


def test_an_int_may_stand_for_a_float_and_auto_becomes_the_published_value():
    found = resolve({**defaults(), "dataset": "molecules", "learning-rate": 1})
    assert found.settings.learning_rate == 1.0
    assert isinstance(found.settings.learning_rate, float)
    assert found.settings.num_clients == 7
    assert found.to_config()["gcfl.max-norm-threshold"] == 0.28


def test_devices():
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type in ("cpu", "cuda")
    with pytest.raises(ConfigError, match="device must be 'auto', 'cpu'"):
        choose_device("gpu")
    with pytest.raises(ConfigError, match="CUDA devices; use device"):
        choose_device("cuda:99")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x = '\xff'", "is not valid TOML"),
        (b"x = 1\n" * 2, "is not valid TOML"),
        (b"x = " + b"[" * 5000 + b"]" * 5000, "is not valid TOML"),
        (None, "cannot be read: No such file.*; correct its name"),
    ],
    ids=["utf-8", "twice", "deep", "absent"],
)
def test_what_is_no_toml_is_a_config_error_naming_the_file(tmp_path, content, message):
    path = tmp_path / "a.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path} .*{message}|{path} {message}"):
        read_toml(path)

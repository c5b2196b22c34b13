"""The table of data sets and what may be asked of it."""

import pytest
import toys

import datasets
from datasets.catalog import reads_edges
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve

ALIKE = "MUTAG", "PROTEINS", "tu:Letter-low", "synthetic", "graphs-csv"
BY_HAND = {"gcfl.mean-norm-threshold": 0.1, "gcfl.max-norm-threshold": 0.2}
BY_HAND |= {"gcfl.seq-length": 5}


def test_every_recommendation_is_an_allowed_value():
    assert datasets.find_dataset("tu:NCI1").automatic["num-clients"] == 30
    mix = datasets.find_dataset("mix").members
    papers = {datasets.find_dataset(n).automatic["features"] for n in mix}
    assert papers == {"labels"}  # their protocols leave attributes out
    for info in datasets.DATASETS.values():
        RunSettings(
            dataset=info.name,
            task="graph-classification",  # the method's tasks decide it
            encoder="paper",
            patience=0,  # the task recommends them
            min_rounds=0,
            evaluate_every=1,  # the number of clients does
            checkpoint_every=1,
            **{k.replace("-", "_"): v for k, v in info.automatic.items()},
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("protiens", r"unknown dataset 'protiens'.*'PROTEINS'.*tu:NAME"),
        ("tu:../../etc", r"tu:NAME with NAME made of"),
        ("tu:", r"tu:NAME with NAME made of"),
        ("tu:" + "A" * 65, r"tu:NAME with NAME made of up to 64"),
    ],
)
def test_unknown_data_set(name, message):
    with pytest.raises(ConfigError, match=message):
        datasets.find_dataset(name)


@pytest.mark.parametrize(
    ("changes", "client", "message"),
    [
        ({}, 10, r"client id must be in 0\.\.9"),
        ({}, -1, r"client id must be in 0\.\.9"),
        ({"partition": "datasets"}, 0, r"must be 'chunks'.*got 'datasets'"),
        ({"partition": "planted"}, 0, r"must be 'chunks'.*got 'planted'"),
        ({"dataset": "mix"}, 0, r"'mix' must be 'datasets', got 'chunks'"),
        (
            {"dataset": "mix", "partition": "datasets"},
            0,
            r"one of its 13 data sets, but num-clients is 10; .*13",
        ),
        ({"dataset": "synthetic"}, 0, r"must be 'planted', got 'chunks'"),
        ({"partition": "quantity-skew"}, 0, r"must be 'chunks'.*got 'quantity-skew'"),
        (
            {"features": "atoms"},
            0,
            r"'degree' .*, got 'atoms'; set features",
        ),
        ({"dataset": "SIDER"}, 0, r"'SIDER' must be 'quantity-skew', got 'chunks'"),
        (
            {"dataset": "SIDER", "partition": "auto", "features": "degree"},
            0,
            r"must be 'atoms' or .*'atoms-strict', got 'degree'",
        ),
    ],
)
def test_contradicting_settings(changes, client, message):
    with pytest.raises(ConfigError, match=message):
        datasets.load_partition(toys.run_settings(**changes), client)


@pytest.mark.parametrize(
    ("method", "dataset", "group"),
    [
        *((m, d, "all") for m in ("fedavg", "moon", "local") for d in ALIKE),
        *((m, d, "convs") for m in ("fedavg", "gcfl+") for d in ("molecules", "mix")),
        ("gcfl", "tu:NCI1", "convs"),  # its thresholds are for updates of these
        ("gcfl+", "PROTEINS", "convs"),
        ("gcfl+", "tu:Letter-low", "all"),  # as FedAvg there, with thresholds by hand
        ("gcfl+", "synthetic", "all"),
    ],
)
def test_all_tensors_are_shared_where_clients_have_the_same_shapes(
    method, dataset, group
):
    config = {**defaults(), **BY_HAND, "method": method, "dataset": dataset}
    assert resolve(config).settings.shared_group == group


@pytest.mark.parametrize(
    ("example", "reads"),
    [("rooted", False), ("pulled", False), ("sage", False), ("gine", True)],
)
def test_a_plug_ins_client_says_whether_edges_of_tu_sets_are_read(example, reads):
    """However it is named: by text, as a class, or as mixins before one."""
    config = {**defaults(), "method": f"examples.{example}:METHOD", "dataset": "MUTAG"}
    assert reads_edges(resolve(config).settings) is reads

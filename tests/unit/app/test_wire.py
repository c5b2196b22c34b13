"""Parcels survive the wire, and their sizes are those that travel."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import (
    Lives,
    Parcel,
    pack,
    record_sizes,
    unpack,
)


@pytest.fixture
def parcel() -> Parcel:
    return Parcel(
        arrays={
            "shared/w": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1],
            "shared/count": np.array(3, np.int64),
        },
        metrics={"num-examples": 5, "loss": 0.25},
        facts={"split-hash": "abc"},
    )


def test_a_parcel_comes_back_as_it_was(parcel):
    content = pack({3: parcel, 1: Parcel(error="disk full")}, {"server-round": 7})
    parcels, header = unpack(content)
    assert header == {"server-round": 7}
    assert list(parcels) == [1, 3]
    assert parcels[1].error == "disk full"
    assert parcels[3].metrics == parcel.metrics
    assert parcels[3].facts == parcel.facts
    for name, array in parcel.arrays.items():
        got = parcels[3].arrays[name]
        np.testing.assert_array_equal(got, array)
        assert (got.dtype, got.shape) == (array.dtype, array.shape)


def test_arrays_come_in_the_order_of_their_names():
    """Who adds them up gets the same bytes each time, and those of a resumed run."""
    given = {f"extra/{n}": np.zeros(1, np.float32) for n in "hbcgadfe"}
    parcels, _ = unpack(pack({0: Parcel(arrays=given)}, {}))
    assert list(parcels[0].arrays) == sorted(given)


def test_numbers_too_large_to_travel_have_no_size(parcel):
    """In one process a header or a metric may hold them; the server must not stop."""
    content = pack({0: parcel}, {"experiment": 10**40})
    content["0/metrics"] = MetricRecord({"x": 10**40})
    sizes = {kind: size for _, kind, size in record_sizes(content)}
    assert sizes["header"] == sizes["metrics"] == 0
    assert sizes["arrays"] > 0


def test_sizes_are_those_of_the_serialised_records(parcel):
    content = pack({0: parcel, 1: parcel})
    counted = sum(size for *_, size in record_sizes(content))
    real = sum(
        len(part.deflate())
        for record in content.values()
        for part in get_all_nested_objects(record).values()
    )
    assert counted == real
    assert {c for c, *_ in record_sizes(content)} == {-1, 0, 1}


def test_many_bytes_travel_in_parts():
    """Flower drops a message of which nothing arrives for three minutes."""
    content = pack({0: Parcel(arrays={"w": np.zeros(13 * 2**20, np.uint8)})})
    assert isinstance(content["0/arrays"], ArrayRecord)
    sizes = [len(part.deflate()) for part in get_all_nested_objects(content).values()]
    assert max(sizes) < 6 * 2**20
    small = pack({0: Parcel(arrays={"w": np.zeros(3 * 2**20, np.uint8)})})
    assert isinstance(small["0/arrays"], ConfigRecord)


def test_a_message_is_few_objects(parcel):
    """Flower sends each by itself, and each takes two requests."""
    down = pack({0: Parcel(arrays=parcel.arrays, facts=parcel.facts)}, {"round": 1})
    assert sorted(down) == ["0/arrays", "0/facts", "header"]
    up = pack({0: Parcel(arrays=parcel.arrays, metrics=parcel.metrics)})
    assert sorted(up) == ["0/arrays", "0/metrics", "header"]
    assert len(get_all_nested_objects(down)) == len(get_all_nested_objects(up)) == 4
    nothing = pack({0: Parcel()})
    assert sorted(nothing) == ["0/metrics", "header"]
    assert unpack(nothing)[0] == {0: Parcel()}


@pytest.mark.parametrize(
    ("record", "match"),
    [
        (ConfigRecord({"safetensors": bytes(9)}), "cannot be decoded"),
        (ConfigRecord({"safetensors": ""}), "cannot be decoded: got str"),
        (ArrayRecord({"safetensors": Array(np.zeros(9, np.uint8))}), "cannot be dec"),
        (MetricRecord({"x": 1}), "is a MetricRecord, expected a ConfigRecord or Array"),
    ],
)
def test_malformed_arrays_are_refused(record, match):
    with pytest.raises(WireError, match=f"arrays'? of client 0 {match}"):
        unpack(RecordDict({"header": ConfigRecord(), "0/arrays": record}))


def test_malformed_messages_are_refused():
    error = {"0/error": ConfigRecord({"reason": "x"}), "0/facts": ConfigRecord()}
    for records, words in (
        ({}, "no 'header' record"),
        ({"header": ConfigRecord(), "model": MetricRecord()}, "a record model"),
        ({"header": ConfigRecord(), **error}, "an error, and beside it"),
    ):
        with pytest.raises(WireError, match=words):
            unpack(RecordDict(records))


@pytest.mark.parametrize("escape", ["dtype", "\\u0064type"])
def test_more_arrays_than_any_parcel_has_are_refused_undecoded(monkeypatch, escape):
    entry = f'{{"{escape}":"F32","shape":[0],"data_offsets":[0,0]}}'
    seen = []
    monkeypatch.setattr("safetensors.numpy.load", lambda b: seen.append(b) or {})
    for count in (2**14, 2**14 + 1):
        text = ("{" + ",".join(f'"{k}":{entry}' for k in range(count)) + "}").encode()
        blob = len(text).to_bytes(8, "little") + text
        for record in (
            ConfigRecord({"safetensors": blob}),
            ArrayRecord({"safetensors": Array(np.frombuffer(blob, np.uint8))}),
        ):
            content = RecordDict({"header": ConfigRecord(), "0/arrays": record})
            if count == 2**14:
                unpack(content)
                continue
            with pytest.raises(WireError, match="got 16385 arrays, more than 16384"):
                unpack(content)
    assert len(seen) == 2


# Which of Flower's runs did a round, after resumes -----------------------------------


def test_a_run_that_was_never_resumed_did_all_rounds():
    assert [Lives(7).run_of(r) for r in (1, 5)] == [7, 7]
    assert Lives(7).to_text() == ""


def test_each_round_is_of_the_run_whose_checkpoint_has_it():
    lives = Lives(9, ((5, 2), (7, 4)))
    assert [lives.run_of(r) for r in (1, 2, 3, 4, 5, 99)] == [5, 5, 7, 7, 9, 9]


def test_what_was_written_is_read():
    lives = Lives(9, ((5, 2), (2**63, 4)))
    assert Lives.from_text(9, lives.to_text()) == lives
    assert Lives.from_text(9, "") == Lives(9)
    spared = Lives(9, ((5, 2),), spared=(5, 7))
    assert spared.to_text() == "5:2 5: 7:"
    assert Lives.from_text(9, spared.to_text()) == spared


@pytest.mark.parametrize(
    "text", ["1", "1:2:3", "1:-2", "a:1", "1:2  3:4", "1:4 2:4", "1:4 2:3", "1:2\n", 5]
)
def test_what_is_no_such_text_is_refused(text):
    with pytest.raises(WireError, match=r"(?s)earlier-runs must be .* same version"):
        Lives.from_text(9, text)

"""Malformed input ends in our own error, in a client that is named, or in no change.

No foreign exception, no other result without an error, no file outside, and no text
that repeats a file which a run may not read. ``LAB_EXAMPLES=500`` draws other examples,
and so many of each kind.
"""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import own_files
import pytest
from flwr.app import ConfigRecord, Error, Message
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st
from malformed import HUGE, NUMBERS, TEXTS, damage, of_bytes, of_value
from safetensors.numpy import load, save
from small import RUNS, small_run, write_molecules

import datasets
from datasets import synthetic
from fedgraph_flwr.core import errors
from fedgraph_flwr.core.errors import FedGraphError
from fedgraph_flwr.resolve import defaults, resolve
from simulations.inline import InlineGrid, run_inline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
MANY = int(os.environ.get("LAB_EXAMPLES", "0"))
SECRET = "canary-7d1f"
VICTIM, ROUNDS, ROLL_CALL = 1, 2, "roll call"
_NAMED = re.compile(r"client \d+[^:;]{0,60}: (?:\w+\.)*(\w+(?:Error|Exception)):?")
_RAISED = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
OWN = {name for name, value in vars(errors).items() if isinstance(value, type)}


def drawn(few):
    """Draw so many examples, each with a generator, of nothing that shrinks."""
    return lambda test: settings(
        max_examples=MANY or few,
        derandomize=not MANY,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(rng=st.randoms(use_true_random=True))(test))


@pytest.fixture(scope="module", autouse=True)
def small_machine():
    """Few graphs, no waiting for clients, and 3 GiB more than are mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (3 << 30)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "GRAPHS_PER_CLIENT", (24, 30))
        patch.delenv("FEDGRAPH_DATA", raising=False)
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def place(tmp_path_factory):
    """Give each example a new folder; a file beside it may neither change nor show."""
    places = []

    def new():
        root = tmp_path_factory.mktemp("example")
        (root / "canary").mkdir()
        (root / "canary" / "0.csv").write_text(f"smiles,{SECRET}\nCCO,{SECRET}\n")
        places.append(root / "canary")
        (root / "work").mkdir()
        return root / "work"

    yield new
    for canary in places:
        assert [p.name for p in canary.iterdir()] == ["0.csv"]
        assert (canary / "0.csv").read_text().count(SECRET) == 2
        assert {p.name for p in canary.parent.iterdir()} == {"canary", "work"}


def refusal(act):
    """Call; return the text of our own error, "" if there is none."""
    try:
        act()
    except FedGraphError as error:
        found = f"{type(error).__name__}: {error}"
        check_text(found)
        return found
    return ""


def check_text(text, said=""):
    """No exception of others, unless it was sent; no secret."""
    strange = set(_NAMED.findall(text) + _RAISED.findall(text)) - OWN
    assert not [name for name in strange if name not in said], text
    assert SECRET not in text


def run_small(name, folder, rounds=ROUNDS, nodes=2, **more):
    """Run a small federation; return its folder and summary."""
    config = {**small_run(name, folder, rounds), "roll-call-timeout-s": 0.5, **more}
    path = run_inline(config, num_nodes=nodes)
    if config.get("dry-run"):  # which keeps no summary
        return path, {}
    return path, json.loads((path / "summary.json").read_text())


@pytest.mark.parametrize("name", ["gcfl+", "fgcl-once", "spreadgnn-sealed", "fedsage+"])
@drawn(5)
def test_run_configs(name, place, rng):
    """One or two keys, of those that such a run reads."""
    folder = place()
    method = str(RUNS[name].get("method", name)).removesuffix("+")
    tables = (method, "privacy", "embedding", "fedsage-plus")
    keys = [k for k in defaults() if k.partition(".")[0] in tables or "." not in k]
    paths = [str(folder / "x" / "y"), "/dev/null", str(folder / ("x" * 300)), *TEXTS]
    changed = {}
    for key in rng.sample(keys, rng.choice([1, 1, 2])):
        is_path = key.endswith(("-dir", "resume", "-file", "init-from"))
        changed[key] = rng.choice(paths) if is_path else of_value(rng)
    changed |= {"no-such-key": 1} if rng.random() < 0.05 else {}
    note(str(changed)[:500])
    refusal(lambda: run_small(name, folder, **changed))


def own_graphs(folder):
    """Write thirty own graphs of two nodes as tables with a schema."""
    graphs, nodes = "graph,label", "graph,node,age,kind"
    edges = "graph,source,target,weight"
    for g in range(30):
        graphs += f"\ng{g},{('no', 'yes')[g % 2]}"
        nodes += f"\ng{g},a,{g},x\ng{g},b,{g + 5},y"
        edges += f"\ng{g},a,b,1"
    own_files.write(folder, graphs, nodes, edges)


KINDS = {
    "graphs-csv": (own_graphs, {"method": "fedavg"}),
    "smiles-csv": (
        write_molecules,
        {"num-clients": 4, "csv-label-columns": "*", "features": "atoms-no-degree"},
    ),
}


@pytest.mark.parametrize("dataset", KINDS)
@drawn(12)
def test_tables_of_data(dataset, place, rng):
    folder = place()
    make, more = KINDS[dataset]
    make(folder / "data")
    config = {"method": "fedavg", "dataset": dataset, "num-clients": 1, **more}
    places = {f"{k}-dir": str(folder / k) for k in ("data", "cache")}
    settings = resolve({**defaults(), **config, **places}).settings

    def load_all():
        for client in range(settings.num_clients):
            datasets.load_partition(settings, client)

    load_all()  # it is sound before
    shutil.rmtree(folder / "cache", ignore_errors=True)
    files = sorted(p for p in (folder / "data").rglob("*") if p.is_file())
    note(damage(rng, rng.choice(files), files))
    refusal(load_all)


# State files ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["gcfl+", "fgcl-once", "update-clip", "spreadgnn-sealed", "fedgkd", "local"]
)
@drawn(6)
def test_files_of_a_run_before_it_goes_on(name, place, rng, halves):
    """Two rounds are done, a file is damaged, two rounds follow."""
    begun, expected = halves(name)
    folder = place()
    for part in ("results", "state"):
        shutil.copytree(begun / part, folder / part)
    kinds = {}  # some of a kind are many; each kind is to be as likely
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if path.suffix not in (".png", ".lock"):
            kind = re.sub(r"\d", "", f"{path.parent.name}/{path.name}")
            kinds.setdefault(kind, []).append(path)
    chosen = kinds[rng.choice(sorted(kinds))]
    canary = folder.parent / "canary" / "0.csv"
    note(damage(rng, rng.choice(chosen), chosen, canary))
    (run,) = (folder / "results").iterdir()

    def resume():
        _, summary = run_small(name, folder, 4, resume=str(run))
        assert summary["weights_sha256"] == expected

    refusal(resume)


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Folder of a run of two rounds, and the hash after four, by name."""

    @functools.cache
    def make(name):
        folder = tmp_path_factory.mktemp("begun")
        _, whole = run_small(name, folder / "whole", 4)
        run_small(name, folder / "work", 2)
        return folder / "work", whole["weights_sha256"]

    return make


# Messages ---------------------------------------------------------------------------

MAIL = "from/"  # of neighbours, which may be missing in every round


def arrays_of(record):
    """Arrays of a record, by name; none if it holds others."""
    blob = record.get("safetensors") if isinstance(record, ConfigRecord) else None
    return load(blob) if isinstance(blob, bytes) else {}


def disturb(rng, content):
    """Make one thing wrong in a message; say what."""
    name = rng.choice(sorted(content))
    record, arrays = content[name], arrays_of(content[name])
    is_mail = any(key.startswith(MAIL) for key in arrays)
    way = rng.choice(["record", "value", *(["bytes", "array"] * bool(arrays))])
    if way == "record":
        names = ["x", f"{VICTIM}", "99/arrays", "4/metrics", "0/metrics", "-1/facts"]
        names += [f"0{VICTIM}/arrays", "١/metrics", "9" * 5000 + "/metrics", "/", ""]
        new = rng.choice([*names, None])
        assume(new or not is_mail)
        del content[name]
        if new is not None:
            content[new] = record
        return f"record {name} is {str(new)[:20]!r}"
    if way == "value":
        key = rng.choice([*sorted(record), "x", "eval/val/post_training/no-such"])
        assume(not (arrays and key == "x"))
        new = rng.choice([*NUMBERS, *TEXTS, *HUGE, True, b"x", [1.0, 2.0], []])
        try:
            record[key] = new
        except (TypeError, ValueError, OverflowError):
            assume(False)  # Flower refuses to send it
        return f"{name}: {key} = {str(new)[:20]!r}"
    blob = record["safetensors"]
    if way == "bytes":
        how, damaged = of_bytes(rng, blob)
        assume(not is_like(damaged, blob))
        content[name] = ConfigRecord({"safetensors": damaged})
        return f"{name}: {how}"
    key = rng.choice(sorted(arrays))
    old = arrays[key]
    made = {
        "nan": np.full_like(old, np.nan, dtype=np.float32),
        "inf": np.full_like(old, np.inf, dtype=np.float32),
        "shape": old[None],
        "type": old.astype(rng.choice(["float16", "float64", "int64", "bool"])),
        "empty": np.zeros((0,), old.dtype),
        "drop": None,
        "more": old,
    }
    how = rng.choice([k for k in made if not (is_mail and k == "drop")])
    arrays["model/" + "y" * 300 if how == "more" else key] = made[how]
    sent = save({k: v for k, v in arrays.items() if v is not None})
    assume(sent != blob)
    content[name] = ConfigRecord({"safetensors": sent})
    return f"{name}: {key} {how}"


def is_like(blob, sent):
    """Whether a blob has the layout that was sent: other numbers are no fault."""
    try:
        found, expected = load(blob), load(sent)
    except Exception:  # strange bytes raise many kinds
        return False
    is_finite = all(np.isfinite(v).all() for v in found.values())
    return is_finite and layout(found) == layout(expected)


def layout(arrays):
    """Name, shape and type of arrays."""
    return {name: (a.shape, a.dtype) for name, a in arrays.items()}


def run_changed(name, folder, exchanges, change, is_reply):
    """Change a message to the victim, or its reply, in exchanges; None loses it."""
    deliver, met = InlineGrid.deliver, set()

    def deliver_changed(self, message):
        header = message.content.get("header", ConfigRecord({}))
        node = self._contexts[message.metadata.dst_node_id].node_config
        now = str(header.get("server-round", ROLL_CALL))
        if node["partition-id"] != VICTIM or now not in set(exchanges) - met:
            return deliver(self, message)
        met.add(now)
        if change is None:
            if is_reply:
                deliver(self, message)
            return Message(Error(2, "WireError: lost"), reply_to=message)
        if is_reply:
            return change(deliver(self, message))
        return deliver(self, change(message))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InlineGrid, "deliver", deliver_changed)
        more = {"min-fit-replies": 0.5}
        if name == "fclg":
            more["embedding.evaluation"] = "pooled"
        return run_small(name, folder, nodes=4, **more)[1]


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """Hash of a run whose victim fails in some exchanges."""

    @functools.cache
    def make(name, exchanges, is_reply):
        folder = tmp_path_factory.mktemp("without")
        return run_changed(name, folder, exchanges, None, is_reply)["weights_sha256"]

    return make


@pytest.mark.parametrize(
    "name",
    [
        "gcfl+",
        "fedgkd",
        "fgcl-once",
        "update-clip",
        "spreadgnn",
        "spreadgnn-sealed",
        "fclg",
        "fedsage+",
        "local",
    ],
)
@drawn(6)
def test_messages(name, place, rng, without):
    """The end is that of the undisturbed run, or that without the client, by name."""
    exchange = rng.choice([ROLL_CALL, "1", "1", "2", "2", "3"])  # 3: the closing one
    is_reply = exchange == ROLL_CALL or rng.random() < 0.7
    said = []

    def change(message):
        if message.has_content():
            said.append(disturb(rng, message.content))
            note(f"{'reply to' if is_reply else 'message of'} {exchange}: {said}")
        return message

    ends = []
    text = refusal(
        lambda: ends.append(run_changed(name, place(), [exchange], change, is_reply))
    )
    if not ends:
        assert exchange == ROLL_CALL, text  # which needs every client
        return
    (summary,) = ends
    reasons = {f["client"]: f["reason"] for f in summary["failures"]}
    check_text(str({f"client {c}": r for c, r in reasons.items()}), str(said))
    assert set(reasons) <= {VICTIM}, reasons
    refused = {str(f["round"]) for f in summary["failures"]}
    if refused and exchange not in {*refused, ROLL_CALL}:
        is_reply = False  # what it said was taken, and contradicts what it does later
    allowed = {without(name, tuple(sorted(refused)), is_reply)}
    letters = (summary["network"] or {}).get("unusable_letters_of")
    assert summary["weights_sha256"] in allowed or (letters and not reasons), said

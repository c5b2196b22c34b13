"""The fuzz itself: what it damages is sound before, and bad outcomes are told."""

import json
import logging
import random

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedgraph_flwr.config import AUTO
from fedgraph_flwr.errors import DataError, FedGraphError
from simulations.fuzz import __main__ as fuzz
from simulations.fuzz import cases, config, data, mutations, records
from simulations.fuzz.cases import BAD, GOOD, Case, Judged, Place, Result, run_case


@pytest.fixture(autouse=True)
def log_level():
    """Put back what a case sets in a process of its own, here in that of the tests."""
    logger = logging.getLogger("flwr")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "work" / "home"))
    made = Place(
        work=tmp_path / "work", canary=tmp_path / "canary", shared=tmp_path / "shared"
    )
    (made.work / "home").mkdir(parents=True)
    cases.plant(made.canary)
    return made


def untouched(rng, *rest):
    """Stand in for a mutation that changes nothing."""
    return "nothing", rest[-1]


@pytest.mark.parametrize("name", sorted(data._FORMATS))
def test_files_are_sound_before_they_are_damaged(name, place, monkeypatch):
    monkeypatch.setattr(data, "_damage", lambda *_: None)
    for change in ("of_file", "of_bytes", "of_lines"):
        monkeypatch.setattr(data, change, untouched)
    rng = random.Random(1)
    monkeypatch.setattr(rng, "choice", lambda options: _first(options))
    monkeypatch.setattr(rng, "random", lambda: 0.9)
    data._FORMATS[name](rng, place, lambda _: None)


def _first(options):
    """Pick the plain way where there is one."""
    return options[0] if "file" not in options else "file"


@pytest.mark.parametrize("kind", ["change nothing", "sites"])
def test_run_configs_are_sound_before_they_are_changed(kind, place, monkeypatch):
    rng = random.Random(1)
    monkeypatch.setattr(rng, "random", lambda: 0.1 if kind == "sites" else 0.9)
    monkeypatch.setattr(config, "_METHODS", ("local",))
    monkeypatch.setattr(config, "_FOLDERS", ("csv-smiles-column",) * 2)
    monkeypatch.setattr(config, "_keys", lambda _: ["patience", "min-rounds"])
    monkeypatch.setattr(config, "value", lambda _: AUTO)
    config.execute(rng, place, lambda _: None)


def reply(client=1) -> RecordDict:
    return RecordDict(
        {
            "header": ConfigRecord({}),
            f"{client}/arrays": ConfigRecord({"safetensors": b""}),
            f"{client}/metrics": MetricRecord({"num-examples": 3, "compute-s": 0.1}),
        }
    )


def test_messages_are_disturbed_in_many_ways():
    told = set()
    for number in range(300):
        content = reply()
        blob = records.save({"model/x": records.np.ones(3, "float32")})
        content["1/arrays"] = records._packed(blob)
        before = {k: str(v) for k, v in content.items()}
        what = records.disturb(random.Random(number), content, 1, is_reply=True)
        told.add(what.partition(" ")[0])
        assert "nothing" in what or {k: str(v) for k, v in content.items()} != before
    assert {"no", "record", "the", "blob", "array", "metric", "fact", "error"} <= told


def test_a_message_that_merely_says_something_else_is_not_made(monkeypatch):
    """Damage that leaves arrays of the same shapes is drawn again."""
    blob = records.save({"model/x": records.np.ones(50, "float32")})
    drawn = []

    def damage(rng, given):
        drawn.append(len(drawn))
        return "how", bytes(len(given)) if len(drawn) > 2 else given[:-4] + bytes(4)

    monkeypatch.setattr(records, "of_bytes", damage)
    content = reply()
    content["1/arrays"] = records._packed(blob)
    rng = random.Random(1)
    monkeypatch.setattr(rng, "choice", lambda options: options[0])
    assert records._blob(rng, content, 1) == "blob of 1/arrays: how"
    assert len(drawn) == 3


def test_mail_that_is_missing_is_not_malformed():
    blob = records.save({"from/0": records.np.ones(3, "uint8")})
    for number in range(30):
        content = reply()
        content["1/arrays"] = records._packed(blob)
        records._drop(random.Random(number), content, 1)
        assert len(content) == 2
        assert "1/arrays" in content
        content["1/arrays"] = records._packed(blob)
        records._arrays(random.Random(number), content, 1)
        assert records.load(records._read(content, "1/arrays"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("round 1: client 2: DataError: no; client 3: KeyError: 'x'", ["KeyError"]),
        (f"client 1 on node {2**63} is not ready: MemoryError: ", ["MemoryError"]),
        ("node 5: error 2: <class 'builtins.ValueError'>:<'x'>", ["ValueError"]),
        ("error 2: <class 'fedgraph_flwr.errors.WireError'>:<'x'>", []),
        ("DataError: file cannot be read: JSONDecodeError('x')", []),
    ],
)
def test_exceptions_of_others_are_found_in_a_reason(text, found):
    assert cases.strangers(text) == found


def result(outcome: str, **more) -> Result:
    return Result(kind="data", seed=1, number=2, what="w", outcome=outcome, **more)


@pytest.mark.parametrize("outcome", [*GOOD, *BAD])
def test_outcomes_are_good_or_bad(outcome):
    assert result(outcome).is_bad == (outcome in BAD)


def behave(monkeypatch, action) -> None:
    """Let cases of kind "data" do something, in this process."""

    class Here:
        exitcode = 0

        def __init__(self, target, args):
            self.call = lambda: target(*args)

        def start(self):
            self.call()

        def join(self, *_):
            pass

        def is_alive(self):
            return False

    class Context:
        Process = Here

    monkeypatch.setattr(cases, "warm_context", lambda *_: Context)
    for name in ("dup2", "chdir"):
        monkeypatch.setattr(cases.os, name, lambda *_: None)
    monkeypatch.setattr(cases.resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(cases, "_move_home", lambda _: None)
    monkeypatch.setattr(cases, "_be_small", lambda: None)
    monkeypatch.setattr(data, "execute", action)


def raising(error):
    def action(rng, place, note):
        note("something")
        raise error

    return action


def writing(rng, place, note):
    (place.canary / "new.txt").write_text("x")


def beside(rng, place, note):
    (place.work.parent / "new.txt").write_text("x")


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (raising(DataError("no")), "refused"),
        (raising(FedGraphError("client 1: KeyError: 'x'")), "foreign"),
        (raising(KeyError("x")), "foreign"),
        (raising(RecursionError("deep")), "foreign"),
        (raising(MemoryError()), "memory"),
        (raising(Judged("changed", "other weights")), "changed"),
        (raising(DataError(f"got {cases.SECRET!r}")), "leak"),
        (writing, "outside"),
        (beside, "outside"),
        (lambda *_: None, "accepted"),
    ],
)
def test_what_happens_is_told(tmp_path, monkeypatch, action, outcome):
    behave(monkeypatch, action)
    told = run_case(Case(kind="data", seed=1, number=0), tmp_path)
    assert told.outcome == outcome, told.says


def test_a_bad_case_leaves_a_file_that_replays_it(tmp_path, monkeypatch, capsys):
    drawn = []

    def action(rng, place, note):
        drawn.append(rng.random())
        raise KeyError("x")

    behave(monkeypatch, action)
    out = tmp_path / "out"
    assert fuzz.main(["--kind", "data", "--cases", "3", "--out", str(out)]) == 1
    files = sorted((out / "bad").glob("*.json"))
    assert len(files) == 3
    assert "| data | 3 | 3 | 3 |" in capsys.readouterr().out
    again = ["--replay", str(files[1]), "--out", str(tmp_path / "again")]
    assert fuzz.main(again) == 1
    assert drawn[3] == drawn[1]
    assert len(set(drawn)) == 3


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_hangs_or_dies_in_its_process_is_told(tmp_path):
    case = Case(kind="data", seed=1, number=0)
    assert run_case(case, tmp_path, limit_s=0.0).outcome == "hang"
    dead = Case(kind="nothing", seed=1, number=0)
    assert run_case(dead, tmp_path).outcome == "crash"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kind", "files"], "unknown kind 'files'"),
        (["--cases", "0"], "at least 1"),
        (["--replay", "/no/such"], "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, capsys, arguments, says):
    assert fuzz.main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_json_is_changed_into_json_or_garbage():
    content = {"a": [1, {"b": 2.0}], "c": "text"}
    texts = [
        mutations.of_json(random.Random(n), json.loads(json.dumps(content)))[1]
        for n in range(50)
    ]
    assert len(set(texts)) > 20
    assert json.dumps(content) not in texts


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", sorted(cases.MODULES))
def test_a_few_malformed_cases_are_refused(kind, tmp_path, capsys):
    out = tmp_path / "out"
    code = fuzz.main(["--kind", kind, "--cases", "4", "--seed", "7", "--out", str(out)])
    assert code == 0, capsys.readouterr().err

"""The chain of an audit log: what is written, what survives, what is told of it."""

from __future__ import annotations

import hashlib
import json
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedgraph_flwr.core import audit_log
from fedgraph_flwr.core.audit_log import START, AuditLog, check_log, digests
from fedgraph_flwr.core.errors import StorageError


def sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def event(note="", **given):
    return {"event": "answered", "run": 1, "message": "train", "note": note, **given}


@pytest.fixture
def path(tmp_path):
    """A log of six lines."""
    path = tmp_path / "state" / "audit.jsonl"
    for k in range(3):
        AuditLog(path).add([event(f"a{k}"), event(f"b{k}")])
    return path


def split(path):
    return path.read_bytes().splitlines(keepends=True)


def problems(path):
    return check_log(path.read_bytes()).problems


# Writing ----------------------------------------------------------------------------


def test_lines_are_added_at_the_end_and_hold_the_hash_of_the_last(path):
    before = path.read_bytes()
    head = AuditLog(path).add([event("c\nd\x1b[31m")])
    assert path.read_bytes().startswith(before)
    found = check_log(path.read_bytes())
    assert (found.problems, found.notices) == ([], [])
    assert found.head == head == sha256(split(path)[-1].rstrip(b"\n"))
    assert found.records[0]["prev"] == START
    assert [r["line"] for r in found.records] == list(range(1, 8))
    assert found.records[-1]["note"] == "c d[31m"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    AuditLog(path.parent / "a" / "b" / path.name).add([event("c")])
    for folder in ("a", "a/b"):  # the state folder of a site, which did not make it
        assert stat.S_IMODE((path.parent / folder).stat().st_mode) == 0o700


def test_a_link_in_its_place_is_not_followed(path):
    """Whoever could put one there would have lines written into a file of others."""
    target = path.with_name("others")
    for target_is_there in (False, True):
        if target_is_there:
            target.write_text("theirs\n")
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with pytest.raises(StorageError, match="a link is not followed"):
            AuditLog(path).add([event("a")])
        assert target.exists() is target_is_there
    assert target.read_text() == "theirs\n"


def test_writers_at_once_keep_one_chain(tmp_path, monkeypatch):
    def in_pieces(file, content):  # as a system may
        for at in range(0, len(content), 100):
            file.write(content[at : at + 100])

    monkeypatch.setattr(audit_log, "_write_all", in_pieces)
    path, notes = tmp_path / "audit.jsonl", [str(n) * 300 for n in range(8)]

    def write(note):
        for _ in range(20):
            AuditLog(path).add([event(note), event(note)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, notes))
    found = check_log(path.read_bytes())
    assert found.problems == []
    assert sorted(r["note"] for r in found.records) == sorted(notes * 40)


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch):
    before = path.read_bytes()

    def full(file, content):
        file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit_log, "_write_all", full)
    with pytest.raises(StorageError, match=r"cannot be written: .*No space left"):
        AuditLog(path).add([event("c")])
    assert path.read_bytes() == before


# Crashes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fragment", [b"{", b'{"line": 7, "prev": "', b"\xff\x00", b"x\ny"]
)
@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_line_that_a_crash_cut_short_is_told_and_kept(path, fragment, ending):
    with path.open("ab") as file:
        file.write(fragment + ending)
    assert problems(path)
    AuditLog(path).add([event("after")])
    found = check_log(path.read_bytes())
    assert found.problems == []
    assert len(found.notices) == 1
    assert "cut short, by a crash or by someone; line" in found.notices[0]
    assert fragment in path.read_bytes()
    AuditLog(path).add([event("later")])
    assert check_log(path.read_bytes()).problems == []


def test_what_is_no_audit_log_is_not_written_to(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"time,run\n" * 50_000)
    before = path.read_bytes()
    with pytest.raises(StorageError, match="does not end like an audit log"):
        AuditLog(path).add([event()])
    assert path.read_bytes() == before


# Tampering --------------------------------------------------------------------------


def changed(lines, at, old=b'"note": "a', new=b'"note": "z'):
    assert old in lines[at]
    return [*lines[:at], lines[at].replace(old, new), *lines[at + 1 :]]


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (lambda n: changed(n, 2), "line 3 was changed after it was written: line 4"),
        (lambda n: n[:2] + n[3:], "line 3 is missing before line 4"),
        (lambda n: n[:1] + n[4:], "lines 2 to 4 are missing before line 5"),
        (lambda n: [*n[:2], n[3], n[2], *n[4:]], "line 3 is missing before line 4"),
        (lambda n: [*n[:3], n[1], *n[3:]], "line 2 stands after line 3: moved, or"),
        (lambda n: [*n[:2], b"?\n", *n[3:]], "line 3 cannot be read: changed"),
        (lambda n: changed(n, 0, START.encode(), b"0" * 64), "line 1 is not the begin"),
        (lambda n: [*n[:5], n[5][:20]], "line 6 is cut short at the end of the file"),
        (lambda n: changed(n, 2, b'"line": 3', b'"line": true'), "line 3 cannot be"),
    ],
)
def test_what_was_changed_removed_or_moved_is_named(path, tamper, expected):
    path.write_bytes(b"".join(tamper(split(path))))
    assert problems(path)[0].startswith(expected)


def test_a_change_cannot_pass_for_a_crash(path):
    """Whoever calls a line cut short cannot mend the lines after it."""
    lines = split(path)
    torn = sha256(b"?")
    head = sha256(lines[1].rstrip(b"\n"))
    repair = {"line": 4, "prev": head, "event": "repair", "bytes": 1, "sha256": torn}
    forged = [*lines[:2], b"?\n", json.dumps(repair).encode() + b"\n", *lines[4:]]
    path.write_bytes(b"".join(forged))
    assert problems(path) == [
        "line 4 was changed after it was written: line 5 holds another hash of it"
    ]


# Digests of messages ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("facts", ConfigRecord({"a": 1}), ConfigRecord({"a": 2})),
        ("facts", ConfigRecord({"a": b"xyz", "b": b"B"}),
         ConfigRecord({"a\0003\0xyz\0b": b"B"})),
        ("facts", ConfigRecord({"a": [b"x"]}), ConfigRecord({"a": ["b'x'"]})),
        ("facts", MetricRecord({"a": 1}), ConfigRecord({"a": 1})),
        ("arrays", ArrayRecord({"a": Array(np.zeros(2))}),
         ArrayRecord({"a": Array(np.ones(2))})),
        ("arrays", ConfigRecord({"safetensors": b"A"}),
         ArrayRecord({"safetensors": Array(np.array([65], "u1"))})),
    ],
)  # fmt: skip
def test_no_two_contents_have_one_digest(name, one, other):
    found = [
        digests(RecordDict({"header": ConfigRecord({}), f"0/{name}": record}))
        for record in (one, other)
    ]
    assert found[0].keys() == {0}
    assert found[0] != found[1]


def test_the_hash_of_the_code_covers_plug_ins(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "project_root", lambda: tmp_path)
    found = set()
    for folder in ("clients", "plugins", "examples"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text("x = 1\n")
        found.add(audit_log.code_hash.__wrapped__())
    assert len(found) == 3
    (tmp_path / "clients" / ".#own.py").symlink_to("user@host.123:456")
    assert audit_log.code_hash.__wrapped__() in found


def test_logs_of_the_same_events_have_heads_that_nobody_can_guess(tmp_path):
    heads = {AuditLog(tmp_path / str(k) / "a").add([event()]) for k in range(9)}
    assert len(heads) == 9


def test_a_repair_tells_the_very_line_that_was_cut_short(path):
    whole = path.read_bytes()
    path.write_bytes(whole + b"torn")
    AuditLog(path).add([event()])
    assert check_log(path.read_bytes()).problems == []
    other = path.read_bytes().replace(whole + b"torn", whole + b"born")
    assert "which does not stand there" in check_log(other).problems[0]

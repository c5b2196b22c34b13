"""``site audit``: logs of a real run, whole, tampered with, and beside the server's."""

from __future__ import annotations

import json
import shutil

import pytest
import toys
from commands import at_site

from fedgraph_flwr.core.audit_log import AuditLog, check_log

NOISY = {
    "privacy.update-clip": 0.5,
    "privacy.update-noise": 3.0,
    "num-server-rounds": 2,
}


@pytest.fixture(scope="module")
def logs(run, tmp_path_factory):
    """Logs of two sites after two runs, and the server's of the same."""
    root = tmp_path_factory.mktemp("sites")
    nodes = [
        {"clients": c, "state-dir": str(root / n)}
        for n, c in (("a", "0,1"), ("b", "2"))
    ]
    results = {"results-dir": str(root / "results")}
    run("fedavg", node_configs=nodes, seed=1, **results, **NOISY)
    run("local", node_configs=nodes, **results, **{"num-server-rounds": 1})
    return root


@pytest.fixture
def site(logs, tmp_path):
    """Copies that a test may spoil: those of site a, and the server's."""
    for source, name in (("a", "site"), ("results", "server"), ("b", "other")):
        shutil.copy(logs / source / "audit.jsonl", tmp_path / f"{name}.jsonl")
    return tmp_path


def audit(folder, *more, log="site"):
    return at_site(["audit", str(folder / f"{log}.jsonl"), *map(str, more)])


def with_server(folder, log="site"):
    return audit(folder, "--server", folder / "server.jsonl", log=log)


def rewrite(path, change, *, keep=10**6):
    """Write a log anew, as its owner can: each line changed, the chain whole."""
    records = check_log(path.read_bytes()).records[:keep]
    path.unlink()
    AuditLog(path).add(
        {k: v for k, v in change(dict(r)).items() if k not in ("line", "prev")}
        for r in records
    )
    assert check_log(path.read_bytes()).problems == []


@pytest.mark.parametrize("log", ["site", "other"])
def test_logs_of_site_and_server_agree(site, capsys, log):
    assert with_server(site, log) == 0
    said = capsys.readouterr().out
    assert f"no problem found, and agrees with {site / 'server.jsonl'}" in said
    rows = [line.split() for line in said.splitlines() if " fedavg " in line]
    messages, not_ok, _, notion, epsilon, consents = rows[0][-6:]
    assert (messages, not_ok, notion, consents) == ("4", "0", "update", "-")
    assert 0 < float(epsilon) < 100
    assert audit(site, "--json", log=log) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["method"] for r in found["runs"]] == ["fedavg", "local"]


def test_a_changed_line_is_named_with_a_cure(site, capsys):
    path = site / "site.jsonl"
    path.write_text(path.read_text().replace('"client": 1', '"client": 0', 1))
    assert audit(site) == 1
    said = capsys.readouterr().out
    assert "line 3 was changed after it was written: line 4 holds another hash" in said
    assert "restore the log from a copy" in said


@pytest.mark.parametrize(
    ("change", "keep", "expected"),
    [
        (lambda r: r, 9, "which no line of its log has: lines were cut off"),
        (lambda r: r, 9, "the server asked, the site's log has no such message"),
        (lambda r: {**r, "note": "x"}, 99, "or the log was written anew"),
        (lambda r: {**r, "sha256": "0" * 64}, 99, "the server's log has no such reply"),
        (
            lambda r: {**r, "config_sha256": "0" * 64} if "config_sha256" in r else r,
            99,
            "the configuration was 000000000000 at the site",
        ),
        (
            lambda r: {**r, "code_sha256": "0" * 64} if "code_sha256" in r else r,
            99,
            "the code was 000000000000 at the site",
        ),
    ],
)
def test_a_site_that_wrote_its_log_anew_is_found_by_the_server(
    site, capsys, change, keep, expected
):
    rewrite(site / "site.jsonl", change, keep=keep)
    assert audit(site) == 0  # the chain alone cannot show it
    assert with_server(site) == 1
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda r: {**r, "sent": {}} if r.get("round") == 1 else r,
            "train, round 1, client 0: the site sent",
        ),
        (
            lambda r: {**r, "message": "evaluate"} if r.get("round") == 1 else r,
            "train, round 1: the site was asked, the server's log has no such message",
        ),
    ],
)
def test_a_server_that_wrote_its_log_anew_is_found_by_the_site(
    site, capsys, change, expected
):
    rewrite(site / "server.jsonl", change)
    assert with_server(site) == 1
    assert expected in capsys.readouterr().out


def test_runs_of_another_server_are_not_compared(site, capsys):
    AuditLog(site / "site.jsonl").add(
        [{"event": "asked", "run": 5, "message": "train"}]
    )
    assert with_server(site) == 0
    assert "has no line of the runs 5: they were not compared" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("outcome", "message", "code"),
    [("refused", "roll call", 0), ("failed", "roll call", 1), ("refused", "train", 1)],
)
def test_a_roll_call_that_ended_before_the_answer_came(
    site, capsys, outcome, message, code
):
    """Another site refused the run: the server reads no further answer."""
    about = {"run": 5, "message": message}
    asked = {"event": "asked", "node": 7, **about}
    answered = {"event": "answered", "client": 0, "outcome": "ok", **about}
    AuditLog(site / "site.jsonl").add([asked, {**answered, "sent": {"metrics": 9}}])
    AuditLog(site / "server.jsonl").add(
        [{"event": "run", "run": 5}, {"event": "ended", "run": 5, "outcome": outcome}]
    )
    assert with_server(site) == code
    told = capsys.readouterr().out
    assert (f"run 5, {message}: the site was asked" in told) == (code == 1)


@pytest.mark.parametrize(
    ("log", "event", "change"),
    [
        ("server", "received", {"node": []}),
        ("server", "received", {"message": "x\nno problem found, and agrees"}),
        (
            "server",
            "received",
            {"sent": {"0\nno problem": {"bytes": 1, "sha256": "a"}}},
        ),
        ("server", "received", {"head": "\x1b[2K"}),
        ("server", "received", {"head": [[[[]]]] * 600}),
        ("site", "answered", {"sent": 3}),
        ("site", "answered", {"event": 3}),
        ("site", "answered", {"sent": {"0": 10**4299, "1": 9 * 10**4299}}),
    ],
)
def test_a_hostile_log_is_named(site, capsys, log, event, change):
    """It is written around ``AuditLog``, which writes no such line."""
    path = site / f"{log}.jsonl"
    lines = path.read_text().splitlines()
    at = next(k for k, x in enumerate(lines) if f'"{event}"' in x)
    lines[at] = json.dumps({**json.loads(lines[at]), **change})
    path.write_text("\n".join(lines) + "\n")
    assert with_server(site) == 1
    said = capsys.readouterr().out
    assert "holds what this version never writes" in said
    assert not [x for x in said.splitlines() if x.startswith("no problem")]
    assert "\x1b" not in said


def test_a_log_that_was_moved_away_and_begun_anew(site, capsys):
    lines = (site / "site.jsonl").read_bytes().splitlines(keepends=True)
    (site / "site.jsonl").write_bytes(b"".join(lines[:6]))
    rest = check_log(b"".join(lines[6:])).records
    AuditLog(site / "new.jsonl").add(
        {k: v for k, v in r.items() if k not in ("line", "prev")} for r in rest
    )
    server = ["--server", str(site / "server.jsonl")]
    assert at_site(["audit", str(site / "site.jsonl"), *server]) == 1
    parts = [str(site / name) for name in ("site.jsonl", "new.jsonl")]
    assert at_site(["audit", *parts, *server]) == 1  # heads of the new part are others
    assert "the server asked" not in capsys.readouterr().out.split("new.jsonl")[-1]


def test_an_empty_file_and_a_file_of_something_else(tmp_path, capsys):
    assert audit(tmp_path) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "site.jsonl").write_bytes(b"")
    assert audit(tmp_path) == 0
    (tmp_path / "site.jsonl").write_bytes(b"a,b\n1,2\n")
    assert audit(tmp_path) == 1


def test_refusals_and_lost_replies_are_in_both_logs(run, tmp_path, monkeypatch, capsys):
    """A reply that the server never got is a difference, and is told as one."""
    toys.lose_reply(monkeypatch, server_round=2, client=2)
    nodes = [{"clients": c, "state-dir": str(tmp_path / c)} for c in ("0", "1", "2")]
    places = {"results-dir": str(tmp_path / "r"), "min-fit-replies": 0.5}
    run("fedavg", node_configs=nodes, **places)
    server = tmp_path / "r" / "audit.jsonl"
    paths = {c: str(tmp_path / c / "audit.jsonl") for c in "02"}
    assert at_site(["audit", paths["0"], "--server", str(server)]) == 0
    capsys.readouterr()
    assert at_site(["audit", paths["2"], "--server", str(server)]) == 1
    said = capsys.readouterr().out
    assert "train, round 2, client 2: the site sent" in said
    lines = map(json.loads, server.read_text().splitlines())
    assert [r["error"] for r in lines if "error" in r] == ["connection lost"]

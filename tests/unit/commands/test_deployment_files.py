"""The files of ``examples/deployment``, read by the programs that they are for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deployment_files import EXAMPLES, changed, variables
from flwr.common.config import parse_config_args

from fedgraph_flwr.node.node_config import KEYS, check_keys, hosted_clients, site_name

_BIN = Path(sys.executable).parent
UNITS = ("fedgraph-superlink.service", "fedgraph-supernode.service")


def find(program: str) -> str | None:
    """Find a program where Debian has it; users' own PATH may lack /usr/sbin."""
    return shutil.which(program, path="/usr/sbin:/usr/bin:/bin")


def call(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)


def needs(program: str, package: str) -> pytest.MarkDecorator:
    """Skip where a program of Debian's is not installed."""
    found = find(program)
    reason = f"{program} is not installed: apt-get install {package}"
    return pytest.mark.skipif(found is None, reason=reason)


@needs("systemd-analyze", "systemd")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_units(unit, tmp_path):
    path = tmp_path / unit
    path.write_text(changed(unit, {"/opt/fedgraph/bin": str(_BIN)}))
    done = call(find("systemd-analyze"), "verify", str(path))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS)
def test_a_run_cannot_take_all_of_a_machine_nor_end_the_service(unit):
    found = dict(re.findall(r"^(\w+)=(.+)$", (EXAMPLES / unit).read_text(), re.M))
    assert found["MemoryMax"] == "75%"
    assert int(found["TasksMax"]) >= 1000  # PyTorch starts a thread per core
    assert found["OOMPolicy"] == "continue"


def test_the_node_config_of_the_example_is_one():
    (given,) = [variables("supernode.env")["NODE_CONFIG"]]
    node = parse_config_args([given])
    assert set(node) <= set(KEYS)
    assert check_keys(node) == []
    assert site_name(node) == "north"
    assert hosted_clients(node, 1) == [0]


@needs("logrotate", "logrotate")
def test_logrotate_accepts_its_file_and_moves_the_audit_log(tmp_path):
    kept_log = tmp_path / "audit.jsonl"
    kept_log.write_text("a,b\n1,2\n")
    text = changed(
        "fedgraph.logrotate",
        {
            "/var/lib/fedgraph/state": str(tmp_path),
            "    su fedgraph fedgraph\n": "",  # there is no such user here
        },
    )
    tmp_path.chmod(0o700)
    file = tmp_path / "conf"
    file.write_text(text)
    file.chmod(0o600)
    state = ["--state", str(tmp_path / "state"), "--force", str(file)]
    subprocess.run([find("logrotate"), *state], check=True)
    assert not kept_log.exists()  # the next message makes a new one
    (kept,) = tmp_path.glob("audit.jsonl-*")
    assert kept.read_text() == "a,b\n1,2\n"


def certificates(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return call("sh", str(EXAMPLES / "certificates.sh"), *names, cwd=folder)


@needs("openssl", "openssl")
def test_certificates_are_private_and_made_once(tmp_path):
    assert certificates(tmp_path, "fl.example.org", "c", "alice").returncode == 0
    folder = tmp_path / "c"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = certificates(tmp_path, "fl.example.org", "c", "bob")
    assert again.stdout.splitlines() == [
        "kept c/server.crt",
        "made c/analyst-bob.crt and c/analyst-bob.key",
    ]
    serials = {n for n in before if n.endswith(".srl")}
    for name in before.keys() - serials:
        assert (folder / name).read_bytes() == before[name]
    assert {path.stat().st_mode & 0o77 for path in [folder, *folder.iterdir()]} == {0}
    server = call("openssl", "x509", "-in", "server.crt", "-noout", "-text", cwd=folder)
    for name in ("fl.example.org", "127.0.0.1", "fedgraph-superlink"):
        assert f":{name}" in server.stdout
    # Strict as Python is since 3.13.
    verify = ("openssl", "verify", "-CAfile")
    strict = call(*verify, "ca.crt", "-x509_strict", "server.crt", cwd=folder)
    assert strict.returncode == 0
    # A site trusts ca alone, the proxy's Control analysts-ca alone.
    for authority, fits in (("analysts-ca", True), ("ca", False)):
        found = call(*verify, f"{authority}.crt", "analyst-alice.crt", cwd=folder)
        assert (found.returncode == 0) == fits


@needs("openssl", "openssl")
@pytest.mark.parametrize(
    ("host", "other"), [("fl.example.org", "fl"), ("10.0.0.1", "10.0.0.2")]
)
def test_a_certificate_of_another_host_is_not_kept_in_silence(tmp_path, host, other):
    assert certificates(tmp_path, host, "c", "alice").returncode == 0
    again = certificates(tmp_path, host, "c", "alice")
    assert (again.returncode, again.stdout.split()[:2]) == (0, ["kept", "c/server.crt"])
    done = certificates(tmp_path, other, "c", "alice")
    assert done.returncode == 2
    assert f"c/server.crt is not for {other}; for a new one delete it" in done.stderr


@needs("openssl", "openssl")
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("host", "c"), "usage: "),
        (("host", "c", "../x"), "an analyst's name has letters"),
        (("host", "c", "a b"), "an analyst's name has letters"),
        (("host", "/proc/none", "a"), "cannot create directory"),
    ],
)
def test_certificates_are_refused(tmp_path, names, words):
    done = certificates(tmp_path, *names)
    assert done.returncode != 0
    assert words in done.stderr
    assert not (tmp_path / "c").exists()

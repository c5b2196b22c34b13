"""``site check`` against a real SuperLink: plain, over TLS, and gone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from commands import at_site
from deployment_files import EXAMPLES, superlink_command
from federation import Federation, environment
from typing_extensions import override

from fedgraph_flwr.site.findings import OK, PROBLEM

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(600),
    # Flower gives httpx the CA file as a text, as its SuperNodes do.
    pytest.mark.filterwarnings("ignore:`verify=<str>` is deprecated"),
]
Findings = dict[str, dict[str, str]]
Check = Callable[..., tuple[int, Findings]]


class Secure(Federation):
    """A SuperLink over TLS that knows SuperNodes by their keys; started by the unit."""

    def __init__(self, folder: Path, sites: Sequence[str] = ()) -> None:
        self.tls = folder / "certificates"
        script = ["sh", str(EXAMPLES / "certificates.sh"), "127.0.0.1", str(self.tls)]
        subprocess.run([*script, "alice"], check=True)
        for name in ("known", "stranger"):
            key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f"]
            subprocess.run([*key, str(folder / name)], check=True)
        variables = environment(folder / "flwr")
        super().__init__(folder, variables, sites)

    @override
    def site_command(self, number: int, port: int, node_config: str) -> list[str]:
        """Command of a SuperNode whose own processes reach it over TLS, too."""
        command = super().site_command(number, port, node_config)
        command.remove("--insecure")
        options = {
            "--root-certificates": self.tls / "ca.crt",
            "--auth-supernode-private-key": self.folder / "known",
            "--ssl-ca-certfile": self.tls / "ca.crt",
            "--ssl-certfile": self.tls / "server.crt",
            "--ssl-keyfile": self.tls / "server.key",
        }
        return [*command, *(str(w) for pair in options.items() for w in pair)]

    @override
    def profile(self) -> str:
        return f'address = "{self.address}"\nroot-certificates = "{self.tls}/ca.crt"\n'

    @override
    def superlink_command(self) -> list[str]:
        return superlink_command(self.folder, self.tls, self.address)

    @override
    def register_keys(self) -> None:
        key = str(self.folder / "known.pub")
        done = self.flwr("supernode", "register", key, "site")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with Secure(tmp_path_factory.mktemp("secure")) as started:
        yield started


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("plain")
    with Federation(folder, environment(folder / "flwr"), []) as started:
        yield started


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the command; its exit code, and what it found of the way to a SuperLink."""

    def run(address: str, *words: str) -> tuple[int, Findings]:
        code = at_site(["check", "--superlink", address, *words, "--json"])
        told = json.loads(capsys.readouterr().out)
        assert told["exit_code"] == code
        of_link = ("SuperLink", "certificate", "clock", "key")
        return code, {f["what"]: f for f in told["findings"] if f["what"] in of_link}

    return run


def states(found: Findings) -> dict[str, str]:
    return {what: finding["state"] for what, finding in found.items()}


def test_all_is_fine_with_the_right_certificate_and_a_key_that_is_known(
    secure: Secure, check: Check
) -> None:
    words = ["--root-certificates", str(secure.tls / "ca.crt")]
    words += ["--auth-supernode-private-key", str(secure.folder / "known")]
    for _ in range(2):  # it signs off: the next check, and the SuperNode, find it free
        code, found = check(secure.address, *words)
        assert code == 0, found
        assert states(found) == dict.fromkeys(found, OK)
        assert list(found) == ["SuperLink", "certificate", "clock", "key"]
        assert "names 127.0.0.1, valid until" in found["certificate"]["found"]
        assert found["key"]["found"] == "known is admitted"


def test_a_key_that_nobody_registered_is_refused_with_the_cure(
    secure: Secure, check: Check
) -> None:
    words = ["--root-certificates", str(secure.tls / "ca.crt")]
    words += ["--auth-supernode-private-key", str(secure.folder / "stranger")]
    code, found = check(secure.address, *words)
    assert code == 1
    assert found["key"]["state"] == PROBLEM
    assert "flwr supernode register" in found["key"]["cure"]


def test_a_plain_superlink_is_fine_without_tls_alone(
    plain: Federation, secure: Secure, check: Check
) -> None:
    code, found = check(plain.address, "--insecure")
    assert code == 0, found
    assert states(found) == {"SuperLink": OK, "clock": OK, "key": "not asked"}
    ca = str(secure.tls / "ca.crt")
    code, found = check(plain.address, "--root-certificates", ca)
    assert code == 1
    assert "does not speak TLS" in found["certificate"]["found"]

"""``flower-supernode --trusted-entities``: what of it can be tried without the Hub."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federation import Federation, environment
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric_ed25519 import (
    create_message_to_sign,
    sign_message,
)
from flwr.supernode import start_client_internal
from typing_extensions import override

from simulations.bundled import bundled_files

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),  # Flower's
]


def public(key: Ed25519PrivateKey) -> str:
    """Public half of a key as it stands in the file of trusted keys."""
    shape = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*shape).decode()


def signed(content: bytes, key: Ed25519PrivateKey) -> Fab:
    """Bundle with a signature as ``flwr app review`` makes it and the Hub keeps it."""
    message = create_message_to_sign(hashlib.sha256(content).digest(), 1_700_000_000)
    text = base64.urlsafe_b64encode(sign_message(key, message)).rstrip(b"=").decode()
    record = json.dumps({"signature": text, "signed_at": 1_700_000_000})
    told = {"valid_license": "valid", "fpk_reviewer": record}
    return Fab(hashlib.sha256(content).hexdigest(), content, told)


def test_a_signature_holds_for_the_bytes_and_the_key_it_was_made_with() -> None:
    with bundled_files() as app:
        content = build_fab_from_disk(app)
    ours, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    verify = start_client_internal._verify_fab
    fab = signed(content, ours)
    assert verify(fab, {"fpk_reviewer": public(ours)})
    assert not verify(fab, {"fpk_reviewer": public(other)})
    assert not verify(fab, {"fpk_somebody": public(ours)})
    changed = Fab(fab.hash_str, content + b" ", fab.verifications)
    assert not verify(changed, {"fpk_reviewer": public(ours)})


class Trusting(Federation):
    """A site that runs signed bundles only."""

    @override
    def site_command(self, number: int, port: int, node_config: str) -> list[str]:
        command = super().site_command(number, port, node_config)
        return [*command, "--trusted-entities", str(self.folder / "trusted.yaml")]


def test_a_site_that_trusts_signatures_refuses_a_bundle_from_a_folder(
    tmp_path: Path,
) -> None:
    key = public(Ed25519PrivateKey.generate())
    (tmp_path / "trusted.yaml").write_text(f'fpk_reviewer: "{key}"\n')
    results = tmp_path / "results"
    config = {"method": "fedavg", "num-clients": 1, "roll-call-timeout-s": 15}
    home = environment(tmp_path / "flwr")
    with Trusting(tmp_path, home, ['clients="0"']) as federation:
        run_id = federation.submit({**config, "results-dir": str(results)})
        assert federation.wait(run_id, limit_s=300) == "finished:failed"
        log = federation.log(run_id)
    assert "error 7: The FAB could not be verified" in log
    assert list(results.iterdir()) == []
    site = (tmp_path / "site-0.log").read_text()
    assert "The FAB could not be verified" in site
    assert "Start `flwr-clientapp`" not in site  # none of the run's code has run

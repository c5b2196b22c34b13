"""Parcels sealed end to end between neighbours, and the keys for it.

Each client makes an X25519 key pair per run, whose private half never leaves its disk.
Two neighbours agree on a secret; HKDF-SHA256 makes of it a key for one envelope (run,
round, sender, receiver), under which ChaCha20-Poly1305 encrypts the contents and
authenticates the envelope. Neighbours' public keys are pinned when first seen: a relay
that handed out its own keys from the start is found by comparing fingerprints only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgraph_flwr.errors import DataError, WireError

_KEY, _PINS = "identity.key", "neighbours.json"
_KEY_BYTES, _NONCE_BYTES, _TAG_BYTES = 32, 12, 16
SEAL_BYTES = _NONCE_BYTES + _TAG_BYTES
_PURPOSE = b"fedgraph-flwr parcel v1"


def fingerprint(public_key: str) -> str:
    """Words to compare over the phone: 128 bits of SHA-256, in groups of four.

    ``public_key`` is in hexadecimal.
    """
    digest = hashlib.sha256(_raw_key("a client", public_key)).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


@dataclass(frozen=True)
class Lock:
    """The secret of one client with one neighbour."""

    secret: bytes
    salt: bytes

    def seal(self, plain: bytes, envelope: bytes) -> bytes:
        """Encrypt, and authenticate together with the envelope: nonce, text, tag."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher(envelope).encrypt(nonce, plain, envelope)

    def open(self, sealed: bytes, envelope: bytes, what: str) -> bytes:
        """Decrypt ``what``.

        Raises
        ------
        WireError
            Contents or envelope were altered, or sealed with another key.
        """
        nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher(envelope).decrypt(nonce, text, envelope)
        except (InvalidTag, ValueError) as error:
            raise WireError(
                f"{what} cannot be opened: sealed with another key, or altered on its"
                " way; compare fingerprints (python -m simulations.fingerprint)"
            ) from error

    def _cipher(self, envelope: bytes) -> ChaCha20Poly1305:
        # A key for each envelope: no two parcels share one, whatever their nonces.
        hkdf = HKDF(SHA256(), _KEY_BYTES, self.salt, _PURPOSE + envelope)
        return ChaCha20Poly1305(hkdf.derive(self.secret))


class KeyRing:
    """Key pair of one client in one run, and its neighbours' public keys.

    Parameters
    ----------
    folder : path
        The client's private folder; the pair is made here when first asked for.
    client_id : int
    """

    def __init__(self, folder: Path, *, client_id: int) -> None:
        self.folder = folder
        self.client_id = client_id

    @property
    def exists(self) -> bool:
        """Whether the pair has been made."""
        return (self.folder / _KEY).exists()

    @property
    def public_key(self) -> str:
        """The client's own, in hexadecimal."""
        return self._private().public_key().public_bytes_raw().hex()

    @property
    def pinned(self) -> dict[int, str]:
        """Public keys of the neighbours, by client; empty before the first message."""
        path = self.folder / _PINS
        if not path.is_file():
            return {}
        try:
            return {int(c): str(key) for c, key in json.loads(path.read_text()).items()}
        except (ValueError, AttributeError) as error:
            raise DataError(
                f"pinned keys {path} cannot be read: {error}; restore the file, or"
                " delete it and compare fingerprints again"
            ) from error

    def pin(self, keys: Mapping[int, str]) -> None:
        """Remember the neighbours' keys when they first come, and insist on them.

        Raises
        ------
        WireError
            A key is none, or not the pinned one; or the neighbours have changed.
        """
        for client in sorted(keys):
            _raw_key(f"client {client}", keys[client])
        before = self.pinned
        if not (self.folder / _PINS).is_file():  # none to pin is a pin, too
            self._write(_PINS, json.dumps(dict(sorted(keys.items()))).encode())
            return
        for client in sorted({*keys, *before}):
            if keys.get(client) == before.get(client):
                continue
            told, known = (
                fingerprint(found[client]) if client in found else "none"
                for found in (keys, before)
            )
            raise WireError(
                f"public key of client {client} changed: client {self.client_id} pinned"
                f" {known}, now the relay hands out {told}. If that site lost its disk"
                " and its operator confirms the new fingerprint, delete"
                f" {self.folder / _PINS}; if not, somebody is in between"
            )

    def lock(self, neighbour: int) -> Lock:
        """Secret with a neighbour whose key is pinned.

        Raises
        ------
        WireError
            The neighbour's key has no secret with any other.
        """
        theirs = bytes.fromhex(self.pinned[neighbour])
        private = self._private()
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(theirs))
        except ValueError as error:
            raise WireError(
                f"public key of client {neighbour} is degenerate: {error}; somebody is"
                " in between, or that client's software is broken"
            ) from error
        ours = private.public_key().public_bytes_raw()
        return Lock(secret, b"".join(sorted((ours, theirs))))

    def _private(self) -> X25519PrivateKey:
        path = self.folder / _KEY
        if not path.is_file():
            self._write(_KEY, X25519PrivateKey.generate().private_bytes_raw())
        raw = path.read_bytes()
        if len(raw) != _KEY_BYTES:
            raise DataError(
                f"key {path} must have {_KEY_BYTES} bytes, got {len(raw)}; restore the"
                " file, or delete it and tell the neighbours' operators the new"
                " fingerprint"
            )
        return X25519PrivateKey.from_private_bytes(raw)

    def _write(self, name: str, content: bytes) -> None:
        """Write atomically, for the owner's eyes only."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{os.getpid()}.{name}"
        with os.fdopen(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
        ) as file:
            file.write(content)
        partial.replace(self.folder / name)


def _raw_key(whose: str, public_key: str) -> bytes:
    try:
        raw = bytes.fromhex(public_key)
    except ValueError:
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise WireError(
            f"public key of {whose} must be {_KEY_BYTES} bytes in hexadecimal, got"
            f" {public_key!r}; set spreadgnn.seal alike everywhere"
        )
    return raw

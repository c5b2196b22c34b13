"""Seals letters between neighbours, or makes pads of sums, and keeps the keys for it.

Each client has two key pairs, whose private halves never leave its disk: its site's,
Ed25519, which outlives runs and whose fingerprint operators tell each other, and one
per run, X25519, which the site's signs. Two neighbours agree on a secret by their runs'
keys; HKDF-SHA256 makes of it a key for one envelope (run, round, sender, receiver),
under which ChaCha20-Poly1305 encrypts the contents and authenticates the envelope; or
a key for one sum (its label), under which ChaCha20 draws the pad that both have in it.
Without the site's key nobody can take part in a run, without the run's nobody can open
its letters later.

No letter is sealed to a run's key before its signature was checked.

Neighbours' public keys are pinned when first seen. A relay that handed out its own from
the start is found by comparing fingerprints, which a site does by itself if its
operator has written them down (node-config ``peers``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedgraph_flwr.core.errors import DataError, WireError
from fedgraph_flwr.core.files import is_kept, usable, write_once

from .store import IDENTITY

KEY = "run.key"
_PINS = "neighbours.json"
_KEY_BYTES, _SIGNATURE_BYTES, _NONCE_BYTES = 32, 64, 12
_PURPOSE = b"fedgraph-flwr parcel v3"
_PAD = b"fedgraph-flwr pad v1"
_CHACHA_NONCE, _BLOCK = 16, 2**15  # bytes, numbers
_RUN_KEY = b"fedgraph-flwr run key v1 "  # what is signed: this, the key, the run's name


def fingerprint(public_key: str) -> str:
    """Words to compare over the phone: 128 bits of SHA-256, in groups of four.

    Of the site's key, with which begins what a client tells, in hexadecimal.
    """
    return fingerprint_of(_parse_key("a client", public_key)[0])


def fingerprint_of(raw: bytes) -> str:
    """Fingerprint of the public half of a site's key, as bytes."""
    digest = hashlib.sha256(raw).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def site_key_file(state_dir: Path, client_id: int) -> Path:
    """Path of the private half of a client's lasting key."""
    return state_dir / IDENTITY / f"client-{client_id}.key"


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
        """Decrypt a letter, which errors call ``what``.

        Raises
        ------
        WireError
            Letter or envelope were altered, or sealed with another key.
        """
        nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher(envelope).decrypt(nonce, text, envelope)
        except (InvalidTag, ValueError) as error:
            raise WireError(
                f"{what} cannot be opened: sealed with another key, or altered on its"
                " way; compare fingerprints (fedgraph site fingerprint)"
            ) from error

    def _cipher(self, envelope: bytes) -> ChaCha20Poly1305:
        # A key for each envelope: no two letters share one, whatever their nonces.
        return ChaCha20Poly1305(self._key(_PURPOSE + envelope))

    def _key(self, purpose: bytes) -> bytes:
        return HKDF(SHA256(), _KEY_BYTES, self.salt, purpose).derive(self.secret)

    def pad(self, vector: NDArray[np.uint64], label: bytes, *, minus: bool) -> None:
        """Add the pad of a label to a vector, or subtract it, modulo 2^64.

        ChaCha20 under a key of the label: both neighbours know the pad, nobody else.
        """
        key = self._key(_PAD + label)
        stream = Cipher(ChaCha20(key, bytes(_CHACHA_NONCE)), mode=None).encryptor()
        join = np.subtract if minus else np.add
        for begin in range(0, len(vector), _BLOCK):  # which stays in the cache
            part = vector[begin : begin + _BLOCK]
            drawn = np.frombuffer(stream.update(bytes(part.nbytes)), "<u8")
            join(part, drawn, out=part)


class KeyRing:
    """Keys of one client in one run, and its neighbours' public ones.

    Parameters
    ----------
    folder : path
        The client's private folder, ``<state-dir>/<experiment>/client-<id>``. Keys are
        made when first asked for: the run's here, the site's in the state folder.
    """

    def __init__(self, folder: Path, *, client_id: int) -> None:
        self.folder = folder
        self.client_id = client_id
        self._site_file = site_key_file(folder.parents[1], client_id)

    @property
    def exists(self) -> bool:
        """Whether the run's pair has been made."""
        return is_kept(self.folder / KEY)

    @cached_property
    def public_key(self) -> str:
        """What it tells: the site's, the run's, and its signature, in hexadecimal."""
        site = read_site_key(self._site_file)
        run = self._private().public_key().public_bytes_raw()
        signature = site.sign(self._signed(run))
        return (site.public_key().public_bytes_raw() + run + signature).hex()

    @property
    def pinned(self) -> dict[int, str]:
        """Public keys of the neighbours, by client; empty before the first message."""
        path = self.folder / _PINS
        if not is_kept(path):
            return {}
        with usable(path):
            text = path.read_text()
        try:
            return {int(c): str(key) for c, key in json.loads(text).items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise DataError(
                f"pinned keys {path} cannot be read: {error}; restore the file, or"
                " delete it and compare fingerprints again"
            ) from error

    def pin(
        self, keys: Mapping[int, str], trusted: Mapping[int, str] | None = None
    ) -> None:
        """Remember the neighbours' keys when they first come, and insist on them.

        Parameters
        ----------
        trusted : mapping of int to str, optional
            Fingerprints that the site's operator wrote down; then nobody else is a
            neighbour.

        Raises
        ------
        WireError
            A key is none, not of a trusted fingerprint, not signed by its site, or not
            the pinned one; or the neighbours have changed.
        """
        before = self.pinned
        for client in sorted(keys):
            site, run, signature = _parse_key(f"client {client}", keys[client])
            found = fingerprint_of(site)
            if trusted is not None and found != trusted.get(client):
                raise WireError(
                    f"client {client} has fingerprint {found}, expected"
                    f" {trusted.get(client, 'none')} by node-config peers of client"
                    f" {self.client_id}'s site: if its operator confirms the new one,"
                    " correct peers; if not, somebody is in between"
                )
            if before.get(client) == keys[client]:
                continue  # its signature was checked
            try:
                public = Ed25519PublicKey.from_public_bytes(site)
                public.verify(signature, self._signed(run))
            except (InvalidSignature, ValueError) as error:
                raise WireError(
                    f"key that client {client} is said to have in run"
                    f" {self.folder.parent.name!r} is not signed by the site of"
                    f" fingerprint {found}: refused, as others could open letters to"
                    " it; do not trust that relay, or start a new run"
                ) from error
        text = json.dumps(dict(sorted(keys.items()))).encode()
        write_once(self.folder / _PINS, text)
        pinned = self.pinned  # none is a pin, too
        for client in sorted({*keys, *pinned}):
            if keys.get(client) == pinned.get(client):
                continue
            now, known = (
                fingerprint(found[client]) if client in found else "none"
                for found in (keys, pinned)
            )
            raise WireError(
                f"public key of client {client} changed: client {self.client_id} pinned"
                f" {known}, now the relay hands out {now} (of the site's key; beside it"
                " each run has one). If that site lost its disk and its operator"
                f" confirms the fingerprint, delete {self.folder / _PINS}; if not,"
                " somebody is in between"
            )

    def _signed(self, run_key: bytes) -> bytes:
        return _RUN_KEY + run_key + self.folder.parent.name.encode()

    def lock(self, neighbour: int) -> Lock:
        """Secret with a neighbour whose key is pinned.

        Raises
        ------
        WireError
            The neighbour's key has no secret with any other.
        """
        return self.locks([neighbour])[neighbour]

    def locks(self, neighbours: Iterable[int]) -> dict[int, Lock]:
        """Secrets with several neighbours; see :meth:`lock`."""
        pinned, own, private = self.pinned, self.public_key, _secret(self.folder / KEY)
        found = {}
        for neighbour in neighbours:
            theirs = pinned[neighbour]
            _, run, _ = _parse_key(f"client {neighbour}", theirs)
            try:
                secret = _exchanged(private, run)
            except ValueError as error:
                raise WireError(
                    f"public key of client {neighbour} is degenerate: {error}; somebody"
                    " is in between, or that client's software is broken"
                ) from error
            both = sorted(map(bytes.fromhex, (own, theirs)))
            found[neighbour] = Lock(secret, b"".join(both))
        return found

    def _private(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(_secret(self.folder / KEY))


@lru_cache(maxsize=2**16)  # most of the time of short updates
def _exchanged(private: bytes, public: bytes) -> bytes:
    """Secret of two runs' keys."""
    own = X25519PrivateKey.from_private_bytes(private)
    return own.exchange(X25519PublicKey.from_public_bytes(public))


def read_site_key(path: Path) -> Ed25519PrivateKey:
    """Private half of a site's key, which is made if its file is missing.

    Raises
    ------
    DataError
        The file is none of a key, or cannot be read or written.
    """
    return Ed25519PrivateKey.from_private_bytes(_secret(path))


def _secret(path: Path) -> bytes:
    raw = write_once(path, os.urandom(_KEY_BYTES))
    if len(raw) != _KEY_BYTES:
        raise DataError(
            f"key {path} must have {_KEY_BYTES} bytes, got {len(raw)}; restore the"
            " file, or delete it and tell the neighbours' operators the new fingerprint"
        )
    return raw


def _parse_key(whose: str, public_key: str) -> tuple[bytes, bytes, bytes]:
    """Split what a client tells: its site's key, its run's, and the signature."""
    try:
        raw = bytes.fromhex(public_key)
    except ValueError:
        raw = b""
    if len(raw) != 2 * _KEY_BYTES + _SIGNATURE_BYTES:
        raise WireError(
            f"public key of {whose} must be {2 * _KEY_BYTES + _SIGNATURE_BYTES} bytes"
            f" in hexadecimal, got {public_key!r}; set the key seal, and the version"
            " of fedgraph_flwr, alike everywhere"
        )
    site, run = raw[:_KEY_BYTES], raw[_KEY_BYTES : 2 * _KEY_BYTES]
    return site, run, raw[2 * _KEY_BYTES :]

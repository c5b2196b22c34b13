"""Parcels between neighbours: what travels, and what a receiver refuses."""

from __future__ import annotations

import itertools
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from oracles import spreadgnn as oracle

from clients.mailbox import Mailbox
from clients.parcels import EVERYONE, Address, Contents, read, write
from clients.sealing import KeyRing, fingerprint
from fedgraph_flwr.errors import DataError, WireError
from fedgraph_flwr.methods.spreadgnn import is_mixing_round
from fedgraph_flwr.mixing import Peer

SHAPES = {"encoder.weight": (3, 5), "head.weight": (4, 2), "head.bias": (4,)}


def contents(seed=0, *, own=2, known=3):
    rng = np.random.default_rng(seed)
    return Contents(
        tensors={n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()},
        task_ids=np.arange(own),
        head_rows=rng.normal(size=(own, 2)).astype(np.float32),
        omega_task_ids=np.arange(known),
        omega=rng.normal(size=(known, known)).astype(np.float32),
        peer=Peer(num_neighbours=2, num_examples=300),
    )


def address(**changes):
    given = {"run": "run", "server_round": 3, "sender": 1, "receiver": 2}
    return Address(**{**given, **changes})


def opened(parcel, **changes):
    given = {"run": "run", "sender": 1, "receiver": 2}
    given |= {"after_round": 0, "before_round": 4, "lock": None}
    return read(parcel, **{**given, **changes})


@pytest.fixture
def rings(tmp_path):
    """Clients 1, 2 and 3, all neighbours of each other, keys pinned."""
    made = {c: KeyRing(tmp_path / str(c), client_id=c) for c in (1, 2, 3)}
    for client, ring in made.items():
        ring.pin({c: r.public_key for c, r in made.items() if c != client})
    return made


def same(one: Contents, other: Contents) -> bool:
    return one.encode() == other.encode()


@pytest.mark.parametrize("seal", [False, True])
def test_what_is_written_is_read(rings, seal):
    sent = contents()
    to = address() if seal else address(receiver=EVERYONE)
    parcel = write(to, sent, rings[1].lock(2) if seal else None)
    server_round, got = opened(parcel, lock=rings[2].lock(1) if seal else None)
    assert server_round == 3
    assert same(got, sent)
    assert got.peer == sent.peer
    assert all(got.tensors[n].dtype == np.float32 for n in SHAPES)


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("own", [0, 1, 3])
def test_sizes_are_those_of_the_formula(rings, seal, own):
    parcel = write(address(), contents(own=own), rings[1].lock(2) if seal else None)
    assert len(parcel) == oracle.parcel_bytes(
        SHAPES, own_tasks=own, known_tasks=3, width=2, is_sealed=seal
    )


def test_a_sealed_parcel_shows_nothing_and_differs_each_time(rings):
    plain = write(address(receiver=EVERYONE), contents())
    sealed = [write(address(), contents(), rings[1].lock(2)) for _ in range(2)]
    needle = contents().tensors["encoder.weight"].tobytes()[:8]
    assert needle in plain
    assert b"head.weight" in plain
    for parcel in sealed:
        assert needle not in parcel
        assert b"head.weight" not in parcel
    assert sealed[0] != sealed[1]


# What is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"after_round": 3}, r"of round 3, expected one after 3 .* replay of an old"),
        ({"after_round": 7, "before_round": 9}, r"refused as a replay of an old round"),
        ({"before_round": 3}, r"of round 3, expected .* before 3"),
        ({"run": "other"}, r"of another run than 'other': refused as a replay"),
        ({"sender": 3}, r"client 3 .* was written by client 1: the relay swapped send"),
    ],
)
@pytest.mark.parametrize("seal", [False, True])
def test_parcels_that_the_relay_misdelivers(rings, changes, message, seal):
    to = address() if seal else address(receiver=EVERYONE)
    parcel = write(to, contents(), rings[1].lock(2) if seal else None)
    lock = rings[2].lock(changes.get("sender", 1)) if seal else None
    with pytest.raises(WireError, match=message):
        opened(parcel, **changes, lock=lock)


def test_a_parcel_for_another_receiver_is_refused(rings):
    parcel = write(address(), contents(), rings[1].lock(2))
    with pytest.raises(WireError, match=r"for client 3 is addressed to client 2"):
        opened(parcel, receiver=3, lock=rings[3].lock(1))


def test_a_forged_envelope_does_not_help(rings):
    """An old round, another sender or receiver, written over: the seal notices."""
    sealed = write(address(server_round=2), contents(), rings[1].lock(2))
    body = sealed[len(address().envelope(is_sealed=True)) :]
    forged = {
        "round": (address(server_round=3), 2, 1),
        "sender": (address(sender=3, server_round=2), 2, 3),
        "receiver": (address(receiver=3, server_round=2), 3, 1),
        "run": (address(run="other", server_round=2), 2, 1),
    }
    for what, (to, receiver, sender) in forged.items():
        with pytest.raises(WireError, match="cannot be opened: sealed with another"):
            opened(
                to.envelope(is_sealed=True) + body,
                run=to.run,
                sender=sender,
                receiver=receiver,
                lock=rings[receiver].lock(sender),
            )
        assert what


def test_every_altered_byte_is_noticed(rings):
    sealed = write(address(), contents(), rings[1].lock(2))
    lock = rings[2].lock(1)
    for place in [*range(60), len(sealed) // 2, len(sealed) - 1]:
        altered = bytearray(sealed)
        altered[place] ^= 1
        with pytest.raises(WireError):
            opened(bytes(altered), lock=lock)
    for end in (0, 10, 48, 50, 60, len(sealed) - 1):
        with pytest.raises(WireError):
            opened(sealed[:end], lock=lock)


def test_a_parcel_of_a_wrong_key_is_refused_with_the_cure(rings, tmp_path):
    stranger = KeyRing(tmp_path / "stranger", client_id=1)
    stranger.pin({2: rings[2].public_key})
    parcel = write(address(), contents(), stranger.lock(2))
    with pytest.raises(WireError, match=r"sealed with another key.* simulations\.fing"):
        opened(parcel, lock=rings[2].lock(1))


def test_sealed_and_open_are_not_taken_for_each_other(rings):
    plain = write(address(receiver=EVERYONE), contents())
    sealed = write(address(), contents(), rings[1].lock(2))
    with pytest.raises(WireError, match="is not sealed, expected sealed"):
        opened(plain, lock=rings[2].lock(1))
    with pytest.raises(WireError, match="is sealed, expected not sealed"):
        opened(sealed)


def test_two_directions_have_two_keys(rings):
    there, back = address(), address(sender=2, receiver=1)
    parcel = write(there, contents(), rings[1].lock(2))
    body = parcel[len(there.envelope(is_sealed=True)) :]
    reflected = back.envelope(is_sealed=True) + body
    with pytest.raises(WireError, match="cannot be opened"):
        opened(reflected, sender=2, receiver=1, lock=rings[1].lock(2))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _: b"short", "has no envelope"),
        (lambda b: b"XXXX" + b[4:], "has no envelope"),
        (lambda b: b[:48] + b"\x00" * 20, "cannot be decoded"),
    ],
)
def test_what_is_no_parcel_is_refused(spoil, message):
    plain = write(address(receiver=EVERYONE), contents())
    with pytest.raises(WireError, match=message):
        opened(spoil(plain))


def test_contents_must_fit_together():
    odd = contents()
    object.__setattr__(odd, "omega", np.zeros((2, 3), np.float32))
    with pytest.raises(WireError, match="parts that do not fit"):
        Contents.decode(1, odd.encode())


@pytest.mark.parametrize("part", ["head_rows", "omega"])
def test_heads_and_covariances_must_be_finite(part):
    odd = contents()
    getattr(odd, part)[0, 0] = np.inf
    with pytest.raises(WireError, match="client 1 holds heads or covariances that are"):
        Contents.decode(1, odd.encode())


# Keys ---------------------------------------------------------------------------------


def test_a_key_pair_is_made_once_and_for_the_owner_alone(tmp_path):
    ring = KeyRing(tmp_path / "client-0", client_id=0)
    first = ring.public_key
    assert KeyRing(tmp_path / "client-0", client_id=0).public_key == first
    assert KeyRing(tmp_path / "client-1", client_id=1).public_key != first
    (path,) = (tmp_path / "client-0").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    private = X25519PrivateKey.from_private_bytes(path.read_bytes())
    assert private.public_key().public_bytes_raw().hex() == first


def test_both_ends_have_one_secret_and_pairs_differ(rings):
    assert rings[1].lock(2) == rings[2].lock(1)
    secrets = [rings[a].lock(b).secret for a, b in itertools.combinations(rings, 2)]
    assert len(set(secrets)) == 3


def test_a_changed_key_is_refused_with_both_fingerprints(rings, tmp_path):
    new = KeyRing(tmp_path / "new", client_id=3).public_key
    old = rings[3].public_key
    with pytest.raises(WireError, match=r"public key of client 3 changed") as caught:
        rings[1].pin({2: rings[2].public_key, 3: new})
    for part in (fingerprint(old), fingerprint(new), "neighbours.json", "in between"):
        assert part in str(caught.value)
    assert rings[1].pinned[3] == old


@pytest.mark.parametrize("who", [{2}, {2, 3, 4}])
def test_a_changed_neighbourhood_is_refused(rings, who):
    keys = {c: rings[min(c, 3)].public_key for c in who}
    with pytest.raises(WireError, match=r"public key of client [34] changed.* none"):
        rings[1].pin(keys)


def test_a_client_told_that_it_has_no_neighbour_gets_none_later(rings, tmp_path):
    alone = KeyRing(tmp_path / "alone", client_id=0)
    alone.pin({})
    alone.pin({})
    with pytest.raises(WireError, match=r"client 0 pinned none, now the relay hands"):
        alone.pin({1: rings[1].public_key})
    assert alone.pinned == {}


@pytest.mark.parametrize("key", ["", "00", "zz" * 32, "ab" * 33])
def test_a_key_that_is_none_is_refused(tmp_path, key):
    ring = KeyRing(tmp_path, client_id=0)
    with pytest.raises(WireError, match=r"client 1 must be 32 bytes in hexadecimal"):
        ring.pin({1: key})
    assert ring.pinned == {}


def test_a_degenerate_key_is_refused(tmp_path):
    ring = KeyRing(tmp_path, client_id=0)
    ring.pin({1: "00" * 32})
    with pytest.raises(WireError, match="client 1 is degenerate"):
        ring.lock(1)


def test_damaged_key_files_are_named(tmp_path):
    ring = KeyRing(tmp_path, client_id=0)
    (tmp_path / "identity.key").write_bytes(b"half")
    with pytest.raises(DataError, match=r"identity\.key must have 32 bytes, got 4"):
        _ = ring.public_key
    (tmp_path / "neighbours.json").write_text("[")
    with pytest.raises(DataError, match=r"neighbours\.json cannot be read"):
        _ = ring.pinned


def test_fingerprints_are_short_and_tell_keys_apart(rings):
    prints = {fingerprint(ring.public_key) for ring in rings.values()}
    assert len(prints) == 3
    assert all(len(p.split()) == 8 for p in prints)
    assert fingerprint("00" * 32) == "6668 7aad f862 bd77 6c8f c18b 8e9f 8e20"


# The box ------------------------------------------------------------------------------


def box(tmp_path, client, *, stored=None, notes=None):
    told = {"neighbours": '{"1": {"key": "", "weight": null}}'}
    if client == 1:
        told = {"neighbours": '{"2": {"key": "", "weight": null}}'}
    return Mailbox(
        "run",
        client,
        tmp_path,
        is_sealed=False,
        notes=told if notes is None else notes,
        stored=stored or {},
    )


def test_a_box_refuses_what_it_has_seen(tmp_path):
    mail = box(tmp_path, 1).write(contents(), 3)
    assert list(mail) == ["to/all"]
    delivered = {"from/1": mail["to/all"]}
    first = box(tmp_path, 2)
    assert list(first.read(delivered, 4)) == [1]
    again = box(tmp_path, 2, stored=first.state())
    with pytest.raises(WireError, match="of round 3, expected one after 3"):
        again.read(delivered, 5)
    repeated = box(tmp_path, 2)  # the round is repeated from the state before it
    assert list(repeated.read(delivered, 4)) == [1]


def test_a_box_refuses_strangers_and_messages_without_neighbours(tmp_path):
    mail = {"from/5": np.zeros(3, np.uint8)}
    with pytest.raises(WireError, match=r"got \['from/5'\], but its neighbours are"):
        box(tmp_path, 2).read(mail, 2)
    with pytest.raises(WireError, match="was not told its neighbours"):
        box(tmp_path, 2, notes={})


def test_a_client_whose_parcels_were_sealed_sends_none_open(tmp_path):
    box(tmp_path, 1)
    assert KeyRing(tmp_path, client_id=1).public_key  # made when first asked for
    with pytest.raises(WireError, match=r"client 1 has keys .*set spreadgnn.seal = tr"):
        box(tmp_path, 1)


def test_a_client_without_neighbours_writes_to_nobody(tmp_path):
    assert box(tmp_path, 3, notes={"neighbours": "{}"}).write(contents(), 1) == {}


def test_rounds_that_mix():
    assert [t for t in range(1, 12) if is_mixing_round(t, 5)] == [1, 6, 11]
    assert all(is_mixing_round(t, 1) for t in range(1, 12))
    assert not any(is_mixing_round(t, 0) for t in range(1, 12))

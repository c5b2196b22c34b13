"""Letters between neighbours: what travels, and what a receiver refuses."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from clients.letters import EVERYONE, Address, Letter, read, write
from clients.sealing import KeyRing, fingerprint, site_key_file
from clients.spreadgnn_mail import Mailbox
from clients.spreadgnn_rounds import RoundsDone, begun_before
from clients.store import ClientStore
from fedgraph_flwr.core.errors import DataError, WireError
from fedgraph_flwr.core.mixing import Peer
from fedgraph_flwr.methods.spreadgnn import is_mixing_round, mixing_rounds

SHAPES = {"encoder.weight": (3, 5), "head.weight": (4, 2), "head.bias": (4,)}


def contents(seed=0, *, own=2, known=3):
    rng = np.random.default_rng(seed)
    return Letter(
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


def opened(letter, **changes):
    given = {"run": "run", "sender": 1, "receiver": 2}
    given |= {"before_round": 4, "lock": None}
    server_round, plain = read(letter, **{**given, **changes})
    return server_round, Letter.decode(1, plain)


def ring(state_dir, client, run="run"):
    """Keys of a client in a run, at a site of its own."""
    site = state_dir / f"site-{client}"
    return KeyRing(site / run / f"client-{client}", client_id=client)


def introduce(made):
    """Let all pin each other's keys."""
    for client, own in made.items():
        own.pin({c: r.public_key for c, r in made.items() if c != client})
    return made


@pytest.fixture
def rings(tmp_path):
    """Clients 1, 2 and 3, all neighbours of each other, keys pinned."""
    return introduce({c: ring(tmp_path, c) for c in (1, 2, 3)})


def same(one: Letter, other: Letter) -> bool:
    return one.encode() == other.encode()


@pytest.mark.parametrize("seal", [False, True])
def test_what_is_written_is_read(rings, seal):
    sent = contents()
    to = address() if seal else address(receiver=EVERYONE)
    letter = write(to, sent, rings[1].lock(2) if seal else None)
    server_round, got = opened(letter, lock=rings[2].lock(1) if seal else None)
    assert server_round == 3
    assert same(got, sent)
    assert got.peer == sent.peer
    assert all(got.tensors[n].dtype == np.float32 for n in SHAPES)


def test_a_sealed_letter_shows_nothing_and_differs_each_time(rings):
    plain = write(address(receiver=EVERYONE), contents())
    sealed = [write(address(), contents(), rings[1].lock(2)) for _ in range(2)]
    needle = contents().tensors["encoder.weight"].tobytes()[:8]
    assert needle in plain
    assert b"head.weight" in plain
    for letter in sealed:
        assert needle not in letter
        assert b"head.weight" not in letter
    assert sealed[0] != sealed[1]


# What is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"before_round": 3}, r"of round 3, expected one before 3: .* turns back"),
        ({"run": "other"}, r"of another run than 'other': the relay hands out old"),
        ({"sender": 3}, r"client 3 .* was written by client 1: the relay swapped send"),
    ],
)
@pytest.mark.parametrize("seal", [False, True])
def test_letters_that_the_relay_misdelivers(rings, changes, message, seal):
    to = address() if seal else address(receiver=EVERYONE)
    letter = write(to, contents(), rings[1].lock(2) if seal else None)
    lock = rings[2].lock(changes.get("sender", 1)) if seal else None
    with pytest.raises(WireError, match=message):
        opened(letter, **changes, lock=lock)


def test_a_letter_for_another_receiver_is_refused(rings):
    letter = write(address(), contents(), rings[1].lock(2))
    with pytest.raises(WireError, match=r"for client 3 is addressed to client 2"):
        opened(letter, receiver=3, lock=rings[3].lock(1))


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


def test_a_letter_of_a_wrong_key_is_refused_with_the_cure(rings, tmp_path):
    stranger = ring(tmp_path / "stranger", 1)
    stranger.pin({2: rings[2].public_key})
    letter = write(address(), contents(), stranger.lock(2))
    with pytest.raises(WireError, match=r"sealed with another key.*fedgraph site fing"):
        opened(letter, lock=rings[2].lock(1))


def test_sealed_and_open_are_not_taken_for_each_other(rings):
    plain = write(address(receiver=EVERYONE), contents())
    sealed = write(address(), contents(), rings[1].lock(2))
    with pytest.raises(WireError, match="is not sealed, expected sealed"):
        opened(plain, lock=rings[2].lock(1))
    with pytest.raises(WireError, match="is sealed, expected not sealed"):
        opened(sealed)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _: b"short", "has no envelope"),
        (lambda b: b"XXXX" + b[4:], "has no envelope"),
        (lambda b: b[:48] + b"\x00" * 20, "cannot be decoded"),
    ],
)
def test_what_is_no_letter_is_refused(spoil, message):
    plain = write(address(receiver=EVERYONE), contents())
    with pytest.raises(WireError, match=message):
        opened(spoil(plain))


UNFIT, NAMES = "parts that do not fit", r"client 1 names .* expected ids below 4"
ODD = np.array([[np.inf, 0], [0, 0]], np.float32)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("omega", np.zeros((2, 3), np.float32), UNFIT),
        ("omega", np.zeros((3, 3)), UNFIT),
        ("task_ids", np.zeros((2, 1), np.int64), UNFIT),
        ("task_ids", np.zeros(2, np.float32), UNFIT),
        ("head_rows", np.zeros(2, np.float32), UNFIT),
        ("omega_task_ids", np.zeros((), np.int64), UNFIT),
        ("peer", Peer(num_neighbours=-1, num_examples=3), UNFIT),
        ("task_ids", np.array([0, 10**12]), NAMES),
        ("task_ids", np.array([1, 0]), NAMES),
        ("omega_task_ids", np.array([0, 1, 4]), NAMES),
        ("omega_task_ids", np.array([-1, 0, 1]), NAMES),
        ("omega_task_ids", np.array([0, 1, 1]), NAMES),
        ("head_rows", np.zeros((2, 3), np.float32), "rows of 3 numbers, expected 2"),
        ("head_rows", ODD, "of client 1: array 'head_rows' holds NaN or"),
        ("head_rows", ODD * np.nan, "of client 1: array 'head_rows' holds NaN or"),
        ("omega", np.full((3, 3), -3e38, np.float32), "array 'omega' holds NaN or"),
    ],
)
def test_contents_that_do_not_fit_are_refused(part, value, words):
    odd = contents()
    odd.check(1, num_tasks=4, width=2)
    object.__setattr__(odd, part, value)
    with pytest.raises(WireError, match=words):
        Letter.decode(1, odd.encode()).check(1, num_tasks=4, width=2)


# Keys ---------------------------------------------------------------------------------


def test_keys_are_made_once_and_for_the_owner_alone(tmp_path):
    first = ring(tmp_path, 0)
    told = first.public_key
    assert ring(tmp_path, 0).public_key == told
    assert ring(tmp_path, 1).public_key != told
    site = site_key_file(tmp_path / "site-0", 0)
    paths = (site, first.folder / "run.key")
    assert [stat.S_IMODE(p.stat().st_mode) for p in paths] == [0o600] * 2
    lasting = Ed25519PrivateKey.from_private_bytes(site.read_bytes())
    of_run = X25519PrivateKey.from_private_bytes(paths[1].read_bytes())
    halves = [key.public_key().public_bytes_raw() for key in (lasting, of_run)]
    signed = b"fedgraph-flwr run key v1 " + halves[1] + b"run"
    assert b"".join([*halves, lasting.sign(signed)]).hex() == told
    assert [p.name for p in first.folder.iterdir()] == ["run.key"]


def test_a_sites_key_outlives_a_run_and_the_runs_does_not(tmp_path):
    one, other = (ring(tmp_path, 0, run).public_key for run in ("run", "later"))
    assert one[:64] == other[:64]
    assert one[64:128] != other[64:128]
    assert fingerprint(one) == fingerprint(other)


def test_both_ends_have_one_secret_and_pairs_and_runs_differ(rings, tmp_path):
    assert rings[1].lock(2) == rings[2].lock(1)
    secrets = [rings[a].lock(b).secret for a, b in itertools.combinations(rings, 2)]
    later = introduce({c: ring(tmp_path, c, "later") for c in (1, 2)})
    assert len({*secrets, later[1].lock(2).secret}) == 4


def test_the_secret_is_that_of_the_runs_pairs(rings):
    """Worked by hand: no lasting key, stolen later, opens a letter."""
    stored = (rings[1].folder / "run.key").read_bytes()
    own = X25519PrivateKey.from_private_bytes(stored)
    theirs = bytes.fromhex(rings[2].public_key[64:128])
    secret = own.exchange(X25519PublicKey.from_public_bytes(theirs))
    assert rings[1].lock(2).secret == secret


@pytest.mark.parametrize("run", ["run", "earlier"])
def test_a_run_key_that_its_site_did_not_sign_is_refused(rings, tmp_path, run):
    """The relay's own, signed by itself; or one that the site signed for another run.

    Once 1's lasting key is stolen, the relay could open what was sealed to its own.
    """
    own, true = ring(tmp_path, 4), rings[1].public_key
    if run == "run":
        forged = true[:64] + ring(tmp_path / "relay", 1).public_key[64:]
    else:
        forged = ring(tmp_path, 1, run).public_key
    assert fingerprint(forged) == fingerprint(true)
    with pytest.raises(WireError, match=r"client 1 .* in run 'run' is not signed by"):
        own.pin({1: forged}, {1: fingerprint(true)})
    assert own.pinned == {}
    with pytest.raises(KeyError):
        own.lock(1)


@pytest.mark.parametrize("is_of_the_site", [True, False])
def test_a_changed_key_is_refused_with_the_fingerprints(
    rings, tmp_path, is_of_the_site
):
    """Of another site; or of a site that has lost the run's folder."""
    old = rings[3].public_key
    other = ring(tmp_path / "new", 3)
    if not is_of_the_site:
        path = site_key_file(tmp_path / "new" / "site-3", 3)
        path.parent.mkdir(parents=True)
        path.write_bytes(site_key_file(tmp_path / "site-3", 3).read_bytes())
    new = other.public_key
    assert (new[:64] != old[:64]) == is_of_the_site
    with pytest.raises(WireError, match=r"public key of client 3 changed") as caught:
        rings[1].pin({2: rings[2].public_key, 3: new})
    for part in (fingerprint(old), fingerprint(new), "neighbours.json", "in between"):
        assert part in str(caught.value)
    assert rings[1].pinned[3] == old


def test_a_client_told_that_it_has_no_neighbour_gets_none_later(rings, tmp_path):
    alone = ring(tmp_path, 0)
    alone.pin({})
    alone.pin({})
    with pytest.raises(WireError, match=r"client 0 pinned none, now the relay hands"):
        alone.pin({1: rings[1].public_key})
    assert alone.pinned == {}


def test_fingerprints_that_the_operator_wrote_down_hold_before_any_pin(rings, tmp_path):
    own, key = ring(tmp_path, 4), rings[1].public_key
    in_between = ring(tmp_path / "relay", 1).public_key
    trusted = {1: fingerprint(key), 9: fingerprint(in_between)}
    with pytest.raises(WireError, match=r"client 1 has .*, expected") as found:
        own.pin({1: in_between}, trusted)
    assert fingerprint(key) in str(found.value)
    assert fingerprint(in_between) in str(found.value)
    with pytest.raises(WireError, match=r"client 3 has .*, expected none by node-conf"):
        own.pin({1: key, 3: rings[3].public_key}, trusted)
    assert own.pinned == {}
    own.pin({1: key}, trusted)
    assert own.pinned == {1: key}


@pytest.mark.parametrize("key", ["", "00", "zz" * 128, "ab" * 64, "ab" * 129])
def test_a_key_that_is_none_is_refused(tmp_path, key):
    own = ring(tmp_path, 0)
    with pytest.raises(WireError, match=r"client 1 must be 128 bytes in hexadecimal"):
        own.pin({1: key})
    assert own.pinned == {}


def test_damaged_key_files_are_named(tmp_path):
    own = ring(tmp_path, 0)
    own.folder.mkdir(parents=True)
    (own.folder / "run.key").write_bytes(b"half")
    with pytest.raises(DataError, match=r"run\.key must have 32 bytes, got 4"):
        _ = own.public_key
    (own.folder / "neighbours.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"neighbours\.json cannot be read"):
        _ = own.pinned


# The box ------------------------------------------------------------------------------


def anything(sender, found):
    """Use whatever comes."""


class Record:
    """Rounds that client 2 has done; each call is a transaction of its own."""

    def __init__(self, root):
        self.store = ClientStore(root, "run", client_id=2)

    def __getattr__(self, name):
        def call(*given, **kw):
            with self.store.database.transaction() as db:
                return getattr(RoundsDone(db, self.store), name)(*given, **kw)

        return call


def box(tmp_path, client, *, stored=None, notes=None):
    near = {2 if client == 1 else 1: {"key": ""}}
    notes = {"neighbours": json.dumps(near)} if notes is None else notes
    folder = tmp_path / "run" / f"client-{client}"
    how = {"is_sealed": False, "notes": notes, "stored": stored or {}}
    made = Mailbox("run", client, folder, **how)
    made.read = functools.partial(made.read, done=Record(tmp_path))
    return made


@pytest.mark.parametrize(
    "told",
    [
        *("1", "[]", "null", "{", '{"x": {"key": ""}}', '{"1": 2}'),
        '{"1": {"key": 5}}',
        '{"1": {"key": ""}, "01": {"key": ""}}',
        '{"3": {"key": ""}}',  # itself
        "[" * 100_000,
    ],
)
def test_neighbours_that_are_none_are_refused(tmp_path, told):
    with pytest.raises(WireError, match="was told the neighbours") as caught:
        box(tmp_path, 3, notes={"neighbours": told})
    assert len(str(caught.value)) < 500


def mail_of(tmp_path, server_round, sent=None):
    mail = box(tmp_path, 1).write(sent or contents(), server_round)
    assert list(mail) == ["to/all"]
    return {"from/1": mail["to/all"]}


def test_rounds_of_which_no_state_is_left_are_forgotten(tmp_path):
    done, mail = Record(tmp_path), hashlib.sha256(b"mail").hexdigest()
    for server_round in (1, 2, 3, 5):
        done.begin(server_round, mail, state_round=server_round - 1, read={7: 1})
    done.note_trained(2)
    done.forget_before(3)
    assert done.store.database.rows("SELECT round FROM begun") == [(3,), (5,)]
    assert done.store.database.rows("SELECT round FROM trained") == []
    assert [begun_before(done.store, r) for r in (3, 5, 9)] == [0, 3, 5]
    with pytest.raises(WireError, match="round 2, which was left out"):
        done.begin(2, mail, state_round=1, read={7: 1})
    with pytest.raises(WireError, match="round 5 again, with other mail or state"):
        done.begin(5, mail, state_round=3, read={7: 1})
    with pytest.raises(WireError, match="round 6 with the state after round 3, but"):
        done.begin(6, mail, state_round=3, read={7: 1})
    done.begin(6, mail, state_round=4, read={7: 1})  # round 5 failed after it began
    done.note_trained(6)
    with pytest.raises(WireError, match="but round 6 was trained before and not rep"):
        done.begin(7, mail, state_round=4, read={7: 1})
    done.begin(7, mail, state_round=6, read={7: 1})


def test_two_messages_cannot_do_one_round_with_different_mail(tmp_path):
    """A relay may send several, which a SuperNode answers side by side."""
    done = Record(tmp_path)

    def begin(mail):
        try:
            done.begin(1, mail, state_round=0, read={})
        except WireError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, map(str, range(16)))) == 1


def test_a_sealed_round_may_be_repeated_with_mail_sealed_anew(rings):
    """A resumed neighbour sends the same, under another nonce."""
    keys = {c: rings[c].public_key for c in (1, 3)}
    told = json.dumps({str(c): {"key": k} for c, k in keys.items()})

    def read_it():
        letter = write(address(), contents(), rings[1].lock(2))
        how = {"is_sealed": True, "notes": {"neighbours": told}, "stored": {}}
        mailbox = Mailbox("run", 2, rings[2].folder, **how)
        done = Record(rings[2].folder.parents[1])
        mail = {"from/1": np.frombuffer(letter, np.uint8)}
        return mailbox.read(mail, 4, anything, done)

    assert [list(read_it()) for _ in range(2)] == [[1], [1]]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b[:30],
        lambda b: b[:60],
        lambda b: b[:-1],
        lambda b: b"FGS1" + b[4:],
        lambda b: b[:40] + b"\x00\x00\x00\x07" + b[44:],
    ],
)
def test_a_letter_that_cannot_be_used_counts_as_missing(tmp_path, caplog, spoil):
    good = mail_of(tmp_path, 3)["from/1"].tobytes()
    mail = {"from/1": np.frombuffer(spoil(good), np.uint8)}
    own = box(tmp_path, 2)
    with caplog.at_level("WARNING", logger="flwr"):
        assert own.read(mail, 4, anything) == {}
    assert own.unusable == [1]
    assert "client 2 goes on without this mail: letter of client 1" in caplog.text
    assert list(own.read(mail_of(tmp_path, 3), 5, anything)) == [1]  # not seen yet


def test_a_box_refuses_strangers_and_messages_without_neighbours(tmp_path):
    mail = {"from/5": np.zeros(3, np.uint8)}
    with pytest.raises(WireError, match=r"got \['from/5'\], but its neighbours are"):
        box(tmp_path, 2).read(mail, 2, anything)
    with pytest.raises(WireError, match="was not told its neighbours"):
        box(tmp_path, 2, notes={})


def test_a_client_whose_letters_were_sealed_sends_none_open(tmp_path):
    box(tmp_path, 1)
    folder = tmp_path / "run" / "client-1"
    assert KeyRing(folder, client_id=1).public_key  # made when first asked for
    with pytest.raises(WireError, match=r"client 1 has keys .*set spreadgnn.seal = tr"):
        box(tmp_path, 1)


def test_rounds_that_mix():
    for period in (0, 1, 2, 5):
        mix = [t for t in range(1, 12) if is_mixing_round(t, period)]
        assert mix == (list(range(1, 12, period)) if period else [])
        for before in range(1, 13):
            assert mixing_rounds(before, period) == sum(t < before for t in mix)

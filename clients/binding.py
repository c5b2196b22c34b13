"""Remembers at a site which experiment a Flower run belongs to.

The server names the experiment in every message, and a client's keys, pins and private
state lie under that name. Roll call binds the run to the first name it hears; a message
of the same run that names another would find a client without pins or memory.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedgraph_flwr.audit_log import FILE as AUDIT_LOG
from fedgraph_flwr.config import RESUME_MAY_CHANGE
from fedgraph_flwr.errors import DataError, WireError
from fedgraph_flwr.files import make_private, names_in
from fedgraph_flwr.rules import Value
from fedgraph_flwr.wording import shortened

from .once import is_kept, usable, write_once
from .peers.sealing import IDENTITY
from .privacy.lifetime import FOLDER as LIFETIME

FOLDER = "runs"  # of the state folder, where experiments have theirs
_OWN = (FOLDER, IDENTITY, LIFETIME, AUDIT_LOG)
_DATA = "data-identity"  # of a client's folder
_NAME = re.compile(r"[^./\\\0-\x1f\x7f][^/\\\0-\x1f\x7f]*")
_LONGEST = 255  # bytes, as of names of files


def check_experiment(experiment: str) -> None:
    """Refuse a name that is not that of a folder for an experiment.

    A path would reach other experiments' state, or a fresh privacy record.

    Raises
    ------
    WireError
        It is a path, too long for a folder or empty, has control characters, or is that
        of a folder or file of the site's own.
    """
    # Operators read names in lists: a line break in one would forge a line there.
    is_plain = _NAME.fullmatch(experiment) is not None and experiment.isprintable()
    is_short = len(experiment.encode(errors="replace")) <= _LONGEST
    # Some file systems do not tell capitals from small letters.
    if not is_plain or not is_short or experiment.casefold() in _OWN:
        raise WireError(
            "the name of an experiment must be that of a plain folder, of at most"
            f" {_LONGEST} bytes, and none of {', '.join(map(repr, _OWN))}, got"
            f" {shortened(repr(experiment))} from the server; both ends must run the"
            " same version of fedgraph_flwr"
        )


def bind_run(
    root: Path,
    run_id: int,
    experiment: str,
    config: Mapping[str, Value] | None = None,
) -> None:
    """Bind a run at roll call; it ends what an earlier run did under the same name.

    Parameters
    ----------
    root : path
        State folder of the site.
    run_id : int
        Flower's.
    experiment : str
        Named by the server. A resumed run is a new one of Flower's with the old name.
    config : mapping, optional
        The run's; a run with another than the experiment's ends no earlier one.

    Raises
    ------
    WireError
        As :func:`check_run`, :func:`check_experiment` and :func:`bind_config`.
    """
    check_experiment(experiment)
    path = root / FOLDER / str(run_id)
    if not is_kept(path):
        if config is not None:
            bind_config(root, experiment, config)
        # First the newest run of the name, so that a bound run is the newest.
        newest = _newest(root, experiment)
        partial = newest.with_name(f".{newest.name}.{secrets.token_hex(8)}")
        with usable(newest):
            make_private(newest.parent)
            partial.write_text(str(run_id))
            partial.replace(newest)
        write_once(path, experiment.encode(), is_lasting=True)
    check_run(root, run_id, experiment)


def begin_folder(root: Path, experiment: str, client: int) -> None:
    """Begin a client's folder of an experiment with sealed letters, once.

    The experiment's name is what keys are signed for: whoever has stolen a neighbour's
    key of it would open the new letters. What tells that a folder was begun lies
    outside of it.

    Raises
    ------
    WireError
        The client has begun it, and the folder is not there.
    """
    folder = root / experiment / f"client-{client}"
    begun = _begun(root, experiment, client)
    if is_kept(begun) and not is_kept(folder):
        gone = f"the folder of client {client} in experiment {experiment!r} is gone"
        end = "restore it, or start a new run"
        raise WireError(
            f"{gone} ({folder}), with the keys that it knew: refused, as a stolen key"
            f" of a neighbour would open new letters; {end}. If the client is to begin"
            f" again, delete {begun}"
        )
    with usable(folder):
        make_private(folder)
    write_once(begun, b"", is_lasting=True)


def is_known(root: Path, experiment: str) -> bool:
    """Whether a run of this experiment has been bound at this site."""
    return is_kept(_newest(root, experiment))


def check_run(root: Path, run_id: int, experiment: str) -> None:
    """Refuse a message that names another experiment than its run is bound to.

    Raises
    ------
    WireError
        There was no roll call; it named another experiment; or a later run has taken
        this one's place.
    """
    path = root / FOLDER / str(run_id)
    if not is_kept(path):
        raise WireError(
            f"Flower run {run_id} is not known at this site ({path} is missing): there"
            " was no roll call, or state-dir has changed; restore it, or resume"
        )
    with usable(path):
        bound = path.read_text()
    if bound != experiment:
        raise WireError(
            f"Flower run {run_id} is experiment {bound!r} at this site, now the server"
            f" names {experiment!r}: refused, as keys and memory of one experiment do"
            " not hold in another; do not trust that server"
        )
    newest = _newest(root, experiment)
    with usable(newest):
        latest = newest.read_text() if is_kept(newest) else str(run_id)
    if latest != str(run_id):
        raise WireError(
            f"Flower run {latest} goes on with experiment {experiment!r}:"
            f" run {run_id} is over at this site; stop it"
        )


def bind_config(root: Path, experiment: str, config: Mapping[str, Value]) -> None:
    """Bind an experiment to the run config that it began with, as a resume does.

    With another one a later run would use keys, private state and noise of this one
    for something else: repeat a round with other weights, or send in the open what was
    trained on sealed letters.

    Raises
    ------
    WireError
        A key has changed that no resume may change; or a dry run has the name of an
        experiment of an earlier version, which it would delete at its end.
    DataError
        What was written then is damaged.
    """
    now = {k: v for k, v in config.items() if k not in RESUME_MAY_CHANGE}
    path = root / FOLDER / _config_file(experiment)
    if now.get("dry-run") and not is_kept(path) and is_kept(root / experiment):
        raise WireError(
            f"experiment {experiment!r} left state at this site before its run config"
            " was kept, and a dry run would delete it: refused; start the dry run"
            " under another name"
        )
    told = json.dumps(now, sort_keys=True).encode()
    try:
        before = json.loads(write_once(path, told, is_lasting=True))
        if not isinstance(before, dict):
            raise ValueError("it holds no table of keys")
    except ValueError as error:
        raise DataError(
            f"what experiment {experiment!r} began with cannot be read from {path}:"
            f" {error}; restore the file, or start a new run"
        ) from error
    if before == now:
        return
    keys = [k for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
    changed = [f"{k} was {before.get(k)!r} and is now {now.get(k)!r}" for k in keys]
    raise WireError(
        f"experiment {experiment!r} began at this site with another run config:"
        f" {', '.join(changed)}; refused, as keys, memory and noise of one config do"
        " not hold with another: start a new run"
    )


def bind_data(folder: Path, client_id: int, identity: str) -> None:
    """Bind a client of an experiment to the data that it drew noise for.

    A round that is asked again has the noise that it had: on edges or labels that were
    changed meanwhile it would show the change. A server need not tell what the data
    were.

    Parameters
    ----------
    folder : path
        Of the client in the experiment.
    client_id : int
    identity : str
        Fingerprint of its data, which no guess can be checked by.

    Raises
    ------
    DataError
        They are others than at first, or what was written then cannot be read.
    """
    path = folder / _DATA
    if write_once(path, identity.encode(), is_lasting=True) == identity.encode():
        return
    words = (
        f"data of client {client_id} are not those with which it began this experiment,"
        " and equal noise on both would show what has changed: restore the data, or"
        " start a new run"
    )
    raise DataError(f"{words} ({path} tells them apart)")


def forget(
    root: Path,
    run_id: int,
    experiment: str,
    config: Mapping[str, Value],
    clients: Iterable[int],
) -> None:
    """Delete what clients of a dry run have left in a state folder.

    The last of them also deletes to what the run was bound.

    Raises
    ------
    WireError
        As :func:`check_run` and :func:`bind_config`: what another run has left, or what
        did not begin as a dry run, is never deleted.
    DataError
        A file cannot be deleted.
    """
    check_run(root, run_id, experiment)
    bind_config(root, experiment, config)
    folder = root / experiment
    for client in clients:
        with usable(folder / f"client-{client}"):
            if is_kept(folder / f"client-{client}"):
                shutil.rmtree(folder / f"client-{client}")
            _begun(root, experiment, client).unlink(missing_ok=True)
    with usable(folder):
        if names_in(folder):
            return  # clients of other nodes, which have the same state folder
        names = (str(run_id), _newest(root, experiment).name, _config_file(experiment))
        for path in (root / FOLDER / name for name in names):
            path.unlink(missing_ok=True)
        if is_kept(folder):
            folder.rmdir()


def bound_runs(root: Path) -> dict[str, list[int]]:
    """List Flower's runs by the experiment they are bound to, each ascending."""
    found: dict[str, list[int]] = {}
    for name in names_in(root / FOLDER):
        if name.isdigit():
            with usable(root / FOLDER / name):
                text = (root / FOLDER / name).read_text()
            found.setdefault(text, []).append(int(name))
    return {name: sorted(runs) for name, runs in found.items()}


def _newest(root: Path, experiment: str) -> Path:
    """File that names the newest run of an experiment."""
    return root / FOLDER / f"of-{_digest(experiment)}"


def _begun(root: Path, experiment: str, client: int) -> Path:
    """File that tells that a sealed experiment has begun a client's folder."""
    return root / FOLDER / f"sealed-{_digest(experiment)}-{client}"


def _config_file(experiment: str) -> str:
    return f"config-{_digest(experiment)}"


def _digest(experiment: str) -> str:
    return hashlib.sha256(experiment.encode()).hexdigest()[:32]

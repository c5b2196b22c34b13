"""Private state of clients on disk, and to which experiment a run binds it.

One folder per experiment and client holds a file per round, named after the round and
the run of Flower that did it. The server says from which of them a round goes on: the
last whose reply it has. A round whose reply was lost, or that a server which was
resumed does not know, counts for neither side. The server also says which of its
checkpoints is the oldest; every state from which it can be resumed is kept.

The server names the experiment in every message, and a client's keys, pins and private
state lie under that name. Roll call binds the run to the first name it hears; a message
of the same run that names another would find a client without pins or memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.audit_log import FILE as AUDIT_LOG
from fedgraph_flwr.core.config import RESUME_MAY_CHANGE
from fedgraph_flwr.core.errors import DataError, WireError
from fedgraph_flwr.core.files import (
    Flushes,
    from_home,
    is_kept,
    make_private,
    names_in,
    read_arrays,
    remove,
    unfinished,
    usable,
    write_arrays,
    write_npz,
    write_once,
)
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.wire import Lives
from fedgraph_flwr.core.words import shortened

from .privacy.accounts import FOLDER as LIFETIME
from .sealing import IDENTITY

if TYPE_CHECKING:
    from torch import Tensor


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
    text = json.dumps(now, sort_keys=True).encode()
    try:
        before = json.loads(write_once(path, text, is_lasting=True))
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


_ALONE = Lives()
_FILE = re.compile(r"round-(\d+)(?:-(\d+))?\.safetensors")


def default_state_dir() -> Path:
    """``$XDG_STATE_HOME/fedgraph-flwr``, or under ``~/.local/state``."""
    xdg = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    cure = "set state-dir to another one: in the run config, or in the node-config"
    return from_home(f"{xdg}/fedgraph-flwr", f"{cure} of a site")


class ClientStore:
    """Private state of one client in one experiment.

    Parameters
    ----------
    root : path
        State folder of the site.
    experiment : str
        Chosen by the server; the same after a resume.
    client_id : int
    lives : Lives, optional
        Runs of Flower whose states these are; by default none, as outside of Flower.
    flushes : Flushes, optional
        Of the message that is answered; without it each state is flushed as it is
        written.

    Raises
    ------
    WireError
        As :func:`~clients.store.check_experiment`.
    """

    def __init__(
        self,
        root: Path,
        experiment: str,
        *,
        client_id: int,
        lives: Lives = _ALONE,
        flushes: Flushes | None = None,
    ) -> None:
        check_experiment(experiment)
        self._root, self._lives, self._flushes = root, lives, flushes
        self.experiment, self.client_id = experiment, client_id
        self.folder = root / experiment / f"client-{client_id}"

    def save(
        self,
        server_round: int,
        tensors: dict[str, Tensor],
        *,
        after: int = 0,
        keep_from: int = 0,
    ) -> None:
        """Write the state after ``server_round``.

        Parameters
        ----------
        server_round : int
        tensors : dict of str to tensor
        after : int
            Round whose state this one goes on from, 0 for none. States between the two
            are dropped, as the server heard of none of them; so are those of runs that
            the server has left, if it has no checkpoint of theirs. States of later
            rounds of this run of Flower stay: this message was late, or sent twice.
        keep_from : int
            Round of the server's oldest checkpoint, 0 for none. Of the states up to
            ``after``, the one that goes with it and later ones are kept.

        Raises
        ------
        StorageError
            A file cannot be written, or an old one not deleted.
        WireError
            A later run of Flower goes on with the experiment by now.
        """
        lives, names = self._lives, names_in(self.folder)
        # After the files were listed, so that those of a later run are not among them.
        if lives.run:  # it may be over: this client has trained meanwhile
            check_run(self._root, lives.run, self.experiment)
        arrays = {n: t.detach().cpu().numpy() for n, t in tensors.items()}
        path = self._path(server_round, lives.run)
        found = _states(names)
        before = min(after, server_round - 1)
        done = [r for r, run in found if r <= before and run == lives.run_of(r)]
        kept = (r for r in (*done, server_round) if r <= keep_from)
        first_kept = max(kept, default=0)
        older = [self._path(r) for r in done if r < first_kept]
        spare = older[0] if older and first_kept < server_round else None
        others = [*older, *(self.folder / name for name in unfinished(names))]
        for r, run in found:
            counts = run == lives.run_of(r)
            is_needed = r in done if counts else run in lives.spared
            is_later = bool(lives.run) and run == lives.run and r > server_round
            if not is_needed and not is_later and self._path(r, run) != path:
                others.append(self._path(r, run))
        about = self._about(server_round)
        write_arrays(path, arrays, about, self._flushes, others, spare)

    def load(self, server_round: int) -> dict[str, Tensor] | None:
        """State after ``server_round``; None after round 0, before which there is none.

        Raises
        ------
        DataError
            It is gone, or the file cannot be used.
        """
        if not server_round:
            return None
        arrays = self._read(self._path(server_round), server_round)
        import torch  # here: a message that trains nobody needs none

        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _read(self, path: Path, server_round: int) -> dict[str, NDArray[np.generic]]:
        if not is_kept(path):
            lost = (
                f"private state of client {self.client_id} after round {server_round}"
            )
            raise DataError(
                f"{lost} is gone from {self.folder} ({path.name}): restore that folder,"
                " start a new run, or let the site begin afresh by --node-config"
                " 'fresh-start=true', which the summary will tell"
            )
        arrays, about = read_arrays(
            path, "private state", "restore it from a copy, or start a new run"
        )
        if about != self._about(server_round):
            raise DataError(
                f"private state {path} is that of {about!r}, expected"
                f" {self._about(server_round)}: put every file back where it was, or"
                " start a new run"
            )
        return arrays

    def _about(self, server_round: int) -> str:
        return json.dumps(
            {
                "experiment": self.experiment,
                "client": self.client_id,
                "round": server_round,
                "run": self._lives.run_of(server_round),
            }
        )

    def keep(self, name: str, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Write a result that stays at this site, ``<folder>/<name>``, atomically."""
        write_npz(self.folder / name, arrays)

    def keep_of_round(
        self, what: str, server_round: int, arrays: dict[str, NDArray[np.generic]]
    ) -> None:
        """Write a result of a round, ``<what>-<round>.npz``, and drop those of later.

        Rounds that are repeated have left them, and the last one tells of the run.
        """
        self.keep(f"{what}-{server_round:06d}.npz", arrays)
        for name in names_in(self.folder, f"{what}-*.npz"):
            number = name.removeprefix(f"{what}-").removesuffix(".npz")
            if number.isdecimal() and int(number) > server_round:
                remove(self.folder / name)

    def _found(self) -> list[tuple[int, int]]:
        with usable(self.folder):
            return _states(names_in(self.folder))

    def _path(self, server_round: int, run: int | None = None) -> Path:
        """File of a state: of the run whose state counts, unless another is given."""
        run = self._lives.run_of(server_round) if run is None else run
        name = f"round-{server_round:06d}{f'-{run}' if run else ''}.safetensors"
        return self.folder / name

    def rounds(self) -> list[int]:
        """Return the rounds whose state is here, of any run, ascending."""
        return sorted({r for r, _ in self._found()})

    def newest(self, before: int) -> tuple[int, str]:
        """Last round before another whose state is here, of any run; 0 for none.

        Also the name of its file if only runs did it that the server has left, or "".
        """
        found = [s for s in self._found() if s[0] < before]
        if not found:
            return 0, ""
        last, run = found[-1]
        if (last, self._lives.run_of(last)) in found:
            return last, ""
        return last, self._path(last, run).name


def _states(names: Iterable[str]) -> list[tuple[int, int]]:
    """List rounds and runs of states, ascending."""
    found = map(_FILE.fullmatch, names)
    return sorted((int(m.group(1)), int(m.group(2) or 0)) for m in found if m)

"""What a run began with, so that one that begins again begins with the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from strategies.introductions import difference
from strategies.report import ClientInfo

from ..errors import ConfigError, DataError
from ..files import is_there
from ..wire import NamedArrays
from .provenance import hash_weights

ROLL_CALL = "roll-call.json"


def name_at_roll_call(folder: Path) -> str:
    """Name that a results folder had then; its own if there is no telling."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return str(json.loads((folder / ROLL_CALL).read_bytes())["experiment"])
    return folder.name  # whoever compares the clients finds out


def check_roll_call(
    folder: Path, clients: Mapping[int, ClientInfo], start: NamedArrays
) -> dict[str, Any]:
    """Compare who takes part, and the common start, with those of the first roll call.

    Returns
    -------
    dict
        Contents of ``roll-call.json``.

    Raises
    ------
    DataError
        A client has other data than at the first roll call, or the file is damaged.
    ConfigError
        The run would begin from another model.
    """
    path, sha = folder / ROLL_CALL, hash_weights({"start": start}, {})
    told = {str(c): i.to_json() for c, i in sorted(clients.items())}
    now = {"experiment": folder.name, "start_sha256": sha, "clients": told}
    if not is_there(path):
        return now
    try:
        before = json.loads(path.read_bytes())
        known = {int(c): ClientInfo.from_json(i) for c, i in before["clients"].items()}
        before_sha = before["start_sha256"]
        if known.keys() != clients.keys():
            raise ValueError(f"it has clients {sorted(known)}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read: {error!r}; restore it, or start a new run"
        ) from error
    for client, info in known.items():
        if words := difference(info, clients[client]):
            raise DataError(words)
    if before_sha != sha:
        raise ConfigError(
            f"the run in {folder} began from another model than now: the one that"
            " init-from names has changed; restore that model, or start a new run"
        )
    return now

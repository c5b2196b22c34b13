"""What a run began with, kept in its folder until the first checkpoint has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from strategies.introductions import difference
from strategies.report import ClientInfo

from ..errors import ConfigError, DataError
from ..files import write_json
from ..wire import NamedArrays
from .provenance import hash_weights

ROLL_CALL = "roll-call.json"


def hold_to_roll_call(
    folder: Path, clients: Mapping[int, ClientInfo], start: NamedArrays
) -> None:
    """Write who takes part and the common start; or compare, if a run begins again.

    Raises
    ------
    DataError
        A client has other data than at the first roll call, or the file is damaged.
    ConfigError
        The run would begin from another model.
    """
    path, sha = folder / ROLL_CALL, hash_weights({"start": start}, {})
    if not path.exists():
        told = {str(c): i.to_json() for c, i in sorted(clients.items())}
        write_json(path, {"start_sha256": sha, "clients": told})
        return
    try:
        before = json.loads(path.read_bytes())
        known = [ClientInfo.from_json(i) for i in before["clients"].values()]
        before_sha = before["start_sha256"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read: {error!r}; restore it, or start a new run"
        ) from error
    for info in known:
        if words := difference(info, clients[info.client]):
            raise DataError(words)
    if before_sha != sha:
        raise ConfigError(
            f"the run in {folder} began from another model than now: the one that"
            " init-from names has changed; restore that model, or start a new run"
        )

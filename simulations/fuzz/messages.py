"""Malformed messages from or to one of four clients; the run must go on without it.

``min-fit-replies`` is 0.5. The end must be that of the undisturbed run, or that of the
run in which this client failed in this exchange, and then be named. A client may also
fail, by name, in later rounds in which it contradicts what it said. Roll call needs
every client: there a refusal is right.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Error, Message

from datasets.cache import locked
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.wire import SERVER_ROUND

from ..inline import InlineGrid, run_inline
from .cases import Judged, Place, small_run, strangers
from .records import disturb

_METHODS = (
    "gcfl+",
    "fedgkd",
    "fgcl-once",
    "update-clip",
    "spreadgnn",
    "spreadgnn-sealed",
    "fclg",
    "fclg-pooled",
    "fedsage+",
    "local",
)
_VICTIM = 1
_ROUNDS = 2
_ROLL_CALL = "roll call"
_EXCHANGES = (_ROLL_CALL, "1", "1", "2", "2", "3")  # 3: the closing evaluation
Change = Callable[[Message], Message]


def execute(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    """Disturb one message, and see how the run ends.

    Raises
    ------
    FedGraphError
        The roll call is refused.
    Judged
        All else.
    """
    name, exchange = rng.choice(_METHODS), rng.choice(_EXCHANGES)
    is_reply = exchange == _ROLL_CALL or rng.random() < 0.7
    said = ["never sent"]

    def change(message: Message) -> Message:
        if message.has_content():
            said[0] = disturb(rng, message.content, _VICTIM, is_reply=is_reply)
        where = "reply to" if is_reply else "message of"
        note(f"{name}, {where} {exchange}: {said[0]}")
        return message

    config = _config(name, place.work)
    expected = _reference(name, set(), place.shared)
    lost = set() if exchange == _ROLL_CALL else {exchange}
    without = _reference(name, lost, place.shared, is_reply=is_reply)
    try:
        folder = _run(config, {exchange}, change, is_reply=is_reply)
    except FedGraphError as error:
        says = f"{type(error).__name__}: {error}"
        if _foreign(says, said[0]):
            raise Judged("foreign", says) from error
        if exchange == _ROLL_CALL:
            raise
        raise Judged("stopped", says) from error
    summary = load_summary(folder)
    refused = {str(f["round"]) for f in summary["failures"]}
    if exchange == _ROLL_CALL:
        without = _reference(name, refused, place.shared)
    elif exchange not in refused and refused:
        # What it said was taken, and contradicts what it does later.
        without = _reference(name, refused, place.shared, is_reply=False)
    _judge(summary, expected, without, said[0])


def _foreign(says: str, said: str) -> bool:
    """Whether a failure names an exception that is not ours and not the case's."""
    return any(name not in said for name in strangers(says))


def _judge(summary: dict[str, Any], expected: str, without: str, said: str) -> None:
    reasons = {f["client"]: f["reason"] for f in summary["failures"]}
    says = json.dumps(reasons)[:2000]
    if any(_foreign(f"client {c}: {reason}", said) for c, reason in reasons.items()):
        raise Judged("foreign", says)
    if set(reasons) - {_VICTIM}:
        raise Judged("stopped", f"failures of others: {says}")
    weights = summary["weights_sha256"]
    if reasons and weights == without:
        raise Judged("named", says)
    # Sealed mail that was damaged on its way counts as missing, and by sender.
    unusable = (summary["network"] or {}).get("unusable_letters_of")
    if unusable and not reasons:
        raise Judged("named", f"letters that cannot be used, by sender: {unusable}")
    raise Judged("unchanged" if weights == expected else "changed", says)


def _run(
    config: dict[str, Any],
    exchanges: set[str],
    change: Change | None,
    *,
    is_reply: bool,
) -> Path:
    """Run with one client per node; change messages to or replies of the victim.

    In each exchange one is. Without a change it is lost, and the server is told so.
    """
    deliver = InlineGrid.deliver
    met: set[str] = set()

    def deliver_changed(self: InlineGrid, message: Message) -> Message:
        header = message.content.get("header", ConfigRecord({}))
        context = self._contexts[message.metadata.dst_node_id]
        is_victim = context.node_config["partition-id"] == _VICTIM
        now = str(header.get(SERVER_ROUND, _ROLL_CALL))
        if not is_victim or now not in exchanges - met:
            return deliver(self, message)
        met.add(now)
        if change is None:
            if is_reply:
                deliver(self, message)
            return Message(Error(2, "WireError: lost"), reply_to=message)
        if is_reply:
            return change(deliver(self, message))
        return deliver(self, change(message))

    InlineGrid.deliver = deliver_changed  # type: ignore[method-assign]
    try:
        return run_inline(config, num_nodes=4)
    finally:
        InlineGrid.deliver = deliver  # type: ignore[method-assign]


def _config(name: str, folder: Path) -> dict[str, Any]:
    pooled = {"embedding.evaluation": "pooled"} if name.endswith("-pooled") else {}
    config = small_run(name.removesuffix("-pooled"), folder, _ROUNDS)
    return {**config, **pooled, "min-fit-replies": 0.5}


def _reference(
    name: str, lost: set[str], shared: Path, *, is_reply: bool = True
) -> str:
    """Hash of the weights of a run in which the victim fails in these exchanges.

    A client that refuses a message has not trained; one whose reply is refused has.
    """
    kind = "reply" if is_reply else "message"
    kind = kind if lost else "undisturbed"
    folder = shared / "-".join([kind, name, *sorted(lost)])
    told = folder / "weights.txt"
    with locked(folder):
        if not told.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            path = _run(_config(name, folder), lost, None, is_reply=is_reply)
            told.write_text(str(load_summary(path)["weights_sha256"]))
    return told.read_text()

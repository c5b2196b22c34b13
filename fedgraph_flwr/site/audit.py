"""Check that an audit log is whole, and that it agrees with the server's.

Each line of a log holds the hash of the line before it, so that a line that was
changed, removed or moved is named. The chain cannot show that the last lines were cut
off, or that the owner wrote the whole log anew: the server's log can, which holds the
head that the site told with every reply.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.audit_log import REPAIR, Checked, check_log
from fedgraph_flwr.errors import DataError
from fedgraph_flwr.server_log import RECEIVED

from .audit_compare import compare, not_compared
from .audit_tell import print_all, summary, write_csv

_HASHES = ("sha256", "config_sha256", "code_sha256")
_RESTORE = "restore the log from a copy; if there is none, ask who can write to it"
_ASK = "both operators look at that message; each keeps a copy of both logs"
_NUMBERS = ("run", "round", "node", "client")
_TEXTS = ("event", "message", "method", "head", *_HASHES)
_TABLES = ("received", "sent", "spent_before", "spent_after")
_DEEPEST = 5  # of tables and lists in a line, one in another


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``audit``."""
    parser.add_argument(
        "log",
        nargs="+",
        type=Path,
        help="audit.jsonl of a site's state-dir, or of a server's results folder; of"
        " one that was moved away in parts all parts, the oldest first",
    )
    parser.add_argument(
        "--server",
        type=Path,
        metavar="LOG",
        help="a copy of the server's audit.jsonl, to compare the site's with",
    )
    parser.add_argument(
        "--csv", action="store_true", help="write the site's answers as CSV instead"
    )


def run(args: argparse.Namespace) -> int:
    """Check, compare and print; 0 if all is well, 1 if there are problems."""
    logs = {path: _read(path) for path in args.log}
    problems = [
        (f"{path}: {problem}", _RESTORE)
        for path, checked in logs.items()
        for problem in checked.problems
    ]
    notices = [
        f"{path}: {n}" for path, checked in logs.items() for n in checked.notices
    ]
    if args.server:
        server = _read(args.server)
        problems += [(f"{args.server}: {p}", _RESTORE) for p in server.problems]
        notices += [f"{args.server}: {n}" for n in server.notices]
        problems += [(words, _ASK) for words in compare(list(logs.values()), server)]
        notices += not_compared(list(logs.values()), server)
    if args.csv:
        write_csv(logs.values())
    elif args.json:
        print(json.dumps(summary(logs, problems, notices), indent=2))
    else:
        print_all(logs, problems, notices, args.server)
    return 1 if problems else 0


def _read(path: Path) -> Checked:
    try:
        found = check_log(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; name an audit.jsonl"
        ) from error
    strange = [r["line"] for r in found.records if not _is_ours(r)]
    found.records = [r for r in found.records if _is_ours(r)]
    found.problems += [
        f"line {number} holds what this version never writes" for number in strange
    ]
    return found


def _is_ours(record: Mapping[str, Any]) -> bool:
    """Whether what is read of a line has the types that it is written with."""
    if not _is_printable(record):
        return False
    tables = all(type(record.get(k, {})) is dict for k in _TABLES)
    lists = all(type(record.get(k, [])) is list for k in ("consents", "withheld"))
    scalars = all(type(record.get(k, 0)) is int for k in _NUMBERS)
    texts = all(type(record.get(k, "")) is str for k in _TEXTS)
    if not (tables and lists and scalars and texts):
        return False
    if record.get("event") == RECEIVED:
        return all(
            type(v) is dict
            and type(v.get("bytes")) is int
            and type(v.get("sha256")) is str
            for v in record.get("sent", {}).values()
        )
    numbers = [v for k in _TABLES for v in record.get(k, {}).values()]
    has_run = "run" in record or record.get("event") == REPAIR
    return has_run and all(type(v) in (int, float) for v in numbers)


def _is_printable(value: object, depth: int = _DEEPEST) -> bool:
    """Whether no text in it could forge a line where it is printed; or end a reader."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return depth > 0 and all(_is_printable(v, depth - 1) for v in value)
    return not isinstance(value, str) or value.isprintable()

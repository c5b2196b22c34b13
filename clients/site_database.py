"""What a site remembers of all runs, in one file of its state folder.

Here lie bindings and privacy accounts, which outlive an experiment's folder. States of
clients lie in that folder, in a file of their own (:mod:`clients.store`): an experiment
is deleted with its folder, and runs side by side do not wait for each other's states.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
from functools import partial
from pathlib import Path

from fedgraph_flwr.core.database import Database
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import names_in

SITE_FILE = "site.sqlite3"
EARLIER_ACCOUNTS = "privacy-lifetime"  # a folder of files, until this file came
_EARLIER_UPDATES = "updates.json"
_SCHEMA = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, run TEXT UNIQUE NOT NULL, experiment TEXT NOT NULL);
CREATE TABLE notes (
    number INTEGER PRIMARY KEY, experiment TEXT NOT NULL, what TEXT NOT NULL,
    content TEXT NOT NULL, UNIQUE (experiment, what));
CREATE TABLE draws (
    experiment TEXT, client TEXT, num_graphs INTEGER NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (experiment, client));
CREATE TABLE edges (
    experiment TEXT, client TEXT, data TEXT, source TEXT, row INTEGER,
    position INTEGER, epsilon REAL NOT NULL CHECK (epsilon >= 0 AND epsilon < 9e999),
    PRIMARY KEY (experiment, client, data, source, row, position));
CREATE INDEX edges_by_row ON edges (data, row);
CREATE TABLE updates (
    number INTEGER PRIMARY KEY, experiment TEXT, client TEXT, "release" TEXT,
    noise REAL NOT NULL CHECK (noise > 0), epsilon REAL, delta REAL,
    UNIQUE (experiment, client, "release"));
"""
# Made when first charged: files of an earlier version have no such table.
STEPS = """
CREATE TABLE IF NOT EXISTS steps (
    experiment TEXT, client TEXT, "release" TEXT, data TEXT, source TEXT,
    q REAL NOT NULL CHECK (q > 0 AND q <= 1), noise REAL NOT NULL CHECK (noise > 0),
    times INTEGER NOT NULL CHECK (times > 0),
    PRIMARY KEY (experiment, client, "release"));
"""
INSERT_EDGES = (
    "INSERT INTO edges VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (experiment, client, data, source, row, position)"
    " DO UPDATE SET epsilon = epsilon + excluded.epsilon"
)


def site_database(root: Path) -> Database:
    """Database of a state folder; it begins with accounts of an earlier version."""
    return Database(root / SITE_FILE, _SCHEMA, fill=partial(_take_in, root))


def data_name(data: str) -> str:
    """Name of a data set in accounts."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", data)


def _take_in(root: Path, db: sqlite3.Connection) -> None:
    """Copy the files of accounts that an earlier version has left."""
    folder = root / EARLIER_ACCOUNTS
    for client in sorted(names_in(folder, "client-*")):
        for name in sorted(names_in(folder / client, "*.json")):
            spent = _earlier(folder / client / name, "edge")
            data, _, source = name.removesuffix(".json").partition("--")
            db.executemany(
                INSERT_EDGES,
                (("", client, data, source, int(r), 0, e) for r, e in spent.items()),
            )
    for noise, times in _earlier(folder / _EARLIER_UPDATES, "updates").items():
        db.executemany(
            'INSERT INTO updates (experiment, "release", noise) VALUES (?, ?, ?)',
            (("", f"{noise} {n}", float(noise)) for n in range(int(times))),
        )


def _earlier(path: Path, what: str) -> dict[float, float]:
    """Read one table of numbers; none if there is no file."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        checksum = stored.pop("sha256", None)  # none in the oldest files
        digest = hashlib.sha256(json.dumps(stored).encode()).hexdigest()
        found = {float(key): float(value) for key, value in stored[what].items()}
        are_amounts = all(0 <= value < math.inf for value in found.values())
        if checksum not in (None, digest) or not are_amounts:
            raise ValueError("its checksum, or a number in it, is wrong")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"privacy record {path} of an earlier version cannot be read: {error!r};"
            " what earlier runs spent is unknown, so nothing more is released: restore"
            " the file from a copy, or delete it and add up by hand"
        ) from error
    return found

"""What a site remembers of all runs, in one file of its state folder.

Here lie bindings and privacy accounts, which outlive an experiment's folder. States of
clients lie in that folder, in a file of their own (:mod:`clients.store`): an experiment
is deleted with its folder, and runs side by side do not wait for each other's states.
"""

from __future__ import annotations

import re
import sqlite3
from functools import partial
from pathlib import Path

from fedgraph_flwr.core.database import Database
from fedgraph_flwr.core.errors import DataError

SITE_FILE = "site.sqlite3"
EARLIER_ACCOUNTS = "privacy-lifetime"  # a folder of files, until this file came
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
INSERT_EDGES = (
    "INSERT INTO edges VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (experiment, client, data, source, row, position)"
    " DO UPDATE SET epsilon = epsilon + excluded.epsilon"
)


def site_database(root: Path) -> Database:
    """Database of a state folder."""
    return Database(root / SITE_FILE, _SCHEMA, fill=partial(_refuse_earlier, root))


def data_name(data: str) -> str:
    """Name of a data set in accounts."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", data)


def _refuse_earlier(root: Path, _: sqlite3.Connection) -> None:
    """Raise DataError if an earlier version has left accounts of its own."""
    folder = root / EARLIER_ACCOUNTS
    if folder.exists():
        raise DataError(
            f"{folder} holds privacy accounts of an earlier version, which this one"
            " does not read: what was spent is unknown, so nothing more is released;"
            " go on with that version, or take a new state-dir and add up by hand"
        )

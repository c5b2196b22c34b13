"""Public graphs of transfers between accounts, and of ratings: directed, with times.

The data folder is only read, and nothing is downloaded. Numbers are scaled by what
stands here, which hence every site knows without a look at the data of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphSet, IntArray, pointer

from ..cache import graphs_of_files, kept_files

Columns = Mapping[str, NDArray[Any]]  # of a file by name


@dataclass(frozen=True)
class Transfers:
    """Place of a graph's files below the data folder, and what is made of them.

    ``make`` gets the columns of accounts and of transfers. The class of an account is
    -1 where it is not known; ``kind`` says whether nodes or edges have classes.
    ``header`` names columns of files without a line of names.
    """

    folder: str
    accounts: str
    transfers: str
    make: Callable[[Columns, Columns], GraphSet]
    header: tuple[str, ...] = ()
    kind: str = "nodes"


def _amlsim(accounts: Columns, transfers: Columns) -> GraphSet:
    """Read simulated laundering: balance of accounts; value and time of transfers."""
    ids = accounts["nodeid"]
    if not np.array_equal(ids, np.arange(len(ids))):
        raise ValueError("nodeid must count from 0")
    ends = np.stack([transfers["sourceNodeId"], transfers["targetNodeId"]])
    of_edges = [(transfers["value"] - 280) / 140, (transfers["time"] - 75) / 32]
    balance = (accounts["init_balance"][:, None] - 280) / 138
    return _made(balance, ends, of_edges, transfers["time"], accounts["isFraud"])


def _phishing(accounts: Columns, transfers: Columns) -> GraphSet:
    """Read Ethereum: numbers of partners of accounts; amount and count of transfers."""
    ends = np.stack([transfers["from"], transfers["to"]]).astype(np.int64) - 1
    count = int(ends.max()) + 1
    y = np.full(count, -1)
    y[accounts["id"].astype(np.int64) - 1] = accounts["label"]
    partners = np.stack([np.bincount(e, minlength=count) for e in ends], axis=1)
    of_edges = [
        (np.log10(transfers["amount"]) + 0.7) / 2.6,
        (np.log1p(transfers["n_transactions"]) - 0.9) / 0.5,
    ]
    return _made(np.log1p(partners), ends, of_edges, transfers["timestamp"], y)


def _ratings(_: Columns, ratings: Columns) -> GraphSet:
    """Read Bitcoin-OTC: whether a user trusts another; nothing is known of users."""
    users = np.unique([ratings["source"], ratings["target"]])
    ends = np.searchsorted(users, [ratings["source"], ratings["target"]])
    x, y = np.ones((len(users), 1)), np.full(len(users), -1)
    return _made(x, ends, [], ratings["time"], y, trusts=ratings["rating"] > 0)


def _made(
    x: NDArray[Any],
    ends: NDArray[Any],
    of_edges: list[NDArray[Any]],
    time: NDArray[Any],
    y: NDArray[Any],
    trusts: NDArray[np.bool_] | None = None,
) -> GraphSet:
    order = np.lexsort((ends[1], ends[0]))  # stable: repeats stay in file order
    attr = np.stack(of_edges, axis=1).astype(np.float32) if of_edges else None
    return GraphSet(
        name="",
        x=x.astype(np.float32),
        edge_index=ends[:, order].astype(np.int32),
        node_ptr=pointer([len(x)]),
        edge_ptr=pointer([len(order)]),
        y=y.astype(np.int64),
        num_features=x.shape[1],
        num_classes=2,
        is_undirected=False,
        is_simple=False,
        edge_attr=None if attr is None else attr[order],
        num_edge_features=len(of_edges),
        edge_time=time[order].astype(np.float64),
        edge_y=None if trusts is None else trusts[order].astype(np.int64),
        edge_classes=[] if trusts is None else ["distrust", "trust"],
    )


TRANSFERS: Mapping[str, Transfers] = MappingProxyType(
    {
        "amlsim": Transfers(
            "amlsim/20K_fanin200", "nodes.csv", "transactions.csv", _amlsim
        ),
        "eth-phishing": Transfers("eth_phishing", "labels.csv", "edges.csv", _phishing),
        "bitcoin-otc": Transfers(
            "bitcoin_otc/raw",
            "soc-sign-bitcoinotc.csv",
            "soc-sign-bitcoinotc.csv",
            _ratings,
            ("source", "target", "rating", "time"),
            kind="edges",
        ),
    }
)


def load_transfers(name: str, *, data_dir: str = "", cache_dir: str = "") -> GraphSet:
    """Load one graph with its directed, repeated edges and loops.

    ``name`` is a key of ``TRANSFERS``; folders are as in
    :func:`~datasets.public.tu.load_tu`. Arrays are memory-mapped, with all accounts in
    the order of their numbers.

    Raises
    ------
    DataError
        Files are missing or cannot be read.
    """
    raw, paths = TRANSFERS[name], _paths(name, data_dir, cache_dir)

    def convert(digest: str) -> GraphSet:
        made = raw.make(*(_read(path, raw.header) for path in paths))
        return replace(made, name=name, raw_sha256=digest)

    return graphs_of_files(name, paths, convert, cache_dir)


def given_tests(name: str, *, data_dir: str = "", cache_dir: str = "") -> IntArray:
    """Nodes that the publisher tests on; empty if roles are to be drawn."""
    columns = _read(_paths(name, data_dir, cache_dir)[0], TRANSFERS[name].header)
    if "split" not in columns:
        return np.zeros(0, np.int64)
    return np.sort(columns["id"][columns["split"] == "test"].astype(np.int64) - 1)


def _paths(name: str, data_dir: str, cache_dir: str) -> list[Path]:
    raw = TRANSFERS[name]
    files = [raw.accounts, raw.transfers]
    return kept_files(name, raw.folder, ".", files, data_dir, cache_dir)


def _read(path: Path, header: tuple[str, ...]) -> Columns:
    import pandas as pd  # takes long

    table = pd.read_csv(path, names=header or None, header=None if header else 0)
    return {name: table[name].to_numpy() for name in table.columns}

"""A client's noisy views: which noise is drawn when, and what is kept of it.

``once``
    Drawn once, kept on the client's disk and used for ever: every graph costs the sum
    of the views' epsilons, whatever the number of rounds. The default.
``per_round``, ``per_epoch``
    Drawn anew for each round, or for each local epoch as the paper's Algorithm 1 reads:
    every draw costs that sum again, and averaging T views divides the noise by
    sqrt(T).

The last draw is kept with its key (nothing, the round, or round and epoch). Asking for
the same key again, in another message or after a restart, gives the same views at no
cost. A key that is no longer on the disk is drawn again, charged again, and equal.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path

import numpy as np

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import is_kept, read_arrays, write_arrays, write_once

from .accounts import Ledger
from .laplace import (
    FloatArray,
    GraphAdjacency,
    Triangles,
    add_noise,
    check_sizes,
    num_pairs,
    post_process,
)
from .stream import noise_stream


class NoisyViews:
    """Noisy views of some of a client's graphs, charged to its ledger.

    Parameters
    ----------
    adjacency : GraphAdjacency
        Read once per draw, after the draw is in the ledger, and at no other time.
        Graphs must not change within an experiment: equal noise on both would show the
        change. A site refuses that, see :func:`clients.store.bind_data`.
    num_nodes : int64 array, shape (num_graphs of the client,)
    positions : int64 array
        Which of the client's graphs are viewed.
    name : str
        Of this group of graphs, in file names and seeds: "train", "held-out".
    epsilons : tuple of float
        One per view, each > 0 and finite.
    post, mode : str
        Of ``EDGE_POSTS`` and ``NOISE_MODES``. Raw noise is kept, so ``post`` may change
        at no cost.
    folder : path
        On the client's disk.
    secret : str
        See :func:`site_secret`. The run's seed is known to the server, so *an empty
        secret protects nothing*: it is for simulations that must be repeatable.

    Raises
    ------
    DataError
        The graphs are too large.
    """

    def __init__(
        self,
        adjacency: GraphAdjacency,
        *,
        num_nodes: IntArray,
        positions: IntArray,
        name: str,
        epsilons: tuple[float, ...],
        post: str,
        mode: str,
        ledger: Ledger,
        folder: Path,
        seed: int,
        client_id: int,
        secret: str = "",
    ) -> None:
        check_sizes(num_nodes[positions], positions)
        self._adjacency, self._ledger = adjacency, ledger
        self._positions, self._num_nodes = positions, num_nodes[positions]
        self.epsilons, self.mode, self._post = epsilons, mode, post
        self._path = folder / f"noisy-views-{name}.safetensors"
        self._stream = (client_id, "edge-noise", name, secret, _digest(positions))
        self._seed, self._secret = seed, secret
        self._identity = json.dumps(
            {
                "seed": seed,
                "stream": _digest(np.array([repr(self._stream)])),
                "epsilons": epsilons,
                "mode": mode,
            }
        )
        self._last: tuple[str, tuple[Triangles, ...]] | None = None

    def views(self, server_round: int, epoch: int) -> tuple[Triangles, ...]:
        """Return the views for an epoch of a round, one per epsilon, post-processed.

        Raises
        ------
        PrivacyBudgetError
            A draw would exceed the budget; no adjacency has been read.
        DataError
            The kept views cannot be read, or are those of other settings.
        """
        key = {
            "once": "once",
            "per_round": f"round-{server_round}",
            "per_epoch": f"round-{server_round}-epoch-{epoch}",
        }[self.mode]
        if self._last is None or self._last[0] != key:
            raw = self._load(key)
            if raw is None:
                raw = self._draw(key)
            about = {"num_nodes": self._num_nodes, "positions": self._positions}
            made = zip(raw, self.epsilons, strict=True)
            self._last = (
                key,
                tuple(
                    post_process(Triangles(values=v, **about), epsilon, self._post)
                    for v, epsilon in made
                ),
            )
        return self._last[1]

    def _draw(self, key: str) -> list[FloatArray]:
        """Charge, then read, then draw, then keep."""
        self._ledger.charge_edges(self._positions, sum(self.epsilons))
        read = [self._adjacency.upper_triangle(int(g)) for g in self._positions]
        raw = []
        for k, epsilon in enumerate(self.epsilons):
            # Equal noise at two epsilons could be solved for the graph, hence its
            # place in the name of the stream.
            path = (*self._stream, key, k, repr(epsilon))
            rng = noise_stream(self._secret, self._seed, *path)
            noisy = (add_noise(triangle, epsilon, rng) for triangle in read)
            raw.append(np.concatenate([np.zeros(0, np.float32), *noisy]))
        arrays = {f"view-{k:03d}": values for k, values in enumerate(raw)}
        about = json.dumps({"identity": self._identity, "key": key})
        write_arrays(self._path, arrays, about)
        return raw

    def _load(self, key: str) -> list[FloatArray] | None:
        """Read the views kept on the disk, if they are those of ``key``."""
        if not is_kept(self._path):
            return None
        arrays, text = read_arrays(
            self._path,
            "noisy views",
            "delete the file to draw anew, which is charged to the ledger",
        )
        about, raw = json.loads(text), [arrays[name] for name in sorted(arrays)]
        if about.get("identity") != self._identity:
            raise DataError(
                f"noisy views {self._path} were drawn with {about.get('identity')},"
                f" this run asks for {self._identity}; use another experiment or state"
                " folder: fresh views of the same graphs cost more privacy"
            )
        num_values = int(num_pairs(self._num_nodes).sum())
        if any(len(values) != num_values for values in raw):
            raise DataError(
                f"noisy views {self._path} are of graphs of other sizes; graphs must"
                " not change within an experiment: start a new one with the new data"
            )
        self._ledger.check_drawn(self._positions, sum(self.epsilons))
        return raw if about.get("key") == key else None


def site_secret(folder: Path) -> str:
    """Secret of this client: drawn from the operating system once, then kept.

    Raises
    ------
    DataError
        The file is empty, or cannot be read or written.
    """
    path = folder / "noise-secret"
    drawn = secrets.token_hex(32).encode()
    secret = write_once(path, drawn).decode()
    if not secret:  # would be noise of the run seed alone
        raise DataError(
            f"the noise secret {path} is empty; restore the state folder from a copy,"
            " or start a new experiment"
        )
    return secret


def _digest(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]

"""What the strategies compute between two rounds, for many clients."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from fedgraph_flwr.seeding import numpy_rng
from fedgraph_flwr.wire import NamedArrays
from strategies.fedgkd_relator import attention, relatedness, similarity
from strategies.fedpub import cosine_attention
from strategies.gcfl_clustering import cosine_weights, dtw_weights, min_cut
from strategies.personal import mix
from strategies.self_weight import pull_to_mean

from .arguments import Parts, add_repeats
from .timing import median_seconds, print_table

_ROUNDS = 10  # of a history of GCFL+
# A GCN of FedGKD for Cora: 1,433 features, 128 wide, 7 classes; 5 distilled nodes each.
_LAYERS = {"in": (128, 1433), "hidden": (128, 128), "out": (7, 128)}
_ROWS, _FEATURES, _EMBEDDING = 35, 128, 128


def add_server(parts: Parts) -> None:
    """Declare ``server`` and its arguments."""
    part = parts.add_parser("server", help="what strategies compute for many clients")
    part.set_defaults(measure=measure_server)
    part.add_argument("--clients", type=int, nargs="+", default=[200, 1000])
    add_repeats(part, 3)


def measure_server(arguments: argparse.Namespace) -> int:
    """Time parts of strategies on random numbers, in CPU and in wall seconds.

    Every product of matrices has one thread, as in a run.
    """
    rows = []
    for count in arguments.clients:
        parts = _parts(count)
        with threadpool_limits(limits=1, user_api="blas"):
            cpu = median_seconds(parts, arguments.repeats, clock=time.process_time)
            wall = median_seconds(parts, arguments.repeats)
        for name in parts:
            figures = {"CPU s": f"{cpu[name]:.2f}", "wall s": f"{wall[name]:.2f}"}
            rows.append({"clients": str(count), "what": name, **figures})
    print_table(f"between two rounds, median of {arguments.repeats}", rows)
    return 0


def _parts(count: int) -> dict[str, Callable[[], object]]:
    rng = numpy_rng(0, "speed-server")
    series = rng.random((count, _ROUNDS))
    weights = dtw_weights(series)
    updates = rng.standard_normal((count, 25_000))
    features = [
        rng.standard_normal((_ROWS, _FEATURES)).astype(np.float32) for _ in range(count)
    ]
    embeddings = [rng.standard_normal(_EMBEDDING) for _ in range(count)]
    models: list[NamedArrays] = [
        {name: rng.random(shape, np.float32) for name, shape in _LAYERS.items()}
        for _ in range(count)
    ]
    everyone = np.full((count, count), 1 / count)

    def relate() -> object:
        related = relatedness(features)
        kernel = similarity(related, "exponential", tau=1 / count, kappa_start=1)
        return attention(kernel, 1.0)

    return {
        "GCFL: cosines of updates": lambda: cosine_weights(updates),
        "GCFL+: DTW of all pairs": lambda: dtw_weights(series),
        "GCFL, GCFL+: minimum cut": lambda: min_cut(weights),
        "FedGKD: weights": relate,
        "FED-PUB: weights": lambda: cosine_attention(embeddings, 10.0),
        "FedGKD, FED-PUB: averages": lambda: mix(models, everyone),
        "self-weight: averages": lambda: pull_to_mean(models, 0.5),
    }

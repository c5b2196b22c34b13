"""Folders of runs that never ran: a summary of numbers by hand."""

from __future__ import annotations

import json
from pathlib import Path

from fedgraph_flwr.resolve import defaults, resolve


def write_summary(folder: Path, config: dict[str, object], **entries: object) -> Path:
    """Write the summary of a run with this config; ``entries`` differ from usual."""
    settings = resolve({**defaults(), **config}).to_config()
    usual = {
        **{key: settings[key] for key in ("method", "dataset", "seed")},
        **{"status": "completed", "error": None, "metric": "accuracy"},
        **{"num_clients": settings["num-clients"], "rounds": 200, "wall_s": 60.0},
        **{"split_seed": 123, "split_hash": "a" * 64, "failures": []},
        **{"num_clusters": 1, "adjusted_rand_index": None, "weights_sha256": "0"},
        "config": settings,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps({**usual, **entries}))
    return folder

"""A small federation for tests of SpreadGNN: six tasks, shared out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import toys

from datasets.splits import mask_tasks

TASKS = tuple("abcdef")
MASKS = {3: "0,1;2,5;3,4", 4: "0,1;2;3,4;5", 5: "0,1;2;3;4;5", 6: "0;1;2;3;4;5"}


def federation(settings, client_id):
    """Clients of six tasks, of which they have labels as the masks say."""
    one = toys.make_partition(client_id, num_graphs=20 + 5 * client_id)
    count = len(one.graphs)
    y = np.arange(count)[:, None] // np.array([2, 3, 4, 5, 6, 7]) % 2
    y = y.astype(np.float32)
    y[::7, 1] = np.nan
    labelled = replace(one, graphs=replace(one.graphs, y=y, num_classes=6), tasks=TASKS)
    return mask_tasks(labelled, settings)


def start(run, clients=4, *, method="spreadgnn", **overrides):
    """Run SpreadGNN with so many clients."""
    own = {"num-clients": clients, "task-masks": MASKS[clients]}
    return run(method, **{**own, **overrides})


def final_models(finished):
    """Models that stayed with the clients, by client."""
    root = Path(finished.overrides["state-dir"]) / finished.path.name
    return {
        int(p.parent.name.split("-")[1]): dict(np.load(p))
        for p in sorted(root.glob("client-*/model.npz"))
    }

"""Small federations of four clients: seconds each, and no file needed.

Each has another kind of state to lose, or takes another way through the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

CLIENTS = 4
NODES = 2  # of every engine
# Clients of each node, as simulation shares them out.
HOSTED = tuple(",".join(map(str, range(n, CLIENTS, NODES))) for n in range(NODES))
_SMILES = ("CCO", "c1ccccc1", "CC(=O)O", "CCN", "C1CCCCC1", "CCCl", "OCCO", "CC#N")
_TASKS = "abcd"
_MOLECULES_EACH = 30
_COMMON: dict[str, Any] = {
    "num-clients": CLIENTS,
    "hidden-dim": 8,
    "local-epochs": 1,
    "learning-rate": 0.01,
    "persist-optimizer": True,
    "device": "cpu",
    "patience": 0,
}
_GRAPHS = {"dataset": "synthetic"}
_NODES = {"dataset": "planted"}
_MOLECULES: dict[str, Any] = {
    "dataset": "smiles-csv",
    "csv-label-columns": ",".join(_TASKS),
    "features": "atoms-no-degree",
    "batch-size": 8,
}
_NOISY: dict[str, Any] = {
    **_MOLECULES,
    "method": "fgcl",
    "privacy.edge-epsilon": 2.0,
    "fgcl.num-negatives": 3,
}
_SPREAD = {
    **_MOLECULES,
    "method": "spreadgnn",
    "task-masks": "0;1;2;3",
    "spreadgnn.topology": "ring",
}
RUNS: dict[str, dict[str, Any]] = {
    "gcfl+": {**_GRAPHS, "gcfl.min-round": 2, "gcfl.seq-length": 2},
    "fedgkd": {**_NODES, "fedgkd.distil-steps": 3},
    "fgcl-once": _NOISY,
    "fgcl-per-round": {**_NOISY, "privacy.noise-mode": "per_round"},
    "fgcl-per-epoch": {**_NOISY, "privacy.noise-mode": "per_epoch"},
    "update-clip": {**_GRAPHS, "method": "fedavg", "privacy.update-clip": 1.0},
    "spreadgnn": _SPREAD,
    "spreadgnn-sealed": {**_SPREAD, "spreadgnn.seal": True},
    "fclg": {**_GRAPHS, "embedding.probe": False, "embedding.rounds": "0,2,4"},
    "local": _GRAPHS,
    "fedstar": _NODES,
    "fedsage+": {**_NODES, "fedsage-plus.rounds": 2},
    "adafgl": {
        **_NODES,
        "adafgl.federated-rounds": 3,
        "adafgl.personal-epochs": 2,
        "checkpoint-every": 3,
    },
    "shared-part": {
        **_GRAPHS,
        "method": "fedavg",
        "shared-group": "convs",
        "checkpoint-every": 2,
    },
    "held-out": {
        **_NODES,
        "method": "fedprox",
        "held-out-clients": "1",
        "evaluate-on": "all",
        "checkpoint-every": 3,
    },
    "sums": {**_GRAPHS, "method": "fedavg", "secure-aggregation.on": True},
    "sums-late": {
        **_GRAPHS,
        "method": "fedavg",
        "secure-aggregation.on": True,
        "min-fit-replies": 0.5,
    },
}
PRIVATE = frozenset({"fgcl-once", "fgcl-per-round", "fgcl-per-epoch", "update-clip"})


def small_run(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Run config of a federation whose files are in ``folder``; molecules are made."""
    found = {"method": name, **_COMMON, **RUNS[name], "num-server-rounds": rounds}
    found |= {f"{k}-dir": str(folder / k) for k in ("results", "state", "cache")}
    if found["dataset"] == "smiles-csv":
        found["data-dir"] = str(write_molecules(folder / "molecules"))
    return found


def write_molecules(folder: Path) -> Path:
    """Write a CSV file of molecules with four labels for each client."""
    folder.mkdir(parents=True, exist_ok=True)
    for client in range(CLIENTS):
        rows = [f"smiles,{','.join(_TASKS)}"]
        for i in range(_MOLECULES_EACH):
            smiles = "C" * (i % 5) + _SMILES[(i + client) % len(_SMILES)]
            labels = [str((i // d + client) % 2) for d in range(1, len(_TASKS) + 1)]
            rows.append(",".join([smiles, *labels]))
        (folder / f"{client}.csv").write_text("\n".join(rows) + "\n")
    return folder

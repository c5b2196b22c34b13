"""Small federations for ``simulations.drill``: seconds each, and no file needed.

Four clients, few rounds. Each has another kind of state to lose: clusters, models
kept at clients, optimisers, noise and its ledger, sealed letters, embeddings; or
another way through the code: stacks, rare checkpoints, clients that never train.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedgraph_flwr.errors import ConfigError, unknown_name
from fedgraph_flwr.registry import METHODS, load_class
from fedgraph_flwr.rules import Value
from strategies.relay import Relay

NUM_CLIENTS, NUM_ROUNDS = 4, 8
NUM_NODES = 2  # of every engine: what a node stacks shows in the last digits
# Clients of each node, as simulation shares them out.
HOSTED = tuple(
    ",".join(map(str, range(node, NUM_CLIENTS, NUM_NODES))) for node in range(NUM_NODES)
)
_SMILES = ("CCO", "c1ccccc1", "CC(=O)O", "CCN", "C1CCCCC1", "CCCl", "OCCO", "CC#N")
_TASKS = "abcd"
_NUM_MOLECULES = 30
_COMMON: dict[str, Value] = {
    "num-clients": NUM_CLIENTS,
    "hidden-dim": 8,
    "local-epochs": 1,
    "learning-rate": 0.01,
    "persist-optimizer": True,
    "device": "cpu",
    "patience": 0,
}
_GRAPHS: dict[str, Value] = {"dataset": "synthetic"}
_NODES: dict[str, Value] = {"dataset": "planted"}
_MOLECULES: dict[str, Value] = {
    "dataset": "smiles-csv",
    "csv-label-columns": ",".join(_TASKS),
    "features": "atoms-no-degree",
    "batch-size": 8,
}
_NOISY: dict[str, Value] = {
    **_MOLECULES,
    "method": "fgcl",
    "privacy.edge-epsilon": 2.0,
    "fgcl.num-negatives": 3,
}
_SPREAD: dict[str, Value] = {
    **_MOLECULES,
    "method": "spreadgnn",
    "task-masks": "0;1;2;3",
    "spreadgnn.topology": "ring",
}
_METHODS: dict[str, dict[str, Value]] = {
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
    "held-out": {
        **_NODES,
        "method": "fedprox",
        "held-out-clients": "1",
        "evaluate-on": "all",
        "checkpoint-every": 3,
    },
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A federation to disturb.

    Parameters
    ----------
    name : str
    overrides : mapping
        Run-config keys that differ from the defaults, without folders.
    """

    name: str
    overrides: Mapping[str, Value]

    @property
    def is_private(self) -> bool:
        """Whether clients draw noise, which at a site depends on its secret."""
        return any(
            float(self.overrides.get(f"privacy.{key}", 0.0)) > 0
            for key in ("edge-epsilon", "update-clip")
        )

    @property
    def never_goes_back(self) -> bool:
        """Whether clients refuse to, and so what fails once may fail for good."""
        return issubclass(
            load_class(METHODS[str(self.overrides["method"])].strategy), Relay
        )

    def config(self, folder: Path) -> dict[str, Value]:
        """Run-config keys of a run that keeps its files in ``folder``."""
        places = {f"{kind}-dir": str(folder / kind) for kind in ("results", "state")}
        return {**self.overrides, **places}


def with_failures(target: Target) -> Target:
    """Let half of the clients of a round fail, and a resume repeat some rounds."""
    more: dict[str, Value] = {"min-fit-replies": 0.5, "checkpoint-every": 3}
    return replace(target, overrides={**target.overrides, **more})


def names() -> list[str]:
    """Return the names of all targets."""
    return list(_METHODS)


def targets(
    chosen: Iterable[str], folder: Path, *, num_rounds: int = NUM_ROUNDS
) -> list[Target]:
    """Return the targets of these names; their data are in ``folder``.

    Raises
    ------
    ConfigError
        Unknown name.
    """
    found = []
    for name in chosen:
        if name not in _METHODS:
            cure = "Give --methods names of these, separated by commas."
            raise ConfigError(unknown_name("drill", name, _METHODS, cure))
        own = {"method": name, **_COMMON, **_METHODS[name]}
        own["num-server-rounds"] = num_rounds
        own["cache-dir"] = str(folder / "cache")
        if own["dataset"] == "smiles-csv":
            own["data-dir"] = str(write_molecules(folder / "molecules"))
        found.append(Target(name=name, overrides=own))
    return found


def write_molecules(folder: Path) -> Path:
    """Write a CSV file of molecules with four labels for each client."""
    folder.mkdir(parents=True, exist_ok=True)
    for client in range(NUM_CLIENTS):
        rows = [f"smiles,{','.join(_TASKS)}"]
        for i in range(_NUM_MOLECULES):
            smiles = "C" * (i % 5) + _SMILES[(i + client) % len(_SMILES)]
            labels = [str((i // d + client) % 2) for d in range(1, len(_TASKS) + 1)]
            rows.append(",".join([smiles, *labels]))
        (folder / f"{client}.csv").write_text("\n".join(rows) + "\n")
    return folder

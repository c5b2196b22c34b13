"""``fedgraph example-data``: example files of own data.

It writes ``graphs`` (whole graphs of three sites, one of which has two bad rows),
``bank`` (one graph for each of two sites, whose nodes are classified) and ``molecules``
(a table of SMILES with numbers for each of two sites). The other three are the data of
the stories in docs, as the files that people have: ``transfers`` of banks,
``connectomes`` of hospitals, ``compounds`` of laboratories. All are generated, and the
same each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.seeding import numpy_rng

SITES = {"north": 60, "south": 80, "west": 100}  # graphs
BANKS = {"bank-a": 150, "bank-b": 200}  # nodes
LABS = {"lab-a": 40, "lab-b": 60}  # molecules
EXPORTS = {"alpha": 200, "beta": 300, "gamma": 400}  # accounts
SCANNERS = {"north": 40, "south": 60, "west": 80}  # subjects
COMPOUNDS = {"lab-1": 120, "lab-2": 200, "lab-3": 300}
BAD_SITE = "west"
_DAY_0 = datetime(2024, 1, 1)
_REGIONS, _NEW = 24, 6  # of a brain; subjects without diagnosis
_RINGS = ("c1ccccc1", "c1ccncc1", "C1CCCCC1", "C1CCNCC1", "c1ccsc1", "C1CCOC1")
_CHAINS = ("C", "CC", "C=C", "C#C", "C(=O)", "N", "O", "C(F)", "S(=O)(=O)")
_PARTS = ("C", "CC", "N", "O", "C(=O)", "c1ccccc1", "C(C)", "CO", "S")


def write_examples(folder: Path) -> list[Path]:
    """Write all examples into a new or empty folder; return their folders."""
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty; name a new folder")
    try:
        for kind, (sites, write) in _KINDS.items():
            for name, count in sites.items():
                write(folder / kind / name, name, count)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error}; name another folder"
        ) from error
    return [folder / kind for kind in _KINDS]


def _write(
    path: Path, header: str, rows: Iterable[Sequence[object]], between: str = ","
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header, *(between.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_graphs(folder: Path, name: str, count: int) -> None:
    """Machines; a worn one has more joints between parts, and warmer parts."""
    rng = numpy_rng(7, "example", name)
    graphs, nodes, edges = [], [], []
    for number in range(count):
        graph, worn = f"{name}-{number}", number % 3 == 0
        size = int(rng.integers(6, 13))
        graphs.append((graph, "worn" if worn else "fine"))
        for node in range(size):
            warmth = f"{rng.normal(48 if worn else 45, 3):.1f}"
            part = str(rng.choice(["gear", "shaft", "motor"]))
            nodes.append((graph, node, "" if rng.random() < 0.03 else warmth, part))
        edges += [(graph, node, node + 1, "bolt") for node in range(size - 1)]
        extra = rng.integers(0, size, (4 if worn else 1, 2))
        edges += [(graph, a, b, "weld") for a, b in extra.tolist() if a != b]
    if name == BAD_SITE:
        nodes[20] = (*nodes[20][:2], "warm", nodes[20][3])
        edges[40] = (edges[40][0], 99, *edges[40][2:])
    _write(folder / "graphs.csv", "graph,state", graphs)
    _write(folder / "nodes.csv", "graph,node,warmth,part", nodes)
    _write(folder / "edges.csv", "graph,source,target,joint", edges)


def _write_bank(folder: Path, name: str, count: int) -> None:
    """Accounts, joined by payments; a third of the labels are not known."""
    rng = numpy_rng(7, "example", name)
    is_fraud = rng.random(count) < 0.3
    names = [f"{name}-{number}" for number in range(count)]
    nodes = [
        (
            names[number],
            f"{rng.lognormal(6 + is_fraud[number], 1):.2f}",
            str(rng.choice(["private", "business"])),
            "" if rng.random() < 1 / 3 else "fraud" if is_fraud[number] else "ok",
        )
        for number in range(count)
    ]
    pairs = rng.integers(0, count, (3 * count, 2)).tolist()
    joined = [
        (names[a], names[b])
        for a, b in pairs
        if a != b and (is_fraud[a] == is_fraud[b] or rng.random() < 0.2)
    ]
    _write(folder / "nodes.csv", "node,turnover,segment,label", nodes)
    _write(folder / "edges.csv", "source,target", joined)


def _write_molecules(folder: Path, name: str, count: int) -> None:
    """Chains of groups; the number to predict falls with their carbon."""
    rng = numpy_rng(7, "example", name)
    rows = []
    for number in range(count):
        smiles = "".join(rng.choice(_PARTS, int(rng.integers(2, 7))))
        carbon = smiles.upper().count("C")
        rows.append((number + 1, smiles, f"{-0.3 * carbon + rng.normal(0, 0.2):.2f}"))
    _write(folder.with_suffix(".csv"), "id,smiles,solubility", rows)


def _write_transfers(folder: Path, name: str, count: int) -> None:
    """Accounts and transfers as a bank exports them, of 90 days.

    Mules collect cash and transfers, and send the sum on by wire within hours. That
    sending on is the fraud, 2 % of all transfers.
    """
    rng = numpy_rng(7, "example", "transfers", name)
    ids = [f"{number:06d}" for number in rng.permutation(10**6)[: 2 * count]]
    own, elsewhere = ids[:count], ids[count:]
    is_mule = rng.random(count) < 0.06
    mules = [own[n] for n in np.flatnonzero(is_mule)]
    found: list[tuple[float, str, str, float, str, str]] = []
    for _ in range(12 * count):
        source, target = rng.choice(own, 2)
        where = rng.random()
        if where < 0.3:  # the other end is at another bank
            away = str(rng.choice(elsewhere))
            source, target = (away, target) if where < 0.1 else (source, away)
        kind = str(rng.choice(["card", "wire", "cash"], p=[0.6, 0.3, 0.1]))
        day, amount = 90 * rng.random(), float(np.exp(rng.normal(5, 1.2)))
        found.append((day, source, target, amount, kind, "no"))
    for _ in range(count // 13):
        mule, day = str(rng.choice(mules)), 90 * rng.random()
        parts = rng.uniform(400, 950, rng.integers(2, 4))
        for part in parts:
            kind, when = str(rng.choice(["cash", "wire"])), day + rng.random() / 4
            found.append((when, str(rng.choice(ids)), mule, part, kind, "no"))
        onward = str(rng.choice(mules if rng.random() < 0.5 else elsewhere))
        for share in rng.dirichlet([9, 9, 9]):
            when, part = day + 0.3 + rng.random() / 4, 0.95 * share * parts.sum()
            found.append((when, mule, onward, part, "wire", "yes"))
    transfers = [
        (
            source,
            target,
            f"{_DAY_0 + timedelta(when):%Y-%m-%d %H:%M}",
            f"{amount:.2f}".replace(".", ","),
            *rest,
        )
        for when, source, target, amount, *rest in sorted(found)
    ]
    accounts = [
        (
            own[n],
            str(rng.choice(["private", "business"], p=[0.8, 0.2])),
            f"{rng.integers(2010, 2024)}-{rng.integers(1, 13):02}-15",
            "" if rng.random() < 0.2 else "mule" if is_mule[n] else "ok",
        )
        for n in range(count)
    ]
    head = "from_account;to_account;ts;amount;kind;fraud"
    _write(folder / "accounts.csv", "account;segment;since;role", accounts, ";")
    _write(folder / "transfers.csv", head, transfers, ";")


def _write_connectomes(folder: Path, name: str, count: int) -> None:
    """Correlations between regions; of patients six regions are less coupled.

    Each hospital's scanner shifts and scales all correlations. Of the last subjects,
    which are new, nobody knows the diagnosis.
    """
    rng = numpy_rng(7, "example", "connectomes", name)
    every = count + _NEW
    is_patient = rng.random(every) < 0.5
    shift, scale = rng.normal(0, 0.05), rng.uniform(0.85, 1.15)
    weaker = rng.normal(0.2 * is_patient, 0.1)
    fc = rng.normal(0.2, 0.2, (every, _REGIONS, _REGIONS))
    fc[:, :6, :6] += 0.4 - weaker[:, None, None]
    fc = np.clip(shift + scale * (fc + fc.transpose(0, 2, 1)) / 2, -0.99, 0.99)
    fc[:, range(_REGIONS), range(_REGIONS)] = 1
    subjects = [
        (
            f"{name}-{number:03}",
            int(rng.normal(38 + 4 * is_patient[number], 9)),
            str(rng.choice(["f", "m"])),
            "patient" if is_patient[number] else "control",
        )
        for number in range(every)
    ]
    new = [row[:-1] for row in subjects[count:]]
    _write(folder / "subjects.csv", "subject,age,sex,diagnosis", subjects[:count])
    _write(folder / "new-subjects.csv", "subject,age,sex", new)
    np.save(folder / "matrices.npy", fc[:count].astype(np.float32))
    np.save(folder / "new-matrices.npy", fc[count:].astype(np.float32))


def _write_compounds(folder: Path, name: str, count: int) -> None:
    """Rings with chains; two numbers of unlike units, a third of them not measured."""
    rng = numpy_rng(7, "example", "compounds", name)
    rows = []
    for number in range(count):
        rings = "C".join(rng.choice(_RINGS, rng.integers(1, 3)))
        chain = "".join(rng.choice(_CHAINS, rng.integers(1, 5)))
        smiles = f"{chain}{rings}"
        fat = smiles.upper().count("C") + 2 * chain.count("=C") - 3 * chain.count("O")
        log_d = f"{0.3 * fat - 1 + rng.normal(0, 0.2):.2f}"
        potency = f"{10 ** (3.5 - 0.06 * fat + rng.normal(0, 0.15)):.0f}"
        values = [text if rng.random() < 2 / 3 else "" for text in (log_d, potency)]
        rows.append((f"{name}-{number}", smiles, *values))
    _write(folder.with_suffix(".csv"), "id,smiles,logD,IC50_nM", rows)


_KINDS: Mapping[str, tuple[dict[str, int], Callable[[Path, str, int], None]]] = {
    "graphs": (SITES, _write_graphs),
    "bank": (BANKS, _write_bank),
    "molecules": (LABS, _write_molecules),
    "transfers": (EXPORTS, _write_transfers),
    "connectomes": (SCANNERS, _write_connectomes),
    "compounds": (COMPOUNDS, _write_compounds),
}


def example_data(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
) -> int:
    """Write example files of own data into a new folder."""
    for made in write_examples(folder):
        found = [path for path in made.rglob("*") if path.is_file()]
        sys.stdout.write(f"{made}: {len(found)} files\n")
    return 0

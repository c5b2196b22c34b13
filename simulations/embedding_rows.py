"""Group embedding runs and name their rows, as in the FCLG paper where it has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedgraph_flwr.config import RunSettings, Value
from fedgraph_flwr.registry import METHODS

from .compare_runs import as_text, check_same_data, plain_settings, short_names
from .embedding_runs import EmbeddingRun, FoundEmbeddings

# Where a run's graphs are, and how it was evaluated: named in captions, not in rows.
SPLIT_KEYS = frozenset({"partition", "dominance", "dirichlet-alpha", "num-clients"})
EVALUATION_KEYS = frozenset(
    {
        "embedding.evaluation",
        "embedding.rounds",
        "embedding.transform",
        "embedding.probe",
        "embedding.figure-rounds",
    }
)
# fclg.inter -> the paper's row
_FCLG_ROWS = {
    "graphs": "FCLG",
    "nodes": "FCLG-H",
    "none": "Intra-FedAvg",
    "kl": "Intra-KL",
    "mse": "Intra-MSE",
}
_FCLG_METHODS = ("fclg", "fclg-local")
_BASELINES = {"infograph": "InfoGraph", "mvgrl": "MVGRL"}
_ORDER = (
    "InfoGraph-FedAvg",
    "InfoGraph-FedProx",
    "MVGRL-FedAvg",
    "MVGRL-FedProx",
    *_FCLG_ROWS.values(),
)


@dataclass(frozen=True, kw_only=True)
class RowName:
    """Name of a row: the paper's where it has one, and settings that set it apart."""

    base: str
    settings: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        names = short_names([*RunSettings.defaults(), *(k for k, _ in self.settings)])
        words = ", ".join(f"{names[k]}={as_text(v)}" for k, v in self.settings)
        return f"{self.base} ({words})" if words else self.base

    def without(self, key: str) -> RowName:
        """Return the name with one setting left out."""
        kept = tuple((k, v) for k, v in self.settings if k != key)
        return replace(self, settings=kept)


@dataclass(frozen=True, kw_only=True)
class EmbeddingGroup:
    """Runs that may share a table, by row; ``guests``: rows of another split."""

    dataset: str
    split_hash: str
    num_clients: int
    emd: float | None
    rows: Mapping[RowName, list[EmbeddingRun]]
    guests: frozenset[RowName] = frozenset()

    @property
    def runs(self) -> list[EmbeddingRun]:
        """All runs of the group's own split."""
        own = (runs for name, runs in self.rows.items() if name not in self.guests)
        return [run for runs in own for run in runs]


def group_embeddings(found: FoundEmbeddings) -> list[EmbeddingGroup]:
    """Group runs by data set, split, number of clients and EMD, and name the rows.

    Centralised runs (one client) stand as guests in every table of their data set, and
    have one of their own only where there is no other. Of several runs of one row and
    seed the newest is used; the others are added to ``found.left_out``.
    """
    check_same_data(r.run for r in found.runs)
    names = name_rows(found.runs)
    emds: dict[tuple[str, str], set[float]] = {}
    for r in found.runs:
        if r.emd is not None:
            emds.setdefault((r.run.dataset, r.run.split[0]), set()).add(r.emd)
    groups: dict[tuple[str, int, str, float | None], dict[RowName, list[EmbeddingRun]]]
    groups = {}
    order = sorted(
        zip(found.runs, names, strict=True), key=lambda p: (_rank(p[1]), p[0].run.seed)
    )
    for r, name in order:
        known = emds.get((r.run.dataset, r.run.split[0]), set())
        # Runs that are evaluated on the clients do not know the EMD of their split.
        emd = r.emd if r.emd is not None or len(known) != 1 else min(known)
        key = (r.run.dataset, r.num_clients, r.run.split[0], emd)
        rows = groups.setdefault(key, {})
        rows[name] = _newest([*rows.get(name, []), r], name, found.left_out)
    return _with_guests(
        found,
        [
            EmbeddingGroup(
                dataset=dataset, split_hash=split, num_clients=n, emd=emd, rows=rows
            )
            for (dataset, n, split, emd), rows in sorted(
                groups.items(), key=lambda g: (g[0][0], -(g[0][3] or 0.0), *g[0][1:3])
            )
        ],
    )


def name_rows(runs: Sequence[EmbeddingRun]) -> list[RowName]:
    """Name the row of each run, in the order of ``runs``.

    A method's own parameters are named when they are not the default; so are shared
    settings, but only when runs of the data set differ in them, of whatever method and
    split: a row has one name in all tables, and what is compared shows in the names.
    Notes give the rest.
    """
    names = []
    for r in runs:
        siblings = [
            other.run.settings for other in runs if other.run.dataset == r.run.dataset
        ]
        base, said = _base(r)
        apart = {
            key: value
            for key, value in unusual(r).items()
            if key not in said
            and ("." in key or any(s.get(key, value) != value for s in siblings))
        }
        if "FedProx" in base:  # the paper gives none, so it is always worth saying
            key = f"{r.run.method}.proximal-mu"
            apart[key] = r.run.settings[key]
        names.append(RowName(base=base, settings=tuple(sorted(apart.items()))))
    return names


def unusual(r: EmbeddingRun) -> dict[str, Value]:
    """Give the settings of a run that are not its method's default on its data."""
    plain = plain_settings(r.run.method, r.run.dataset)
    return {
        key: value
        for key, value in r.run.settings.items()
        if key not in SPLIT_KEYS | EVALUATION_KEYS
        and (key not in plain or value != plain[key])
    }


def _base(r: EmbeddingRun) -> tuple[str, set[str]]:
    """Name the method, and the settings that the name tells."""
    method, settings = r.run.method, r.run.settings
    base, said = method, set[str]()
    alone = not METHODS[method].has_server_model
    if method in _FCLG_METHODS:
        inter = str(settings.get("fclg.inter"))
        base = _FCLG_ROWS.get(inter, "FCLG")
        said = {"fclg.inter"} if inter in _FCLG_ROWS else set()
    elif method in _BASELINES:
        key = f"{method}.proximal-mu"
        kind = "FedProx" if float(settings.get(key) or 0.0) > 0 else "FedAvg"
        base, said = f"{_BASELINES[method]}-{kind}", {key}
    if r.is_centralised:
        plain = base.removesuffix("-FedAvg") if method in _BASELINES else base
        return f"{plain}, centralised", said
    if alone:
        return f"{base}, per client", said
    return base if r.is_pooled else f"{base}, scored per client", said


def _newest(
    runs: Sequence[EmbeddingRun], name: RowName, left_out: list[str]
) -> list[EmbeddingRun]:
    # Folder names begin with the UTC time, so the newest run has the largest name.
    newest: dict[int, EmbeddingRun] = {}
    for r in sorted(runs, key=lambda r: r.run.path.name):
        if (before := newest.get(r.run.seed)) is not None:
            left_out.append(
                f"{before.run.path}: same row ({name}) and seed as the newer"
                f" {r.run.path.name}, which is used"
            )
        newest[r.run.seed] = r
    return [newest[seed] for seed in sorted(newest)]


def _with_guests(
    found: FoundEmbeddings, groups: Sequence[EmbeddingGroup]
) -> list[EmbeddingGroup]:
    hosts = {g.dataset for g in groups if g.num_clients > 1}
    result = []
    for group in groups:
        if group.num_clients == 1 and group.dataset in hosts:
            continue
        guests: dict[RowName, list[EmbeddingRun]] = {}
        for other in groups if group.num_clients > 1 else ():
            if (other.dataset, other.num_clients) == (group.dataset, 1):
                for name, runs in other.rows.items():
                    both = [*guests.get(name, []), *runs]
                    guests[name] = _newest(both, name, found.left_out)
        rows = {**group.rows, **guests}
        result.append(replace(group, rows=rows, guests=frozenset(guests)))
    return result


def _rank(name: RowName) -> tuple[int, int, str]:
    plain, _, suffix = name.base.partition(", ")
    known = [*_ORDER, *_BASELINES.values()]
    place = known.index(plain) if plain in known else len(known)
    return (bool(suffix), place, str(name))

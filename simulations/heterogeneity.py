"""How much graphs differ, within and between data sets or clients.

It is the analysis of Xie et al. 2021 (arXiv:2106.13423), table 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer

from datasets import load_partition
from fedgraph_flwr.core.data import GraphSet, IntArray
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.files import write_text
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.resolve import defaults, resolve

from .graph_measures import (
    FloatArray,
    divergences,
    feature_distributions,
    walk_distributions,
)
from .markup import Report, consoles, print_terminal
from .run import read_settings

_MAX_GRAPHS = 5000  # differences of all pairs are held at once
_MAX_PRINTED = 15  # pairs of groups; the CSV file has all
WALK_LENGTH = 5  # steps; 52 anonymous walks
EXACT_UP_TO, WALKS = 200_000, 20_000  # graphs with more walks get so many drawn ones
BINS = 20  # of cosines over [-1, 1]


class Group(NamedTuple):
    """Graphs that are compared together: a sample of a data set or of a client."""

    name: str
    graphs: GraphSet
    num_graphs: int


class Measure(NamedTuple):
    """Mean differences within and between groups.

    ``everyone`` is the mean over all pairs of graphs; ``p``: see :func:`contrast`.
    """

    within: float
    between: float
    everyone: float
    p: float


class Analysis(NamedTuple):
    """What the command found, about structure and about features.

    ``exact`` counts each group's graphs with exact walks. ``pairs`` are by two numbers
    of groups, and have three columns for each measure; see :func:`pair_table`.
    """

    groups: Sequence[Group]
    exact: Sequence[int]
    measures: Mapping[str, Measure]
    pairs: pd.DataFrame


def load_groups(
    names: Sequence[str],
    given: Mapping[str, Value],
    *,
    most: int,
    seed: int,
) -> list[Group]:
    """Load data sets, or the clients of a run config; draw ``most`` graphs of each.

    Raises
    ------
    FedGraphError
        Contradicting options, an unknown data set, unreadable data, or a graph without
        nodes.
    """
    is_federation = bool({"dataset", "num-clients"} & set(given))
    if bool(names) == is_federation:
        raise ConfigError(
            "give one of: names of data sets, e.g. COX2 ENZYMES; a federation, e.g."
            " dataset=PROTEINS num-clients=10"
        )
    config: dict[str, Value] = {**defaults(), "method": "fedavg", **given}
    wholes = [{"dataset": name, "num-clients": 1} for name in names]
    found = []
    for whole in wholes or [{}]:
        settings = resolve({**config, **whole}).settings
        for client in range(settings.num_clients):
            graphs = load_partition(settings, client).graphs
            name = settings.dataset if whole else f"client {client}"
            if not whole and graphs.name != settings.dataset:
                name += f" {graphs.name}"
            if not np.diff(graphs.node_ptr).all():
                raise DataError(
                    f"{name} has a graph without nodes, in which no walk can start;"
                    " remove that graph"
                )
            rng = numpy_rng(seed, "heterogeneity", name, "graphs")
            ids = np.arange(len(graphs))
            if len(graphs) > most:
                ids = np.sort(rng.choice(len(graphs), most, replace=False))
            found.append(Group(name, graphs.take(ids), len(graphs)))
    return found


def pair_table(apart: FloatArray, groups: IntArray) -> pd.DataFrame:
    """Average differences over pairs of graphs, by their groups.

    Parameters
    ----------
    apart : float array, shape (n, n)
        Symmetric; NaN if unknown. The diagonal is not read.
    groups : int array, shape (n,)
        Group of each graph, every number of ``range(num_groups)`` at least once.

    Returns
    -------
    DataFrame
        Mean, standard deviation and number of the pairs with a known difference; by
        two groups, the smaller number first.
    """
    rows = {}
    for a, b in combinations_with_replacement(range(int(groups.max()) + 1), 2):
        values = apart[np.ix_(groups == a, groups == b)]
        if a == b:
            values = values[np.triu_indices(len(values), 1)]
        values = values[np.isfinite(values)]
        rows[a, b] = {
            "mean": _mean(values),
            "std": _mean(values, np.std),
            "pairs": values.size,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _mean(values: FloatArray, average: Callable[..., Any] = np.mean) -> float:
    return float(average(values)) if values.size else float("nan")


def contrast(
    apart: FloatArray,
    groups: IntArray,
    *,
    shuffles: int,
    rng: np.random.Generator,
) -> tuple[float, float, float, float]:
    """Mean over pairs within groups, between them and in all, and its significance.

    Parameters
    ----------
    apart, groups
        See :func:`pair_table`.

    Returns
    -------
    within, between, everyone, p : float
        p is (1 + shuffles with a mean within groups at most as large) / (1 + shuffles).
        NaN without such pairs; so is p with one group.
    """
    known = np.isfinite(apart) & ~np.eye(len(apart), dtype=bool)
    same = groups[:, None] == groups
    means = [_mean(apart[known & w]) for w in (same, ~same, np.True_)]
    if not np.isfinite(means).all():
        return means[0], means[1], means[2], float("nan")
    total = np.where(known, apart, 0.0)

    def within(labels: IntArray) -> float:
        same = labels[:, None] == labels
        pairs = float((known & same).sum())
        return float(total[same].sum()) / pairs if pairs else np.inf

    ours = within(groups) * (1 + 1e-12)  # an equal sum may be rounded otherwise
    as_low = sum(within(rng.permutation(groups)) <= ours for _ in range(shuffles))
    return means[0], means[1], means[2], (1 + as_low) / (1 + shuffles)


def analyse(
    groups: Sequence[Group],
    *,
    shuffles: int,
    seed: int,
) -> Analysis:
    """Compare graphs within and between groups.

    Raises
    ------
    ConfigError
        Too many graphs for all pairs.
    """
    sizes = [len(group.graphs) for group in groups]
    if sum(sizes) > _MAX_GRAPHS:
        raise ConfigError(
            f"{sum(sizes)} graphs of {len(groups)} groups are too many to compare all"
            f" pairs (at most {_MAX_GRAPHS}); set --graphs to"
            f" {_MAX_GRAPHS // len(groups)} or less"
        )

    def rng(*purpose: str) -> np.random.Generator:
        return numpy_rng(seed, "heterogeneity", *purpose)

    found = [
        walk_distributions(
            group.graphs,
            length=WALK_LENGTH,
            exact_up_to=EXACT_UP_TO,
            num_samples=WALKS,
            rng=rng(group.name, "walks"),
        )
        for group in groups
    ]
    walks = np.concatenate([shares for shares, _ in found])
    walks = walks[:, walks.any(axis=0)]
    features = np.concatenate(
        [feature_distributions(g.graphs, bins=BINS) for g in groups]
    )
    apart = {
        "structure": np.sqrt(divergences(walks, walks)),
        "features": divergences(features, features),
    }
    group_of = np.repeat(np.arange(len(groups)), sizes)
    measures, pairs = {}, {}
    for name, whole in apart.items():
        pairs[name] = pair_table(whole, group_of)
        of_all = contrast(whole, group_of, shuffles=shuffles, rng=rng("shuffle", name))
        measures[name] = Measure(*of_all)
    return Analysis(
        groups=groups,
        exact=[int(is_exact.sum()) for _, is_exact in found],
        measures=measures,
        pairs=pd.concat(pairs, axis=1),
    )


def parts(found: Analysis) -> Iterable[pd.DataFrame | str]:
    """Tables and sentences for the terminal, each at most 80 columns wide."""
    names, measures = [g.name for g in found.groups], [*found.measures]
    within = [
        [g.name, g.num_graphs, len(g.graphs), exact, *_spreads(found.pairs, (k, k))]
        for k, (g, exact) in enumerate(zip(found.groups, found.exact, strict=True))
    ]
    heads = ["within", "graphs", "drawn", "exact", *measures]
    yield pd.DataFrame(within, columns=heads)
    between = [
        [names[a], names[b], *_spreads(found.pairs, (a, b))]
        for a, b in found.pairs.index
        if a != b
    ]
    if len(between) > _MAX_PRINTED:
        yield f"{len(between)} pairs of groups are in the file of --out, not here."
    elif between:
        yield pd.DataFrame(between, columns=["between", "and", *measures])
    for name, m in found.measures.items():
        if not math.isfinite(m.everyone):
            continue  # no two graphs can be compared
        line = f"{name}: mean {_number(m.within)} within groups"
        if math.isfinite(m.between):
            line += f", {_number(m.between)} between them, {_number(m.everyone)} in all"
        if math.isfinite(m.p):
            line += f"; p = {m.p:.3f} against groups of graphs drawn at random"
        yield line + "."


def _spreads(pairs: pd.DataFrame, at: tuple[int, int]) -> list[str]:
    """Write mean and standard deviation of each measure at a pair of groups."""
    of_measures = pairs.loc[at].unstack(sort=False).itertuples(index=False)
    return [f"{m.mean:.4f} ± {m.std:.4f}" if m.pairs else "-" for m in of_measures]


def write(found: Analysis, path: Path) -> None:
    """Write differences of all pairs of groups as CSV.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    names = dict(enumerate(group.name for group in found.groups))
    named = found.pairs.rename(index=names).rename_axis(["group", "other_group"])
    named.columns = ["_".join(column) for column in found.pairs]
    write_text(path, named.to_csv(float_format="%.6g"))


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def heterogeneity(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATASET|KEY=VALUE]...",
            help="Data sets, compared as wholes: COX2 NCI1; or a federation, whose"
            " clients are compared: dataset=PROTEINS num-clients=10.",
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write, of all pairs of groups.")
    ] = None,
    graphs: Annotated[int, typer.Option(min=1, help="Graphs drawn per group.")] = 100,
    shuffles: Annotated[
        int, typer.Option(min=1, max=100_000, help="For significance.")
    ] = 999,
    seed: Annotated[int, typer.Option(min=0, help="Of everything drawn here.")] = 0,
) -> int:
    """Say how much graphs differ within and between data sets or clients.

    Data of all clients are read on this machine.
    """
    names = list(dict.fromkeys(word for word in given or () if "=" not in word))
    keys = read_settings(word for word in given or () if "=" in word)
    console, _ = consoles()
    groups = load_groups(names, keys, most=graphs, seed=seed)
    found = analyse(groups, shuffles=shuffles, seed=seed)
    report = Report(title="Heterogeneity of graphs", parts=[*parts(found)])
    print_terminal(report, console)
    if out:
        write(found, out)
    return 0

"""How much graphs differ, within and between data sets, clients and clusters.

It is the analysis of Xie et al. 2021 (arXiv:2106.13423), table 2 and figure 3.
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
from fedgraph_flwr.results.reader import blaming, read_config, read_partitions
from fedgraph_flwr.view.style import GREY, PALETTE, bare, save

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
    """Mean differences within and between clusters, if there are any, else groups.

    ``everyone`` is the mean over all pairs of graphs; ``p``: see :func:`contrast`.
    """

    within: float
    between: float
    everyone: float
    p: float


class Analysis(NamedTuple):
    """What the command found, about structure and about features.

    ``exact`` counts each group's graphs with exact walks. ``pairs`` and
    ``pairs_of_clusters`` are by two numbers of groups or clusters, and have three
    columns for each measure; see :func:`pair_table`.
    """

    groups: Sequence[Group]
    exact: Sequence[int]
    clusters: Sequence[Sequence[int]]
    measures: Mapping[str, Measure]
    pairs: pd.DataFrame
    pairs_of_clusters: pd.DataFrame


def load_groups(
    names: Sequence[str],
    given: Mapping[str, Value],
    run: Path | None,
    *,
    most: int,
    seed: int,
) -> list[Group]:
    """Load data sets, or the clients of a run config or run; draw ``most`` of each.

    Raises
    ------
    FedGraphError
        Contradicting options, an unknown data set or run, unreadable data, or a graph
        without nodes.
    """
    if (names and (run or {"dataset", "num-clients"} & set(given))) or not (
        names or run or given
    ):
        raise ConfigError(
            "give one of: names of data sets, e.g. COX2 ENZYMES; a federation, e.g."
            " dataset=PROTEINS num-clients=10; a run, by --run"
        )
    config: dict[str, Value] = {**defaults(), "method": "fedavg"}
    if run:
        config |= read_config(run)
        config |= {"resume": ""} if "resume" in config else {}
    config |= given
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


def find_clusters(folder: Path | None, num_groups: int) -> list[list[int]]:
    """Clusters after the last round of a run; empty without a run.

    Raises
    ------
    DataError
        The run has no clusters, or they name clients that it does not have.
    """
    if folder is None:
        return []
    with blaming(folder):
        rounds = read_partitions(folder)
        newest = rounds[max(rounds)] if rounds else []
        last = [sorted(map(int, members)) for members in newest if members]
        named = [client for members in last for client in members]
        if len({*named} & {*range(num_groups)}) < len(named):
            raise ValueError(f"clusters.json names clients {sorted(named)}")
    if not last:
        raise DataError(
            f"{folder} has no clusters.json with a round in it; give a run of a method"
            " that clusters clients, or its settings"
        )
    return last


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
    units: IntArray,
    *,
    shuffles: int,
    rng: np.random.Generator,
) -> tuple[float, float, float, float]:
    """Mean over pairs within groups, between them and in all, and its significance.

    Parameters
    ----------
    apart, groups
        See :func:`pair_table`.
    units : int array, shape (n,)
        Graphs of one number are of one group, and stay together when ``rng`` shuffles
        groups: clients, if groups are clusters; else all numbers differ.

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
    _, first, unit = np.unique(units, return_index=True, return_inverse=True)
    together = np.eye(len(first))[unit]  # (n, num_units)
    total = together.T @ np.where(known, apart, 0.0) @ together
    count = together.T @ known @ together

    def within(group_of_unit: IntArray) -> float:
        same = group_of_unit[:, None] == group_of_unit
        pairs = float(count[same].sum())
        return float(total[same].sum()) / pairs if pairs else np.inf

    labels = groups[first]
    ours = within(labels) * (1 + 1e-12)  # an equal sum may be rounded otherwise
    as_low = sum(within(rng.permutation(labels)) <= ours for _ in range(shuffles))
    return means[0], means[1], means[2], (1 + as_low) / (1 + shuffles)


def analyse(
    groups: Sequence[Group],
    clusters: Sequence[Sequence[int]],
    *,
    shuffles: int,
    seed: int,
) -> Analysis:
    """Compare graphs within and between groups.

    ``clusters`` has numbers of groups, each at most once; it is empty if nothing is
    clustered.

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
    alike, units = group_of, np.arange(len(group_of))
    if clusters:
        cluster_of = np.full(len(groups), -1)
        for k, members in enumerate(clusters):
            cluster_of[list(members)] = k
        alike, units = cluster_of[group_of], group_of
    kept = alike >= 0
    alike, units = alike[kept], units[kept]
    measures, pairs, of_clusters = {}, {}, {}
    for name, whole in apart.items():
        part, shuffled = whole[np.ix_(kept, kept)], rng("shuffle", name)
        pairs[name] = pair_table(whole, group_of)
        of_clusters[name] = pair_table(part, alike) if clusters else pd.DataFrame()
        measures[name] = Measure(
            *contrast(part, alike, units, shuffles=shuffles, rng=shuffled)
        )
    return Analysis(
        groups=groups,
        exact=[int(is_exact.sum()) for _, is_exact in found],
        clusters=[sorted(cluster) for cluster in clusters],
        measures=measures,
        pairs=pd.concat(pairs, axis=1),
        pairs_of_clusters=pd.concat(of_clusters, axis=1),
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
        yield f"{len(between)} pairs of groups are in pairs.csv of --out, not here."
    elif between:
        yield pd.DataFrame(between, columns=["between", "and", *measures])
    if found.clusters:
        rows = [
            [k, " ".join(map(str, of)), *_spreads(found.pairs_of_clusters, (k, k))]
            for k, of in enumerate(found.clusters)
        ]
        yield pd.DataFrame(rows, columns=["within cluster", "clients", *measures])
    what, moved = ("clusters", "clients") if found.clusters else ("groups", "graphs")
    for name, m in found.measures.items():
        if not math.isfinite(m.everyone):
            continue  # no two graphs can be compared
        line = f"{name}: mean {_number(m.within)} within {what}"
        if math.isfinite(m.between):
            line += f", {_number(m.between)} between them, {_number(m.everyone)} in all"
        if math.isfinite(m.p):
            line += f"; p = {m.p:.3f} against {what} of {moved} drawn at random"
        yield line + "."


def _spreads(pairs: pd.DataFrame, at: tuple[int, int]) -> list[str]:
    """Write mean and standard deviation of each measure at a pair of groups."""
    of_measures = pairs.loc[at].unstack(sort=False).itertuples(index=False)
    return [f"{m.mean:.4f} ± {m.std:.4f}" if m.pairs else "-" for m in of_measures]


def write(found: Analysis, folder: Path) -> list[Path]:
    """Write ``pairs.csv``, with clusters ``clusters.csv``, and the figure.

    Raises
    ------
    StorageError
        A file cannot be written.
    """
    members = (" ".join(map(str, of)) for of in found.clusters)
    tables = {
        "pairs.csv": (found.pairs, (g.name for g in found.groups), "group"),
        "clusters.csv": (found.pairs_of_clusters, members, "clients"),
    }
    written = []
    for file, (table, names, head) in tables.items():
        if table.size:
            named = table.rename(index=dict(enumerate(names)))
            named = named.rename_axis([head, f"other_{head}"])
            named.columns = ["_".join(column) for column in table]
            write_text(folder / file, named.to_csv(float_format="%.6g"))
            written.append(folder / file)
    return [*written, draw(found, folder)]


def draw(found: Analysis, folder: Path) -> Path:
    """Draw ``heterogeneity.png``: matrices of groups, or bars of clusters."""
    from matplotlib.figure import Figure

    names = [group.name for group in found.groups]
    count = len(found.clusters or names)
    side = (1.6 + 0.3 * count) if found.clusters else (2.2 + 0.35 * count)
    size = 2 * max(side, 3.0), max(side, 2.6)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    panels = zip(figure.subplots(1, 2), found.measures.items(), PALETTE, strict=False)
    for axes, (title, measure), colour in panels:
        table = found.pairs_of_clusters if found.clusters else found.pairs
        means = table[title]["mean"]
        axes.set_title(f"heterogeneity of {title}", fontsize=10)
        if found.clusters:
            heights = [means[k, k] for k in range(count)]
            axes.bar([*map(str, range(count))], heights, color=colour)
            axes.axhline(
                measure.everyone, color=GREY, linestyle="--", label="all clients"
            )
            axes.set_xlabel("cluster")
            axes.legend(frameon=False, fontsize=8.5)
            bare(axes)
            continue
        mean = np.empty((count, count))
        for (a, b), value in means.items():
            mean[a, b] = mean[b, a] = value
        image = axes.imshow(mean, cmap="viridis", vmin=0.0)
        figure.colorbar(image, ax=axes, shrink=0.8)
        axes.set_xticks(range(count), names, rotation=90, fontsize=8)
        axes.set_yticks(range(count), names, fontsize=8)
        middle = np.nan_to_num(mean).max() / 2
        for (a, b), value in np.ndenumerate(mean if count <= 10 else mean[:0]):
            ink = "black" if value > middle else "white"
            axes.text(b, a, _number(value, 2), ha="center", va="center", color=ink)
    return save(figure, folder / "heterogeneity.png")


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


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
    run: Annotated[
        Path | None, typer.Option(help="Results folder: compare the run's clusters.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write tables and the figure into this folder.")
    ] = None,
    graphs: Annotated[int, typer.Option(min=1, help="Graphs drawn per group.")] = 100,
    shuffles: Annotated[
        int, typer.Option(min=1, max=100_000, help="For significance.")
    ] = 999,
    seed: Annotated[int, typer.Option(min=0, help="Of everything drawn here.")] = 0,
) -> int:
    """Say how much graphs differ within and between data sets, clients and clusters.

    Data of all clients are read on this machine.
    """
    names = list(dict.fromkeys(word for word in given or () if "=" not in word))
    keys = read_settings(word for word in given or () if "=" in word)
    console, _ = consoles()
    groups = load_groups(names, keys, run, most=graphs, seed=seed)
    clusters = find_clusters(run, len(groups))
    found = analyse(groups, clusters, shuffles=shuffles, seed=seed)
    report = Report(title="Heterogeneity of graphs", parts=[*parts(found)])
    print_terminal(report, console)
    for path in write(found, out) if out else ():
        console.out(path)
    return 0

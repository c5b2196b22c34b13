"""Reading a results folder: what figures and commands take from its files.

Nothing here raises for a file that is missing or cut short: a failed run is drawn as
far as it got. Files may be a stranger's, and hold anything: commands read and show them
within ``blaming``.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ..core.errors import DataError, FedGraphError
from ..core.files import names_in
from ..core.words import shortened

if TYPE_CHECKING:
    import pandas as pd

Series: TypeAlias = "pd.DataFrame"  # values by round and client
Partition: TypeAlias = list[list[int]]
CONFIG, SUMMARY, REPORT = "config.json", "summary.json", "report.html"
ROUNDS, LEDGER, TIMES = "rounds.csv", "ledger.csv", "times.csv"
MATRICES = "rounds"  # folder with a file per round
_OF_ROUND = re.compile(r"round-(\d{6,9})\.(?:safetensors|npz)")


class RoundTimes(NamedTuple):
    """A row of ``times.csv``: how long a round took, some client and all clients."""

    round: int
    wall_s: float
    busy_s: float
    client_compute_s: float


class GainUnit(NamedTuple):
    """Unit in which gains are told: points, or that of an error."""

    name: str
    factor: float
    form: str

    @classmethod
    def of(cls, summary: Mapping[str, Any], metric: str) -> GainUnit:
        """Give the unit of gains in a metric of a run."""
        is_share = summary.get("larger_is_better", True)
        return cls("points", 100.0, "+.1f") if is_share else cls(metric, 1.0, "+.3g")

    def as_text(self, value: float) -> str:
        """Write a gain, which was multiplied by ``factor``."""
        return format(value, self.form)


@contextmanager
def blaming(*paths: Path) -> Iterator[None]:
    """Turn what damaged files cause into a DataError that names them, or their folders.

    That may be any exception of the libraries that read and draw. Those raised on
    purpose pass, and so does a library that is missing.
    """
    try:
        yield
    except (FedGraphError, ImportError):
        raise
    except Exception as error:
        found = shortened(f"{type(error).__name__}: {error}")
        raise DataError(
            f"{', '.join(map(str, paths))} cannot be read: files there are not what"
            f" they should be ({found}); restore them from a copy, or leave them out"
        ) from error


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Read ``summary.json``; empty if it is missing or unreadable."""
    return _read_json(run_dir / SUMMARY)


def load_summary(run_dir: Path) -> dict[str, Any]:
    """Load ``summary.json``, which every run that ended has.

    Raises
    ------
    OSError, ValueError, RecursionError
        The file is missing, or it is no JSON object.
    """
    return _load_json(run_dir / SUMMARY)


def read_config(run_dir: Path) -> dict[str, Any]:
    """Read ``config.json``, which every results folder has.

    Raises
    ------
    DataError
        There is none that can be read: the folder is no results folder.
    """
    try:
        return _load_json(run_dir / CONFIG)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{run_dir} is no results folder: config.json cannot be read ({error});"
            " give the folder that a run printed at its end"
        ) from error


def read_rows(path: Path, having: Sequence[str] = ()) -> Iterator[list[str]]:
    """Read the rows of a CSV file of a run, as lists of cells; nothing if it is absent.

    Its header, and a torn last row, are passed over.

    Parameters
    ----------
    having : sequence of str
        What rows must have from the third cell on. Most others are not parsed, which
        takes most of the time of a large file.

    Raises
    ------
    DataError
        The file cannot be read.
    """
    wanted = io.StringIO()
    csv.writer(wanted, lineterminator="").writerow(having)
    text = wanted.getvalue()
    with (
        blaming(path),
        suppress(FileNotFoundError),
        path.open(newline="", encoding="utf-8") as file,
    ):
        next(file, "")
        lines = (n for n in file if text in n and n.endswith("\n"))
        for row in csv.reader(lines):
            if row and row[2 : 2 + len(having)] == [*having]:  # an empty line is none
                yield row


def read_series(run_dir: Path, *, split: str, point: str, metric: str) -> Series:
    """Read one quantity from ``rounds.csv``: a row for each round, a column per client.

    Values that are missing or not finite are NaN.
    """
    import pandas as pd  # here: who trains reads nothing

    rows = read_rows(run_dir / ROUNDS, [split, point, metric])
    found = [(int(row[0]), int(row[1]), float(row[5])) for row in rows]
    table = pd.DataFrame(found, columns=["round", "client", "value"]).astype(float)
    table = table[np.isfinite(table["value"])].astype({"round": int, "client": int})
    return table.pivot_table("value", "round", "client", aggfunc="last")


def read_scores(run_dir: Path, *, split: str, metric: str) -> tuple[str, Series]:
    """Read scores, and the point at which models were measured.

    Self-train aggregates nothing: its trained models are all there is to show.
    """
    for point in ("post_aggregation", "post_training"):
        scores = read_series(run_dir, split=split, point=point, metric=metric)
        if not scores.empty:
            break
    return point, scores


def read_times(run_dir: Path) -> list[RoundTimes]:
    """Read ``times.csv`` as far as it was written; empty if it is missing.

    Raises
    ------
    DataError
        The file cannot be read.
    """
    path = run_dir / TIMES
    with blaming(path):
        return [RoundTimes(int(t), *map(float, s)) for t, *s in read_rows(path)]


def read_partitions(run_dir: Path) -> dict[int, Partition]:
    """Read ``clusters.json``: the clusters after each round, rounds ascending."""
    rounds = _read_json(run_dir / "clusters.json").get("rounds") or {}
    return {int(t): rounds[t] for t in sorted(rounds, key=int)}


def round_file(run_dir: Path, server_round: int) -> Path:
    """File of the arrays that a method reported for a round, e.g. weights."""
    return run_dir / MATRICES / f"round-{server_round:06d}.safetensors"


def round_files(folder: Path) -> dict[int, Path]:
    """Find the files of a folder with a file per round, rounds ascending."""
    found = filter(None, map(_OF_ROUND.fullmatch, names_in(folder)))
    return dict(sorted((int(m[1]), folder / m[0]) for m in found))


def read_matrices(run_dir: Path, name: str) -> dict[int, NDArray[np.float64]]:
    """Read the array ``name`` of every round that has it, rounds ascending."""
    found = {}
    for server_round, path in round_files(run_dir / MATRICES).items():
        try:
            arrays = load_file(path)
        except (SafetensorError, OSError):  # cut short
            continue
        if name in arrays:
            found[server_round] = arrays[name]
    return found


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read named arrays, as ``files.write_npz`` wrote them.

    Raises
    ------
    DataError
        The file cannot be read, or says of its arrays that they are larger than itself:
        a few packed megabytes would fill the memory.
    """
    # Opened here: NumPy leaves a file open that it opened itself and found damaged.
    with (
        blaming(path),
        path.open("rb") as raw,
        np.load(raw, allow_pickle=False) as file,
    ):
        declared, size = (
            sum(i.file_size for i in file.zip.filelist),
            path.stat().st_size,
        )
        if declared > size:
            raise ValueError(f"its arrays have {declared} bytes, the file has {size}")
        return {name: file[name] for name in file.files}


def last_clusters(
    summary: Mapping[str, Any], partitions: Mapping[int, Partition]
) -> Partition:
    """Give the clusters after the last round, also of a run without a summary."""
    last = partitions[max(partitions)] if partitions else []
    return summary.get("clusters") or last


def split_rounds(partitions: Mapping[int, Partition]) -> list[int]:
    """List the rounds after which there are more clusters than the round before."""
    return [
        now
        for before, now in itertools.pairwise(sorted(partitions))
        if len(partitions[now]) > len(partitions[before])
    ]


def present_clusters(
    clusters: Partition | None, series: Series
) -> dict[int, list[int]]:
    """Give the clusters by number, without clients that have no values.

    A cluster's number is that of its model's file, ``models/cluster-<number>``.
    """
    kept = {
        k: [c for c in members if c in series]
        for k, members in enumerate(clusters or [])
    }
    return {k: members for k, members in kept.items() if members}


def client_scores(
    summary: Mapping[str, Any], rule: str, metric: str = ""
) -> dict[int, float]:
    """Give the test score of each client by one selection rule; empty if absent.

    ``metric`` is one beside the headline's; "" or the headline's own is the headline.
    """
    row = summary.get(rule) or {}
    if metric in ("", summary.get("metric")):
        values = row.get("per_client") or {}
    else:
        values = (row.get("also_per_client") or {}).get(metric) or {}
    return {int(c): float(v) for c, v in values.items() if v is not None}


def client_gains(
    ours: Mapping[str, Any], alone: Mapping[str, Any], rule: str, metric: str = ""
) -> dict[int, float]:
    """Give each client's gain over a run that trained alone, > 0 is better.

    Of errors too, and clients that only one of the summaries has are left out.
    """
    sign = 1 if ours.get("larger_is_better", True) else -1
    a, b = client_scores(ours, rule, metric), client_scores(alone, rule, metric)
    return {c: sign * a[c] - sign * b[c] for c in sorted(a.keys() & b.keys())}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _load_json(path)
    except (OSError, ValueError, RecursionError):
        return {}


def _load_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it holds no table of keys")
    return content

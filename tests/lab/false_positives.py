"""How often does a benchmark call FedAvg better or worse than itself?

    python tests/lab/false_positives.py --results /tmp/fp --jobs 2

Runs FedAvg on generated data (``planted``), from starts that differ by 1e-7. In groups
of five pairs of seeds each, draw k is compared with draw 0 as a candidate is with a
rival, beside the noise floor of the four other draws. Prints how many of the
comparisons are judged "better" or "worse", with the floor and without. Runs that are
there are not made again.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from pathlib import Path

from simulations.benchmark.verdict import judge
from simulations.run import How, execute
from simulations.tables.frame import from_run, pair, table
from simulations.tables.runs import find_runs
from simulations.tables.stats import noise_floor

PAIRS, DRAWS, SHARED = 5, 6, 0.0  # each split seed plants another graph


def main() -> None:
    """Run what is missing, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    seeds = range(1, 1 + PAIRS * given.groups)
    common = {"method": "fedavg", "dataset": "planted", "patience": 0}
    common |= {"num-server-rounds": given.rounds, "learning-rate": 0.01}
    common |= {"evaluate-every": 1, "results-dir": str(given.results.resolve())}
    there = {_key(run) for run in _runs(given.results)}
    wanted = [
        {**common, "seed": s, "split-seed": s, "start-noise": k}
        for s in seeds
        for k in range(DRAWS)
        if (s, k) not in there
    ]
    if wanted:
        for _ in execute(wanted, How(inline=True, jobs=given.jobs, nodes=1)):
            pass
    rows = {
        _key(run): from_run(run, "fedavg", per_client=True)[0]
        for run in _runs(given.results)
    }
    plain, floored = Counter[str](), Counter[str]()
    for g in range(given.groups):
        of = range(1 + PAIRS * g, 1 + PAIRS * (g + 1))
        draws = [table(rows[s, k] for s in of) for k in range(DRAWS)]
        apart = [pair(d, draws[0], "best_val") for d in draws[1:]]
        for k, difference in enumerate(apart):
            others = [v for j, d in enumerate(apart) if j != k for v in d.values]
            plain[judge(difference, SHARED, math.nan)] += 1
            floored[judge(difference, SHARED, noise_floor(others))] += 1
    print(f"without a floor {dict(plain)}; with it {dict(floored)}")


def _runs(folder: Path) -> list:
    return find_runs([folder]).runs if folder.is_dir() else []


def _key(run) -> tuple[int, int]:
    config = run.summary["config"]
    return config["seed"], config["start-noise"]


if __name__ == "__main__":
    main()

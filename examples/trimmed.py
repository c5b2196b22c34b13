"""A trimmed mean: of each number, the smallest and largest replies do not count."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from fedgraph_flwr.api import SHARED, FedAvg, Method, Settings, number, select


@dataclass(frozen=True, kw_only=True)
class Params(Settings):
    """``share`` of the replies is left out at either end, rounded up."""

    share: float = number(0.2, 0, 0.5)


class Trimmed(FedAvg):
    """All replies count alike, and of few one or two are kept."""

    def step(self, server_round, replies):
        models = [select(SHARED, parcel.arrays) for parcel in replies.values()]
        cut = min(ceil(self.params.share * len(models)), (len(models) - 1) // 2)
        self.theta = {n: mean_within([m[n] for m in models], cut) for n in self.theta}


def mean_within(arrays, cut):
    kept = np.sort(arrays, axis=0)[cut : len(arrays) - cut]
    return np.asarray(kept.mean(axis=0, dtype=np.float64), arrays[0].dtype)


METHOD = Method(strategy=Trimmed, params=Params)

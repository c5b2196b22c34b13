"""FedAvg that weighs a client by the square root of its number of graphs."""

from fedgraph_flwr.api import FedAvg, Method


class Rooted(FedAvg):
    """A choice between ``weighting = "samples"`` and ``"uniform"``."""

    def weight(self, client):
        return super().weight(client) ** 0.5


METHOD = Method(strategy=Rooted)

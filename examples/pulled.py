"""FedProx: the loss pulls the model towards the one that was received."""

from dataclasses import dataclass

from fedgraph_flwr.api import GraphClient, Method, Settings, number, on_every_task


@dataclass(frozen=True, kw_only=True)
class Params(Settings):
    """``mu`` weighs the pull (mu / 2) ||w - w_received||^2."""

    mu: float = number(0.01, 0)


class Pulled(GraphClient):
    """Any task's client, with the pull added to its loss."""

    def loss(self, batch, generator):
        now, then = self.tensors(), self.round.received
        pull = sum(((now[name] - then[name]) ** 2).sum() for name in then)
        return super().loss(batch, generator) + self.params.mu / 2 * pull


METHOD = Method(params=Params, clients=on_every_task(Pulled))

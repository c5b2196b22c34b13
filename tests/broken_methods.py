"""Methods that are broken on purpose, each in one way; and how a right one is kept."""

from __future__ import annotations

import numpy as np
import torch

from clients.training import to_arrays
from examples.momentum import Momentum
from fedgraph_flwr.api import (
    GRAPH_CLASSIFICATION,
    NODE_CLASSIFICATION,
    FedAvg,
    GraphClassifierClient,
    Method,
    NodeClassifierClient,
)
from fedgraph_flwr.core.wire import Parcel, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED


def of(client=GraphClassifierClient, strategy=FedAvg):
    return Method(strategy=strategy, clients={GRAPH_CLASSIFICATION: client})


def size(client):
    return sum((w**2).sum() for w in client.model.parameters())


class Draws(GraphClassifierClient):
    """Draws from torch's global generator."""

    def loss(self, batch, generator):
        return super().loss(batch, generator) + torch.rand(()) * size(self)


class Counts(GraphClassifierClient):
    """Keeps a number on the class: it lives as long as the process."""

    asked = 0

    def loss(self, batch, generator):
        type(self).asked += 1
        return super().loss(batch, generator) + 0.01 * self.asked * size(self)


class Peeks(NodeClassifierClient):
    """Learns the labels of all nodes, those of test nodes too."""

    def loss(self, batch, generator):
        return torch.nn.functional.cross_entropy(self.logits(generator), batch.y)


class Remembers(GraphClassifierClient):
    """Keeps its model on ``self``, which the next message does not have."""

    def train(self):
        if self.round.number == 1:
            self.before = self.tensors()
        return super().train(num_epochs=len(self.before) and None)


class Overflows(GraphClassifierClient):
    """Divides zero by zero in its second round."""

    def loss(self, batch, generator):
        zero = torch.zeros(()) if self.round.number == 2 else torch.ones(())
        return super().loss(batch, generator) * (zero / zero)


class Leaks(GraphClassifierClient):
    """Sends the trained tensors without the noise that was put on them."""

    def update(self, trained):
        bare = {name: self.tensors()[name].detach() for name in trained}
        return Parcel(arrays=with_prefix(SHARED, to_arrays(bare)))


class Tells(GraphClassifierClient):
    """Sends how many training graphs are of class 0 as a fact."""

    def update(self, trained):
        y = self.data.partition.graphs.y[self.data.partition.train]
        told = Parcel(facts={"zeros": int((y == 0).sum())})
        sent = super().update(trained)
        return Parcel(arrays=sent.arrays, facts=told.facts)


class Heavy(FedAvg):
    """Server momentum that ``state`` leaves out."""

    def initialise(self, arrays):
        super().initialise(arrays)
        self.speed = {}

    def restore(self, arrays, facts):
        super().restore(arrays, facts)
        self.speed = {}

    def step(self, server_round, replies):
        before = self.theta
        super().step(server_round, replies)
        for name, array in self.theta.items():
            kept = 0.5 * self.speed.get(name, 0) + array - before[name]
            self.speed[name] = kept.astype(array.dtype)
            self.theta[name] = before[name] + self.speed[name]


class Forgets(Momentum):
    """Server momentum as in the example, but without its ``state``."""

    state, restore = FedAvg.state, FedAvg.restore


class Fragile(FedAvg):
    """Takes the replies of all clients for granted."""

    def step(self, server_round, replies):
        super().step(server_round, {c: replies[c] for c in self.clients})


class Restless(FedAvg):
    """Moves the model whatever clients have learned."""

    def step(self, server_round, replies):
        super().step(server_round, replies)
        self.theta = {n: a + a.dtype.type(0.1) for n, a in self.theta.items()}


class Trims(FedAvg):
    """Leaves out the two replies at the ends, also where there are no others."""

    def step(self, server_round, replies):
        kept = list(replies.values())[1:-1]
        for name, old in self.theta.items():
            total = sum((p.arrays[SHARED + name] for p in kept), 0 * old)
            with np.errstate(invalid="ignore"):
                self.theta[name] = total / np.float32(len(kept))


class Rounds(FedAvg):
    """Rounds the weights of all clients down to 0."""

    def weight(self, client):
        return super().weight(client) // 1000


RIGHT = of()
DRAWS, COUNTS, REMEMBERS = of(Draws), of(Counts), of(Remembers)
OVERFLOWS, LEAKS, TELLS = of(Overflows), of(Leaks), of(Tells)
HEAVY, FRAGILE = of(strategy=Heavy), of(strategy=Fragile)
FORGETS = of(strategy=Forgets)
RESTLESS, TRIMS = of(strategy=Restless), of(strategy=Trims)
ROUNDS = of(strategy=Rounds)
PEEKS = Method(clients={NODE_CLASSIFICATION: Peeks})

"""FedAvg with momentum at the server, which a resumed run goes on with."""

from fedgraph_flwr.api import FedAvg, Method


class Momentum(FedAvg):
    """Each step goes on with 0.9 of the last one: FedAvgM."""

    def initialise(self, arrays):
        super().initialise(arrays)
        self.speed = {name: 0 * array for name, array in arrays.items()}

    def step(self, server_round, replies):
        before = self.theta
        super().step(server_round, replies)
        for name, old in before.items():
            kept = old.dtype.type(0.9) * self.speed[name]
            self.speed[name] = kept + (self.theta[name] - old)
        self.theta = {name: old + self.speed[name] for name, old in before.items()}

    def state(self):
        speed = {f"speed/{name}": array for name, array in self.speed.items()}
        return {**self.theta, **speed}, {}

    def restore(self, arrays, facts):
        self.speed = {n[6:]: a for n, a in arrays.items() if n.startswith("speed/")}
        self.theta = {name: arrays[name] for name in self.speed}


METHOD = Method(strategy=Momentum)

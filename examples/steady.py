"""FedAvg in which clients that move far count less: an array beside the model."""

from fedgraph_flwr.api import FedAvg, GraphClient, Method, Parcel, on_every_task


class Steady(FedAvg):
    """Expects how far a client has moved; a reply without it is refused."""

    def uplink(self, server_round, client):
        return super().uplink(server_round, client) | {"far": ("float32", (1,))}

    def step(self, server_round, replies):
        self.far = {c: float(p.arrays["far"][0]) for c, p in replies.items()}
        super().step(server_round, replies)

    def weight(self, client):
        return super().weight(client) / (1 + self.far[client])


class Measures(GraphClient):
    """Sends a running mean of it, which ``extra_state`` keeps."""

    def update(self, trained):
        steps = (trained[n] - then for n, then in self.round.received.items())
        moved = sum((step**2).sum() for step in steps).sqrt().reshape(1)
        self.far = (moved + self.round.stored.get("far", moved)) / 2
        sent = super().update(trained).arrays | {"far": self.far.numpy(force=True)}
        return Parcel(arrays=sent)

    def extra_state(self):
        return {"far": self.far}


METHOD = Method(strategy=Steady, clients=on_every_task(Measures))

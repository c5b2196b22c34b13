"""Clients of FedGKD's comparison on a toy graph, and settings its tests share."""

from __future__ import annotations

import toys

from strategies.fedgkd import common_start

ON_NODES = {"dataset": "planted", "shared-group": "all", "local-epochs": 2}
PLAIN = {"fedgkd.tau-s": 0.0, "fedgkd.proximal-lambda": 0.0}
ROUND = {"server-round": 1}


def make(tmp_path, *, partition=None, method="fedgkd", **overrides):
    partition = partition or toys.make_node_partition()
    return toys.make_client(tmp_path, method, partition=partition, **overrides)


def start():
    """What the server sends to distil from."""
    return common_start(10, 1, nodes_per_class=2, num_features=6, num_classes=3)


def fitted(client, **changes):
    """Train on a message with ``start``, of which entries may be changed."""
    mail = toys.parcel(client, extras={**start(), **changes})
    client.participate(mail, ROUND)
    return client

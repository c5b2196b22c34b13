"""FedAvg of a GIN with batch norm; with shared-group "convs" the norms travel too."""

from torch import nn

from fedgraph_flwr.api import GRAPH_CLASSIFICATION, GraphClassifierClient, Method


class NormClient(GraphClassifierClient):
    """Normalises the input of every layer's ReLU."""

    MIN_BATCH = 2  # graphs: one node alone has no variance

    @classmethod
    def build_model(cls, spec):
        model = super().build_model(spec)
        for conv in model.convs:
            conv.mlp.insert(1, nn.BatchNorm1d(spec.settings.hidden_dim))
        return model


METHOD = Method(clients={GRAPH_CLASSIFICATION: NormClient})

"""A model of your own for nodes, with layers of PyTorch Geometric: GAT."""

from torch import nn
from torch_geometric.nn import GATConv

from fedgraph_flwr.api import NODE_CLASSIFICATION, Method, NodeClassifierClient, seeded


class GatClient(NodeClassifierClient):
    """All tensors travel, as ``shared-group`` is "all" for nodes."""

    @classmethod
    def build_model(cls, spec):
        with seeded(spec):  # new layers draw from torch's global generator
            return Gat(spec.num_features, spec.settings.hidden_dim, spec.num_classes)


class Gat(nn.Module):
    """Gives logits, a row for each node of the client's graph."""

    def __init__(self, num_features, hidden, num_classes):
        super().__init__()
        self.first = GATConv(num_features, hidden, heads=2)
        self.last = GATConv(2 * hidden, num_classes)

    def forward(self, graph, generator):
        h = self.first(graph.x, graph.edge_index).relu()
        return self.last(h, graph.edge_index)


METHOD = Method(clients={NODE_CLASSIFICATION: GatClient})

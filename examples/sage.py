"""A model of your own, with layers of PyTorch Geometric: GraphSAGE."""

from torch import nn
from torch_geometric.nn import SAGEConv, global_mean_pool

from fedgraph_flwr.api import (
    GRAPH_CLASSIFICATION,
    GraphClassifierClient,
    Method,
    project,
    seeded,
)


class SageClient(GraphClassifierClient):
    """Tensors of ``convs`` travel; by default the others stay with the client."""

    @classmethod
    def build_model(cls, spec):
        with seeded(spec):  # new layers draw from torch's global generator
            return Sage(spec.num_features, spec.settings.hidden_dim, spec.num_classes)


class Sage(nn.Module):
    """Gives logits, a row for each graph."""

    def __init__(self, num_features, hidden, num_classes):
        super().__init__()
        self.pre = nn.Linear(num_features, hidden)
        self.convs = nn.ModuleList(SAGEConv(hidden, hidden) for _ in range(2))
        self.post = nn.Linear(hidden, num_classes)

    def forward(self, batch, generator):
        x = project(batch.x, self.pre)  # which may be columns of one-hot rows
        for conv in self.convs:
            x = conv(x, batch.edge_index).relu()
        return self.post(global_mean_pool(x, batch.graph_of_node, batch.num_graphs))


METHOD = Method(clients={GRAPH_CLASSIFICATION: SageClient})

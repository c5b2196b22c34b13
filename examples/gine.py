"""A model of your own that reads features of edges, with layers of PyG: GINE."""

from torch import nn
from torch_geometric.nn import GINEConv, global_add_pool

from fedgraph_flwr import api
from fedgraph_flwr.core.errors import DataError


class GineClient(api.GraphClassifierClient):
    """Direction and repeated edges are read as well, which other models refuse."""

    READS_EDGES = True

    @classmethod
    def build_model(cls, spec):
        if not spec.num_edge_features:
            raise DataError("these graphs have no features of edges; take others")
        with api.seeded(spec):  # new layers draw from torch's global generator
            return Gine(spec)


class Gine(nn.Module):
    """Gives logits, a row for each graph."""

    def __init__(self, spec):
        super().__init__()
        h, self.width = spec.settings.hidden_dim, spec.num_edge_features
        self.pre = nn.Linear(spec.num_features, h)
        layers = (GINEConv(nn.Linear(h, h), edge_dim=self.width) for _ in range(2))
        self.convs, self.post = nn.ModuleList(layers), nn.Linear(h, spec.num_classes)

    def forward(self, batch, generator):
        x = api.project(batch.x, self.pre)  # which may be columns of one-hot rows
        edges = api.edge_features(batch, self.width)  # edge_attr, then edge_weight
        for conv in self.convs:
            x = conv(x, batch.edge_index, edges).relu()
        return self.post(global_add_pool(x, batch.graph_of_node, batch.num_graphs))


METHOD = api.Method(clients={api.GRAPH_CLASSIFICATION: GineClient})

"""FedAvg under another name: a benchmark must find no difference to FedAvg."""

from fedgraph_flwr.api import Method

METHOD = Method()

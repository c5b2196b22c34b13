"""Federated learning on graphs with Flower: five published methods, one frame."""

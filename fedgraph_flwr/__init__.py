"""Federated learning on graphs with Flower: the app's edge and its shared core."""

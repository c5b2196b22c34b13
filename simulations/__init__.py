"""Run experiments, compare them and check methods: the verbs of ``fedgraph``."""

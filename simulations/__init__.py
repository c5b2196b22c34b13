"""Run experiments, compare them and check the software: what a user starts by hand."""

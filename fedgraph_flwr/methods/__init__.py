"""The contract of each paper: citation, parameters, names of message fields."""

"""Privacy as steps on a graph or on an update, usable by any method."""

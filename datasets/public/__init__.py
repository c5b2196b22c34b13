"""Public data sets: read, checked and made into sets of graphs."""

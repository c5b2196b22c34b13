"""How much graphs differ, within and between groups."""

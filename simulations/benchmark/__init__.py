"""A method beside rivals and controls."""

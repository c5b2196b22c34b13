"""What clients without an aggregating server tell each other, and how it is sealed."""

"""Attack the privacy of edges."""

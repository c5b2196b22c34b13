"""The server's side. NumPy only; nothing here imports torch."""

"""The client's side: batches, models, the local epoch, and the client's own disk."""

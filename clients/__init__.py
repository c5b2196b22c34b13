"""What a client computes: data to batches, models, the local epoch, its own disk."""

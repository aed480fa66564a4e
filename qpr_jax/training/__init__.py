"""From pairs to a trained encoder: batches, the sharded step, the loop, checkpoints."""

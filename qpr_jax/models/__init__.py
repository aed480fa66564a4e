"""Neural networks in Flax NNX."""

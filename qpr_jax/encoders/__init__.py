"""From word ids to vectors: the encoder in Flax, and the same function in NumPy."""

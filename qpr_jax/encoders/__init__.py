"""From questions to vectors, without JAX or with it on first use."""

"""From vectors to an index, answers and scores. NumPy and FAISS; no JAX."""

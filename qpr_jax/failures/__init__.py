"""Held-out queries that fail: which, and what differs. No JAX."""

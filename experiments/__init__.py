"""Experiments: named settings and the program that runs them."""

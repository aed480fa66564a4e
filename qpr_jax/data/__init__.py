"""Data sets: readers and writers, clusters, splits, generated questions."""

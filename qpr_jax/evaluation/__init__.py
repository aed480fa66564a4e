"""Scores of encoders and indexes."""

"""Duplicates among the texts of a table: found, grouped, and reviewed by a person."""

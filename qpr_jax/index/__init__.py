"""Vectors and questions: searched, changed and saved."""

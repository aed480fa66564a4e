"""Distant supervision: clusters of paraphrases from logs of questions and answers."""

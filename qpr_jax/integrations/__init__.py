"""Adapters to other systems: Apache Spark and mteb."""

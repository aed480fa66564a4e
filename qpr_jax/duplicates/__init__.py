"""All duplicates of a table in one call: pairs and groups; and their review by a person."""

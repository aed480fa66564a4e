"""All duplicates of a table in one call: pairs, groups, and one row of each group."""

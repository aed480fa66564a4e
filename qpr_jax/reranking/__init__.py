"""The second stage of a search: the first hits of a query in a better order."""

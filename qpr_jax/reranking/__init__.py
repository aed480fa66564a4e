"""The second stage of a search: re-rankers, which read both texts and reorder the first hits."""

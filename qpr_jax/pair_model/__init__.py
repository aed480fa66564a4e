"""Models of pairs: they read both texts, order the first hits of a search and score them."""

"""A second stage that looks at both questions and orders the first hits of a search anew."""

"""The named choices of the losses. Imports no JAX, so that settings are checked without it."""

DISTANCES = ("ssd", "euc")  # the squared Euclidean distance, and its root
SCORES = (*DISTANCES, "dot")  # for a softmax alone: minus the dot product
PRIORS = ("uniform", "distance")
SIMILARITIES = ("cosine", "dot")
NEGATIVES = ("random", "hard", "hard_anchor")
PAIR_DISTANCES = ("cosine", "euclidean")

"""Tokens that are sums of rows."""

import itertools

import numpy as np

from qpr_jax.text.base import Parts


def make_parts(tokens, limit=1e6):
    """The parts of tokens, each given by its rows; with no limit that matters."""
    offsets = np.cumsum([0, *map(len, tokens)])
    limits = np.full(len(tokens), limit, np.float32)
    return Parts(np.array([*itertools.chain(*tokens)], np.int32), offsets, limits)

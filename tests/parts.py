"""Tokens that are sums of rows."""

import itertools

import numpy as np

from qpr_jax.text.base import Parts


def make_parts(tokens):
    """The parts of tokens, each given by its rows."""
    offsets = np.cumsum([0, *map(len, tokens)])
    return Parts(np.array([*itertools.chain(*tokens)], np.int32), offsets)

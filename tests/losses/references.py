"""Losses as their formulas say, row by row in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

# Numbers of devices; those between are slow to compile and show little more.
DEVICES = (1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4)), 8)


def slow(*values):
    """A case that only `pytest -m slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def check(got, expected, tolerance=1e-5):
    """A value and its gradients are the reference's, a float32 scalar and finite."""
    value, gradients = got
    assert value.dtype == jnp.float32
    assert value.shape == ()
    assert abs(float(value) - expected[0]) <= tolerance * (1 + abs(expected[0]))
    for have, want in zip(gradients, expected[1:], strict=True):
        assert np.isfinite(have).all()
        assert np.abs(have - want).max() <= tolerance * np.abs(want).max()


def distances_of(x, y, distance):
    """Distances [n, m] in float64, and a function from their slopes to the gradients."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if distance == "dot":
        return -x @ y.T, lambda slope: (-slope @ y, -slope.T @ x)
    values = np.stack([((row - y) ** 2).sum(axis=1) for row in x])
    if distance == "euc":
        values = np.sqrt(values)

    def gradients(slope):
        of_x, of_y = np.zeros_like(x), np.zeros_like(y)
        for i, row in enumerate(x):
            each = 2 * (row - y)
            if distance == "euc":  # 0 where the distance is
                each /= np.where(values[i] > 0, 2 * values[i], np.inf)[:, None]
            of_x[i] = slope[i] @ each
            of_y -= slope[i][:, None] * each
        return of_x, of_y

    return values, gradients


def one_way(distances, clusters, smoothing, prior, temperature):
    """Mean divergence over the rows of distances [n, N], and its slopes."""
    count = len(distances)
    value, slope = 0.0, np.zeros_like(distances)
    for i, row in enumerate(distances):
        keep = np.full(len(row), True)
        if clusters is not None and clusters[i] >= 0:
            keep = np.asarray(clusters[: len(row)]) != clusters[i]
        keep[i] = True
        kept = np.flatnonzero(keep)
        others = kept[kept != i]
        target = np.zeros(len(row))
        if prior == "uniform":
            target[kept] = smoothing / len(kept)
            target[i] += 1 - smoothing
        elif len(others):
            weights = np.exp((row[others].min() - row[others]) / temperature)
            target[others] = smoothing * weights / weights.sum()
            target[i] = 1 - smoothing
        else:
            target[i] = 1
        shifted = row[kept].min() - row[kept]
        log_p = shifted - np.log(np.exp(shifted).sum())
        on_kept = target[kept]
        value += (on_kept * (np.log(np.where(on_kept > 0, on_kept, 1)) - log_p)).sum() / count
        slope[i, kept] = (on_kept - np.exp(log_p)) / count
    return value, slope


def sdml_reference(
    queries,
    candidates,
    clusters=None,
    *,
    smoothing=0.3,
    distance="ssd",
    prior="uniform",
    temperature=1.0,
    symmetric=False,
):
    """Value and gradients of the loss as its formulas say, row by row in float64."""
    n, m = len(queries), len(candidates)
    if clusters is not None:
        clusters = np.concatenate([clusters, np.full(m - len(clusters), -1)])
    distances, gradients = distances_of(queries, candidates, distance)
    value, slope = one_way(distances, clusters, smoothing, prior, temperature)
    if symmetric:
        back, back_slope = one_way(distances[:, :n].T, clusters, smoothing, prior, temperature)
        value, slope = (value + back) / 2, slope / 2
        slope[:, :n] += back_slope.T / 2
    return value, *gradients(slope)

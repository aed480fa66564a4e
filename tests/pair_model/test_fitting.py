"""Logistic regression with a prior and bounds, against SciPy."""

import numpy as np
import pytest
from scipy.optimize import minimize

from qpr_jax.pair_model.fitting import fit_logistic


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_the_least_loss_within_the_bounds(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 7))
    inputs = rng.normal(size=(int(rng.integers(1, 200)), count)) * 10 ** rng.uniform(-2, 1, count)
    labels = rng.random(len(inputs)) < 0.3
    weights, fixed = rng.uniform(0, 3, len(inputs)), rng.normal(size=len(inputs))
    prior, spreads = rng.normal(size=count), 10 ** rng.uniform(-1, 1, count)
    least = np.where(rng.random(count) < 0.5, -np.inf, -0.1)
    most = np.where(rng.random(count) < 0.5, np.inf, 0.2)

    def loss(w):
        z = fixed + inputs @ w
        value = weights @ (np.logaddexp(0, z) - labels * z)
        return value + (((w - prior) / spreads) ** 2).sum() / 2

    found = fit_logistic(
        inputs, labels, weights, prior, spreads, fixed=fixed, least=least, most=most
    )
    bounds = list(zip(least, most, strict=True))
    start = np.clip(prior, least, most)
    best = minimize(loss, start, method="L-BFGS-B", bounds=bounds, tol=1e-14)
    assert loss(found) <= best.fun + 1e-6 * (1 + abs(best.fun))
    assert (found >= least).all()
    assert (found <= most).all()


def test_separable_labels_have_finite_weights():
    inputs = np.column_stack([np.linspace(-1, 1, 40), np.ones(40)])
    found = fit_logistic(
        inputs, inputs[:, 0] > 0, np.ones(40), np.array([1.0, 0.0]), np.array([1.0, 3.0])
    )
    assert np.isfinite(found).all()
    assert found[0] > 1

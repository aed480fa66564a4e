import numpy as np
import pytest

from qpr_jax.data.splits import other_candidates


def pairs_of(sizes):
    """So many pairs of each cluster, and the cluster of each question, with a few of none."""
    clusters = np.repeat(np.append(np.arange(len(sizes)) * 3, -1), [2 * n for n in (*sizes, 5)])
    return np.arange(2 * sum(sizes)).reshape(-1, 2), clusters


@pytest.mark.parametrize("sizes", [[1, 1], [5, 3, 2], [2, 2], [1, 2, 3, 4, 5, 6], [3, 1, 1, 1]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_candidates_are_permuted_and_none_stays_in_its_cluster(sizes, seed):
    pairs, clusters = pairs_of(sizes)
    others = other_candidates(pairs, clusters, seed=seed)
    assert sorted(others.tolist()) == pairs[:, 1].tolist()
    assert (clusters[others] != clusters[pairs[:, 0]]).all()


def test_they_are_a_function_of_the_seed():
    first, again, other = (other_candidates(*pairs_of([3] * 50), seed=s) for s in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("sizes", [[30, 1, 2], [30]])
def test_where_one_cluster_holds_most_pairs_any_question_serves(sizes):
    pairs, clusters = pairs_of(sizes)
    others = other_candidates(pairs, clusters, seed=0)
    assert others.shape == (sum(sizes),)
    assert (clusters[others] != clusters[pairs[:, 0]]).all()
    assert len(set(others.tolist())) > 3

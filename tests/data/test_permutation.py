import numpy as np
import pytest

from qpr_jax.data.splits import permuted_to_other_clusters
from qpr_jax.errors import UserError


@pytest.mark.parametrize("sizes", [[1, 1], [5, 3, 2], [2, 2], [1, 2, 3, 4, 5, 6], [3, 1, 1, 1]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_a_permutation_and_no_pair_stays_in_its_cluster(sizes, seed):
    clusters = np.repeat(np.arange(len(sizes)) * 3, sizes)
    others = permuted_to_other_clusters(clusters, seed=seed)
    assert sorted(others.tolist()) == list(range(len(clusters)))
    assert (clusters[others] != clusters).all()


def test_it_is_a_function_of_the_seed():
    clusters = np.repeat(np.arange(50), 3)
    first, again, other = (permuted_to_other_clusters(clusters, seed=s) for s in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_a_cluster_of_more_than_half_of_the_pairs_is_refused():
    with pytest.raises(UserError, match="no cluster to hold more than half of a split's pairs"):
        permuted_to_other_clusters(np.array([0, 0, 0, 1, 2]), seed=0)

import itertools

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index import pair_files, pair_tasks
from qpr_jax.index.closest_pairs import find_closest
from qpr_jax.index.pair_search import find_pairs

MEMORY = 1 << 30
COUNTS = {"all": (0, 1, 2), "across": (1,), "new": (1, 2)}  # of new ones in a pair


def brute_force(vectors, blocks=None, is_new=None, compare="all"):
    """All pairs that may be found, with distances in float64, nearest first."""
    exact = vectors.astype(np.float64)
    new = np.zeros(len(vectors), int) if is_new is None else is_new.astype(int)
    pairs = [
        (float(((exact[a] - exact[b]) ** 2).sum()), a, b)
        for a, b in itertools.combinations(range(len(vectors)), 2)
        if (blocks is None or blocks[a] == blocks[b]) and new[a] + new[b] in COUNTS[compare]
    ]
    return sorted(pairs)


def between(pairs, count):
    """A distance with `count` of the pairs within it, away from all of them."""
    return (pairs[count - 1][0] + pairs[count][0]) / 2


def found_in(found):
    """The pairs of all parts, each once."""
    pairs = [
        pair
        for part in found.parts()
        for pair in zip(part.first.tolist(), part.second.tolist(), strict=True)
    ]
    assert len(set(pairs)) == len(pairs) == found.count
    assert all(a < b for a, b in pairs)
    return set(pairs)


def make_clusters(count, dimension, seed=0, spread=0.3):
    """Vectors about a few centers, some of them equal, some far away."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(8, dimension)) * 3
    vectors = centers[rng.integers(0, 8, count)] + spread * rng.normal(size=(count, dimension))
    vectors[count // 2 : count // 2 + 5] = vectors[0]
    return vectors.astype(np.float32)


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    monkeypatch.setattr(pair_tasks, "ROWS", 40)
    monkeypatch.setattr(pair_tasks, "OTHERS", 90)


@pytest.mark.parametrize("exact", [None, False])
@pytest.mark.parametrize("compare", ["all", "across", "new"])
@pytest.mark.parametrize("number", [None, 3, 60])
def test_pairs_as_brute_force_finds_them(tmp_path, number, compare, exact):
    rng = np.random.default_rng(1)
    vectors = make_clusters(300, 12)
    blocks = None if number is None else rng.integers(0, number, 300)
    is_new = None if compare == "all" else rng.random(300) < 0.3
    every = brute_force(vectors, blocks, is_new, compare)
    distance = between(every, len(every) // 20)
    found = find_pairs(
        vectors, distance, tmp_path, memory=MEMORY, blocks=blocks, is_new=is_new, compare=compare,
        exact=exact,
    )  # fmt: skip
    expected = {(a, b) for d, a, b in every if d <= distance}
    pairs = found_in(found)
    assert pairs <= expected
    assert len(pairs) >= 0.95 * len(expected)
    assert found.exact == (exact is None or number == 60)
    if found.exact:
        assert pairs == expected
        assert found.missed == 0


@pytest.mark.parametrize(
    ("dimension", "offset", "scale"),
    [(2, 0, 1), (3, 1e4, 1), (40, 300, 1), (40, 0, 1e15), (40, 0, 1e-12), (300, 5, 1)],
)
def test_numbers_far_from_zero_and_of_any_size(tmp_path, dimension, offset, scale):
    vectors = (make_clusters(200, dimension) * scale + offset).astype(np.float32)
    every = brute_force(vectors)
    places = [i for i in range(300, 3000) if every[i][0] > 1.001 * every[i - 1][0]]
    distance = between(every, places[0])
    found = find_pairs(vectors, distance, tmp_path, memory=MEMORY)
    assert found_in(found) == {(a, b) for d, a, b in every if d <= distance}
    distances = np.sort(np.concatenate([part.distances for part in found.parts()]))
    np.testing.assert_allclose(distances, [d for d, *_ in every[: places[0]]], rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows(tmp_path, rows):
    vectors = np.ones((rows, 3), np.float32)
    found = find_pairs(vectors, 1.0, tmp_path / "within", memory=MEMORY)
    assert found_in(found) == ({(0, 1)} if rows == 2 else set())
    found = find_closest(vectors, 3, tmp_path / "closest", memory=MEMORY)
    assert found_in(found) == ({(0, 1)} if rows == 2 else set())


def test_distance_zero_and_less(tmp_path):
    vectors = np.repeat(np.eye(3, dtype=np.float32), 30, axis=0)
    assert find_pairs(vectors, 0.0, tmp_path / "equal", memory=MEMORY).count == 3 * 30 * 29 // 2
    for exact in (None, False):
        none = find_pairs(vectors, -1.0, tmp_path / f"{exact}", memory=MEMORY, exact=exact)
        assert none.count == 0


def test_many_blocks_of_two(tmp_path):
    rng = np.random.default_rng(2)
    vectors = np.zeros((200_000, 2), np.float32)
    blocks = rng.permutation(np.repeat(np.arange(100_000), 2))
    found = find_pairs(vectors, 1.0, tmp_path, memory=MEMORY, blocks=blocks)
    assert found.count == 100_000
    for part in found.parts():
        assert (blocks[part.first] == blocks[part.second]).all()


@pytest.mark.parametrize("compare", ["all", "across"])
@pytest.mark.parametrize("count", [1, 200, 3000, 10**6])
def test_the_closest_pairs(tmp_path, count, compare):
    vectors = make_clusters(150, 6)
    is_new = None if compare == "all" else np.arange(150) % 7 == 0
    every = brute_force(vectors, None, is_new, compare)[:count]
    found = find_closest(vectors, count, tmp_path, memory=MEMORY, is_new=is_new, compare=compare)
    assert found_in(found) == {(a, b) for _, a, b in every}


def test_the_closest_of_equal_distances_are_those_of_the_first_rows(tmp_path):
    vectors = np.zeros((90, 3), np.float32)
    found = find_closest(vectors, 100, tmp_path, memory=MEMORY)
    assert found_in(found) == {(0, i) for i in range(1, 90)} | {(1, i) for i in range(2, 13)}


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_vectors_that_are_no_finite_numbers(tmp_path, bad):
    vectors = np.zeros((60, 4), np.float32)
    vectors[7, 1] = bad
    with pytest.raises(UserError, match="expected finite numbers"):
        find_pairs(vectors, 1.0, tmp_path / "pairs", memory=MEMORY)
    with pytest.raises(UserError, match="expected finite numbers"):
        find_closest(vectors, 1, tmp_path / "closest", memory=MEMORY)


def test_which_are_new_must_be_known(tmp_path):
    with pytest.raises(ValueError, match="needs `is_new`"):
        find_pairs(np.zeros((6, 4), np.float32), 1.0, tmp_path, memory=MEMORY, compare="new")


def test_too_little_memory(tmp_path):
    with pytest.raises(
        UserError, match=r"GiB of memory for 60 questions, got 0\.0; raise `memory`"
    ):
        find_pairs(np.zeros((60, 4), np.float32), 1.0, tmp_path, memory=1000)


class Killed(Exception):
    pass


@pytest.mark.parametrize("exact", [None, False])
def test_a_killed_run_goes_on(tmp_path, monkeypatch, exact):
    """Killed at each task in turn, it does no task twice, and finds the same pairs."""
    vectors = make_clusters(250, 6)
    distance = between(every := brute_force(vectors), len(every) // 10)
    monkeypatch.setattr(pair_files, "_INTERVAL", -1)  # each task's pairs are written at once
    whole = find_pairs(vectors, distance, tmp_path / "whole", memory=MEMORY, exact=exact)
    add = pair_files.PairFolder.add
    done = []

    def add_and_die(self, pairs):
        done.append(self.next_task)
        add(self, pairs)
        raise Killed

    monkeypatch.setattr(pair_files.PairFolder, "add", add_and_die)
    arguments = {"memory": MEMORY, "exact": exact}
    while True:
        try:
            found = find_pairs(vectors, distance, tmp_path / "killed", **arguments)
            break
        except Killed:
            continue
    assert done == [*range(len(done))]
    assert found_in(found) == found_in(whole)
    again = find_pairs(vectors, distance, tmp_path / "killed", **arguments)
    assert (again.count, len(done)) == (found.count, done[-1] + 1)


def test_other_arguments_start_again(tmp_path):
    vectors = make_clusters(100, 6)
    every = brute_force(vectors)
    for place in (50, 500, 50):
        found = find_pairs(vectors, between(every, place), tmp_path, memory=MEMORY)
        assert found.count == place
    vectors[0] += 100
    assert find_pairs(vectors, between(every, 50), tmp_path, memory=MEMORY).count < 50


def test_what_lists_miss_is_estimated(tmp_path, monkeypatch):
    """Lists that find too few pairs say so; those of the chosen overlap miss few."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(1500, 5)).astype(np.float32)
    whole = find_pairs(vectors, 0.4, tmp_path / "whole", memory=MEMORY)
    found = find_pairs(vectors, 0.4, tmp_path / "lists", memory=MEMORY, exact=False)
    assert (whole.exact, found.exact) == (True, False)
    assert abs(found.missed - (1 - found.count / whole.count)) < 0.02
    assert found.count >= 0.95 * whole.count
    monkeypatch.setattr("qpr_jax.index.list_join.MISSED", 0.4)
    found = find_pairs(vectors, 0.4, tmp_path / "worse", memory=MEMORY, exact=False, seed=1)
    assert found.missed > 0.2
    assert abs(found.missed - (1 - found.count / whole.count)) < 0.08


def test_lists_of_vectors_that_are_all_alike(tmp_path):
    vectors = np.ones((500, 4), np.float32)
    vectors[:20] += np.random.default_rng(4).normal(size=(20, 4)).astype(np.float32)
    found = find_pairs(vectors, 1e-6, tmp_path, memory=MEMORY, exact=False)
    assert found.count == 480 * 479 // 2


def test_parts_are_small(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_files, "PART", 100)
    found = find_pairs(np.zeros((60, 3), np.float32), 1.0, tmp_path, memory=MEMORY)
    sizes = [len(part.first) for part in found.parts()]
    assert max(sizes) <= 100
    assert sum(sizes) == 60 * 59 // 2


def test_a_file_that_does_not_fit_in_memory(tmp_path):
    vectors = make_clusters(200, 8)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    distance = between(brute_force(vectors), 300)
    assert find_pairs(mapped, distance, tmp_path / "pairs", memory=MEMORY).count == 300


def test_an_old_search_is_not_found_after_a_kill_that_removed_its_pairs(tmp_path, monkeypatch):
    folder = pair_files.PairFolder(tmp_path, "old")
    folder.add(pair_files.Pairs(np.array([0]), np.array([1]), np.zeros(1, np.float32)))
    folder.finish({})

    def kill(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pair_files, "write_json", kill)
        with pytest.raises(KeyboardInterrupt):
            pair_files.PairFolder(tmp_path, "new")
    assert pair_files.PairFolder(tmp_path, "old").found() is None
    removed, unlink = [], type(tmp_path).unlink
    monkeypatch.setattr(
        type(tmp_path), "unlink", lambda p, **how: (removed.append(p.name), unlink(p, **how))
    )
    pair_files.PairFolder(tmp_path, "old").finish({})
    removed.clear()
    pair_files.PairFolder(tmp_path, "new")
    assert removed[:2] == ["found.json", "state.json"]

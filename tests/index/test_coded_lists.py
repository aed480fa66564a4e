"""What lists of codes find is what comparing all their vectors finds."""

import numpy as np
import pytest

from qpr_jax.index import coded_kernels, coded_lists
from qpr_jax.index.coded_lists import CodedLists

ROWS, LISTS, DIMENSION = 1500, 20, 20
RNG = np.random.default_rng(5)
CENTERS = RNG.normal(size=(LISTS, DIMENSION))
POINTS = CENTERS[RNG.integers(LISTS, size=ROWS)] + 0.6 * RNG.normal(size=(ROWS, DIMENSION))
POINTS[700:730] = POINTS[:30]  # equal ones
QUERIES = np.concatenate([POINTS[:20], POINTS[20:40] + 0.3 * RNG.normal(size=(20, DIMENSION))])
QUERIES = QUERIES.astype(np.float32)
IN_LISTS = np.argsort(((POINTS[:, None] - CENTERS) ** 2).sum(axis=2), axis=1)[:, :3]
READ = np.argsort(((QUERIES[:, None] - CENTERS) ** 2).sum(axis=2), axis=1)[:, :6].copy()
REMOVED = np.arange(ROWS) % 7 == 0


def lists_of(points: np.ndarray, centers: np.ndarray, *, ip: bool, room: float = 1) -> CodedLists:
    sizes = np.bincount(IN_LISTS.ravel(), minlength=LISTS)
    coded = CodedLists(centers.astype(np.float32), (room * sizes).astype(int), ROWS // 2, ip=ip)
    for number in range(LISTS):
        rows = np.flatnonzero(np.isin(IN_LISTS, number).any(axis=1))
        for some in np.array_split(rows, 3):
            coded.add(number, some, points[some])
    return coded


def nearest(points: np.ndarray, query: np.ndarray, lists: np.ndarray, k: int, ip: bool):
    """Distances and rows of the lists by brute force in float64; of equal ones the first row."""
    rows = np.flatnonzero(np.isin(IN_LISTS, lists).any(axis=1) & ~REMOVED)
    points, query = points[rows].astype(np.float64), query.astype(np.float64)
    near = -points @ query if ip else ((points - query) ** 2).sum(axis=1)
    order = np.argsort(near, kind="stable")[:k]
    return near[order], rows[order]


@pytest.mark.parametrize(
    ("ip", "scale", "offset"),
    [(False, 1, 0), (False, 1, 1e4), (False, 1e-8, 0), (True, 1, 0), (True, 1e12, 0)],
)
def test_hits_are_those_of_all_vectors(ip, scale, offset):
    points, queries, centers = (
        (scale * x + offset).astype(np.float32)
        for x in (POINTS, QUERIES.astype(np.float64), CENTERS)
    )
    coded = lists_of(points, centers, ip=ip, room=0.5)
    for k in (1, 10, 700):
        distances, rows = coded.search(queries, READ, k, REMOVED, copies=3, threads=2)
        for i, query in enumerate(queries):
            true, exact = nearest(points, query, READ[i], k, ip)
            count = len(exact)
            np.testing.assert_allclose(distances[i, :count], true, 1e-4, 1e-5 * abs(true).max())
            # Only rounding may order rows otherwise.
            assert (rows[i, :count] == exact).mean() > (0.99 if scale * (1 + offset) == 1 else 0.9)
            assert len({*rows[i, :count].tolist()}) == count
            assert (rows[i, count:] == -1).all()
            assert np.isinf(distances[i, count:]).all()
        for i in range(0, len(queries), 7):  # the same bits in any batch
            alone = coded.search(queries[i : i + 1], READ[i : i + 1], k, REMOVED, copies=3)
            np.testing.assert_array_equal(alone[0][0], distances[i])
            np.testing.assert_array_equal(alone[1][0], rows[i])


@pytest.mark.parametrize(("ip", "dimension"), [(False, 20), (False, 64), (True, 45)])
def test_hits_have_the_bits_of_all_measured_in_any_batch(ip, dimension, monkeypatch):
    rng, counts = np.random.default_rng(dimension), [0, 1, 3, 4, 5, 270, 300, 80]
    centers, rows = rng.normal(size=(8, dimension)).astype(np.float32), 400
    lists_rows = [np.sort(rng.choice(rows, count, replace=False)) for count in counts]
    points = (centers[0] + rng.integers(-2, 3, (rows, dimension)) / 4).astype(np.float32)
    coded = CodedLists(centers, np.array(counts), rows, ip=ip)
    for number, some in enumerate(lists_rows):
        coded.add(number, some, points[some])
    queries = rng.normal(size=(61, dimension)).astype(np.float32)
    queries[::3] = points[:21]
    # Many queries of a list, some of none; of equal distances the first row is nearer.
    lists = np.array([rng.permutation([*range(8), -1, -1])[:4] for _ in queries])
    lists[7], removed = -1, np.arange(rows) % 5 == 0
    near = coded_kernels.product if ip else coded_kernels.squared_distance
    distances, found = np.full((61, 9), np.inf, np.float32), np.full((61, 9), -1)
    for i, (query, own) in enumerate(zip(queries, lists, strict=True)):
        read = np.unique(np.concatenate([lists_rows[n] for n in own if n >= 0] or [[]]).astype(int))
        read = read[~removed[read]]
        measured = np.array([near(query, points[row]) for row in read], np.float32)
        measured = -measured if ip else measured
        order = np.argsort(measured, kind="stable")[:9]
        distances[i, : len(order)], found[i, : len(order)] = measured[order], read[order]
    for together, room, threads in ((1024, 1 << 22, 1), (1024, 900, 2), (23, 1, 2), (23, 5000, 1)):
        monkeypatch.setattr(coded_lists, "_TOGETHER", together)
        monkeypatch.setattr(coded_lists, "_BOUNDS", room)
        for size in (61, 20, 16, 3, 1):
            for start in range(0, 61, size):
                part = slice(start, start + size)
                got = coded.search(
                    queries[part], lists[part], 9, removed, copies=3, threads=threads
                )
                np.testing.assert_array_equal(got[0], distances[part])
                np.testing.assert_array_equal(got[1], found[part])


@pytest.mark.parametrize("ip", [False, True])
def test_most_vectors_are_refused_by_their_codes(ip):
    points, queries = POINTS.astype(np.float32), QUERIES
    coded = lists_of(points, CENTERS, ip=ip)
    whole = coded.search(queries, READ, 5, REMOVED, copies=3)
    read = np.isin(IN_LISTS, READ[25]).any(axis=1)
    # A vector that is not read cannot matter: all but those near a query become NaN.
    near = (points @ queries[25]) if ip else -((points - queries[25]) ** 2).sum(axis=1)
    far = read & (near < np.sort(near[read])[-read.sum() // 4])
    for row in np.flatnonzero(far).tolist():
        block = coded._vectors[row // coded_kernels.BLOCK]
        block[row % coded_kernels.BLOCK] = np.nan
    found = coded.search(queries[25:26], READ[25:26], 5, REMOVED, copies=3)
    np.testing.assert_array_equal(found[1][0], whole[1][25])


def test_what_is_not_finite_is_not_found():
    points = POINTS.astype(np.float32)
    points[3], points[4] = np.nan, np.inf
    coded = lists_of(points, CENTERS, ip=False)
    rows = coded.search(QUERIES, READ, ROWS, REMOVED, copies=3)[1]
    assert not np.isin(rows, [3, 4]).any()
    assert (coded.search(QUERIES * np.float32(np.nan), READ, 2, REMOVED, copies=3)[1] == -1).all()
    empty = coded.search(QUERIES, np.full((len(QUERIES), 2), -1), 2, REMOVED)
    assert (empty[1] == -1).all()


def test_entries_come_out_as_they_were_put_in():
    points = POINTS.astype(np.float32)
    coded = lists_of(points, CENTERS, ip=False)
    before = coded.entries(4)[0].copy()
    coded.put_first(4, np.array([ROWS + 5]), points[:1])
    rows, vectors = coded.entries(4)
    assert rows.tolist() == [ROWS + 5, *before.tolist()]
    np.testing.assert_array_equal(vectors[1:], points[before])
    np.testing.assert_array_equal(vectors[0], points[0])
    assert coded.count(4) == len(rows)

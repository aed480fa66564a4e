"""Questions in memory: found, added, replaced, removed, while others search."""

import threading

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.built_questions import write_questions
from qpr_jax.index.question_index import QuestionIndex, build_index, build_vectors
from qpr_jax.index.question_store import QuestionStore
from qpr_jax.index.recipe import Recipe

POINTS = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32)


def encode(questions) -> np.ndarray:
    """Question "i" is point i."""
    return POINTS[[int(question) for question in questions]].reshape(-1, 4)


def build(count: int, ids=None, *, log=len, **recipe) -> QuestionIndex:
    questions = [str(i) for i in range(count)]
    return build_index(encode, questions, ids, recipe=Recipe(**recipe), encoder="abc", log=log)


def put(index: QuestionIndex, questions: dict[int, str]) -> None:
    index.put([*map(StoredQuestion, questions, questions.values())], encode(questions.values()))


def rebuild(index: QuestionIndex) -> QuestionIndex:
    """As a compaction does."""
    ids, questions = zip(*index, strict=True)
    return build_index(encode, questions, ids, recipe=index.requested, encoder="abc", log=len)


def test_small_sets_get_an_exact_index():
    lines: list[str] = []
    index = build(400, log=lines.append)
    assert lines == [
        "index: Flat (IVF2000,Flat is for more questions), 400 questions, recall@10 1.000"
    ]
    assert (index.recipe.factory, index.requested.factory) == ("Flat", "IVF2000,Flat")
    distances, rows = index.search(POINTS[:5], 7)
    squares = ((POINTS[:5, None] - POINTS[:400]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(rows, np.argsort(squares, axis=1)[:, :7])
    np.testing.assert_allclose(distances, np.sort(squares, axis=1)[:, :7], atol=1e-5)


@pytest.mark.parametrize(
    ("factory", "probes", "note"),
    [
        ("IVF2000,Flat", 10, " (IVF2000,Flat is for more questions)"),
        ("IVF10,Flat", 10, " (IVF10,Flat has no more than 10 lists)"),
        ("IVF9,SQ8", 20, " (IVF9,SQ8 has no more than 20 lists)"),
        ("Flat", 10, ""),
    ],
)
def test_why_an_exact_index_was_made_instead(factory, probes, note):
    lines: list[str] = []
    build(400, factory=factory, probes=probes, log=lines.append)
    assert lines == [f"index: Flat{note}, 400 questions, recall@10 1.000"]


def test_low_recall_gets_a_warning():
    lines: list[str] = []
    build(4000, factory="IVF100,Flat", probes=1, log=lines.append)
    assert lines[0].startswith("index: IVF100,Flat, 4,000 questions, recall@10 0.")
    assert lines[1].startswith("warning: recall@10 is 0.")
    assert "(good: 0.95); raise `probes` or `assignments`, at the cost of time" in lines[1]


def test_found_are_ids_questions_and_distances():
    index = build(3, [7, 2**63 - 1, 0])
    (found,) = index.find(POINTS[1:2], 2)
    assert found[0] == (2**63 - 1, "1", pytest.approx(0, abs=1e-6), None, None)
    assert [type(value) for value in found[0][:3]] == [int, str, float]
    assert len(found) == 2
    assert len(index.find(POINTS[1:2], 10**9)[0]) == 3
    assert index.find(POINTS[:0], 1) == []
    distances, rows = index.search(POINTS[:2], 5)
    assert (rows[:, 3:] == -1).all()
    assert np.isinf(distances[:, 3:]).all()


@pytest.mark.parametrize("factory", ["Flat", "IVF20,Flat", "IVF20,SQ8", "HNSW16", "SQ8"])
def test_added_replaced_and_removed(factory):
    index = build(1000, factory=factory, assignments=2)
    put(index, {1000: "1000", 5: "2000"})
    assert len(index) == 1001
    assert index.find(POINTS[1000:1001], 1)[0][0][:2] == (1000, "1000")
    assert index.find(POINTS[2000:2001], 1)[0][0][:2] == (5, "2000")
    assert 5 not in [hit.id for hit in index.find(POINTS[5:6], 20)[0]]
    index.remove(np.array([5, 6, 1000, 77_777]))
    assert len(index) == 998
    everything = index.find(POINTS[:1], 10**6)[0]
    assert sorted(hit.id for hit in everything) == sorted({*range(1000)} - {5, 6})
    put(index, {6: "6"})
    assert index.find(POINTS[6:7], 1)[0][0][:2] == (6, "6")
    assert dict(index) == {i: str(i) for i in range(1000) if i != 5}
    assert index.missing(np.array([4, 5, 6, 1000])) == [5, 1000]
    assert index.questions(np.array([4, 5])) == [dict(index)[4], None]


def test_all_may_be_removed():
    index = build(5)
    index.remove(np.arange(5))
    assert len(index) == 0
    assert index.find(POINTS[:2], 3) == [[], []]
    put(index, {9: "9"})
    assert [hit.id for hit in index.find(POINTS[:1], 3)[0]] == [9]
    store = QuestionStore(write_questions([], None))
    index = QuestionIndex(build_vectors(encode_any, store, Recipe()), store, Recipe(), "abc")
    assert index.find(POINTS[:1], 3) == [[]]
    put(index, {1: "1"})
    assert [hit.id for hit in index.find(POINTS[:1], 3)[0]] == [1]


def encode_any(questions) -> np.ndarray:
    return encode([question or "0" for question in questions])


def test_ids_are_never_given_twice():
    index = build(3, [4, 9, 2])
    assert index.next_id == 10
    put(index, {20: "20"})
    index.remove(np.array([20]))
    assert index.next_id == 21


@pytest.mark.parametrize(
    "factory",
    [
        "IVF20,Flat",
        pytest.param("Flat", marks=pytest.mark.slow),
        pytest.param("HNSW16", marks=pytest.mark.slow),
    ],
)
def test_ten_thousand_random_changes_agree_with_a_plain_dictionary(factory):
    rng = np.random.default_rng(1)
    index = build(1000, factory=factory, probes=20, assignments=1)
    model = {i: i for i in range(1000)}  # id -> point
    for step in range(10_000):
        kind = rng.random()
        if kind < 0.4:
            some = rng.choice(2000, size=rng.integers(1, 4), replace=False).tolist()
            points = rng.integers(5000, size=len(some)).tolist()
            put(index, dict(zip(some, map(str, points), strict=True)))
            model.update(zip(some, points, strict=True))
        elif kind < 0.7:
            some = rng.choice(2000, size=rng.integers(1, 4), replace=False)
            index.remove(some)
            for i in some.tolist():
                model.pop(i, None)
        elif kind < 0.999:
            query = POINTS[rng.integers(5000, size=2)]
            for vector, found in zip(query, index.find(query, 5), strict=True):
                ids = np.array(list(model))
                near = ((POINTS[list(model.values())] - vector) ** 2).sum(axis=1)
                expected = np.sort(near)[:5]
                got = [hit.distance for hit in found]
                if factory == "HNSW16":  # which is not exact
                    assert np.mean(np.isclose(got, expected, atol=1e-5)) > 0.5
                else:
                    np.testing.assert_allclose(got, expected, atol=1e-5)
                for hit in found:
                    assert model[hit.id] == int(hit.question)
                assert len(ids) == len(index)
        else:
            index = rebuild(index)
            assert {i: int(q) for i, q in index} == model, step


def test_searches_go_on_while_one_changes():
    """Each id is asked as one of two questions, both far from all others; never both, nor none."""
    index = build(1000, factory="IVF20,Flat", probes=20)
    stop = threading.Event()
    wrong: list[object] = []

    def ask():
        while not stop.is_set():
            found = index.find(POINTS[:1], 2000)[0]
            ids = [hit.id for hit in found]
            if sorted(ids) != list(range(1000)) or min(hit.id for hit in found) < 0:
                wrong.append(ids)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    for _ in range(150):
        some = rng.choice(1000, size=100, replace=False).tolist()
        put(index, {i: str(rng.integers(5000)) for i in some})
    index = rebuild(index)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("vectors", "k", "message"),
    [
        (np.zeros((2, 5)), 1, r"`vectors`: expected \[n, 4\], got \[2, 5\]"),
        (np.zeros(4), 1, r"got \[4\]"),
        (np.zeros((2, 4)), 0, "`k`: expected 1 or more, got 0"),
    ],
)
def test_wrong_searches_are_refused(vectors, k, message):
    with pytest.raises(UserError, match=message):
        build(20).search(vectors, k)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2], r"expected one a question \(3\), got 2"),
        ([1, 2, 1], "expected distinct ids, got 1 twice"),
        ([b"a", 1, 2], "expected whole numbers or strings, got b'a' at position 0"),
        ([1, 2, None], "expected whole numbers or strings, got None at position 2"),
        ([1, True, 2], "expected whole numbers or strings, got True at position 1"),
        ([1.5, 2, 3], "expected whole numbers or strings, got 1.5 at position 0"),
        ([1, -1, 2], "expected 0 to 9223372036854775807, got -1 at position 1"),
        ([1, 2, 2**63], "expected .*, got 9223372036854775808 at position 2"),
    ],
)
def test_wrong_ids_are_refused(ids, message):
    with pytest.raises(UserError, match=f"`ids`: {message}"):
        build(3, ids)


def test_no_questions_are_refused():
    with pytest.raises(UserError, match="`questions`: expected one or more, got none"):
        build(0)

"""What every `Store` does: functions of a store without questions, and of `reopen`.

`reopen` returns another store of the same questions, as another process has it. The vectors are
those of `encode`. A store may have several texts of a question, of the columns `TEXTS`.
"""

import threading
import uuid
import zlib

import numpy as np

from qpr_jax.index.protocol import Question, texts_of
from tests.waiting import wait_until

DIMENSION = 8
TEXTS = ("answer", "note")
PAYLOADS = [
    {"a": None, "b": {"x": [1, 2.5, True, {"y": []}]}, "c": "é\u2028\0", "": 0},
    {"id": 3, "text": "x", "payload": 1, "exact": "{", "$meta": 2},
    {"n": 2**70, "i": 2**63 - 1, "e": 1e300, "m": -0.5},
]


def encode(texts):
    """Return a vector of each text, float32 [n, DIMENSION]."""
    seeds = [zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in texts]
    vectors = [np.random.default_rng(seed).normal(size=DIMENSION) for seed in seeds]
    return np.array(vectors, np.float32).reshape(-1, DIMENSION)


def questions(count, start=0):
    rows = range(start, start + count)
    return [Question(i, f"question {i}", {"n": i, "answer": f"a {i}" * (i % 3)}) for i in rows]


def encode_rows(store, some):
    return encode(texts_of(some, store.index_config))


def put(store, *some):
    store.add(some, encode_rows(store, some))


def assert_is(store, expected):
    """Compare a store with a list of questions by all that reads it, and by exact search."""
    assert len(store) == len(expected)
    assert [*store.questions()] == expected
    assert store.get([question.id for question in expected]) == expected
    stored = [pair for some, vectors in store.blocks() for pair in zip(some, vectors, strict=True)]
    assert sorted((str(q.id), *encode([q.text])[0]) for q in expected) == sorted(
        (str(question.id), *vector) for question, vector in stored
    )
    queries = encode(["a", "b", "c", *(text for q in expected[:2] for text in q.texts(TEXTS))])
    vectors = encode_rows(store, expected).reshape(
        len(expected), store.index_config.texts, DIMENSION
    )
    for query, hits in zip(queries, store.search(queries, 5), strict=True):
        apart = ((query - vectors) ** 2).sum(axis=2)
        texts, distances = apart.argmin(axis=1), apart.min(axis=1)
        nearest = np.argsort(distances, kind="stable")[:5]
        found = [Question(hit.id, hit.question, hit.payload) for hit in hits]
        assert found == [expected[i] for i in nearest]
        columns = (None, *store.index_config.text_columns)
        assert [hit.column for hit in hits] == [columns[texts[i]] for i in nearest]
        near = [hit.distance for hit in hits]
        np.testing.assert_allclose(near, distances[nearest], rtol=1e-5, atol=1e-5)


def an_empty_store_answers(store, reopen):
    assert_is(store, [])
    assert store.search(encode(["a"]), 3) == [[]]
    assert store.search(encode([]), 3) == []
    assert (store.get([1]), store.remove([1]), store.dimension) == ([None], 0, DIMENSION)


def what_is_added_is_found(store, reopen):
    before, expected = store.version, questions(40)
    put(store, *expected)
    assert store.version != before
    assert_is(store, expected)
    assert_is(reopen(), expected)
    (hits,) = store.search(encode(["a"]), 100)
    assert len(hits) == 40  # fewer than k


def equal_ids_are_replaced(store, reopen):
    expected = questions(6)
    put(store, *expected)
    put(store, Question("2", "another"), Question(7, "new"))
    texts = [question and question.text for question in store.get([2, "2", "7", 8])]
    assert texts == ["another", "another", "new", None]
    assert [str(q.id) for q in store.questions()] == ["0", "1", "3", "4", "5", "2", "7"]
    assert store.search(encode([expected[2].text]), 1)[0][0].distance > 1e-3


def removed_questions_are_gone(store, reopen):
    expected, before = questions(30), store.version
    put(store, *expected)
    assert store.remove([*range(1, 30), "1", "unknown", 30]) == 29
    assert_is(store, expected[:1])
    assert store.remove([5]) == 0
    put(store, expected[5])
    assert_is(store, [expected[0], expected[5]])
    assert store.version != before
    assert_is(reopen(), [expected[0], expected[5]])


def ids_and_payloads_come_back(store, reopen):
    ids = ["' or 1==1 or '", 'x"]) or (1 == 1', "007", "a\nb\\", "%41", "é" * 512, 2**63 - 1]
    texts = ["日本語 é\u0301 \U0001f600", "a\0b", "'\"\\", "%s {} $1", "  ", "\u202e", "ß" * 9000]
    payloads = [*PAYLOADS, None, None, None, None]
    expected = [*map(Question, ids, texts, payloads)]
    put(store, *expected)
    assert_is(reopen(), expected)
    assert store.remove(ids[:2]) == 2
    assert_is(store, expected[2:])


def new_ids_are_new(store, reopen):
    put(store, *questions(3), Question(str(uuid.uuid4()), "a"))
    given = store.new_ids(3)
    put(store, *(Question(value, f"new {value}") for value in given))
    store.remove(given)
    given += store.new_ids(2)
    assert len({*map(str, given)}) == 5
    assert store.get(given) == [None] * 5


def two_stores_see_each_other(store, reopen):
    other, expected = reopen(), questions(20)
    for i in range(0, 20, 4):
        put(store, *expected[i : i + 2])
        put(other, *expected[i + 2 : i + 4])
    wait_until(lambda: len(store) == len(other) == 20)
    assert sorted(store.questions()) == sorted(other.questions()) == expected
    assert store.remove([3]) == 1
    wait_until(lambda: other.get([3]) == [None] and len(other) == 19)


def threads_search_while_another_one_changes(store, reopen):
    put(store, *questions(20))
    with store.changing():
        put(store, Question("kept", "kept"))  # the holder may change
    threads = [threading.Thread(target=put, args=(store, *questions(5, s))) for s in (20, 25, 30)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert store.search(encode(["kept"]), 1)[0][0].id == "kept"
    assert len(store) == 36


CASES = [
    an_empty_store_answers,
    what_is_added_is_found,
    equal_ids_are_replaced,
    removed_questions_are_gone,
    ids_and_payloads_come_back,
    new_ids_are_new,
    two_stores_see_each_other,
    threads_search_while_another_one_changes,
]

import json
import threading

import faiss
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import write_manifest
from qpr_jax.retrieval.index import (
    FORMAT,
    QuestionIndex,
    build_index,
    lists_for,
    read_index,
    write_index,
)


def points(count: int, dimension: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, dimension)).astype(np.float32)


def encode(questions) -> np.ndarray:
    """Question "i" is point i."""
    return points(3000)[[int(question) for question in questions]].reshape(-1, 4)


def build(count: int, ids=None, **settings) -> QuestionIndex:
    settings = {"encoder": "abc", "log": lambda line: None} | settings
    return build_index(encode, [str(i) for i in range(count)], ids, **settings)


def brute_force(queries: np.ndarray, count: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    squares = ((queries[:, None].astype(np.float64) - points(3000)[:count]) ** 2).sum(axis=2)
    order = np.argsort(squares, axis=1)[:, :k]
    return np.take_along_axis(squares, order, axis=1), order


@pytest.mark.parametrize(
    ("count", "wanted", "probes", "lists"),
    [
        (165_493, 2000, 10, 2000),
        (78_000, 2000, 10, 2000),
        (77_999, 2000, 10, 1999),
        (429, 2000, 10, 11),
        (428, 2000, 10, 0),  # 10 lists, all of them probed
        (428, 2000, 9, 10),
        (1, 2000, 10, 0),
        (1_000_000, 8, 10, 0),
        (0, 2000, 10, 0),
    ],
)
def test_lists_for(count, wanted, probes, lists):
    assert lists_for(count, wanted, probes=probes) == lists


def test_small_sets_get_an_exact_index():
    lines: list[str] = []
    index = build(400, log=lines.append)
    assert isinstance(index.faiss_index, faiss.IndexFlat)
    assert index.factory == "Flat"
    assert lines == ["index: Flat (IVF2000,Flat is for more questions), 400 questions"]
    distances, positions = index.search(points(5), 7)
    expected, order = brute_force(points(5), 400, 7)
    np.testing.assert_array_equal(positions, order)
    np.testing.assert_allclose(distances, expected, atol=1e-5)
    assert distances.dtype == np.float32
    assert positions.dtype == np.int64


def test_larger_sets_get_lists(capfd):
    lines: list[str] = []
    index = build(1000, factory="IVF25,Flat", probes=3, log=lines.append)
    assert index.factory == "IVF25,Flat"
    assert (index.faiss_index.nlist, index.faiss_index.nprobe) == (25, 3)
    assert lines == ["index: IVF25,Flat, 1,000 questions"]
    _, positions = index.search(points(1000), 1)
    np.testing.assert_array_equal(positions[:, 0], np.arange(1000))
    assert build(1000).factory == "IVF25,Flat"  # 1000 // 39
    assert "WARNING" not in "".join(capfd.readouterr())  # FAISS has enough training points


def test_trains_on_a_sample_and_streams(monkeypatch):
    sizes = []

    def watch(questions):
        sizes.append(len(questions))
        return encode(questions)

    monkeypatch.setattr("qpr_jax.retrieval.index._CHUNK", 1100)
    questions = [str(i) for i in range(3000)]
    index = build_index(
        watch, questions, None, factory="IVF11,Flat", probes=1, encoder="a", log=lambda line: None
    )
    assert sizes == [11 * 256, 1100, 1100, 800]
    _, positions = index.search(points(3000), 1)
    np.testing.assert_array_equal(positions[:, 0], np.arange(3000))


def test_all_lists_are_searched_where_the_probed_ones_hold_too_few():
    index = build(1000, factory="IVF20,Flat", probes=1)
    distances, positions = index.search(points(3), 1000)
    expected, order = brute_force(points(3), 1000, 1000)
    np.testing.assert_allclose(distances, expected, atol=1e-5)
    assert all(sorted(row) == list(range(1000)) for row in positions.tolist())
    assert (positions[:, :10] == order[:, :10]).all()


@pytest.mark.parametrize("assignments", [2, 5])
def test_a_question_in_several_lists_is_found_once_and_more_often(tmp_path, assignments):
    plain = build(2000, factory="IVF50,Flat", probes=2)
    index = build(2000, factory="IVF50,Flat", probes=2, assignments=assignments)
    assert index.faiss_index.ntotal == assignments * 2000
    queries = points(300)
    expected, order = brute_force(queries, 2000, 10)
    found = {}
    for name, searched in (("plain", plain), ("several", index)):
        distances, positions = searched.search(queries, 10)
        assert all(len(set(row)) == 10 for row in positions.tolist())
        assert (np.diff(distances, axis=1) >= 0).all()
        same = positions == order
        np.testing.assert_allclose(distances[same], expected[same], atol=1e-5)
        found[name] = np.mean(
            [len(set(a) & set(b)) for a, b in zip(positions.tolist(), order.tolist(), strict=True)]
        )
    assert found["plain"] < found["several"]
    assert sorted(index.search(queries[:1], 2000)[1][0].tolist()) == list(range(2000))

    write_index(tmp_path / "index", index)
    again = read_index(tmp_path / "index")
    assert again.assignments == assignments
    np.testing.assert_array_equal(again.search(queries, 10)[1], index.search(queries, 10)[1])


def test_one_list_holds_a_question_once():
    assert build(20, assignments=4).assignments == 1


@pytest.mark.parametrize(("count", "factory"), [(3, "Flat"), (500, "IVF12,Flat")])
def test_places_beyond_the_index_are_empty(count, factory):
    index = build(count)
    assert index.factory == factory
    distances, positions = index.search(points(2), count + 2)
    np.testing.assert_array_equal(positions[:, count:], [[-1, -1], [-1, -1]])
    assert np.isinf(distances[:, count:]).all()
    assert np.isfinite(distances[:, :count]).all()
    assert (positions[:, :count] >= 0).all()


def test_no_queries():
    distances, positions = build(20).search(np.zeros((0, 4), np.float32), 3)
    assert distances.shape == positions.shape == (0, 3)


def test_threads_get_the_same_answers():
    index = build(2000, factory="IVF50,Flat", probes=2)
    expected = index.search(points(300), 60)[1]
    answers: list[np.ndarray] = []

    def ask():
        for _ in range(5):
            answers.append(index.search(points(300), 60)[1])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    assert all((answer == expected).all() for answer in answers)


@pytest.mark.parametrize(
    ("vectors", "k", "message"),
    [
        (points(2, 5), 1, r"`vectors`: expected \[n, 4\], got \[2, 5\]"),
        (points(2)[0], 1, r"got \[4\]"),
        (points(2), 0, "`k`: expected 1 or more, got 0"),
    ],
)
def test_wrong_searches_are_refused(vectors, k, message):
    with pytest.raises(UserError, match=message):
        build(20).search(vectors, k)


@pytest.mark.parametrize("factory", ["IVF0,Flat", "PQ32", "IVF20,PQ4", "HNSW32", "", "ivf20,flat"])
def test_other_factories_are_refused(factory):
    with pytest.raises(UserError, match="`factory`: expected `Flat` or `IVF<lists>,Flat`, got"):
        build(20, factory=factory)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2], r"expected one a question \(3\), got 2"),
        ([1, 2, 1], "expected distinct ids, got 1 twice"),
        (["a", "b", "b"], "expected distinct ids, got 'b' twice"),
        ([1, 2, None], "expected integers or strings, got None at position 2"),
        ([1, True, 2], "expected integers or strings, got True at position 1"),
        ([1.0, 2, 3], "expected integers or strings, got 1.0 at position 0"),
    ],
)
def test_wrong_ids_are_refused(ids, message):
    with pytest.raises(UserError, match=f"`ids`: {message}"):
        build(3, ids)


def test_ids_may_be_mixed_or_of_numpy():
    assert build(3, [7, "7", 2**80]).ids == [7, "7", 2**80]
    ids = build(3, np.array([5, 3, 9])).ids
    assert ids == [5, 3, 9]
    assert all(type(i) is int for i in ids)
    assert build(3).ids == [0, 1, 2]


def test_wrong_builds_are_refused():
    with pytest.raises(UserError, match="`questions`: expected one or more, got none"):
        build(0)
    with pytest.raises(UserError, match="`probes`: expected 1 or more, got 0"):
        build(20, probes=0)
    with pytest.raises(UserError, match="`assignments`: expected 1 or more, got 0"):
        build(20, assignments=0)


@pytest.mark.parametrize("count", [30, 1000])
def test_index_comes_back_whole(tmp_path, count):
    ids = [f"id {i}" if i % 2 else i for i in range(count)]
    written = build(count, ids, probes=4)
    written.questions[:4] = ["\ud800 alone", "two\nlines\r\u2028", "\x00", ""]
    write_index(tmp_path / "index", written)
    index = read_index(tmp_path / "index", encoder="abc")
    assert index.questions == written.questions
    assert index.ids == ids
    assert (index.factory, index.probes, index.encoder) == (written.factory, 4, "abc")
    for got, expected in zip(
        index.search(points(50), 20), written.search(points(50), 20), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    if count == 1000:
        assert index.faiss_index.nprobe == 4
    names = {path.name for path in (tmp_path / "index").iterdir()}
    assert names == {"index.faiss", "questions.jsonl", "manifest.json"}
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert manifest | {"files": None} == {
        "format": "qpr_jax index 1",
        "factory": written.factory,
        "probes": 4,
        "assignments": 1,
        "count": count,
        "dimension": 4,
        "encoder": "abc",
        "files": None,
    }


def test_an_index_of_another_encoder_is_refused(tmp_path):
    write_index(tmp_path / "index", build(20))
    message = "made with encoder abc, not with def; build the index again"
    with pytest.raises(UserError, match=message):
        read_index(tmp_path / "index", encoder="def")
    assert read_index(tmp_path / "index").encoder == "abc"


@pytest.mark.parametrize("name", ["index.faiss", "questions.jsonl"])
@pytest.mark.parametrize("damage", ["flip first", "flip last", "cut", "empty", "longer", "remove"])
def test_damaged_bytes_never_reach_faiss(tmp_path, monkeypatch, name, damage):
    write_index(tmp_path / "index", build(1000))
    path = tmp_path / "index" / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage.startswith("flip"):
        data[0 if damage == "flip first" else -1] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes({"cut": data[:-7], "empty": b"", "longer": data + b"\n"}[damage])
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("FAISS saw damaged bytes"))
    message = {"remove": "missing", "flip": "differ from their SHA-256"}.get(
        damage.split()[0], "expected .* bytes, got"
    )
    with pytest.raises(UserError, match=f"{name}: .*{message}") as error:
        read_index(tmp_path / "index")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"count": 999},
            "the manifest's `count` is 999, the files hold 1000",
        ),
        ({"dimension": 5}, "`dimension` is 5, the files hold 4"),
        ({"factory": "Flat"}, "`factory` is Flat, the files hold IVF25,Flat"),
        ({"assignments": 3}, "`count x assignments` is 3000, the files hold 1000"),
        ({"probes": 11}, "`probes` is 11, the files hold 10"),
        ({"assignments": 0}, "the manifest's `assignments` is 0"),
        ({"probes": 0}, "the manifest's `probes` is 0"),
        ({"probes": "10"}, "the manifest's `probes` is '10'"),
        ({"encoder": None}, "the manifest's `encoder` is None"),
        ({"format": "qpr_jax index 2"}, "expected format 'qpr_jax index 1', got 'qpr_jax index 2'"),
        ({"files": {}}, "no entry for questions.jsonl"),
        ({"files": None}, "expected a manifest with `files`"),
    ],
)
def test_an_edited_manifest_is_refused(tmp_path, change, message):
    write_index(tmp_path / "index", build(1000))
    path = tmp_path / "index" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message) as error:
        read_index(tmp_path / "index")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("index.faiss", b"no index at all", "FAISS cannot read index.faiss"),
        ("questions.jsonl", b'{"id": 1, "question": "a"}\n{"id": 2}\n', "line 2: expected `id`"),
        ("questions.jsonl", b"{\n", "questions.jsonl, line 1"),
        ("questions.jsonl", b"[]\n", "questions.jsonl, line 1"),
        ("questions.jsonl", b'{"id": 1, "question": "a"}\n', "`count` is 20, the files hold 1"),
    ],
)
def test_files_with_a_true_hash_but_a_wrong_content_are_refused(tmp_path, name, data, message):
    write_index(tmp_path / "i", build(20))
    (tmp_path / "i" / name).write_bytes(data)
    facts = json.loads((tmp_path / "i" / "manifest.json").read_text())
    del facts["files"]
    assert facts["format"] == FORMAT
    write_manifest(tmp_path / "i", ["index.faiss", "questions.jsonl"], **facts)
    with pytest.raises(UserError, match=message) as error:
        read_index(tmp_path / "i")
    assert "\n" not in str(error.value)


def test_an_index_of_another_metric_is_refused(tmp_path):
    index = build(20)
    inner = faiss.IndexFlatIP(4)
    inner.add(points(20))
    write_index(
        tmp_path / "i", QuestionIndex(inner, index.questions, index.ids, "Flat", 10, 1, "abc")
    )
    with pytest.raises(UserError, match="the files hold an index of another metric"):
        read_index(tmp_path / "i")

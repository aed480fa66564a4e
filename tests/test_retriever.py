import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import qpr_jax
from qpr_jax.encoders.exported import write_export
from qpr_jax.errors import UserError
from qpr_jax.retriever import Hit, Retriever
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary

WORDS = tuple(tokenize("how can i learn python quickly what is the best way to cook rice"))
QUESTIONS = [
    "How can I learn Python quickly?",
    "What is the best way to learn Python?",
    "How to cook rice?",
    "What is rice",
]


def export(run: pathlib.Path, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary(WORDS, bins=7)
    write_export(
        run / "export",
        embedding=rng.normal(size=(vocabulary.size, 8)),
        kernels=[0.3 * rng.normal(size=(3, 8, 12))],
        biases=[rng.normal(size=12)],
        projection=rng.normal(size=(12, 6)),
        vocabulary=vocabulary,
        max_words=64,
        settings={"steps": 3},
    )


@pytest.fixture
def run(tmp_path) -> pathlib.Path:
    export(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def retriever(run) -> Retriever:
    return Retriever.build(QUESTIONS, ["a", "b", 3, 4], run=run)


def test_search_finds_the_question_itself_first(retriever):
    assert [hits[0] for hits in retriever.search(QUESTIONS, k=2)] == [
        Hit(question, id, pytest.approx(0, abs=1e-9))
        for question, id in zip(QUESTIONS, ["a", "b", 3, 4], strict=True)
    ]


def test_distances_are_squared_euclidean_and_sorted(retriever):
    vectors = retriever.encode(QUESTIONS)
    query = retriever.encode(["learn rice"])[0]
    (hits,) = retriever.search(["learn rice"], k=4)
    squares = ((vectors - query) ** 2).sum(axis=1)
    order = np.argsort(squares)
    assert [hit.question for hit in hits] == [QUESTIONS[i] for i in order]
    np.testing.assert_allclose([hit.distance for hit in hits], squares[order], rtol=1e-5)
    assert all(type(hit.distance) is float for hit in hits)


def test_encode(retriever):
    vectors = retriever.encode(["how can i learn python quickly", ""])
    assert vectors.shape == (2, 6)
    assert vectors.dtype == np.float32
    assert retriever.encode([]).shape == (0, 6)


def test_never_more_hits_than_questions(retriever):
    for k in (4, 5, 10**9):
        assert [len(hits) for hits in retriever.search(["rice", "", "🦓\ud800\x00"], k=k)] == [
            4
        ] * 3
    assert len(retriever.search(["rice"])[0]) == 4
    assert len(retriever.search(["rice"], k=np.int64(1))[0]) == 1
    assert retriever.search([]) == []


def test_as_many_hits_as_asked_for_where_lists_are_probed(run):
    questions = [f"question {i} about {i % 7}" for i in range(600)]
    retriever = Retriever.build(questions, run=run)
    assert retriever.index.factory == "IVF15,Flat"
    (hits,) = retriever.search(["learn python"], k=600)
    assert sorted(hit.id for hit in hits) == list(range(600))


def test_build_numbers_questions_by_default(run):
    retriever = Retriever.build(np.array(QUESTIONS), run=str(run))
    assert retriever.search(["How to cook rice?"], k=1)[0][0].id == 2


def test_build_says_nothing(run, capfd):
    Retriever.build(QUESTIONS, run=run)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("questions", "ids", "message"),
    [
        ([], None, "`questions`: expected one or more, got none"),
        ("rice", None, "`questions`: expected a list of strings, got a str"),
        (["a", None], None, "got NoneType at position 1"),
        (["a", "b"], [1], r"`ids`: expected one a question \(2\), got 1"),
        (["a", "b"], [1, 1], "`ids`: expected distinct ids, got 1 twice"),
    ],
)
def test_wrong_builds_are_refused(run, questions, ids, message):
    with pytest.raises(UserError, match=message):
        Retriever.build(questions, ids, run=run)


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        ("rice", 5, "`queries`: expected a list of strings, got a str; pass "),
        ([None], 5, "`queries`: expected strings, got NoneType at position 0"),
        (["rice"], 0, "`k`: expected 1 or more, got 0"),
        (["rice"], -1, "`k`: expected 1 or more, got -1"),
        (["rice"], 2.5, "`k`: expected a whole number, got 2.5"),
        (["rice"], None, "`k`: expected a whole number, got None"),
    ],
)
def test_wrong_searches_are_refused(retriever, queries, k, message):
    with pytest.raises(UserError, match=message):
        retriever.search(queries, k)


def test_encode_refuses_what_is_no_list_of_strings(retriever):
    with pytest.raises(UserError, match="`queries`: expected a list of strings, got a str"):
        retriever.encode("rice")


def test_saved_and_loaded(retriever, tmp_path):
    folder = tmp_path / "deep" / "saved"
    retriever.save(folder)
    loaded = Retriever.load(folder)
    assert loaded.search(["learn rice"]) == retriever.search(["learn rice"])
    assert loaded.encoder.identity == retriever.encoder.identity
    assert loaded.encoder.settings == {"steps": 3}
    loaded.save(str(folder))  # over itself
    assert Retriever.load(str(folder)).search(["rice"], 1) == retriever.search(["rice"], 1)
    assert sorted(path.name for path in folder.iterdir()) == ["export", "index"]


def test_threads_get_the_same_answers(retriever):
    queries = [f"how can i {word}" for word in WORDS]
    expected = retriever.search(queries)
    answers: list[bool] = []

    def ask():
        answers.extend(retriever.search(queries) == expected for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 20


def test_what_is_missing_is_named(run, tmp_path):
    with pytest.raises(UserError, match="`run`: expected the folder of a run, found none at"):
        Retriever.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no export/; finish the run"):
        Retriever.load(tmp_path / "empty")
    with pytest.raises(UserError, match="empty has no export/"):
        Retriever.build(QUESTIONS, run=tmp_path / "empty")
    with pytest.raises(UserError, match="run has no index/; finish the run"):
        Retriever.load(run)


def test_an_index_of_another_encoder_is_refused(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    export(tmp_path / "saved", seed=1)
    with pytest.raises(UserError, match="the index was made with encoder"):
        Retriever.load(tmp_path / "saved")


@pytest.mark.parametrize("name", ["export/encoder.npz", "index/index.faiss"])
def test_damaged_files_are_refused(retriever, tmp_path, name):
    retriever.save(tmp_path / "saved")
    data = bytearray((tmp_path / "saved" / name).read_bytes())
    data[-1] ^= 1
    (tmp_path / "saved" / name).write_bytes(data)
    with pytest.raises(UserError, match="the bytes differ from their SHA-256"):
        Retriever.load(tmp_path / "saved")


def test_the_package_shows_it():
    assert qpr_jax.Retriever is Retriever
    assert qpr_jax.Hit is Hit


WITHOUT_JAX = """
import sys
for name in ("jax", "jaxlib", "flax", "optax", "orbax"):
    sys.modules[name] = None  # any import of it fails
from qpr_jax import Retriever
retriever = Retriever.load(sys.argv[1])
(hits,) = retriever.search(["How to cook rice?"], k=2)
print(hits[0].id, len(hits), retriever.encode(["rice"]).shape)
import qpr_jax.retrieval.evaluate, qpr_jax.retrieval.lexical
"""


def test_needs_no_jax(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_JAX, str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        check=False,
        cwd=pathlib.Path(qpr_jax.__file__).parents[1],
    )
    assert done.stderr == ""
    assert done.stdout == "3 2 (1, 6)\n"

"""Questions encoded by one encoder, queries by another that gives nearly its vectors."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from qpr_jax.encoders.cnn_encoder import read_cnn
from qpr_jax.encoders.load import read_encoder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.extend import extend_index
from qpr_jax.index.folder import read_index, read_manifest, seal
from qpr_jax.reranking.light import LIGHT
from qpr_jax.reranking.pair_calibration import CALIBRATION, PairCalibration, save_calibration
from qpr_jax.reranking.recalibration import first_curve
from qpr_jax.retriever import Retriever
from tests.added_words import write_extended
from tests.retriever.conftest import QUESTIONS
from tests.runs import write_encoder, write_reranker

QUERIES = ["how to learn python", "cook rice", "what is rice"]


@pytest.fixture
def teacher(run) -> pathlib.Path:
    """A run whose vectors are nearly those of `run`, its student."""
    student = read_cnn(run / "export")
    noise = np.random.default_rng(1).normal(size=student.embedding.shape)
    embedding = (student.embedding + 0.01 * noise).astype(np.float32)
    embedding[0] = 0
    folder = run.parent / "teacher"
    save_encoder(folder / "export", dataclasses.replace(student, embedding=embedding))
    return folder


@pytest.fixture
def folder(run, teacher, tmp_path) -> pathlib.Path:
    Retriever.build(QUESTIONS, [7, 8, 3, 4], run=run, documents_by=teacher).save(tmp_path / "mine")
    return tmp_path / "mine"


def expected_hits(run, teacher, questions, queries):
    """Ids by row and squared distances, of two encoders, without an index."""
    vectors = read_encoder(teacher / "export").encode(questions)
    own = read_encoder(run / "export").encode(queries)
    distances = ((own[:, None] - vectors[None]) ** 2).sum(axis=2)
    order = np.argsort(distances, axis=1)
    return order, np.take_along_axis(distances, order, axis=1)


def check_search(retriever, run, teacher, ids, questions):
    order, distances = expected_hits(run, teacher, questions, QUERIES)
    for hits, rows, near in zip(retriever.search(QUERIES, 9), order, distances, strict=True):
        assert [hit.id for hit in hits] == [ids[row] for row in rows]
        np.testing.assert_allclose([hit.distance for hit in hits], near, rtol=1e-3, atol=1e-5)


def test_each_encoder_has_its_own_part(folder, run, teacher):
    ids = [7, 8, 3, 4]
    loaded = Retriever.load(folder)
    check_search(loaded, run, teacher, ids, QUESTIONS)
    np.testing.assert_array_equal(
        loaded.encode(QUERIES), read_encoder(run / "export").encode(QUERIES)
    )
    loaded.add(["learn to cook"], [9])
    more, ids = [*QUESTIONS, "learn to cook"], [*ids, 9]
    check_search(loaded, run, teacher, ids, more)
    check_search(Retriever.load(folder), run, teacher, ids, more)
    loaded.compact()
    check_search(loaded, run, teacher, ids, more)
    Retriever.load(folder).save(folder.parent / "copy")
    shutil.rmtree(folder)
    copy = Retriever.load(folder.parent / "copy")
    copy.add(["rice"], [1])
    check_search(copy, run, teacher, [*ids, 1], [*more, "rice"])


def test_the_folder_names_both_and_a_search_reads_one(folder, run, teacher):
    students, teachers = (read_encoder(path / "export").identity for path in (run, teacher))
    manifest = read_manifest(folder / "index")
    assert (manifest["encoder"], manifest["queries_by"]) == (teachers, students)
    (documents,) = folder.glob("documents-*")
    assert read_encoder(documents).identity == teachers
    shutil.rmtree(documents)
    loaded = Retriever.load(folder)
    assert loaded.search(QUERIES, 1)
    with pytest.raises(UserError, match=f"{documents.name}: expected an encoder: a manifest"):
        loaded.add(["more"])
    save_encoder(documents, read_encoder(run / "export"))
    expected = f"expected the encoder {teachers[:12]}, by which .* got {students[:12]}"
    with pytest.raises(UserError, match=expected):
        loaded.compact()
    assert len(Retriever.load(folder)) == len(QUESTIONS)


def test_other_encoders_are_refused_with_both_hashes(folder, run, teacher, tmp_path):
    students, teachers = (read_encoder(path / "export").identity for path in (run, teacher))
    expected = f"was made with encoder {students[:12]}, not with {teachers[:12]}; build"
    with pytest.raises(UserError, match=expected):
        read_index(folder / "index", encoder=teachers)
    shutil.rmtree(folder / "export")
    save_encoder(folder / "export", read_encoder(teacher / "export"))
    with pytest.raises(UserError, match=expected):
        Retriever.load(folder)
    # A version that knows of one encoder only would take that of the queries for it.
    assert read_manifest(folder / "index")["encoder"] != students


def test_a_change_notices_that_another_process_replaced_an_encoder(folder, run, teacher):
    old = Retriever.load(folder)
    Retriever.build(QUESTIONS, run=run).save(folder)
    assert not [*folder.glob("documents-*")]
    old.add(["learn to cook"], [9])
    check_search(old, run, run, [0, 1, 2, 3, 9], [*QUESTIONS, "learn to cook"])
    Retriever.build(QUESTIONS, run=teacher, documents_by=run).save(folder)
    with pytest.raises(UserError, match="the index was made with encoder"):
        old.add(["more"])


def test_the_same_encoder_twice_is_one(run):
    retriever = Retriever.build(QUESTIONS, run=run, documents_by=run / "export")
    assert retriever.index.documents is None


def test_encoders_that_do_not_fit(run, tmp_path, folder):
    lines = []
    write_encoder(tmp_path / "other", seed=5)
    many = [f"{text} {i}" for i in range(20) for text in QUESTIONS]
    Retriever.build(many, run=run, documents_by=tmp_path / "other", log=lines.append)
    (line,) = (line for line in lines if "find themselves" in line)
    assert line.startswith("warning: two encoders: ")
    assert "80 questions find themselves (95% expected); an index by the encoder of" in line
    encoder = read_cnn(run / "export")
    shorter = dataclasses.replace(encoder, projection=encoder.projection[:, :4])
    save_encoder(tmp_path / "short" / "export", shorter)
    with pytest.raises(UserError, match=r"expected an encoder of 6 dimensions, .* got one of 4"):
        Retriever.build(QUESTIONS, run=run, documents_by=tmp_path / "short")
    with pytest.raises(UserError, match="`documents_by`: expected a run or an index, found none"):
        Retriever.build(QUESTIONS, run=run, documents_by=tmp_path / "none")


def test_encoders_that_fit_say_so(run, teacher):
    lines = []
    Retriever.build(QUESTIONS, run=run, documents_by=teacher, log=lines.append)
    assert "two encoders: 100% of 4 questions find themselves" in lines


def test_what_was_learned_of_one_encoders_distances_is_not_used(folder, run, teacher, tmp_path):
    """Neither the re-ranker nor the probabilities, which stay in the folder."""
    write_reranker(run)
    identity = read_encoder(run / "export").identity
    curve = first_curve(np.array([1.0, 2.0]))
    save_calibration(run / "export" / CALIBRATION, PairCalibration(identity, curve, 2.0))
    assert Retriever.build(QUESTIONS, run=run).search(QUERIES)[0][0].score is not None
    retriever = Retriever.build(QUESTIONS, run=run, documents_by=teacher)
    retriever.save(tmp_path / "both")
    for some in (retriever, Retriever.load(tmp_path / "both")):
        assert LIGHT in some.second_stages.models
        assert {hit.score for hits in some.search(QUERIES) for hit in hits} == {None}
        assert some.second_stages.words(some.index) == [False]
        with pytest.raises(UserError, match="`rerank`: expected distances between vectors of one"):
            some.search(QUERIES, rerank="light")
        explained = some.explain("learn rice", "cook rice")
        assert (explained.pair_probability, explained.probability) == (None, None)
        own = read_encoder(run / "export").encode(["learn rice"])
        other = read_encoder(teacher / "export").encode(["cook rice"])
        assert explained.distance == pytest.approx(float(((own - other) ** 2).sum()), rel=1e-5)


def test_the_encoder_of_the_queries_is_extended(folder, run, teacher, tmp_path):
    write_extended(run, tmp_path / "german", "wie", "koche", "ich")
    before = (folder / "index" / "manifest.json").read_bytes()
    with pytest.raises(UserError, match="expected an encoder that extends that of"):
        extend_index(folder, teacher)
    assert (folder / "index" / "manifest.json").read_bytes() == before
    assert extend_index(folder, tmp_path / "german")
    assert not extend_index(folder, tmp_path / "german")
    loaded = Retriever.load(folder)
    check_search(loaded, run, teacher, [7, 8, 3, 4], QUESTIONS)
    assert loaded.encoder.identity == read_encoder(tmp_path / "german" / "export").identity
    assert loaded.index.encoder == read_encoder(teacher / "export").identity
    loaded.add(["Wie koche ich rice?"], [9])
    assert len(Retriever.load(folder)) == 5


def test_an_older_manifest_has_one_encoder(folder):
    """Without `queries_by`, as of an index that was built before, it is that of all."""
    path = folder / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["queries_by"]
    path.write_text(json.dumps(seal(manifest)))
    with pytest.raises(UserError, match="the index was made with encoder"):
        Retriever.load(folder)

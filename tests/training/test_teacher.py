"""A teacher's vectors: computed once, cached, resumed, given by the user, trained on or not."""

import json

import numpy as np
import pytest

from qpr_jax.encoders.transformer_encoder import TransformerEncoder, read_transformer
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import gives_vectors, load_config, override
from qpr_jax.training.dataset import load_dataset, with_teacher
from qpr_jax.training.phases import BatchLoader, build_plan
from qpr_jax.training.teacher import cached_vectors, teacher_words
from tests.encoders.examples import TINY


@pytest.fixture
def config():
    """A student of sixteen numbers of the tiny transformer, on pairs."""
    changes = {
        "teacher.model": str(TINY),
        "teacher.epochs": 1,
        "teacher.batch_size": 64,
        "encoder.output_dim": 16,
        "encoder.normalize": True,
        "rerank.candidates": 0,
    }
    return load_config("synthetic_sdml:smoke", changes)


def taught(config):
    dataset = load_dataset(config, None)
    encoder = None if gives_vectors(config) else read_transformer(config.teacher.model)
    return with_teacher(config, dataset, encoder)


def test_vectors_are_the_teachers_and_computed_once(config, tmp_path, monkeypatch):
    dataset = taught(config)
    questions = dataset.data.questions
    rows = np.array([5, 0, 17])
    expected = read_transformer(TINY).encode([questions[i] for i in rows])
    np.testing.assert_allclose(dataset.teacher.vectors(rows), expected, atol=2e-6)
    monkeypatch.setattr(TransformerEncoder, "encode", lambda *_: pytest.fail("computed again"))
    np.testing.assert_array_equal(
        taught(config).teacher.vectors(rows), dataset.teacher.vectors(rows)
    )


def test_an_encoding_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts, calls = ["x" * (1 + i % 7) for i in range(900)], []

    def encode(self, questions):
        calls.append(len(questions))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return np.array([[len(question), *[1] * 15] for question in questions], np.float32)

    monkeypatch.setattr(TransformerEncoder, "encode", encode)
    encoder = read_transformer(TINY)
    with pytest.raises(KeyboardInterrupt):
        cached_vectors(encoder, texts, chunk=200)
    found = cached_vectors(encoder, texts, chunk=200)
    assert calls == [200, 200, 200, 200, 200, 100]
    assert found[:, 0].tolist() == [*map(len, texts)]


def test_held_out_questions_are_never_shown(config, tmp_path):
    """Neither they nor an unlabeled question of the same words."""
    dataset = load_dataset(config, None)
    held_out = np.flatnonzero(dataset.splits.split_of != 0)
    more = tmp_path / "more.jsonl"
    copied = dataset.data.questions[held_out[0]].upper()
    texts = [copied, "Which questions are new here?", "And this one?"]
    more.write_text("\n".join(json.dumps({"question": text}) for text in texts))
    config.data.unlabeled = str(more)
    dataset = taught(config)
    assert dataset.unlabeled == texts[1:]
    assert set(texts[1].lower().rstrip("?").split()) <= set(dataset.tokenizer.words)
    feed = BatchLoader(config, dataset, imitation=True, devices=1)
    trained = np.concatenate([feed.indices(step).questions for step in range(feed.epoch)])
    everything = dataset.data.questions + dataset.unlabeled
    texts = {normalized_text(everything[i]) for i in trained}
    assert not texts & {normalized_text(everything[i]) for i in held_out}
    assert len(np.unique(trained)) == len(trained) > 0.9 * len(dataset.trainable_rows)
    feed = BatchLoader(config, dataset, devices=1)
    pairs = np.concatenate([feed.indices(step).pairs for step in range(feed.epoch)])
    assert (dataset.splits.split_of[pairs] == 0).all()


def test_a_student_of_fewer_numbers_learns_what_keeps_most_of_the_products(config, tmp_path):
    config.encoder.output_dim = 12
    teacher = taught(config).teacher
    rows = np.arange(100)
    targets, vectors = teacher.targets(rows), teacher.vectors(rows)
    assert targets.shape == (100, 12)
    np.testing.assert_allclose(np.linalg.norm(targets, axis=1), 1, atol=1e-5)
    off = np.abs(targets @ targets.T - vectors @ vectors.T).mean()
    plain = vectors[:, :12] / np.linalg.norm(vectors[:, :12], axis=1, keepdims=True)
    assert off < 0.5 * np.abs(plain @ plain.T - vectors @ vectors.T).mean()


def test_a_users_vectors_teach_as_a_model_does(config, tmp_path):
    dataset = load_dataset(config, None)
    vectors = np.random.default_rng(0).normal(size=(len(dataset.data.questions), 20))
    np.save(tmp_path / "given.npy", vectors.astype(np.float16))
    config = override(config, {"teacher.model": str(tmp_path / "given.npy")})
    teacher = taught(config).teacher
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(teacher.vectors(np.arange(4)), unit[:4], atol=2e-3)
    assert teacher.targets(np.arange(4)).shape == (4, 16)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (None, "No such file"),
        (b"", "got EOF"),
        (np.zeros((3, 16), np.float32), r"got float32 \[3, 16\]"),
        ("zeros", "got zeros or infinite numbers in row 7"),
    ],
)
def test_vectors_that_do_not_fit_are_refused_and_the_questions_listed(
    config, tmp_path, contents, said
):
    dataset, path = load_dataset(config, None), tmp_path / "given.npy"
    if isinstance(contents, str):
        contents = np.ones((len(dataset.data.questions), 16), np.float32)
        contents[7] = 0
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    elif contents is not None:
        np.save(path, contents)
    with pytest.raises(UserError, match=said):
        taught(override(config, {"teacher.model": str(path)}))
    lines = path.with_suffix(".jsonl").read_text().splitlines()
    assert [json.loads(line)["question"] for line in lines] == dataset.data.questions


@pytest.mark.parametrize(
    ("name", "value"),
    [("encoder.output_dim", 17), ("teacher.batch_size", 100), ("teacher.batch_size", 16_000)],
)
def test_a_wrong_size_is_named(config, name, value):
    changed = override(config, {name: value})
    with pytest.raises(UserError, match=f"`{name}`: .* got"):
        BatchLoader(changed, taught(changed), imitation=True, devices=8)


def test_the_embedding_may_start_at_the_teachers_vectors_of_words(config, tmp_path):
    config.encoder.embedding_dim = 16
    dataset = taught(config)
    table = np.asarray(build_plan(config, dataset)[1].params["embedding"][...])
    words = dataset.tokenizer.words
    vectors = read_transformer(TINY).encode(words)
    vectors -= vectors.mean(axis=0)
    found = table[1 : 1 + len(words)]
    ratio = (found @ found.T) / (vectors @ vectors.T)
    np.testing.assert_allclose(ratio, np.median(ratio), rtol=0.05)
    assert found.std() == pytest.approx(0.1, rel=1e-3)


def test_spliced_questions_say_nothing_of_held_out_ones(config):
    config.data.spliced = 60
    dataset = load_dataset(config, None)
    everything, count = dataset.data.questions, len(dataset.data.questions)
    assert len(dataset.unlabeled) == dataset.report["unlabelled"] == 60
    assert not {*dataset.unlabeled} & {*everything}
    trained = [everything[i] for i in np.flatnonzero(dataset.splits.split_of == 0)]
    others = {*map(normalized_text, everything)} - {*map(normalized_text, trained)}
    assert not others & {*map(normalized_text, dataset.unlabeled)}
    assert {*" ".join(dataset.unlabeled).split()} <= {*" ".join(trained).split()}
    assert np.isin(np.arange(count, count + 60), dataset.trainable_rows).all()
    assert load_dataset(config, None).unlabeled == dataset.unlabeled


def test_words_of_the_teacher_are_texts_and_stand_in_spliced_questions(config):
    config.data.spliced = 60
    config.text.vocabulary_size = 5000
    assert teacher_words(config, read_transformer(TINY)) == []
    config.teacher.words = True
    words = teacher_words(config, read_transformer(TINY))
    assert len(words) > 20
    assert all(word.isalpha() and len(word) > 1 for word in words)
    dataset = load_dataset(config, None, None, words)
    asked = dataset.data.questions
    alone = [word for word in words if word not in asked]
    assert dataset.unlabeled[: len(alone)] == alone
    new = {*" ".join(dataset.unlabeled[len(alone) :]).split()} - {*" ".join(asked).split()}
    assert new
    assert {word.strip("?.,:") for word in new} <= {*words}
    assert {*words} <= {*dataset.tokenizer.words}

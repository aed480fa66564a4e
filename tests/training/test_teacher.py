"""A teacher's vectors: computed once, resumed, given by the user; lists of questions."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load

from qpr_jax import Retriever
from qpr_jax.data.generated_questions import synthetic_pairs
from qpr_jax.data.splits import TRAIN
from qpr_jax.encoders.load import load_encoder
from qpr_jax.encoders.transformer_encoder import TransformerEncoder, read_transformer
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.draws import READ
from qpr_jax.training.model_families import family_of, read_start
from qpr_jax.training.objectives import make_objectives
from qpr_jax.training.pair_model_job import sort_lists
from qpr_jax.training.run import train_and_evaluate
from qpr_jax.training.sources import SOURCES, listed_files, read_listed
from qpr_jax.training.teacher import read_teacher, teacher_words
from qpr_jax.training.train import plan, reuse_vectors
from tests.encoders.examples import TINY
from tests.languages import write_teacher
from tests.refused import check_refused


@pytest.fixture
def config():
    """A student of sixteen numbers of the tiny transformer, on pairs."""
    changes = {
        "teacher.model": str(TINY),
        "teacher.epochs": 1,
        "encoder.output_dim": 16,
        "encoder.normalize": True,
        "rerank.candidates": 0,
    }
    return load_config("synthetic_sdml:smoke", changes)


def taught(config):
    return load_dataset(config, None, None, read_teacher(config))


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


def test_known_vectors_are_used_and_other_texts_encoded():
    """An index leaves HTML out before it encodes; `Retriever`'s tests have that."""
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return np.array([[len(text)] for text in texts], np.float32)

    reuse = reuse_vectors(SimpleNamespace(encode=encode), ["a", "<b>c</b>"], np.float32([[7], [8]]))
    assert reuse(["<b>c</b>", "c d", "a", "e"]).tolist() == [[8], [3], [7], [1]]
    assert encoded == ["c d", "e"]


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
    distillation, sdml = (objective.draw for objective in make_objectives(config, dataset))
    steps = range(distillation.epoch)
    trained = np.concatenate([distillation.at(step)[0]["questions"] for step in steps])
    everything = dataset.data.questions + dataset.unlabeled
    texts = {normalized_text(everything[i]) for i in trained}
    assert not texts & {normalized_text(everything[i]) for i in held_out}
    assert len(np.unique(trained)) == len(trained) > 0.9 * len(dataset.trainable_rows)
    for step in range(sdml.epoch):
        assert all((dataset.splits.split_of[rows] == 0).all() for rows in sdml.at(step)[0].values())


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


WRONG = [
    (lambda count: None, "No such file"),
    (lambda count: np.zeros(0, np.float32), r"got float32 \[0\]"),
    (lambda count: np.zeros((3, 16), np.float32), r"got float32 \[3, 16\]"),
    (lambda count: np.arange(count)[:, None] * np.ones(16), "got zeros or infinite .* in row 0"),
]


def test_a_users_vectors_teach_as_a_model_does_if_they_fit(config, tmp_path):
    dataset, path = load_dataset(config, None), tmp_path / "given.npy"
    config = override(config, {"teacher.model": str(path)})
    questions = dataset.data.questions
    for make, said in WRONG:
        if (wrong := make(len(questions))) is not None:
            np.save(path, wrong)
        check_refused(taught, (config, said))
        (listed,) = tmp_path.glob("given.questions-*.jsonl")
        lines = listed.read_text().splitlines()
        assert [json.loads(line)["question"] for line in lines] == questions
    path.write_bytes(b"")
    check_refused(taught, (config, "got EOF"))
    vectors = np.random.default_rng(0).normal(size=(len(questions), 20))
    np.save(path, vectors.astype(np.float16))
    teacher = taught(config).teacher
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(teacher.vectors(np.arange(4)), unit[:4], atol=2e-3)
    assert teacher.targets(np.arange(4)).shape == (4, 16)


@pytest.mark.parametrize("more", [0, 16])
def test_a_student_of_an_encoder_learns_vectors_near_its_own(tmp_path, more):
    """The teacher's are its own, rotated among more numbers."""
    path = tmp_path / "given.npy"
    changes = {"teacher.model": str(path), "encoder.pretrained": str(TINY)}
    config = load_config("synthetic_sdml:smoke", changes)
    start = read_start(config)
    questions = load_dataset(load_config("synthetic_sdml:smoke"), None).data.questions
    start_vectors = start.encode(questions)
    size = start.dimension + more
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))
    np.save(path, (np.pad(start_vectors, [(0, 0), (0, more)]) @ rotation).astype(np.float32))
    targets = load_dataset(config, None, start).teacher.targets(np.arange(len(questions)))
    np.testing.assert_allclose(targets, start_vectors, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("encoder.output_dim", 17, "got 17"),
        ("batch_size", 100, "got 100; try `batch_size=96`"),
        ("batch_size", 3, "got 3; try `batch_size=8`"),
        ("batch_size", 16_000, "got"),
    ],
)
def test_a_wrong_size_is_named(config, name, value, said):
    changed = override(config, {name: value})
    with pytest.raises(UserError, match=f"`{name}`: .* {said}"):
        plan(changed, taught(changed))


def test_recombined_questions_say_nothing_of_held_out_ones(config):
    config.data.recombined = 60
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


def test_words_of_the_teacher_are_texts_and_stand_in_recombined_questions(config):
    config.data.recombined = 60
    config.text.vocabulary_size = 5000
    assert teacher_words(config, read_transformer(TINY)) == []
    config.teacher.words = True
    words = teacher_words(config, read_transformer(TINY))
    assert len(words) > 20
    assert all(word.isalpha() and len(word) > 1 for word in words)
    dataset = taught(config)
    asked = dataset.data.questions
    alone = [word for word in words if word not in asked]
    assert dataset.unlabeled[: len(alone)] == alone
    new = {*" ".join(dataset.unlabeled[len(alone) :]).split()} - {*" ".join(asked).split()}
    assert new
    assert {word.strip("?.,:") for word in new} <= {*words}
    assert {*words} <= {*dataset.tokenizer.words}


def test_a_student_learns_how_a_judge_sorts_lists(config, finished):
    changes = {"teacher.model": str(finished[0]), "teacher.lists": 0.5, "max_steps": 4}
    changes |= {"data.held_out_pairs": 400}
    config = override(config, changes)
    dataset = taught(config)
    lists = sort_lists(config, dataset)
    rows = np.column_stack([lists.queries, lists.candidates])
    assert (dataset.splits.split_of[rows] == TRAIN).all()
    assert all(len({*row}) == rows.shape[1] for row in rows.tolist())
    paraphrase = dataset.clusters[lists.candidates] == dataset.clusters[lists.queries, None]
    assert lists.scores[paraphrase].mean() > lists.scores[~paraphrase].mean() + 0.1
    dataset = dataclasses.replace(dataset, lists=lists)
    objective = make_objectives(config, dataset)[-1]
    rows, facts = objective.draw.at(3)
    assert facts["scores"].shape == rows["hits"].shape == (8, READ)
    row_of = {query: row for row, query in enumerate(lists.queries.tolist())}
    for query, found, scores in zip(*rows.values(), facts["scores"], strict=True):
        scored = dict(zip(*(part[row_of[query]].tolist() for part in lists[1:]), strict=True))
        assert [scored[row] for row in found.tolist()] == scores.tolist()
        assert scores.max() == max(scored.values())

    def first_loss(devices):
        (_, phase), state = plan(override(config, {"devices": devices}), dataset)
        return float(phase.step(state, phase.load(phase.steps.start)[0])[1]["loss_lists"])

    assert first_loss(1) == pytest.approx(first_loss(4), rel=1e-5)
    few = dataclasses.replace(dataset.splits, split_of=np.ones_like(dataset.splits.split_of))
    check_refused(
        sort_lists, (config, dataclasses.replace(dataset, splits=few), "`teacher.lists`: there are")
    )


@pytest.mark.slow
def test_a_list_of_questions_makes_a_student_that_agrees(tmp_path):
    """Of 400 questions, some of them twice, and a teacher's vectors of them."""
    questions = synthetic_pairs(clusters=150).questions[:390]
    questions += questions[:10]
    (tmp_path / "questions.txt").write_text("".join(f"{question}\n" for question in questions))
    write_teacher(tmp_path, questions)
    np.save(tmp_path / "vectors.npy", load_encoder(tmp_path / "export").encode(questions))
    changes = {
        "data.path": str(tmp_path / "questions.txt"),
        "teacher.model": str(tmp_path / "no.npy"),
        "teacher.epochs": 1,
        "data.recombined": 0,
        "optimizer.learning_rate": 1e-2,
        "devices": 2,
    }
    config = load_config("distill:smoke", changes)
    config.max_steps = 300
    config.early_stopping.every_steps = config.checkpoint_every = 100
    with pytest.raises(UserError, match=r"no.npy: expected a .npy file of floats, 400 rows"):
        train_and_evaluate(config, tmp_path / "run")
    config.teacher.model = str(tmp_path / "vectors.npy")  # and the same command resumes
    report = train_and_evaluate(config, tmp_path / "run")
    assert report["test"]["agreement"] > 0.3
    assert report["data"]["splits"]["test"]["questions"] >= 30
    retriever = Retriever.load(tmp_path / "run")
    vectors = retriever.encode(["how can i cook rice", ""])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_list_is_a_file_or_a_folder(tmp_path):
    folder = tmp_path / "a, b"
    folder.mkdir()
    (folder / "more.jsonl").write_text('{"question": "three?", "answer": "3"}\n')
    (tmp_path / "one.txt").write_text("one?\ntwo?\n")
    config = load_config("distill")
    for path, expected in ((tmp_path / "one.txt", ["one?", "two?"]), (folder, ["three?"])):
        config.data.path = str(path)
        assert [*read_listed(config, "data.path")] == expected
    assert [file.name for file in listed_files(config, "data.path")] == ["more.jsonl"]
    config.data.path = str(tmp_path / "none")
    with pytest.raises(UserError, match=r"`data.path`: expected a file or a folder, .* none at"):
        listed_files(config, "data.path")
    (tmp_path / "few.txt").write_text("one?\nOne\ntwo?\n")
    config.data.path = str(tmp_path / "few.txt")
    with pytest.raises(UserError, match="expected at least 10 different questions, got 2"):
        load_dataset(config, tmp_path / "few.txt")
    (tmp_path / "few.txt").write_text("".join(f"question {i % 20}\n" for i in range(50)))
    data = SOURCES["questions"].read(config, tmp_path / "few.txt").data
    assert (len(data.questions), data.report["repeated_rows"]) == (20, 30)


def test_a_teacher_in_eight_bits_has_words_without_embeddings():
    config = load_config("quora_distilled", {"teacher.words": True})
    words = teacher_words(config, read_teacher(config))
    assert {"printer", "keyboard"} < {*words}
    config.teacher.lists = 1.0
    check_refused(read_teacher, (config, r"`teacher\.model`: .*needs embeddings of words.*8 bits"))


@pytest.mark.parametrize("stored", ["float16", "int8"])
def test_exported_weights_are_those_that_are_stored(config, stored):
    config.encoder.stored_dtype = stored
    dataset = taught(config)
    family = family_of(None)
    encoder = family.export(config, dataset, family.init(config, dataset)[1])
    tensors = load(encoder.files()["model.safetensors"])
    assert {name: array.dtype for name, array in tensors.items()} == {
        **{name: np.dtype(np.float16) for name in tensors},
        "embedding": np.dtype(stored),
        **({"embedding_scales": np.dtype(np.float32)} if stored == "int8" else {}),
    }

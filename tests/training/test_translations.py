"""Translations in a training: rows, whose vector each learns, clusters, batches, glosses."""

import dataclasses
import json

import numpy as np
import pytest

from qpr_jax.encoders.load import read_encoder
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text, tokenize
from qpr_jax.training.config import override
from qpr_jax.training.dataset import load_dataset, with_teacher
from qpr_jax.training.loader import BatchLoader
from qpr_jax.training.sampler import make_pairs_sampler
from tests.made_up_language import LANGUAGE, translate, write_tsv
from tests.training.test_loader import questions_of
from tests.translation_runs import translated_config


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translations")
    config = translated_config(folder, words=40)
    more = folder / "more.jsonl"
    texts = ["Which questions are new here?", "And this one?"]
    more.write_text("".join(json.dumps({"question": text}) + "\n" for text in texts))
    changes = {"data.unlabeled": str(more), "data.glossed": 2, "batch.subword_dropout": 0.4}
    return override(config, changes | {"batch.translations": 0.25})


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config, None)


@pytest.fixture(scope="module")
def taught(config, dataset):
    return with_teacher(config, dataset, read_encoder(f"{config.teacher.model}/export"))


def texts_of(dataset):
    """The text of every row."""
    translations = dataset.translations
    more = translations.sources + translations.targets
    return dataset.data.questions + dataset.unlabeled + more


def test_rows_are_questions_unlabeled_sources_and_targets(config, dataset):
    translations, texts = dataset.translations, texts_of(dataset)
    count = len(dataset.data.questions)
    assert (dataset.first_source, len(dataset.unlabeled)) == (count + 2, 2)
    assert dataset.first_target == count + 2 + len(translations.sources)
    assert len(texts) == len(dataset.token_ids) == len(dataset.clusters) == len(dataset.target_rows)
    # The tokens of a row are those of its text.
    rows = [0, count, dataset.first_source, dataset.first_target, len(texts) - 1]
    for row in rows:
        ids, _, parts = dataset.tokenizer.token_ids([texts[row]], config.text.max_tokens)
        own = dataset.token_ids[row][dataset.token_ids[row] > 0]
        assert [
            dataset.parts.take(np.array([id - dataset.tokenizer.size])).rows.tolist()
            if id >= dataset.tokenizer.size
            else id
            for id in own
        ] == [
            parts.take(np.array([id - dataset.tokenizer.size])).rows.tolist()
            if id >= dataset.tokenizer.size
            else id
            for id in ids[0]
        ]


def test_a_target_learns_the_vector_of_its_source(dataset):
    texts, rows = texts_of(dataset), dataset.target_rows
    first = dataset.first_target
    np.testing.assert_array_equal(rows[:first], np.arange(first))
    assert rows.max() < first
    given = len(dataset.translations.targets) - (~is_given(dataset)).sum()
    for target in range(first, first + given):
        assert translate(texts[rows[target]]) == texts[target]


def is_given(dataset):
    """Whether each target stands in a file, not a gloss."""
    translations = dataset.translations
    return translations.source_of < len(translations.sources)


def test_glosses_are_of_training_and_unlabeled_questions_alone(dataset):
    glossed = np.flatnonzero(~is_given(dataset)) + dataset.first_target
    texts, sources = texts_of(dataset), dataset.target_rows[glossed]
    questions = dataset.trainable_questions
    assert np.isin(sources, questions).all()
    assert np.unique(sources, return_counts=True)[1].max() <= 2
    assert np.isin(sources, np.arange(len(dataset.data.questions), dataset.first_source)).any()
    assert len(np.unique(sources)) > 0.9 * len(questions)
    right = 0
    for gloss, source in zip(glossed, sources, strict=True):
        words, original = texts[gloss].split(), tokenize(texts[source])
        assert len(words) == len(original)
        assert words != original
        right += sum(a == translate(b) for a, b in zip(words, original, strict=True))
    total = sum(len(texts[gloss].split()) for gloss in glossed)
    assert right > 0.5 * total  # the rest are glued words, and words that no sentence has


def test_a_source_and_its_targets_are_a_cluster(dataset):
    clusters, rows = dataset.clusters, dataset.target_rows
    targets = np.arange(dataset.first_target, len(rows))
    np.testing.assert_array_equal(clusters[targets], clusters[rows[targets]])
    sources = clusters[dataset.first_source : dataset.first_target]
    assert len(np.unique(sources)) == len(sources)
    count = len(dataset.data.questions)
    assert not np.isin(sources, clusters[:count]).any()
    assert (sources >= 0).all()
    assert (clusters[count : dataset.first_source] == -1).all()


def test_training_reads_all_but_held_out_questions(dataset):
    held_out = np.flatnonzero(dataset.splits.split_of != 0)
    everything = np.arange(len(dataset.token_ids))
    np.testing.assert_array_equal(dataset.trainable_rows, np.setdiff1d(everything, held_out))


def test_pairs_are_sentences_and_neither_entries_of_a_dictionary_nor_glosses(dataset):
    pairs, texts = dataset.translation_pairs(), texts_of(dataset)
    assert pairs.dtype == np.int32
    assert (pairs[:, 1] >= dataset.first_target).all()
    np.testing.assert_array_equal(dataset.target_rows[pairs[:, 1]], pairs[:, 0])
    assert len(pairs) == is_given(dataset).sum() - 40
    assert (pairs[:, 0] >= dataset.first_source).all()
    assert all(len(texts[source].split()) > 1 for source in pairs[:, 0])
    assert dataclasses.replace(dataset, translations=None).translation_pairs().shape == (0, 2)


def test_a_share_of_each_batch_is_translations(config, dataset):
    sampler = make_pairs_sampler(config, dataset, devices=1)
    allowed = {tuple(pair) for pair in dataset.translation_pairs().tolist()}
    plain = {tuple(pair) for pair in dataset.splits.pairs["train"].tolist()}
    seen = set()
    steps = len(allowed) // 8
    for step in range(steps):
        pairs = [tuple(pair) for pair in sampler.indices(step).pairs.tolist()]
        assert len(pairs) == config.batch_size == 32
        assert {*pairs[:24]} <= plain
        assert {*pairs[24:]} <= allowed
        seen |= {*pairs[24:]}
        np.testing.assert_array_equal(sampler.indices(step).pairs, pairs)
    assert len(seen) == 8 * steps  # none twice before all were read
    without = make_pairs_sampler(override(config, {"batch.translations": 0.0}), dataset, devices=1)
    assert {*map(tuple, without.indices(0).pairs.tolist())} <= plain
    most = make_pairs_sampler(override(config, {"batch.translations": 0.999}), dataset, devices=1)
    assert len({*map(tuple, most.indices(0).pairs.tolist())} & allowed) == 31


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("imitation", [False, True])
def test_a_batch_has_the_teachers_vectors_of_the_sources(config, taught, imitation, devices):
    changed = override(config, {"teacher.weight": 0.5})
    loader = BatchLoader(changed, taught, imitation=imitation, devices=devices)
    texts = texts_of(taught)
    encoder = taught.teacher.encoder
    targets = 0
    for step in (0, 3):
        draw = loader.indices(step)
        rows = draw.questions[draw.positions(devices)].ravel()
        sources = [texts[row] for row in taught.target_rows[rows]]
        expected = encoder.encode(sources)
        np.testing.assert_allclose(loader.batch_at(step).targets, expected, atol=1e-6)
        targets += (rows >= taught.first_target).sum()
    assert targets


def test_held_out_questions_are_in_no_translation(config, tmp_path):
    first = load_dataset(override(config, {"data.parallel": (), "batch.translations": 0}), None)
    held_out = [first.data.questions[i] for i in np.flatnonzero(first.splits.split_of != 0)]
    known = [first.data.questions[i] for i in np.flatnonzero(first.splits.split_of == 0)][:30]
    secret = held_out[0].upper().rstrip("?") + " !"
    pairs = [(text, translate(text)) for text in known]
    spec = write_tsv(tmp_path / "more.tsv", [*pairs, (secret, "zzyzx"), (held_out[1], "qqux")])
    changes = {"data.parallel": (*config.data.parallel, spec), "text.min_count": 1}
    dataset = load_dataset(override(config, changes), None)
    translations = dataset.translations
    secrets = {normalized_text(text) for text in held_out}
    assert not secrets & {normalized_text(text) for text in translations.sources}
    scored = translations.splits.held_out
    held = [t for split in scored.values() for part in split for t in part.targets]
    assert translations.splits.report["held_out_questions"] + len({"zzyzx", "qqux"} & {*held}) == 2
    assert not {"zzyzx", "qqux"} & {*" ".join(translations.targets).split()}
    assert not {"zzyzx", "qqux"} & {*dataset.tokenizer.words}
    texts = texts_of(dataset)
    same = [i for i in range(dataset.first_source, dataset.first_target) if texts[i] in known]
    assert len(same) >= 20


def test_glossaries_translate_words_of_the_other_language_alone(dataset):
    glossary = dataset.translations.glossary()
    english = {w for text in dataset.translations.sources for w in tokenize(text)}
    assert not {*glossary} & english
    glued = ("", "a ", "an ", "my ", "the ", "this ")
    right = [
        any(translate(first + found) == word for found in meanings.split() for first in glued)
        for word, meanings in glossary.items()
    ]
    assert len(right) > 100
    assert np.mean(right) > 0.8


def test_embeddings_start_at_the_vectors_of_translations(config, dataset):
    encoder = read_encoder(f"{config.teacher.model}/export")
    taught = with_teacher(config, dataset, encoder)
    assert taught.teacher.glossary == dataset.translations.glossary()
    started = dataclasses.replace(dataset, start=encoder)  # has embeddings of its own
    assert not with_teacher(config, started, encoder).teacher.glossary


def test_an_encoder_without_sums_cannot_spell_words(config):
    changes = {"encoder.pretrained": config.teacher.model}
    start = read_encoder(f"{config.teacher.model}/export")
    with pytest.raises(UserError, match=r"`batch.subword_dropout`: must be 0"):
        load_dataset(override(config, changes), None, start)


def test_scored_sentences_are_in_no_training(dataset):
    translations = dataset.translations
    texts = {normalized_text(text) for text in translations.sources + translations.targets}
    for name in ("validation", "test"):
        (held_out,) = translations.splits.held_out[name]
        assert held_out.language == LANGUAGE
        assert len(held_out.sources) == 30
        for side in (held_out.sources, held_out.targets):
            assert not texts & {normalized_text(text) for text in side}


@pytest.mark.parametrize("devices", [2, 8])
def test_a_batch_holds_the_same_tokens_on_any_number_of_devices(config, dataset, devices):
    one, many = (BatchLoader(config, dataset, devices=n) for n in (1, devices))
    for step in (0, 5):
        first, second = one.batch_at(step), many.batch_at(step)
        assert np.any(first.sums[0])
        assert questions_of(second, devices) == questions_of(first, 1)

"""Translations in a training: files, rows, whose vector each learns, words."""

import numpy as np
import pytest

from qpr_jax.data.splits import TRAIN
from qpr_jax.encoders.load import load_encoder
from qpr_jax.text.tokenizer import normalized_text, tokenize
from qpr_jax.training.batches import Loader
from qpr_jax.training.config import override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.draws import draw_pairs
from qpr_jax.training.objectives import make_objectives
from qpr_jax.training.translations import (
    TranslationData,
    load_translations,
    translation_digests,
    with_languages,
)
from tests.languages import DIMENSION, LANGUAGE, translate, translated_config, write_tsv
from tests.refused import check_refused


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translations")
    config = translated_config(folder, words=40)
    more = folder / "more.jsonl"
    more.write_text('{"question": "Which questions are new here?"}\n{"question": "And this one?"}')
    return override(config, {"data.unlabeled": str(more), "batch.subword_dropout": 0.4})


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config, None, None, load_encoder(f"{config.teacher.model}/export"))


def texts_of(dataset):
    """The text of every row."""
    translations = dataset.translations
    more = translations.sources + translations.targets
    return dataset.data.questions + dataset.unlabeled + more


def is_given(dataset):
    """Whether each target stands in a file, not the words of a question."""
    translations = dataset.translations
    return translations.source_of < len(translations.sources)


def normalized(texts):
    return {normalized_text(text) for text in texts}


def test_what_cannot_be_learned_or_scored_is_refused(config):
    changes = {"data.parallel": config.data.parallel[1:]}  # a dictionary alone
    assert not load_translations(override(config, changes), ()).splits.held_out["validation"]
    changes["early_stopping.metric"] = "translation"
    said = "expected sentences to hold out and score"
    check_refused(load_translations, (override(config, changes), (), said))
    start = load_encoder(f"{config.teacher.model}/export")  # which has no sums to spell words
    changed = override(config, {"encoder.pretrained": config.teacher.model})
    check_refused(load_dataset, (changed, None, start, r"`batch\.subword_dropout`: "))


def test_a_wrong_file_is_named_with_its_setting(config, tmp_path):
    words = write_tsv(tmp_path / "words.tsv", [("dog", "hund"), ("cat", "katze")])
    gone, unset = f"en-de:{tmp_path}/none.tsv", "en-de:$QPR_NOT_SET/a.tsv"
    check_refused(
        lambda setting, spec: load_translations(override(config, {setting: (spec,)}), ()),
        ("data.parallel", gone, "`data.parallel`: .*none.tsv; name a file"),
        ("data.parallel_tests", words, "`data.parallel_tests`: .*sentences to score, got a dict"),
        ("data.parallel", unset, r"`data.parallel`: .*none at \$QPR_NOT_SET"),
    )


def test_languages_and_files_name_a_run_and_rows_of_each_file_are_limited(config, tmp_path):
    limited = override(config, {"data.source": "quora", "data.max_rows": 30})
    counts = load_translations(limited, ()).splits.report[LANGUAGE]
    assert (counts["sentences"], counts["dictionary_entries"]) == (30, 30)
    path = tmp_path / "a.tsv"
    write_tsv(path, [("one", "eins"), ("two", "zwei")])

    def digest(spec):
        changed = override(config, {"data.parallel": (spec,)})
        return translation_digests(changed)["data.parallel.sha256"][0]

    digests = [digest(f"{languages}:{path}") for languages in ("en-xx", "xx-en", "en-yy")]
    assert len({*digests}) == 3
    path.rename(tmp_path / "b.tsv")
    assert digest(f"en-xx:{tmp_path / 'b.tsv'}") == digests[0]


def test_a_target_learns_the_vector_of_its_source_and_is_in_its_cluster(dataset):
    texts, rows, first = texts_of(dataset), dataset.target_rows, dataset.first_target
    count, clusters = len(dataset.data.questions), dataset.clusters
    np.testing.assert_array_equal(rows[:first], np.arange(first))
    assert rows.max() < first
    for target in first + np.flatnonzero(is_given(dataset)):
        assert translate(texts[rows[target]]) == texts[target]
    np.testing.assert_array_equal(clusters[first:], clusters[rows[first:]])
    sources = clusters[dataset.first_source : first]
    assert len(np.unique(sources)) == len(sources)
    assert not np.isin(sources, clusters[:count]).any()
    assert (sources >= 0).all()
    assert (clusters[count : dataset.first_source] == -1).all()
    # Sentences of one text are a cluster, and words are not.
    few = TranslationData(
        splits=None,
        sources=["Run!", "run", "Go.", "bank"],
        targets=["Lauf!", "Renn", "Renn!", "Ufer", "Lauf"],
        source_of=np.array([0, 1, 2, 3, 3], np.int32),
        is_sentence=np.array([True, True, True, False, False]),
    )
    assert few.groups().tolist() == [0, 0, 0, 1]


def test_words_are_translated_in_training_and_unlabeled_questions_alone(dataset):
    copies = np.flatnonzero(~is_given(dataset)) + dataset.first_target
    texts, sources = texts_of(dataset), dataset.target_rows[copies]
    questions = dataset.trainable_questions
    assert np.isin(sources, questions).all()
    assert len(np.unique(sources)) == len(sources)
    assert np.isin(sources, np.arange(len(dataset.data.questions), dataset.first_source)).any()
    assert len(np.unique(sources)) > 0.9 * len(questions)
    right = total = 0
    for copy, source in zip(copies, sources, strict=True):
        words, original = texts[copy].split(), tokenize(texts[source])
        assert words != original
        right += sum(a == translate(b) for a, b in zip(words, original, strict=True))
        total += len(words)
    assert right > 0.5 * total  # the rest are glued words, and words that no sentence has


def test_a_share_of_each_batch_is_sentences_with_translations(config, dataset):
    pairs, texts = dataset.translation_pairs(), texts_of(dataset)
    np.testing.assert_array_equal(dataset.target_rows[pairs[:, 1]], pairs[:, 0])
    assert len(pairs) == is_given(dataset).sum() - 40  # no dictionary's
    assert all(len(texts[source].split()) > 1 for source in pairs[:, 0])
    allowed = {*map(tuple, pairs.tolist())}
    plain = {*map(tuple, dataset.splits.pairs["train"].tolist())}
    draw = draw_pairs(config, dataset)

    def pairs_at(step):
        rows, _ = draw.at(step)
        return [*zip(rows["queries"].tolist(), rows["candidates"].tolist(), strict=True)]

    assert draw.epoch == len(plain) // 21
    seen, steps = set(), len(allowed) // 11
    for step in range(steps):
        read = pairs_at(step)
        assert len(read) == config.batch_size == 32
        assert {*read[:21]} <= plain
        assert {*read[21:]} <= allowed
        seen |= {*read[21:]}
    assert len(seen) == 11 * steps  # none twice before all were read
    for size, expected in ((1, 0), (2, 1)):
        draw = draw_pairs(override(config, {"batch_size": size}), dataset)
        assert len({*pairs_at(0)} & allowed) == expected


@pytest.mark.parametrize(("alone", "devices"), [(False, 4), (True, 1)])
def test_a_batch_has_the_teachers_vectors_of_its_questions_and_sources(
    config, dataset, alone, devices
):
    changed = override(config, {"teacher.weight": 0.5})
    objectives = make_objectives(changed, dataset)
    chosen = objectives[:1] if alone else objectives[1:]
    loader, start = Loader(changed, dataset, chosen, devices=devices), chosen[0].steps.start
    texts, encoder = texts_of(dataset), dataset.teacher.encoder
    translated = 0
    for step in (start, start + 3):
        batch, _ = loader.load(step)
        targets = batch.targets.reshape(devices, -1, DIMENSION)
        for name, rows in loader.draw(step)[0].items():
            places = batch.rows[name].reshape(devices, -1)
            found = np.take_along_axis(targets, places[:, :, None], axis=1)
            expected = encoder.encode([texts[row] for row in dataset.target_rows[rows]])
            np.testing.assert_allclose(found.reshape(len(rows), -1), expected, atol=1e-6)
            translated += (rows >= dataset.first_target).sum()
    assert translated
    pairs = make_objectives(config, dataset)[1:]
    unweighed = Loader(config, dataset, pairs, devices=devices)
    assert unweighed.load(pairs[0].steps.start)[0].targets.shape[1] == 0


def test_held_out_questions_are_in_no_translation(config, tmp_path):
    first = load_dataset(override(config, {"data.parallel": ()}), None)
    held_out = [first.data.questions[i] for i in np.flatnonzero(first.splits.split_of != TRAIN)]
    known = [first.data.questions[i] for i in np.flatnonzero(first.splits.split_of == TRAIN)][:30]
    secret = held_out[0].upper().rstrip("?") + " !"
    pairs = [(text, translate(text)) for text in known]
    spec = write_tsv(tmp_path / "more.tsv", [*pairs, (secret, "zzyzx"), (held_out[1], "qqux")])
    changes = {"data.parallel": (*config.data.parallel, spec), "text.subwords": False}
    changes |= {"batch.subword_dropout": 0}
    dataset = load_dataset(override(config, changes), None)
    translations, secrets = dataset.translations, {"zzyzx", "qqux"}
    assert not normalized(held_out) & normalized(translations.sources)
    held = [t for split in translations.splits.held_out.values() for p in split for t in p.targets]
    assert translations.splits.report[LANGUAGE]["held_out_questions"] + len(secrets & {*held}) == 2
    assert not secrets & {*" ".join(translations.targets).split(), *dataset.tokenizer.words}
    texts = texts_of(dataset)
    assert len({*texts[dataset.first_source : dataset.first_target]} & {*known}) >= 20


def test_questions_of_a_test_are_in_no_split(config, dataset, tmp_path):
    trained = np.flatnonzero(dataset.splits.split_of == TRAIN)
    row = int(next(i for i in trained if (dataset.splits.pairs["train"] == i).any()))
    # Another spelling of a question that has pairs.
    text = dataset.data.questions[row]
    spec = write_tsv(tmp_path / "tested.tsv", [(text.upper() + "!", "zzz qqq"), ("Nothing.", "y")])
    tested = load_dataset(override(config, {"data.parallel_tests": (spec,)}), None)
    assert tested.splits.split_of[row] == -1
    assert row not in tested.trainable_rows
    for pairs in (*tested.splits.pairs.values(), *tested.splits.non_duplicates.values()):
        assert row not in pairs
    texts = texts_of(tested)
    sources = [texts[i] for i in tested.target_rows[tested.first_target :]]
    assert not normalized([text]) & normalized(sources)


def test_an_encoder_has_all_the_languages_of_its_start(config, dataset):
    start = load_encoder(f"{config.teacher.model}/export")
    assert "translations" not in with_languages(start, None, None).settings
    one = with_languages(start, start, dataset.translations)
    files = one.settings["translations"]["files"]
    assert [file["name"] for file in files] == ["sentences.tsv", "words.tsv"]
    again = with_languages(start, one, None).settings["translations"]
    assert again == {"source_language": "en", "files": files}
    two = with_languages(start, one, dataset.translations).settings["translations"]
    assert two["files"] == files * 2


def test_embeddings_start_at_the_vectors_of_translations(dataset):
    translated = dataset.translations.word_translations()
    english = {w for text in dataset.translations.sources for w in tokenize(text)}
    assert not {*translated} & english
    glued = ("", "a ", "an ", "my ", "the ", "this ")
    right = [
        any(translate(first + found) == word for found in meanings.split() for first in glued)
        for word, meanings in translated.items()
    ]
    assert len(right) > 100
    assert np.mean(right) > 0.8

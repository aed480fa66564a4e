"""What is scored as a translation is not trained with; clusters, identity and epochs with them."""

import numpy as np
import pytest

from qpr_jax.data.splits import TRAIN
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.sampler import make_pairs_sampler
from qpr_jax.training.translations import TranslationData, translation_digests
from tests.made_up_language import write_tsv
from tests.translation_runs import translated_config


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored_translations")
    return translated_config(folder, **{"data.glossed": 1, "batch.translations": 0.25})


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config, None)


def texts_of(dataset):
    """The text of every row."""
    translations = dataset.translations
    return dataset.data.questions + translations.sources + translations.targets


def test_questions_of_a_test_are_in_no_split(config, tmp_path):
    plain = load_dataset(config, None)
    trained = np.flatnonzero(plain.splits.split_of == TRAIN)
    row = int(next(i for i in trained if (plain.splits.pairs["train"] == i).any()))
    # Another spelling of a question that has pairs.
    tested = [(plain.data.questions[row].upper() + "!", "zzz qqq"), ("Nothing.", "yyy")]
    spec = write_tsv(tmp_path / "tested.tsv", tested)
    dataset = load_dataset(override(config, {"data.parallel_tests": (spec,)}), None)
    assert dataset.splits.split_of[row] == -1
    assert (dataset.splits.split_of != plain.splits.split_of).sum() >= 1
    assert row not in dataset.trainable_rows
    for pairs in (*dataset.splits.pairs.values(), *dataset.splits.non_duplicates.values()):
        assert row not in pairs
    own = normalized_text(plain.data.questions[row])
    sources = {texts_of(dataset)[i] for i in dataset.target_rows[dataset.first_target :]}
    assert own in {normalized_text(text) for text in plain.data.questions}
    assert own not in {normalized_text(text) for text in sources}


def test_sentences_of_one_text_are_a_cluster_and_words_are_not():
    translations = TranslationData(
        splits=None,
        sources=["Run!", "run", "Go.", "bank"],
        targets=["Lauf!", "Renn", "Renn!", "Ufer", "Lauf"],
        source_of=np.array([0, 1, 2, 3, 3], np.int32),
        is_sentence=np.array([True, True, True, False, False]),
    )
    assert translations.groups().tolist() == [0, 0, 0, 1]


def test_languages_and_files_name_a_run(config, tmp_path):
    path = tmp_path / "a.tsv"
    write_tsv(path, [("one", "eins"), ("two", "zwei")])
    specs = (f"en-xx:{path}", f"xx-en:{path}", f"en-yy:{path}")
    digests = [
        translation_digests(override(config, {"data.parallel": (spec,)}))["data.parallel.sha256"]
        for spec in specs
    ]
    assert len({*map(tuple, digests)}) == 3
    path.rename(tmp_path / "b.tsv")
    moved = override(config, {"data.parallel": (f"en-xx:{tmp_path / 'b.tsv'}",)})
    assert translation_digests(moved)["data.parallel.sha256"] == digests[0]


def test_an_epoch_reads_all_pairs_once_with_translations_between(config, dataset):
    share = override(config, {"batch_size": 32, "batch.translations": 0.25, "max_steps": 0})
    sampler = make_pairs_sampler(share, dataset, devices=1)
    pairs = dataset.splits.pairs["train"]
    assert sampler.epoch == len(pairs) // 24
    read = np.concatenate([sampler.indices(step).pairs for step in range(sampler.epoch)])
    questions = read[(read < len(dataset.data.questions)).all(axis=1)]
    assert len(questions) == 24 * sampler.epoch
    assert len(np.unique(questions, axis=0)) == len(questions)

"""Settings of translations and of sums of n-grams: what cannot be, and what nothing reads."""

import re

import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.checks import unused_settings, validate
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config, override

TAUGHT = {"teacher.model": "a", "data.parallel": ("b.tsv",), "text.subwords": True}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"text.char_ngrams": 3},
            "`text.subwords`: expected one of two ways to read unknown words, got n-grams of 3 and "
            "sums of n-grams; set `text.subwords=False` or `text.char_ngrams=0`",
        ),
        (
            {"text.subwords": False, "batch.subword_dropout": 0.1},
            "`batch.subword_dropout`: expected 0, since words are no sums of n-grams, got 0.1; set "
            "`text.subwords=True`, or `batch.subword_dropout=0`",
        ),
        (
            {"teacher.model": ""},
            "`data.parallel`: expected a teacher, whose vectors the translations learn, got none; "
            "set `teacher.model` or `teacher.vectors`, or leave out `data.parallel`",
        ),
        (
            {"data.parallel": (), "batch.translations": 0.25},
            "`batch.translations`: expected 0, since there are no translations, got 0.25; set "
            "`data.parallel`, or `batch.translations=0`",
        ),
        (
            {"data.parallel": (), "early_stopping.metric": "translation"},
            "`early_stopping.metric`: expected translations to score, got none; set "
            "`data.parallel`, or another metric",
        ),
        (
            {"encoder.kind": "bert", "encoder.pretrained": "m", "batch.subword_dropout": 0.1},
            "`batch.subword_dropout`: expected 0, since words of bert are no sums of n-grams, got "
            "0.1; set `batch.subword_dropout=0`, or `encoder.kind=cnn`",
        ),
        ({"data.parallel": "b.tsv,c.tsv", "teacher.model": ""}, "`data.parallel`: expected a"),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(changed, message):
    with pytest.raises(UserError, match=re.escape(message)):
        validate(override(TrainConfig(), TAUGHT | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"batch.translations": 0.25, "batch.subword_dropout": 0.1, "data.glossed": 2},
        {"teacher.model": "", "teacher.vectors": "v.npy"},
        # An encoder to start from has words of its own.
        {"encoder.pretrained": "c", "text.char_ngrams": 3},
        {"encoder.pretrained": "c", "text.subwords": False, "batch.subword_dropout": 0.1},
    ],
    ids=str,
)
def test_what_can_be_passes(changed):
    validate(override(TrainConfig(), TAUGHT | changed))


@pytest.mark.parametrize(
    ("changed", "unread"),
    [
        ({"batch.translations": 0.25, "batch.subword_dropout": 0.1, "data.glossed": 2}, []),
        (
            {
                "data.parallel": (),
                "data.parallel_tests": ("t.tsv",),
                "data.glossed": 1,
                "data.held_out_translations": 5,
                "data.teacher_language": "de",
            },
            [
                "data.glossed",
                "data.held_out_translations",
                "data.parallel_tests",
                "data.teacher_language",
            ],
        ),
        ({"batch.translations": 0.25, "loss.names": ("contrastive",)}, ["batch.translations"]),
        ({"teacher.epochs": 0}, ["data.parallel"]),
        ({"teacher.epochs": 0, "teacher.weight": 1.0}, ["data.parallel"]),  # on questions alone
        ({"teacher.epochs": 0, "batch.translations": 0.25}, []),
        (
            {"teacher.epochs": 0, "batch.translations": 0.25, "loss.names": ("contrastive",)},
            ["batch.translations", "data.parallel"],
        ),
        ({"data.source": "synthetic", "data.max_rows": 9}, []),
        ({"data.source": "synthetic", "data.max_rows": 9, "data.parallel": ()}, ["data.max_rows"]),
        ({"data.source": "synthetic", "data.skip_bad_rows": True}, []),
        (
            {"data.source": "synthetic", "data.skip_bad_rows": True, "data.parallel": ()},
            ["data.skip_bad_rows"],
        ),
        ({"encoder.pretrained": "c"}, ["text.subwords"]),
        ({"encoder.kind": "bert", "encoder.pretrained": "c"}, ["text.subwords"]),
    ],
    ids=str,
)
def test_what_nothing_reads_is_named(changed, unread):
    config = override(TrainConfig(), TAUGHT | changed)
    assert sorted(unused_settings(config)) == unread


def test_without_pairs_translations_are_no_part_of_a_batch():
    changes = {"max_epochs": 0, "batch.translations": 0.25, "batch.subword_dropout": 0.1}
    config = override(TrainConfig(), TAUGHT | changes)
    validate(config)
    assert unused_settings(config) == ["batch.translations"]


def test_without_training_no_word_is_spelled():
    changes = {"encoder.pretrained": "c", "max_epochs": 0, "batch.subword_dropout": 0.1}
    assert unused_settings(override(TrainConfig(), changes)) == ["batch.subword_dropout"]


def test_a_cross_encoder_reads_no_translations():
    changes = {
        "job": "cross_encoder",
        "encoder.kind": "bert",
        "encoder.pretrained": "minilm",
        "data.parallel": ("b.tsv",),
        "data.parallel_tests": ("c.tsv",),
        "data.glossed": 1,
    }
    config = override(TrainConfig(), changes)
    validate(config)
    assert sorted(unused_settings(config)) == sorted([*changes][3:])
    metric = {"data.parallel": (), "early_stopping.metric": "translation"}
    validate(override(config, metric))  # which no cross-encoder reads


@pytest.mark.parametrize("variant", ["", ":smoke"])
def test_the_preset_is_whole(variant):
    name = "multilingual_distilled"
    config = load_config(name + variant)
    validate(config)
    assert unused_settings(config) == []

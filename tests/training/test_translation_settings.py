"""Settings of translations and of sums of n-grams: what cannot be, and what nothing reads."""

import re

import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.checks import validate
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


@pytest.mark.parametrize("variant", ["", ":smoke"])
def test_the_preset_is_whole(variant):
    name = "multilingual_distilled"
    config = load_config(name + variant)
    validate(config)

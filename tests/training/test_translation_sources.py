"""The files of translations that a run names: missing, limited, without sentences."""

import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.config import override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.translations import load_translations
from tests.made_up_language import LANGUAGE, write_tsv
from tests.translation_runs import translated_config


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return translated_config(tmp_path_factory.mktemp("translations"), words=40)


def test_dictionaries_alone_have_nothing_to_score(config):
    dictionary = config.data.parallel[1:]
    changes = {"data.parallel": dictionary, "early_stopping.metric": "translation"}
    with pytest.raises(UserError, match="expected sentences to hold out and score"):
        load_translations(override(config, changes), ())
    changes["early_stopping.metric"] = "agreement"
    assert load_translations(override(config, changes), ()).splits.held_out["validation"] == []


@pytest.mark.parametrize(
    ("setting", "spec", "message"),
    [
        ("data.parallel", "en-de:{}/none.tsv", "none.tsv; name a file"),
        ("data.parallel", "{}", "expected a file, got a folder"),
        ("data.parallel_tests", "en-de:{}/none.tsv", "none.tsv"),
        ("data.parallel", "$QPR_NOT_SET/a.en-de.tsv", r"variable \$QPR_NOT_SET is not set"),
    ],
)
def test_files_that_are_not_there_are_named_with_their_setting(
    config, tmp_path, setting, spec, message
):
    with pytest.raises(UserError, match=message) as caught:
        load_dataset(override(config, {setting: (spec.format(tmp_path),)}), None)
    assert caught.value.setting == setting


def test_a_dictionary_is_not_scored(config, tmp_path):
    spec = write_tsv(tmp_path / "words.tsv", [("dog", "hund"), ("cat", "katze")])
    with pytest.raises(
        UserError, match=r"words\.tsv: expected sentences to score, got a dictionary"
    ):
        load_dataset(override(config, {"data.parallel_tests": (spec,)}), None)


def test_rows_of_each_file_are_limited(config):
    limited = load_translations(override(config, {"data.source": "quora", "data.max_rows": 30}), [])
    counts = limited.splits.report[LANGUAGE]
    assert (counts["sentences"], counts["dictionary_entries"]) == (30, 30)

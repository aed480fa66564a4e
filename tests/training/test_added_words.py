"""Words of another language are added to an encoder, all else of which keeps its bits."""

import itertools
import json

import numpy as np
import pytest

from qpr_jax.encoders.load import load_encoder
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.main import train_and_evaluate
from qpr_jax.training.metrics import read_json_lines
from qpr_jax.training.model_families import MODEL_FAMILIES, embed_words, first_rows
from tests.languages import PAIRS, config_of, made_up_pairs, write_english


@pytest.fixture(scope="module")
def folder(build_once):
    """An English encoder, with words of a language, then with words of a second one."""

    def build(folder):
        write_english(folder / "english", subwords=True)
        train_and_evaluate(config_of(folder, folder / "english"), folder / "one")
        second = config_of(folder, folder / "one", times=2, **{"max_steps": 20})
        train_and_evaluate(second, folder / "two")

    return build_once("added_words", build)


@pytest.fixture(scope="module")
def encoders(folder):
    return [load_encoder(folder / name / "export") for name in ("english", "one", "two")]


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "one" / "report.json").read_text())


def test_old_rows_and_arrays_keep_their_bytes(encoders):
    for old, new in itertools.pairwise(encoders):
        count = len(old.embedding)
        assert len(new.embedding) == new.vocabulary.size > count
        assert new.embedding[:count].tobytes() == old.embedding.tobytes()
        assert new.embedding[count:].any(axis=1).all()
        assert new.projection.tobytes() == old.projection.tobytes()
        before, after = ([*encoder.kernels, *encoder.biases] for encoder in (old, new))
        assert [array.tobytes() for array in before] == [array.tobytes() for array in after]
        assert new.vocabulary.words == old.vocabulary.words
        assert new.vocabulary.added[: len(old.vocabulary.added)] == old.vocabulary.added
        assert (new.max_tokens, new.normalize) == (old.max_tokens, old.normalize)


def test_an_encoder_has_the_settings_of_its_start_and_all_its_languages(encoders):
    _, one, two = encoders
    for encoder in (one, two):
        assert encoder.settings["encoder.embedding_dim"] == 16
        assert encoder.settings["encoder.filters"] == 24
        assert encoder.settings["batch_size"] == TrainConfig().batch_size
    files = two.settings["translations"]["files"]
    expected = [("pairs1.tsv", "xx"), ("pairs2.tsv", "yy")]
    assert [(file["name"], file["language"]) for file in files] == expected
    assert one.settings["translations"] == {"source_language": "en", "files": files[:1]}


def test_english_questions_keep_their_vectors_to_the_last_bit(encoders):
    questions = [source for source, _ in made_up_pairs(PAIRS)]
    for old, new in itertools.pairwise(encoders):
        added = {*new.vocabulary.added} - {*old.vocabulary.added}
        same = np.array([not added & {*tokenize(text)} for text in questions])
        assert same.mean() > 0.5
        assert same.all() == (old is encoders[1])  # the second has no English word any more
        before, after = old.encode(questions), new.encode(questions)
        assert before[same].tobytes() == after[same].tobytes()
        assert (before[~same] != after[~same]).any(axis=1).all()


def test_the_made_up_language_is_learned(folder, report):
    evaluations = read_json_lines(folder / "one" / "evaluations.jsonl")
    assert evaluations[-1]["translation"] >= 0.95
    translations = report["translations"]
    for found in translations["sets"]:
        assert min(found["to_source"], found["to_target"]) >= 0.95
        assert min(found["cosine_source"], found["cosine_target"]) > 0.85
        assert found["retrieval"]["hits@1"] >= 0.9
    assert 0.5 < translations["known"]["xx"] <= 1
    assert [file["name"] for file in translations["files"]] == ["pairs1.tsv"]  # not its folder


def test_the_report_counts_and_scores_what_changes(folder, report, encoders, tmp_path):
    new = encoders[1]
    facts = report["added_words"]
    assert facts["words"] == len(new.vocabulary.added)
    config = config_of(tmp_path, folder / "english")
    questions = load_dataset(config, None, MODEL_FAMILIES["cnn"].start(config)).data.questions
    changed = sum(bool({*new.vocabulary.added} & {*tokenize(text)}) for text in questions)
    # An added word in a code with an unknown one changes nothing.
    assert 10 < facts["changed_questions"] <= changed
    page = (folder / "one" / "report.md").read_text()
    assert f"## Added words\n\n{facts['words']} words got an embedding" in page
    assert f"{facts['changed_questions']} of the questions" in page
    for search in ("start", "extended"):
        hits = report["test"][search]["per_query"]["hits@1"]
        assert f"| test | {search} | queries | {hits:.4f} |" in page


@pytest.mark.parametrize("subwords", [True, False])
def test_new_rows_start_at_their_translations_in_each_language(tmp_path, subwords):
    start = write_english(tmp_path, subwords=subwords)
    languages = [(["how"] * 3, ["mist"] * 3), (["should"] * 3, ["mist"] * 2 + ["qqqq"])]
    rows, known = first_rows(start, ("mist", "qqqq", "zzzz"), languages)
    how, should, alone = embed_words(start, ("how", "should", "zzzz"))
    np.testing.assert_allclose(rows, [(how + should) / 2, should, alone], rtol=1e-5, atol=1e-6)
    assert known.tolist() == [True, True, subwords]


def test_files_without_a_new_word_are_refused(folder, tmp_path):
    (tmp_path / "words.tsv").write_text("how do i\tdo i how\nhow can i\ti can how\n")
    known = {"data.parallel": (f"en-de:{tmp_path / 'words.tsv'}",), "early_stopping.metric": "mrr"}
    config = config_of(tmp_path, folder / "english", **known)
    with pytest.raises(UserError, match=r"`text\.added_words`: found no words"):
        load_dataset(config, None, MODEL_FAMILIES["cnn"].start(config))

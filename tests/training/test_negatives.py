"""Hard negatives of a file, in a training."""

import json

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.encoder_job import content_of
from qpr_jax.training.phases import BatchLoader
from qpr_jax.training.sampler import hard_negatives


@pytest.fixture
def config(tmp_path):
    config = load_config("synthetic_sdml:smoke")
    config.batch.hard_negatives = 8
    config.data.negatives = str(tmp_path / "negatives.jsonl")
    return config


@pytest.fixture
def plain(config):
    config.data.negatives, path = "", config.data.negatives
    dataset = load_dataset(config, None)
    config.data.negatives = path
    return dataset


def write(config, plain, rows):
    texts = plain.data.questions
    with open(config.data.negatives, "w") as file:
        for a, b in rows:
            file.write(json.dumps({"query": texts[a], "negative": texts[b], "rank": 1}) + "\n")


def others_of(plain, count=40):
    """Training questions in pairs of two clusters, the first of a training pair."""
    queries = np.unique(plain.splits.pairs["train"][:, 0])[: 2 * count]
    return [*zip(queries[:count].tolist(), queries[count:].tolist(), strict=True)]


def test_extra_candidates_are_those_of_the_file(config, plain):
    rows = others_of(plain)
    write(config, plain, rows)
    dataset = load_dataset(config, None)
    assert sorted(map(tuple, dataset.hard_negatives.tolist())) == sorted(rows)
    assert dataset.report["hard_negatives"] == len(rows)
    assert "hard_negatives" not in plain.report
    loader = BatchLoader(config, dataset, devices=2)
    drawn = np.concatenate([loader.indices(step).extra_candidates for step in range(5)])
    assert len(drawn) == 5 * 8
    assert {*drawn.tolist()} <= {negative for _, negative in rows}
    np.testing.assert_array_equal(
        loader.indices(3).pairs, BatchLoader(config, plain, devices=2).indices(3).pairs
    )


def test_queries_of_the_batch_come_first_then_its_candidates():
    negatives = np.array([[0, 10], [1, 11], [0, 12], [2, 13], [20, 14]], np.int32)
    at = hard_negatives(negatives, 30, 4, seed=0)
    pairs = np.array([[5, 2], [0, 3], [1, 6]], np.int32)
    draws = [at(step, pairs).tolist() for step in range(50)]
    assert {len(draw) for draw in draws} == {4}
    assert {draw[0] for draw in draws} == {10, 12}
    assert {(draw[1], draw[2]) for draw in draws} == {(11, 13)}
    assert {draw[3] for draw in draws} == {10, 11, 12, 13, 14}
    assert at(7, pairs).tolist() == draws[7]


def test_held_out_questions_and_paraphrases_are_left_out(config, plain, caplog):
    rows = others_of(plain)
    held_out = int(np.flatnonzero(plain.splits.split_of != 0)[0])
    a, b = plain.splits.pairs["train"][0].tolist()
    leaks = [(rows[0][0], held_out), (held_out, rows[0][1]), (a, b), (a, a)]
    write(config, plain, [*leaks, *rows])
    with caplog.at_level("INFO"):
        dataset = load_dataset(config, None)
    assert sorted(map(tuple, dataset.hard_negatives.tolist())) == sorted(rows)
    message = "40 hard negatives; left out: 2 with a held-out question, 2 paraphrases by the labels"
    assert message in caplog.text
    write(config, plain, leaks)
    with pytest.raises(UserError, match="expected negatives of training questions, got none"):
        load_dataset(config, None)


def test_an_unknown_question_is_named_with_its_line(config, plain, caplog):
    rows = others_of(plain)
    write(config, plain, rows)
    with open(config.data.negatives, "a") as file:
        file.write('{"query": "which one is this", "negative": "who knows"}\n')
    with pytest.raises(UserError, match=r"negatives\.jsonl, line 41: expected two questions of"):
        load_dataset(config, None)
    config.data.skip_bad_rows = True
    with caplog.at_level("INFO"):
        assert len(load_dataset(config, None).hard_negatives) == 40
    assert "1 of unknown questions" in caplog.text


def test_a_table_whose_whitespace_was_joined_is_read(config, plain, tmp_path):
    config.data.negatives = str(tmp_path / "a.tsv")
    texts, ((a, b), *_) = plain.data.questions, others_of(plain)
    (tmp_path / "a.tsv").write_text(f"query\tnegative\n  {texts[a]} \t{texts[b]}\n")
    assert load_dataset(config, None).hard_negatives.tolist() == [[a, b]]


def test_a_run_is_identified_by_thecontent_ofs(config, plain):
    write(config, plain, others_of(plain))
    first = content_of(config)["data.negatives.sha256"]
    write(config, plain, others_of(plain)[1:])
    assert content_of(config)["data.negatives.sha256"] != first

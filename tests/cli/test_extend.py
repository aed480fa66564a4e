"""`qpr extend`: an encoder with added words for an index that is there."""

import json

from qpr_jax.encoders.load import read_encoder
from tests.added_words import write_extended


def info(qpr, folder):
    status, out, stderr = qpr("info", folder)
    assert status == 0, stderr
    return json.loads(out)


def test_extended_once(qpr, index, run, tmp_path):
    encoder = write_extended(run, tmp_path / "german", "reis", "kochen")
    before = info(qpr, index)
    assert before["extends"] == []
    status, out, stderr = qpr("extend", index, "--run", "german")
    assert (status, out) == (0, "")
    assert stderr.endswith(f" {index}: has the new encoder\n")
    after = info(qpr, index)
    assert (after["encoder"], after["extends"]) == (encoder.identity, [before["encoder"]])
    assert after["vocabulary"] == before["vocabulary"] + 2
    assert after.items() >= {k: before[k] for k in ("questions", "recall@10", "factory")}.items()
    status, _, stderr = qpr("extend", index, "--run", tmp_path / "german")
    assert status == 0
    assert stderr.endswith(f" {index}: had this encoder already\n")


def test_the_model_card_names_what_is_extended(qpr, run, tmp_path):
    write_extended(run, tmp_path / "german", "reis")
    assert qpr("publish", "german", "--to", "public")[0] == 0
    card = (tmp_path / "public" / "README.md").read_text()
    identity = read_encoder(run / "export").identity
    assert f"It only adds words to the encoder `{identity}`: an index of that opens with it" in card
    assert read_encoder(tmp_path / "public").extends == (identity,)
    assert qpr("publish", run, "--to", "old")[0] == 0
    assert "It only adds words" not in (tmp_path / "old" / "README.md").read_text()

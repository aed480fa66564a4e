"""The folders of re-rankers: copied, replaced, damaged, or of another encoder."""

import shutil
from dataclasses import replace

import pytest

from qpr_jax.data.questions import Entry
from qpr_jax.errors import UserError
from qpr_jax.publishing import publish
from qpr_jax.reranking.features import FEATURES
from qpr_jax.reranking.light import (
    STACKED,
    features_of,
    read_light,
    save_light,
)
from qpr_jax.retriever import Retriever
from tests.reranking.test_light import stump
from tests.retriever.two_stages.conftest import ASKED, QUESTIONS
from tests.runs import write_encoder, write_reranker


def test_it_goes_wherever_the_encoder_goes(retriever, run, tmp_path):
    expected = retriever.search(ASKED)
    retriever.save(tmp_path / "saved")
    entries = [Entry(1, i, question) for i, question in QUESTIONS.items()]
    Retriever.build_in(tmp_path / "built", entries, run=tmp_path / "saved")
    publish(tmp_path / "built", tmp_path / "published")
    names = {path.name for path in (tmp_path / "published").iterdir()}
    assert names > {"README.md", "manifest.json", "reranker"}
    shutil.rmtree(run)
    for folder in ("saved", "built"):
        assert Retriever.load(tmp_path / folder).search(ASKED) == expected
        (file,) = (tmp_path / folder / "index").glob("statistics-*")
        Retriever.load(tmp_path / folder).compact()
        assert Retriever.load(tmp_path / folder).search(ASKED) == expected
        (again,) = (tmp_path / folder / "index").glob("statistics-*")
        assert file.name != again.name
    published = Retriever.load(tmp_path / "published")
    published.add([*QUESTIONS.values()], [*QUESTIONS])
    assert published.search(ASKED) == expected


def test_a_newer_one_in_the_folder_stays(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    other = Retriever.load(tmp_path / "saved")
    write_reranker(tmp_path / "saved", candidates=2, seed=1)
    other.compact()
    assert read_light(tmp_path / "saved" / "export" / "reranker").candidates == 2
    retriever.save(tmp_path / "saved")
    assert read_light(tmp_path / "saved" / "export" / "reranker").candidates == 2
    shutil.rmtree(tmp_path / "saved" / "export" / "reranker")
    other.compact()
    assert read_light(tmp_path / "saved" / "export" / "reranker").candidates == 6
    write_reranker(tmp_path / "saved", candidates=2, seed=1)
    fresh = Retriever.build(["rice"], run=tmp_path / "run")
    fresh.save(tmp_path / "saved")  # with its own
    assert read_light(tmp_path / "saved" / "export" / "reranker").candidates == 6


def test_one_of_another_encoder_is_refused(retriever, tmp_path):
    write_encoder(tmp_path / "other", seed=1)
    write_reranker(tmp_path / "other")
    retriever.save(tmp_path / "saved")
    path = tmp_path / "saved" / "export" / "reranker"
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "other" / "export" / "reranker", path)
    for load in (Retriever.load, lambda folder: publish(folder, tmp_path / "published")):
        with pytest.raises(UserError, match=r"expected a re-ranker of the encoder .*; remove"):
            load(tmp_path / "saved")


def test_a_damaged_one_is_refused(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    path = tmp_path / "saved" / "export" / "reranker" / "reranker.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="the bytes differ from their SHA-256"):
        Retriever.load(tmp_path / "saved")


def test_what_is_no_model_in_its_place_is_refused(run, tmp_path):
    export, model = run / "export", read_light(run / "export" / "reranker")
    (export / STACKED).write_text("")
    with pytest.raises(UserError, match="reranker_cross: expected the folder of a re-ranker, got"):
        Retriever.load(export)
    (export / STACKED).unlink()
    shutil.copytree(export / "reranker", export / STACKED)
    with pytest.raises(UserError, match=r"expected a re-ranker with the logit .*, got one without"):
        Retriever.load(export)
    shutil.rmtree(export / STACKED)
    forest = stump(len(FEATURES), 0.0)
    parts = {"features": features_of("a"), "cross_encoder": "a", "forest": forest, "network": None}
    save_light(export / "reranker", replace(model, **parts))
    with pytest.raises(UserError, match=r"expected a re-ranker without the logit .*, got one with"):
        Retriever.load(export)

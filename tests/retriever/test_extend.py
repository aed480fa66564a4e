"""An index gets an encoder that adds words to its own; its vectors stay as they are."""

import hashlib
import json

import numpy as np
import pytest

from qpr_jax import extend
from qpr_jax.errors import UserError
from qpr_jax.extend import extend_index
from qpr_jax.index.folder import read_index, read_manifest
from qpr_jax.reranking.light import LIGHT
from qpr_jax.reranking.pair_calibration import CALIBRATION, PairCalibration, save_calibration
from qpr_jax.reranking.recalibration import first_curve
from qpr_jax.retriever import Retriever, run_encoder
from tests.added_words import write_extended
from tests.retriever.conftest import QUESTIONS
from tests.runs import write_encoder, write_reranker

QUERIES = [*QUESTIONS, "python", "how long is rice", ""]


@pytest.fixture
def folder(run, retriever, tmp_path):
    """An index, of which one question was added since it was built."""
    retriever.save(tmp_path / "mine")
    retriever.add(["learn cook"], [9])
    return tmp_path / "mine"


@pytest.fixture
def german(run, tmp_path):
    write_extended(run, tmp_path / "german", "wie", "lerne", "ich", "schnell")
    return tmp_path / "german"


def contents(folder):
    """The hash of each file of the index, but the manifest and the lock."""
    files = (path for path in (folder / "index").iterdir() if path.suffix not in (".json", ".lock"))
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.name != ".lock"}


def hits(retriever):
    return [
        [(h.id, h.question, h.distance, h.score) for h in found]
        for found in retriever.search(QUERIES, 5)
    ]


def test_the_files_of_the_index_keep_their_bytes_and_searches_their_hits(folder, german):
    before, expected = contents(folder), hits(Retriever.load(folder))
    assert extend_index(folder, german)
    assert contents(folder) == before
    loaded = Retriever.load(folder)
    assert loaded.encoder.identity == run_encoder(german).identity == loaded.index.encoder
    assert hits(loaded) == expected
    assert not extend_index(folder, german)
    # The new words have an effect, and the index is changed as any other.
    query = "Wie lerne ich schnell Python?"
    old = run_encoder(german.parent / "run")
    assert (loaded.encode([query]) != old.encode([query])).any()
    loaded.add([query], [77])
    assert Retriever.load(folder).search([query], 1)[0][0].id == 77
    assert read_manifest(folder / "index")["encoder"] == loaded.encoder.identity


def test_an_index_opens_with_an_encoder_that_extends_its_own(folder, german):
    encoder = run_encoder(german)
    index, build = read_index(folder / "index", encoder=(encoder.identity, *encoder.extends))
    retriever = Retriever(encoder, index, folder / "index", build)
    assert hits(retriever) == hits(Retriever.load(folder))
    retriever.add(["Wie schnell?"], [5])
    assert read_manifest(folder / "index")["encoder"] == encoder.extends[0]
    retriever.compact()
    assert read_manifest(folder / "index")["encoder"] == encoder.identity
    assert Retriever.load(folder).search(["Wie schnell?"], 1)[0][0].id == 5
    with pytest.raises(UserError, match="the index was made with encoder"):
        read_index(folder / "index", encoder=encoder.extends)


def test_a_chain_of_two_languages(folder, german, tmp_path):
    french = write_extended(german, tmp_path / "french", "comment", "apprendre", "vite")
    assert len(french.extends) == 2
    expected = hits(Retriever.load(folder))
    assert extend_index(folder, tmp_path / "french")  # both at once
    assert hits(Retriever.load(folder)) == expected
    with pytest.raises(UserError, match="got one that it extends; leave the index as it is"):
        extend_index(folder, german)  # it lacks the words of the second
    again = tmp_path / "again"
    Retriever.build(QUESTIONS, run=tmp_path / "run").save(again)
    assert extend_index(again, german)
    assert extend_index(again, tmp_path / "french")
    assert Retriever.load(again).encoder.extends == french.extends


def test_another_encoder_is_refused_in_one_line(folder, run, german, tmp_path):
    write_encoder(tmp_path / "other", seed=5)
    write_extended(tmp_path / "other", tmp_path / "others_german", "wie")
    before = contents(folder), (folder / "index" / "manifest.json").read_bytes()
    for other in ("other", "others_german"):
        with pytest.raises(UserError, match="expected an encoder that extends") as raised:
            extend_index(folder, tmp_path / other)
        assert "\n" not in str(raised.value)
    assert (contents(folder), (folder / "index" / "manifest.json").read_bytes()) == before
    extend_index(folder, german)
    with pytest.raises(UserError, match="`folder`: expected a folder with an index, found none at"):
        extend_index(tmp_path / "none", german)
    with pytest.raises(UserError, match="got one that it extends"):
        extend_index(folder, run)  # back
    (folder / "run.json").write_text("{}")  # others start from it
    with pytest.raises(UserError, match="`folder`: expected an index, got the run "):
        extend_index(folder, german)


def test_re_rankers_and_calibration_stay(folder, german):
    model = write_reranker(folder)
    encoder = run_encoder(folder)
    curve = first_curve(np.array([1.0, 2.0]))
    save_calibration(folder / "export" / CALIBRATION, PairCalibration(encoder.identity, curve, 2.0))
    before = Retriever.load(folder)
    expected = hits(before)
    assert any(score is not None for found in expected for *_, score in found)
    extend_index(folder, german)
    after = Retriever.load(folder)
    assert hits(after) == expected
    assert after.second_stages.models[LIGHT].encoder == model.encoder
    assert after.second_stages.calibration_facts() == before.second_stages.calibration_facts()
    assert after.explain("learn rice", "cook rice") == before.explain("learn rice", "cook rice")


def test_a_kill_leaves_the_old_encoder(folder, german, monkeypatch):
    expected = hits(Retriever.load(folder))

    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(extend, "replace_encoder", fail)
        with pytest.raises(KeyboardInterrupt):
            extend_index(folder, german)
    old = Retriever.load(folder)
    assert (hits(old), old.encoder.extends) == (expected, ())
    assert extend_index(folder, german)
    exports = sorted(path.name for path in folder.glob("export-*"))
    assert exports == [read_manifest(folder / "index")["export"]]


def test_a_process_with_the_old_encoder_changes_nothing_more(folder, german):
    old = Retriever.load(folder)
    extend_index(folder, german)
    assert old.search(["rice"], 1)
    with pytest.raises(UserError, match="the index was made with encoder"):
        old.add(["more"])
    with pytest.raises(UserError, match="the index was made with encoder"):
        old.compact()
    assert len(Retriever.load(folder)) == len(QUESTIONS) + 1


def test_a_damaged_list_of_identities_is_refused(german):
    settings = german / "export" / "settings.json"
    value = json.loads(settings.read_text())
    assert value["extends"] == [run_encoder(german.parent / "run").identity]
    settings.write_text(json.dumps(value | {"extends": "abc"}))
    manifest = german / "export" / "manifest.json"
    entry = {
        "bytes": settings.stat().st_size,
        "sha256": hashlib.sha256(settings.read_bytes()).hexdigest(),
    }
    said = json.loads(manifest.read_text())
    said["files"]["settings.json"] = entry
    manifest.write_text(json.dumps(said))
    with pytest.raises(UserError, match="`extends`: expected a list of identities, got 'abc'"):
        run_encoder(german)

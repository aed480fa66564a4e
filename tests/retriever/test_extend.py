"""An index gets an encoder that adds words to its own; its vectors stay as they are."""

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.extend import extend_index
from qpr_jax.index.run import index_manifest, read_encoder
from qpr_jax.reranking.calibration import CALIBRATION, save_calibration
from qpr_jax.retriever import Retriever
from tests.kills import killed_at
from tests.languages import write_extended
from tests.refused import check_refused
from tests.reranking.models import pair_calibration
from tests.retriever.conftest import QUESTIONS
from tests.runs import write_encoder

QUERIES = [*QUESTIONS, "python", "how long is rice", ""]


@pytest.fixture
def folder(run, retriever, tmp_path):
    """An index, to which one question was added since it was built."""
    retriever.save(tmp_path / "mine")
    retriever.add(["learn cook"], [9])
    return tmp_path / "mine"


@pytest.fixture
def german(run, tmp_path):
    write_extended(run, tmp_path / "german", "wie", "lerne", "ich", "schnell")
    return tmp_path / "german"


def contents(folder):
    """The bytes of each file of the index, without the manifest."""
    files = (path for path in (folder / "index").iterdir() if path.name != "manifest.json")
    return {path.name: path.read_bytes() for path in files}


def hits(retriever):
    found = retriever.search(QUERIES, 5)
    return [[(hit.id, hit.question, hit.distance, hit.score) for hit in one] for one in found]


def test_the_files_of_the_index_keep_their_bytes_and_searches_their_hits(folder, german):
    known = pair_calibration(read_encoder(folder).identity)
    save_calibration(folder / "export" / CALIBRATION, known)
    opened = Retriever.load(folder)
    before, expected = contents(folder), hits(opened)
    assert extend_index(folder, german)
    with pytest.raises(UserError, match="expected an index of the encoder"):
        opened.add(["it would lack the words"])
    assert hits(opened) == expected
    assert contents(folder) == before
    loaded = Retriever.load(folder)
    assert loaded.encoder.identity == read_encoder(german).identity == loaded.store.encoder
    assert hits(loaded) == expected
    np.testing.assert_equal(vars(loaded.stages.calibration), vars(known))
    assert not extend_index(folder, german)
    # The new words have an effect, and the index can be changed.
    query = "Wie lerne ich schnell Python?"
    old = read_encoder(german.parent / "run")
    assert (loaded.encode([query]) != old.encode([query])).any()
    loaded.add([query], [77])
    assert Retriever.load(folder).search([query], 1)[0][0].id == 77


def test_a_chain_of_two_languages(folder, german, tmp_path):
    french = write_extended(german, tmp_path / "french", "comment", "apprendre", "vite")
    assert len(french.extends) == 2
    expected = hits(Retriever.load(folder))
    assert extend_index(folder, tmp_path / "french")  # both at once
    assert hits(Retriever.load(folder)) == expected
    with pytest.raises(UserError, match="does not extend"):
        extend_index(folder, german)  # it lacks the words of the second
    again = tmp_path / "again"
    Retriever.build(QUESTIONS, run=tmp_path / "run").save(again)
    assert extend_index(again, german)
    assert extend_index(again, tmp_path / "french")
    assert Retriever.load(again).encoder.extends == french.extends


def test_another_encoder_is_refused_and_nothing_changes(folder, run, german, tmp_path):
    write_encoder(tmp_path / "other", seed=5)
    write_extended(tmp_path / "other", tmp_path / "others_german", "wie")
    before = contents(folder), index_manifest(folder)
    check_refused(
        extend_index,
        (folder, tmp_path / "other", "^`run`: .* does not extend"),
        (folder, tmp_path / "others_german", "^`run`: .* does not extend"),
    )
    assert (contents(folder), index_manifest(folder)) == before
    extend_index(folder, german)
    back = "does not extend"
    nothing = "`folder`: expected a run or an index, found none at"
    check_refused(extend_index, (folder, run, back), (tmp_path / "none", german, nothing))
    (folder / "run.json").write_text("{}")  # others start from it
    check_refused(extend_index, (folder, german, "`folder`: expected an index, got the run "))


def test_a_kill_leaves_the_old_encoder_or_the_new_one(folder, german):
    expected = hits(Retriever.load(folder))
    for rename in range(20):
        with killed_at(rename) as renamed:
            extend_index(folder, german)
        loaded = Retriever.load(folder)
        assert hits(loaded) == expected
        if loaded.encoder.extends:
            break
    assert 2 < len(renamed) < 20
    exports = [path.name for path in folder.glob("export-*")]
    assert exports == [index_manifest(folder)["export"]]

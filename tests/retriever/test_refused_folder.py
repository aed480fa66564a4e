"""Folders that are damaged, of another format or encoder, or linked."""

import pytest

from qpr_jax.errors import UserError
from qpr_jax.index.recipe import Recipe
from qpr_jax.retriever import Retriever
from qpr_jax.upgrade import upgrade_index
from tests.retriever.conftest import QUESTIONS
from tests.retriever.old_format import EXPECTED, NEXT_ID, write_format_4, write_format_5
from tests.runs import write_encoder


def test_a_loaded_retriever_acknowledges_nothing_on_damaged_changes(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    for number in range(30):
        retriever.add([f"question {number} " * 50])
    (path,) = (tmp_path / "saved" / "index").glob("changes-*.sqlite")
    data = path.read_bytes()
    middle = data.index(b"question 7 ")
    for damaged in (
        data[:-4096],
        data[: len(data) // 2],
        b"",
        data[:middle] + b"Q" + data[middle + 1 :],
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=path.name):
            retriever.add(["more"])
        with pytest.raises(UserError, match=path.name):
            retriever.remove([7])
    path.write_bytes(data)
    (new,) = retriever.add(["more"])  # and goes on once the file is restored
    assert dict(Retriever.load(tmp_path / "saved").index) == dict(retriever.index)
    assert new == 39


@pytest.mark.parametrize(("format", "write"), [(4, write_format_4), (5, write_format_5)])
def test_compact_upgrades_an_older_format_and_all_else_refuses_it(tmp_path, format, write):
    write_encoder(tmp_path)
    write(tmp_path)
    message = f"expected format 'qpr_jax index 6', got 'qpr_jax index {format}'; run `qpr compact`"
    with pytest.raises(UserError, match=message):
        Retriever.load(tmp_path)
    lines: list[str] = []
    assert upgrade_index(tmp_path, lines.append)
    assert lines[0].startswith("index: Flat (IVF2000,Flat is for more questions), 4 questions")
    retriever = Retriever.load(tmp_path)
    assert [*retriever.index] == [*EXPECTED.items()]
    assert retriever.index.requested == Recipe("IVF2000,Flat", "ip", 7, 2)
    assert retriever.add(["new"]) == [NEXT_ID]
    assert not upgrade_index(tmp_path)
    assert len([*(tmp_path / "index").glob("*-*")]) == 6  # with the journal of the changes


@pytest.mark.parametrize(
    ("write", "name", "message"),
    [
        (write_format_4, "ids-*", "the bytes differ from their SHA-256"),
        (write_format_5, "rows-*", "the bytes differ from their SHA-256"),
        (write_format_5, "changes-*", "expected an undamaged file"),
    ],
)
def test_a_damaged_index_of_an_older_format_is_not_upgraded(tmp_path, write, name, message):
    write_encoder(tmp_path)
    write(tmp_path)
    (path,) = (path for path in (tmp_path / "index").glob(name) if "journal" not in path.name)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(UserError, match=message):
        upgrade_index(tmp_path)
    assert path.exists()


def test_what_is_missing_is_named(run, tmp_path):
    with pytest.raises(UserError, match="`run`: expected a run or an index, found none at"):
        Retriever.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: expected a run, or a whole encoder"):
        Retriever.load(tmp_path / "empty")
    with pytest.raises(UserError, match="empty: expected a run"):
        Retriever.build(QUESTIONS, run=tmp_path / "empty")
    with pytest.raises(UserError, match="run has no index/; finish the run"):
        Retriever.load(run)


def test_an_index_of_another_encoder_is_refused(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    write_encoder(tmp_path / "saved", seed=1)
    with pytest.raises(UserError, match="the index was made with encoder"):
        Retriever.load(tmp_path / "saved")


@pytest.mark.parametrize("name", ["export/model.safetensors", "index/vectors-*.faiss"])
def test_damaged_files_are_refused(retriever, tmp_path, name):
    retriever.save(tmp_path / "saved")
    (path,) = (tmp_path / "saved").glob(name)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="the bytes differ from their SHA-256"):
        Retriever.load(tmp_path / "saved")


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", ["flip build", "flip export", "missing", "list", "cut"])
def test_nothing_is_removed_for_a_damaged_manifest(retriever, tmp_path, damage):
    """The files may be all that is left of the index."""
    folder = tmp_path / "saved"
    retriever.save(folder)
    loaded = Retriever.load(folder)
    loaded.save(tmp_path / "other")
    manifest = folder / "index" / "manifest.json"
    text = manifest.read_text()
    if damage.startswith("flip"):
        key = damage.split()[1]
        start = text.index(f'"{key}": "') + len(key) + 5
        manifest.write_text(text[:start] + ("0" if text[start] != "0" else "1") + text[start + 1 :])
    elif damage == "missing":
        manifest.unlink()
    else:
        manifest.write_text("[]" if damage == "list" else text[: len(text) // 2])
    before = names_in(folder)
    fresh = Retriever.load(tmp_path / "other")
    with pytest.raises(UserError):
        retriever.add(["What is rye?"])
    assert [name for name in names_in(folder) if not name.endswith(".lock")] == [
        name for name in before if not name.endswith(".lock")
    ]
    fresh.save(folder)  # building again is the remedy
    assert Retriever.load(folder).search(["rice"]) == fresh.search(["rice"])


def test_a_folder_that_is_a_link_itself_is_refused(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    (tmp_path / "received").mkdir()
    (tmp_path / "received" / "export").symlink_to(tmp_path / "saved" / "export")
    (tmp_path / "received" / "index").symlink_to(tmp_path / "saved" / "index")
    with pytest.raises(UserError, match="expected a plain folder, got a symbolic link"):
        Retriever.load(tmp_path / "received")

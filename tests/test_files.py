import errno
import json
import os
import pathlib

import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import (
    read_json,
    read_manifest,
    read_verified,
    refuse_existing,
    replace_folder,
    sha256_of,
    write_atomically,
    write_json,
    write_manifest,
)


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "deep" / "file"
    with write_atomically(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["file"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_bytes(b"old")

    def interrupted():
        with write_atomically(tmp_path / "file") as file:
            file.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_text_is_utf8_with_plain_newlines(tmp_path):
    with write_atomically(tmp_path / "file", "w") as file:
        file.write("é\n")
    assert (tmp_path / "file").read_bytes() == b"\xc3\xa9\n"


def test_json_comes_back(tmp_path):
    value = {"a": [1, 2.5, None, "é", "\ud800"], "b": {}}
    write_json(tmp_path / "file.json", value)
    assert read_json(tmp_path / "file.json") == value


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"{'a': 1}"])
def test_what_is_not_json_is_refused(tmp_path, data):
    (tmp_path / "file.json").write_bytes(data)
    with pytest.raises(UserError, match=r"file\.json: expected JSON, got"):
        read_json(tmp_path / "file.json")


def test_sha256_of(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of(tmp_path / "file") == known


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"")
    write_manifest(tmp_path, ["a", "b"], format="test 1", note="x")
    return tmp_path


def test_manifest_holds_sizes_hashes_and_facts(folder):
    manifest = read_manifest(folder, format="test 1")
    assert manifest == {
        "format": "test 1",
        "note": "x",
        "files": {
            name: {"bytes": size, "sha256": sha256_of(folder / name)}
            for name, size in (("a", 3), ("b", 0))
        },
    }
    assert read_verified(folder, "a", manifest) == b"abc"
    assert read_verified(str(folder), "b", manifest) == b""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"abd", "a: the bytes differ from their SHA-256"),
        (b"ab", "a: expected 3 bytes, got 2"),
        (b"abcd", "a: expected 3 bytes, got 4"),
        (None, "a: the file is missing"),
    ],
)
def test_changed_files_are_refused(folder, data, message):
    (folder / "a").unlink()
    if data is not None:
        (folder / "a").write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_verified(folder, "a", read_manifest(folder, format="test 1"))


@pytest.mark.parametrize("entry", [None, 7, {}, {"bytes": 3}, {"sha256": ""}])
def test_files_without_an_entry_are_refused(folder, entry):
    with pytest.raises(UserError, match=r"manifest\.json: no entry for a; remake"):
        read_verified(folder, "a", {"files": {"a": entry}})


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"format": "test 2", "files": {}}, "expected format 'test 1', got 'test 2'"),
        ({"files": {}}, "expected format 'test 1', got None"),
        ({"format": "test 1"}, "expected a manifest with `files`"),
        ([], "expected a manifest with `files`"),
    ],
)
def test_wrong_manifests_are_refused(folder, manifest, message):
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=message):
        read_manifest(folder, format="test 1")


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    for missing in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match=r"expected a folder with a manifest\.json"):
            read_manifest(missing, format="test 1")


def test_a_folder_is_replaced_only_when_the_new_one_is_whole(tmp_path):
    target = tmp_path / "deep" / "folder"
    for text in ("one", "two"):
        with replace_folder(target) as part:
            assert names(part) == []
            (part / text).write_text(text)
            assert not (target / text).exists()
        assert names(target) == [text]
        assert names(target.parent) == ["folder"]


def test_a_failed_replacement_leaves_the_old_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()

    def interrupted():
        with replace_folder(tmp_path / "folder") as part:
            (part / "new").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


def test_leftovers_of_a_kill_are_cleared(tmp_path):
    for leftover in (".folder.part", ".folder.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "file").touch()
    with replace_folder(tmp_path / "folder") as part:
        assert names(part) == []
    assert names(tmp_path) == ["folder"]


def test_after_a_kill_between_the_two_renames_the_old_folder_is_put_back(tmp_path):
    (tmp_path / ".folder.old").mkdir()
    (tmp_path / ".folder.old" / "file").write_text("old")
    with pytest.raises(KeyError), replace_folder(tmp_path / "folder"):
        raise KeyError("the new one fails")
    assert (tmp_path / "folder" / "file").read_text() == "old"


def test_a_missing_json_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: the file is missing"):
        read_json(tmp_path / "none.json")


def fail(code):
    raise OSError(code, os.strerror(code))


@pytest.mark.parametrize("write", [write_atomically, replace_folder])
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, write):
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/target'"),
        write(tmp_path / "target"),
    ):
        fail(errno.ENOSPC)
    assert not names(tmp_path)


def test_other_errors_stay_as_they_are(tmp_path):
    with pytest.raises(OSError, match=r"reset by peer$"), write_atomically(tmp_path / "target"):
        fail(errno.ECONNRESET)


def test_a_folder_with_files_is_not_taken_for_output(tmp_path, monkeypatch):
    refuse_existing(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"`out`: .* is there already; remove it, or name another"):
        refuse_existing(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="`to`: expected another folder than the current one"):
        refuse_existing(".", option="to")

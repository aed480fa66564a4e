"""Files and folders are replaced as a whole."""

import errno
import os
import pathlib

import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import (
    MANIFEST,
    folder_lock,
    locked,
    parse_json,
    read_json,
    read_object,
    replace_folder,
    write_atomically,
    write_json,
    write_manifest,
)


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def done(monkeypatch):
    """The renames, and the inodes of what is synced, in their order."""
    fsync, replace, done = os.fsync, os.replace, []

    def synced(descriptor):
        done.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def renamed(source, target):
        done.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return done


def test_names_of_files_are_on_disk_before_the_manifest_and_the_folder_after(tmp_path, done):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").touch()
    write_manifest(folder, ["file"])
    inodes = [path.stat().st_ino for path in (folder, folder / MANIFEST, folder, tmp_path)]
    assert done == [*inodes[:2], "renamed", *inodes[2:]]


def test_equal_contents_have_equal_manifests(tmp_path):
    written = set()
    for names in ("ab", "ba"):
        for name in names:
            (tmp_path / name).touch()
        write_manifest(tmp_path, names, format="x 1")
        written.add((tmp_path / MANIFEST).read_bytes())
    assert len(written) == 1


@pytest.mark.parametrize("write", [write_atomically, replace_folder])
def test_a_failed_write_or_a_power_cut_leaves_the_old_one(tmp_path, done, write):
    """What is renamed into place is on disk before, and its name after."""
    with write(tmp_path / "target"):
        pass
    old = (tmp_path / "target").stat().st_ino
    file = [old] if write is write_atomically else []
    assert done == [*file, "renamed", tmp_path.stat().st_ino]
    message = r"No space left on device: '.*/target'"
    with pytest.raises(OSError, match=message), write(tmp_path / "target"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == ["target"]
    assert (tmp_path / "target").stat().st_ino == old


def test_a_failure_removes_the_folders_that_it_made_and_nothing_of_others(tmp_path):
    def fail(name, *others):
        with folder_lock(tmp_path / name):
            for other in others:
                (tmp_path / other).touch()
            raise KeyError

    (tmp_path / "old").mkdir()
    for arguments in (["old"], ["new/index"], ["kept/index", "kept/theirs"]):
        with pytest.raises(KeyError):
            fail(*arguments)
    assert names(tmp_path) == ["kept", "old"]
    assert (names(tmp_path / "kept"), names(tmp_path / "old")) == (["theirs"], [])


def test_leftovers_of_a_kill_are_cleared_and_links_are_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / ".file.part").symlink_to(tmp_path / "victim")
    with write_atomically(tmp_path / "file") as file:
        file.write(b"new")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass
    (tmp_path / "lock").unlink()
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()
    for leftover in (".folder.part", ".folder.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "file").touch()
    with replace_folder(tmp_path / "folder") as part:
        (part / "new").touch()
    assert names(tmp_path) == ["file", "folder", "victim"]
    assert names(tmp_path / "folder") == ["new"]
    # After a kill between the two renames the old folder is put back.
    (tmp_path / "folder").rename(tmp_path / ".folder.old")
    with pytest.raises(KeyError), replace_folder(tmp_path / "folder"):
        raise KeyError("the new one fails")
    assert names(tmp_path / "folder") == ["new"]
    # After a kill behind both the new one stays.
    (tmp_path / ".folder.old").mkdir()
    (tmp_path / ".folder.old" / "file").touch()
    with pytest.raises(KeyError), replace_folder(tmp_path / "folder"):
        raise KeyError("the next one fails")
    assert names(tmp_path / "folder") == ["new"]


def test_json_comes_back(tmp_path):
    value = {"a": [1, 2.5, None, "é", "\ud800"], "b": {}}
    write_json(tmp_path / "file.json", value)
    assert read_object(tmp_path / "file.json") == read_json(tmp_path / "file.json") == value
    assert read_object(tmp_path / "none.json") == {}
    for data in (b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5_000):
        with pytest.raises(UserError, match=r"file\.json: expected JSON, got"):
            parse_json(data, "file.json")

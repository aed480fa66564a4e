"""What is damaged, edited or linked in the folder of an index."""

import itertools
import json

import faiss
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import sha256_of
from qpr_jax.index.folder import (
    new_build,
    read_index,
    read_manifest,
    remove_leftovers,
    write_index,
)
from qpr_jax.locks import WriteLock
from tests.index.folders import (
    file_of,
    many,
    mixed,
    read,
    reseal,
    write,
)

KINDS = ["vectors", "sums", "texts", "rows", "order"]
DAMAGE = ["flip first", "flip last", "cut", "empty", "longer", "remove"]
# What is found when it is used (see test_stored_lists).
LATER = [("texts", "flip first"), ("texts", "flip last"), ("vectors", "flip last")]


@pytest.mark.parametrize(
    ("kind", "damage"), [pair for pair in itertools.product(KINDS, DAMAGE) if pair not in LATER]
)
def test_damaged_bytes_never_reach_faiss(tmp_path, monkeypatch, kind, damage):
    write(tmp_path, mixed(1000))
    path = file_of(tmp_path, kind)
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage.startswith("flip"):
        data[0 if damage == "flip first" else -1] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes({"cut": data[:-7], "empty": b"", "longer": data + b"\n"}[damage])
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("FAISS saw damaged bytes"))
    message = {"remove": "missing", "flip": "differ from their SHA-256"}.get(
        damage.split()[0], "expected .* bytes, got"
    )
    with pytest.raises(UserError, match=f"{path.name}: .*{message}") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "qpr_jax index 1"}, "expected format 'qpr_jax index 6', got 'qpr_jax index 1'"),
        ({"format": "qpr_jax index 4"}, "got 'qpr_jax index 4'; run `qpr compact` on the folder"),
        ({"format": "qpr_jax index 5"}, "got 'qpr_jax index 5'; run `qpr compact` on the folder"),
        ({"files": None}, "expected a manifest with `files`"),
        ({"count": 999}, "differs from its `sha256`; restore the file, or build the index again"),
        ({"probes": 11}, "manifest.json: what it says differs"),
        ({"next_id": 0}, "manifest.json: what it says differs"),
        ({"sha256": None}, "manifest.json: what it says differs"),
        ({"more": 1}, "manifest.json: what it says differs"),
    ],
)
def test_an_edited_manifest_is_refused(tmp_path, change, message):
    write(tmp_path, many(1000))
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_a_flipped_bit_anywhere_in_the_manifest_is_refused(tmp_path):
    write(tmp_path, many(20))
    path = tmp_path / "manifest.json"
    data = path.read_bytes()
    read(tmp_path)
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        if path.read_bytes().split() != data.split():  # but between the words
            with pytest.raises(UserError, match=r"manifest\.json"):
                read(tmp_path)


@pytest.mark.parametrize("kind", ["vectors", "rows", "order"])
def test_files_that_another_version_wrote_are_refused(tmp_path, kind):
    write(tmp_path, many(20))
    path = file_of(tmp_path, kind)
    path.write_bytes(b"of another version")
    files = read_manifest(tmp_path)["files"]
    reseal(tmp_path, files=files | {path.name: {"bytes": 18, "sha256": sha256_of(path)}})
    with pytest.raises(UserError, match=r"cannot read the index|undamaged file") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["rows", "order"])
@pytest.mark.parametrize("shape", [(7,), (3, 3), (0, 3)])
def test_arrays_of_another_shape_are_refused(tmp_path, kind, shape):
    write(tmp_path, mixed(20))
    path = file_of(tmp_path, kind)
    np.save(path, np.zeros(shape, np.int64 if kind == "rows" else np.uint8))
    files = read_manifest(tmp_path)["files"]
    entry = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    reseal(tmp_path, files=files | {path.name: entry})
    with pytest.raises(UserError, match="cannot read the index") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_an_index_of_another_encoder_is_refused(tmp_path):
    write(tmp_path, many(20))
    message = "made with encoder abc, not with def; build the index again"
    with pytest.raises(UserError, match=message):
        read_index(tmp_path, encoder="def")


@pytest.mark.parametrize("size", ["100", None, [1], -1, True, 1.0])
def test_a_size_that_is_none_is_refused(tmp_path, size):
    write(tmp_path, many(20))
    files = read_manifest(tmp_path)["files"]
    reseal(tmp_path, files={name: entry | {"bytes": size} for name, entry in files.items()})
    with pytest.raises(UserError, match="no entry for"):
        read(tmp_path)


@pytest.mark.parametrize(
    "build", ["../../other", "/etc/passwd", "", None, 7, "0" * 15, "0" * 15 + "g", "0" * 16 + "\n"]
)
def test_a_build_does_not_climb_out_of_the_folder(tmp_path, build):
    write(tmp_path, many(20))
    reseal(tmp_path, build=build)
    with pytest.raises(UserError, match="expected a `build` of 16 hexadecimal digits") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", [".lock", "manifest.json", ".manifest.json.part", "changes", "texts", "vectors"]
)
def test_symbolic_links_are_refused(tmp_path, name):
    folder, outside = tmp_path / "received", tmp_path / "outside"
    index = write(folder, many(20))
    path = folder / name if "." in name else file_of(folder, name)
    if path.exists():
        path.rename(outside)
    else:
        outside.write_text("mine")
    before = outside.read_bytes()
    path.symlink_to(outside)
    for follow in (
        lambda: read(folder),
        lambda: remove_leftovers(folder),
        lambda: write(folder, many(3)),
        lambda: write_index(folder, index, new_build(), "export"),
    ):
        with pytest.raises(UserError, match="expected a plain file, got a symbolic link") as error:
            follow()
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)
    if name == ".lock":
        with pytest.raises(UserError, match="symbolic link"), WriteLock(folder).hold():
            pass
    assert outside.read_bytes() == before


def test_no_index_at_all(tmp_path):
    with pytest.raises(UserError, match=r"expected a folder with a manifest\.json, found none"):
        read(tmp_path)

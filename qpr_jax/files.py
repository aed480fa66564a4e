"""Files that are either the old or the new, never half of one, and that are checked before use."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from qpr_jax.errors import UserError

StrPath = str | os.PathLike[str]
Path = StrPath  # until all modules use the new name

MANIFEST = "manifest.json"
_READ = 1 << 20


def user_cache() -> pathlib.Path:
    """Where files are kept that can be had again: `$XDG_CACHE_HOME/qpr_jax`, `~/.cache/qpr_jax`."""
    return pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "qpr_jax"
    )


@contextlib.contextmanager
def write_atomically(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a file beside `path`; on success sync it and rename it to `path`, else remove it.

    One writer at a time; what a kill leaves beside is overwritten by the next.

    Text modes write UTF-8 with plain newlines. The folder is made where it is missing.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with open(beside, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock file `path`; False where another process holds it, unless we `wait` for it.

    Freed by any end.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with write_atomically(path, "w") as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; raise UserError where it is missing or not one."""
    try:
        return json.loads(pathlib.Path(path).read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: the file is missing; remake it") from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: expected JSON, got {error}; restore or remake the file"
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file, empty where there is no such file; else as `read_json`."""
    found = read_json(path) if pathlib.Path(path).exists() else {}
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected a JSON object, got another value; remake the file")
    return found


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, files: Sequence[str], **facts: Any) -> None:
    """Record the size and SHA-256 of `files` of `folder`, and `facts`, in its manifest."""
    write_json(pathlib.Path(folder, MANIFEST), {**facts, "files": file_entries(folder, files)})


def file_entries(folder: Path, files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The size and SHA-256 of files of `folder`, as a manifest records them."""
    paths = {name: pathlib.Path(folder, name) for name in files}
    return {
        name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for name, path in paths.items()
    }


def manifest_format(folder: Path) -> str | None:
    """The format that the manifest of `folder` names; None where there is no such manifest."""
    path = pathlib.Path(folder) / MANIFEST
    found = read_json(path) if path.is_file() else None
    named = found.get("format") if isinstance(found, dict) else None
    return named if isinstance(named, str) else None


def read_manifest(folder: Path, *, format: str) -> dict[str, Any]:
    """The manifest of `folder`; UserError where there is none or it is of another format."""
    path = pathlib.Path(folder) / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder}: expected a folder with a {MANIFEST}, found none; remake it")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise UserError(f"{path}: expected a manifest with `files`; remake the folder")
    if manifest.get("format") != format:
        raise UserError(
            f"{path}: expected format {format!r}, got {manifest.get('format')!r}; "
            "remake the folder with this version"
        )
    return manifest


def read_verified(folder: Path, name: str, manifest: dict[str, Any]) -> bytes:
    """The bytes of a file of `folder`, returned only if size and SHA-256 match its manifest."""
    path, entry = _checked_size(folder, name, manifest, growing=False)
    data = path.read_bytes()
    check_digest(path, hashlib.sha256(data).hexdigest(), entry)
    return data


def verify(folder: Path, name: str, manifest: dict[str, Any], *, growing: bool = False) -> None:
    """UserError where a file of `folder` is not, by size and SHA-256, what the manifest says.

    growing: only as many bytes of it as the manifest says; what comes after does not count.
    """
    path, entry = _checked_size(folder, name, manifest, growing=growing)
    with open(path, "rb") as file:
        check_digest(path, digest_of(file, entry["bytes"]).hexdigest(), entry)


def digest_of(file: IO[bytes], size: int) -> hashlib._Hash:
    """SHA-256 of the next `size` bytes."""
    digest = hashlib.sha256()
    while size and (data := file.read(min(size, _READ))):
        digest.update(data)
        size -= len(data)
    return digest


def _checked_size(
    folder: Path, name: str, manifest: dict[str, Any], *, growing: bool
) -> tuple[pathlib.Path, dict[str, Any]]:
    """The path of a file and its entry in the manifest, if their sizes fit."""
    path = pathlib.Path(folder) / name
    entry = manifest["files"].get(name)
    size = entry.get("bytes") if isinstance(entry, dict) else None
    if type(size) is not int or size < 0 or not isinstance(entry.get("sha256"), str):
        raise UserError(f"{path.parent / MANIFEST}: no entry for {name}; remake the folder")
    try:
        there = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path}: the file is missing; remake the folder") from None
    if there < size or (there > size and not growing):
        raise UserError(f"{path}: expected {size} bytes, got {there}; remake the folder")
    return path, entry


def check_digest(path: pathlib.Path, digest: str, entry: dict[str, Any]) -> None:
    """UserError where the SHA-256 is not that of the manifest's entry."""
    if digest != entry["sha256"]:
        raise UserError(f"{path}: the bytes differ from their SHA-256; remake the folder")


def refuse_existing(folder: Path, *, flag: str = "--out") -> None:
    """UserError where there is something already, which may be somebody's work."""
    path = pathlib.Path(folder)
    if path.exists() and path.resolve() == pathlib.Path.cwd():
        raise UserError(f"{path} is the folder that you are in; name another with `{flag}`")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is there already; remove it, or name another folder with `{flag}`")


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[pathlib.Path]:
    """Yield a new empty folder beside `folder`; on success it takes its place.

    A kill leaves the old folder or the new one, never a mixture; between the two renames it
    leaves the old one under `.NAME.old`, from which the next call puts it back first.
    """
    folder = pathlib.Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.part")
    old = folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():
        os.replace(old, folder)
    for leftover in (beside, old):
        if leftover.exists():
            shutil.rmtree(leftover)
    beside.mkdir()
    try:
        yield beside
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    if folder.exists():
        os.replace(folder, old)
    os.replace(beside, folder)
    _sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

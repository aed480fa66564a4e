"""Atomic writes of files and folders, and manifests that verify files before use."""

from __future__ import annotations

import contextlib
import errno
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

MANIFEST = "manifest.json"
_REMEDY = "remake the folder"
_CHUNK = 1 << 20  # bytes
# Errors of a write that do not say which file it was.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def user_cache() -> pathlib.Path:
    """The folder for files that can be remade: `$XDG_CACHE_HOME/qpr_jax`, `~/.cache/qpr_jax`."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(cache, "qpr_jax")


@contextlib.contextmanager
def write_atomically(path: StrPath, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success sync it and rename it, else remove it.

    One writer at a time. The temporary file of a killed writer is overwritten by the next.

    Text modes write UTF-8 with plain newlines. A missing folder is created.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with name_in_errors(path), open(beside, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextlib.contextmanager
def name_in_errors(path: StrPath) -> Iterator[None]:
    """Add `path` to an error of writing (a full disk, say) that names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _DISK_ERRORS:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def locked(path: StrPath, *, wait: bool = False) -> Iterator[bool]:
    """Hold a lock on the file `path`, until the process ends at the latest.

    Yields False where another process holds it, unless it is to `wait` until that frees it.
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


def write_json(path: StrPath, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with write_atomically(path, "w") as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")


def read_json(path: StrPath) -> Any:
    """Read a JSON file; UserError where it is missing or is not JSON."""
    try:
        return parse_json(pathlib.Path(path).read_bytes(), path)
    except FileNotFoundError:
        raise UserError(f"{path}: the file is missing", remedy="remake it") from None


def parse_json(data: bytes, where: StrPath) -> Any:
    """Parse the JSON of a file; UserError, with `where` it is, for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        what = f"{where}: expected JSON, got {error}"
        raise UserError(what, remedy="restore, remake or fetch the file") from error


def read_object(path: StrPath) -> dict[str, Any]:
    """Read the object of a JSON file; empty where the file is missing."""
    found = read_json(path) if pathlib.Path(path).exists() else {}
    if not isinstance(found, dict):
        what = f"{path}: expected a JSON object, got another value"
        raise UserError(what, remedy="remake the file")
    return found


def sha256_of(path: StrPath) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: StrPath, files: Sequence[str], **facts: Any) -> None:
    """Write the manifest of `folder`: size and SHA-256 of each of `files`, and `facts`."""
    write_json(pathlib.Path(folder, MANIFEST), {**facts, "files": file_entries(folder, files)})


def file_entries(folder: StrPath, files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The size and SHA-256 of files of `folder`, as in a manifest."""
    paths = {name: pathlib.Path(folder, name) for name in files}
    return {n: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for n, p in paths.items()}


def manifest_format(folder: StrPath) -> str | None:
    """The format named in the manifest of `folder`; None where there is no such manifest."""
    path = pathlib.Path(folder) / MANIFEST
    found = read_json(path) if path.is_file() else None
    name = found.get("format") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def read_manifest(folder: StrPath, *, format: str) -> dict[str, Any]:
    """Read the manifest of `folder`; UserError where it is missing or of another format."""
    path = pathlib.Path(folder) / MANIFEST
    if not path.is_file():
        what = f"{folder}: expected a folder with a {MANIFEST}, found none"
        raise UserError(what, remedy="remake it")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise UserError(f"{path}: expected a manifest with `files`", remedy=_REMEDY)
    if manifest.get("format") != format:
        what = f"{path}: expected format {format!r}, got {manifest.get('format')!r}"
        raise UserError(what, remedy="remake the folder with this version")
    return manifest


def read_verified(folder: StrPath, name: str, manifest: dict[str, Any]) -> bytes:
    """Read a file of `folder`; UserError where size or SHA-256 differ from the manifest."""
    path, entry = check_size(folder, name, manifest)
    data = path.read_bytes()
    _check_digest(path, hashlib.sha256(data), entry)
    return data


def verify(folder: StrPath, name: str, manifest: dict[str, Any], *, growing: bool = False) -> None:
    """UserError where size or SHA-256 of a file of `folder` differ from the manifest.

    growing: compare only the first bytes of the file, up to the size in the manifest.
    """
    path, entry = check_size(folder, name, manifest, growing=growing)
    digest, left = hashlib.sha256(), entry["bytes"]
    with open(path, "rb") as file:
        while left and (data := file.read(min(left, _CHUNK))):
            digest.update(data)
            left -= len(data)
    _check_digest(path, digest, entry)


def check_size(
    folder: StrPath, name: str, manifest: dict[str, Any], *, growing: bool = False
) -> tuple[pathlib.Path, dict[str, Any]]:
    """The path of a file and its entry in the manifest; UserError where their sizes differ."""
    path = pathlib.Path(folder) / name
    entry = manifest["files"].get(name)
    size = entry.get("bytes") if isinstance(entry, dict) else None
    if type(size) is not int or size < 0 or not isinstance(entry.get("sha256"), str):
        raise UserError(f"{path.parent / MANIFEST}: no entry for {name}", remedy=_REMEDY)
    if not path.exists():
        raise UserError(f"{path}: the file is missing", remedy=_REMEDY)
    found = path.stat().st_size
    if found < size or (found > size and not growing):
        raise UserError(f"{path}: expected {size} bytes, got {found}", remedy=_REMEDY)
    return path, entry


def _check_digest(path: pathlib.Path, digest: hashlib._Hash, entry: dict[str, Any]) -> None:
    if digest.hexdigest() != entry["sha256"]:
        raise UserError(f"{path}: the bytes differ from their SHA-256", remedy=_REMEDY)


def refuse_existing(folder: StrPath, *, option: str = "out") -> None:
    """UserError where the folder, given by `option`, is the current one or is not empty."""
    path = pathlib.Path(folder)
    if path.exists() and path.resolve() == pathlib.Path.cwd():
        raise UserError(f"expected another folder than the current one, got {path}", setting=option)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = f"{path} is there already"
        raise UserError(what, setting=option, remedy="remove it, or name another folder")


@contextlib.contextmanager
def replace_folder(folder: StrPath) -> Iterator[pathlib.Path]:
    """Yield a new empty folder, which replaces `folder` on success.

    A kill leaves either the old folder or the new one. A kill between the two renames leaves the
    old one as `.NAME.old`; the next call renames it back first.
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
        with name_in_errors(folder):
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

"""Atomic writes of files and folders, and sealed manifests that verify files before use.

A manifest is `manifest.json` of a folder: facts about it, and the size and SHA-256 of each file.
Its own `sha256` covers everything else in it, so one flipped bit is noticed. It contains no times:
equal contents have equal manifests.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import filelock

from qpr_jax.errors import UserError, later_format

StrPath = str | os.PathLike[str]

MANIFEST = "manifest.json"
LOCK_FILE = ".lock"
_SEAL = "sha256"
_REMEDY = "make the folder again"
_ELSEWHERE = "name another folder, or allow writing there"
# Errors of a write that do not say which file it was.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def user_cache() -> pathlib.Path:
    """Return the folder of cached files: `$XDG_CACHE_HOME/qpr_jax` or `~/.cache/qpr_jax`."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(cache, "qpr_jax")


@contextlib.contextmanager
def write_atomically(path: StrPath, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success sync it and rename it, else remove it.

    Only one writer at a time may write `path`. The next writer removes the temporary file of a
    killed one. Text modes write UTF-8 with plain newlines. Missing folders are created.
    """
    path = pathlib.Path(path)
    beside = path.with_name(f".{path.name}.part")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        opened = open(beside, mode.replace("w", "x"), **text)  # noqa: SIM115
    try:
        with name_in_errors(path), opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    _sync(path.parent)


@contextlib.contextmanager
def name_in_errors(path: StrPath) -> Iterator[None]:
    """Add `path` to an error of writing, such as a full disk, that names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _DISK_ERRORS:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def writable(path: StrPath) -> Iterator[None]:
    """Context in which failing to write to `path` is a UserError."""
    try:
        with name_in_errors(path):
            yield
    except OSError as error:
        if error.errno in (None, errno.ELOOP, *_DISK_ERRORS):
            raise
        what = f"{path}: cannot be written ({error.strerror})"
        raise UserError(what, remedy=_ELSEWHERE) from None


@contextlib.contextmanager
def locked(path: StrPath, *, wait: bool = False, busy: str = "") -> Iterator[bool]:
    """Lock the file `path` against other threads and processes; a killed process frees it.

    The file is created if missing and never changed. OSError if it is a symbolic link. Missing
    folders are created. A block that fails and leaves no other file leaves none of these.

    wait: wait until the lock is free, and let the thread that holds it take it again; otherwise
      yield False if it is held.
    busy: what a UserError says if it is held, instead.
    """
    path = pathlib.Path(path).absolute()
    new = [folder for folder in path.parents if not folder.exists()]
    before = {*path.parent.iterdir()} if path.parent.is_dir() else set()
    lock = filelock.FileLock(path, -1.0 if wait else 0.0, poll_interval=0.005, is_singleton=wait)
    try:
        with writable(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except filelock.Timeout:
        if not path.exists():  # as in /proc: no process can make it
            raise UserError(f"{path.parent}: cannot be written", remedy=_ELSEWHERE) from None
        if busy:
            raise UserError(busy, remedy="wait for its end, or write elsewhere") from None
        yield False
        return
    try:
        yield True
    except BaseException:
        with contextlib.suppress(OSError):  # what others have put there stays
            if {*path.parent.iterdir()} - before == {path}:
                path.unlink()  # a process that waits for it makes it again
                for folder in new:
                    folder.rmdir()
        raise
    finally:
        lock.release()


def folder_lock(folder: StrPath) -> contextlib.AbstractContextManager[bool]:
    """Hold the lock of a folder, which is created if missing; wait until it is free."""
    return locked(pathlib.Path(folder).resolve() / LOCK_FILE, wait=True)


def require_file(path: StrPath, *, remedy: str = _REMEDY) -> pathlib.Path:
    """Return the path of a file, or of a link to one; UserError for a folder, a pipe or nothing."""
    path = pathlib.Path(path)
    if path.is_file():
        return path
    kind = "another kind of file" if os.path.lexists(path) else "none"
    raise UserError(f"{path}: expected a file, found {kind}", remedy=remedy)


def write_json(path: StrPath, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with write_atomically(path, "w") as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")


def read_json(path: StrPath) -> Any:
    """Read a JSON file; UserError if it is missing, no file or not JSON."""
    return parse_json(require_file(path).read_bytes(), path)


def parse_json(data: bytes, where: StrPath) -> Any:
    """Parse the JSON of a file; a UserError for anything else names it, `where`."""
    try:
        return json.loads(data)
    except (RecursionError, ValueError) as error:
        what = f"{where}: expected JSON, got {error}"
        raise UserError(what, remedy="restore the file or make it again") from None


def read_object(path: StrPath) -> dict[str, Any]:
    """Read the object of a JSON file; an empty one if the file is missing."""
    found = read_json(path) if os.path.lexists(path) else {}
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected a JSON object", remedy="make the file again")
    return found


def sha256_of(path: StrPath) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: StrPath, files: Iterable[str], **facts: Any) -> None:
    """Write the manifest of `folder`: `facts`, and the size and SHA-256 of each of `files`.

    The bytes of the files are on disk already; their names are before the manifest is.
    """
    path = pathlib.Path(folder).absolute()
    manifest = {**facts, "files": file_entries(path, files)}
    _sync(path)
    write_json(path / MANIFEST, seal(manifest))
    _sync(path.parent)


def file_entries(folder: StrPath, files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the size and SHA-256 of files of `folder`, as in a manifest."""
    entries = {}
    for name in sorted(files):
        path = pathlib.Path(folder, name)
        entries[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return entries


def seal(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest with `sha256`: the digest of its other entries as compact JSON.

    Keys are sorted, so their order in the file does not matter. ValueError for values that JSON
    lacks.
    """
    plain = json.loads(json.dumps(manifest, allow_nan=False))
    plain.pop(_SEAL, None)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return {**plain, _SEAL: hashlib.sha256(text.encode("ascii")).hexdigest()}


def manifest_format(folder: StrPath) -> str | None:
    """Return the format named in the manifest of `folder`; None if there is none."""
    path = pathlib.Path(folder) / MANIFEST
    found = read_json(path) if path.is_file() else None
    format = found.get("format") if isinstance(found, dict) else None
    return format if isinstance(format, str) else None


def read_manifest(folder: StrPath, *, format: str) -> dict[str, Any]:
    """Read the manifest of `folder`; UserError if it is missing, of another format, or altered."""
    path = pathlib.Path(folder) / MANIFEST
    if not os.path.lexists(path):
        what = f"{folder}: expected a folder with a {MANIFEST}, found none"
        raise UserError(what, remedy=_REMEDY)
    manifest = read_json(path)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != format:
        remedy = later_format(found, [format]) or "make the folder again with this version"
        raise UserError(f"{path}: expected format {format!r}, got {found!r}", remedy=remedy)
    try:
        unaltered = manifest == seal(manifest)
    except (ValueError, RecursionError):  # NaN, say
        unaltered = False
    if not unaltered or not isinstance(manifest.get("files"), dict):
        raise _altered(path)
    return manifest


def _altered(path: pathlib.Path) -> UserError:
    return UserError(f"{path}: the bytes differ from their SHA-256", remedy=_REMEDY)


def check_size(folder: StrPath, name: str, manifest: dict[str, Any]) -> pathlib.Path:
    """Return the path of a file; UserError if its size differs from that in the manifest."""
    path = pathlib.Path(folder) / name
    entry = manifest["files"].get(name)
    if not isinstance(entry, dict) or not {"bytes", "sha256"} <= {*entry}:
        raise UserError(f"{path.parent / MANIFEST}: no entry for {name}", remedy=_REMEDY)
    size = require_file(path).stat().st_size
    if size != entry["bytes"]:
        raise UserError(f"{path}: expected {entry['bytes']} bytes, got {size}", remedy=_REMEDY)
    return path


def verify(folder: StrPath, name: str, manifest: dict[str, Any]) -> pathlib.Path:
    """Return the path of a file; UserError if its bytes differ from the manifest."""
    path = check_size(folder, name, manifest)
    if sha256_of(path) != manifest["files"][name]["sha256"]:
        raise _altered(path)
    return path


def read_verified(folder: StrPath, name: str, manifest: dict[str, Any]) -> bytes:
    """Read a file; UserError if its bytes differ from the manifest."""
    return verify(folder, name, manifest).read_bytes()


def refuse_existing(folder: StrPath, *, option: str = "out") -> None:
    """UserError if the folder, given by `option`, is the current one or is not empty."""
    path = pathlib.Path(folder)
    if path.exists() and path.resolve() == pathlib.Path.cwd():
        raise UserError(f"expected another folder than the current one, got {path}", setting=option)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = f"{path} exists already"
        remedy = "use what it holds, remove it, or name another folder"
        raise UserError(what, setting=option, remedy=remedy)


@contextlib.contextmanager
def replace_folder(folder: StrPath) -> Iterator[pathlib.Path]:
    """Yield a new empty folder, which replaces `folder` on success.

    A kill leaves either the old folder or the new one. A kill between the two renames leaves the
    old one as `.NAME.old`; the next call renames it back first.
    """
    folder = pathlib.Path(folder)
    beside = folder.with_name(f".{folder.name}.part")
    old = folder.with_name(f".{folder.name}.old")
    with writable(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
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
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def write_folder(
    folder: StrPath,
    files: Mapping[str, bytes],
    *,
    also: Callable[[pathlib.Path], object] | None = None,
    **facts: Any,
) -> None:
    """Replace a folder by these files and a manifest of them with these facts.

    also: writes further files to the new folder.
    """
    with replace_folder(folder) as part:
        for name, data in files.items():
            with write_atomically(part / name) as file:
                file.write(data)
        write_manifest(part, files, **facts)
        if also:
            also(part)


def sync_tree(folder: pathlib.Path) -> list[str]:
    """Put on disk all that is in a folder; return the names of its files."""
    names = []
    for path in sorted(folder.rglob("*")):
        _sync(path)
        if path.is_file():
            names.append(path.relative_to(folder).as_posix())
    return names


def _sync(folder: pathlib.Path) -> None:
    """Put the entries of a folder on disk, or the bytes of a file."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # as of the parent of a user's folder
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Atomic writes of files and folders, and sealed manifests that verify files before use.

A manifest is `manifest.json` of a folder: facts about it, and the size and SHA-256 of each file.
Its own `sha256` covers everything else in it, so one flipped bit is noticed. It contains no times:
equal contents have equal manifests.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import filelock

from qpr_jax.errors import UserError

StrPath = str | os.PathLike[str]

MANIFEST = "manifest.json"
SEAL = "sha256"
LOCK_FILE = ".lock"
JSON_LIMIT = 1 << 28  # bytes of a JSON file
FILE_LIMIT = 1 << 33  # bytes of a file that is read whole
_REMEDY = "make the folder again"
_POLL = 0.005  # seconds between attempts to lock a file
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFLNK: "a symbolic link"}
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
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        beside.unlink(missing_ok=True)
        with name_in_errors(path), open(beside, mode.replace("w", "x"), **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


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
def locked(path: StrPath, *, wait: bool = False) -> Iterator[bool]:
    """Lock the file `path` against other threads and processes; a killed process frees it.

    The file is created if missing and never changed. UserError if it is a symbolic link.

    wait: until the lock is free, and a thread that holds it may take it again; otherwise yields
      False if it is held.
    """
    path = pathlib.Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    timeout = -1.0 if wait else 0.0
    lock = filelock.FileLock(path, timeout, poll_interval=_POLL, is_singleton=wait)
    try:
        lock.acquire()
    except filelock.Timeout:
        yield False
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _not_plain(path, stat.S_IFLNK) from None
    try:
        yield True
    finally:
        lock.release()


def folder_lock(folder: StrPath) -> contextlib.AbstractContextManager[bool]:
    """Hold the lock of a folder, which is created if missing; wait until it is free."""
    return locked(pathlib.Path(folder).resolve() / LOCK_FILE, wait=True)


def open_plain(path: StrPath) -> io.BufferedReader:
    """Open a file for reading; never waits. UserError if it is not a plain file.

    Links to plain files are followed: the cache of the Hugging Face hub consists of them.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise UserError(f"{path}: the file is missing", remedy=_REMEDY) from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise _not_plain(path, os.lstat(path).st_mode) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_plain(path, mode)
    return open(descriptor, "rb")


def _not_plain(path: StrPath, mode: int) -> UserError:
    kind = _KINDS.get(stat.S_IFMT(mode), "a device")
    return UserError(f"{path}: expected a plain file, got {kind}", remedy="remove it")


def read_plain(path: StrPath, *, limit: int = FILE_LIMIT) -> bytes:
    """Read a plain file; UserError if it is missing, not plain, or larger than `limit` bytes."""
    with open_plain(path) as file, contextlib.suppress(MemoryError):
        if (size := os.fstat(file.fileno()).st_size) <= limit:
            return file.read()
    what = f"{path}: expected a file that fits in memory and has at most {limit:,} bytes"
    raise UserError(f"{what}, got {size:,}", remedy=_REMEDY)


def write_json(path: StrPath, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with write_atomically(path, "w") as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")


def read_json(path: StrPath) -> Any:
    """Read a JSON file; UserError if it is missing, too large, not a plain file or not JSON."""
    return parse_json(read_plain(path, limit=JSON_LIMIT), path)


def parse_json(data: bytes, where: StrPath) -> Any:
    """Parse the JSON of a file; UserError, with `where` it is, for anything else."""
    try:
        return json.loads(data)
    except RecursionError:
        what = f"{where}: expected JSON, got values nested too deeply"
    except MemoryError:
        what = f"{where}: expected JSON that fits in memory"
    except ValueError as error:
        what = f"{where}: expected JSON, got {error}"
    raise UserError(what, remedy="restore the file or make it again")


def read_object(path: StrPath) -> dict[str, Any]:
    """Read the object of a JSON file; an empty one if the file is missing."""
    found = read_json(path) if os.path.lexists(path) else {}
    if not isinstance(found, dict):
        what = f"{path}: expected a JSON object, got another value"
        raise UserError(what, remedy="make the file again")
    return found


def sha256_of(path: StrPath) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: StrPath, files: Iterable[str], **facts: Any) -> None:
    """Write the manifest of `folder`: `facts`, and the size and SHA-256 of each of `files`."""
    manifest = {**facts, "files": file_entries(folder, files)}
    write_json(pathlib.Path(folder, MANIFEST), seal(manifest))


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
    plain.pop(SEAL, None)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return {**plain, SEAL: hashlib.sha256(text.encode("ascii")).hexdigest()}


def manifest_format(folder: StrPath) -> str | None:
    """Return the format named in the manifest of `folder`; None if there is no such manifest."""
    path = pathlib.Path(folder) / MANIFEST
    found = read_json(path) if path.is_file() else None
    name = found.get("format") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def read_manifest(folder: StrPath, *, format: str) -> dict[str, Any]:
    """Read and verify the manifest of `folder`.

    UserError if it is missing, of another format, or altered.
    """
    path = pathlib.Path(folder) / MANIFEST
    if not os.path.lexists(path):
        what = f"{folder}: expected a folder with a {MANIFEST}, found none"
        raise UserError(what, remedy=_REMEDY)
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise UserError(f"{path}: expected a manifest with `files`", remedy=_REMEDY)
    if manifest.get("format") != format:
        what = f"{path}: expected format {format!r}, got {manifest.get('format')!r}"
        raise UserError(what, remedy="make the folder again with this version")
    try:
        digest = seal(manifest)[SEAL]
    except (ValueError, RecursionError):  # NaN, say
        digest = ""
    if not digest or digest != manifest.get(SEAL):
        raise UserError(f"{path}: the bytes differ from their SHA-256", remedy=_REMEDY)
    return manifest


def read_verified(folder: StrPath, name: str, manifest: dict[str, Any]) -> bytes:
    """Read a file of `folder`; UserError if its size or SHA-256 differ from the manifest."""
    path, entry = check_size(folder, name, manifest)
    data = read_plain(path)
    _check_digest(path, hashlib.sha256(data).hexdigest(), entry)
    return data


def verify(folder: StrPath, name: str, manifest: dict[str, Any]) -> None:
    """Like `read_verified`, but reads the file in chunks and returns nothing."""
    path, entry = check_size(folder, name, manifest)
    _check_digest(path, sha256_of(path), entry)


def check_size(
    folder: StrPath, name: str, manifest: dict[str, Any]
) -> tuple[pathlib.Path, dict[str, Any]]:
    """Return the path of a file and its entry in the manifest; UserError if their sizes differ."""
    path = pathlib.Path(folder) / name
    entry = manifest["files"].get(name)
    size = entry.get("bytes") if isinstance(entry, dict) else None
    if type(size) is not int or size < 0 or not isinstance(entry.get("sha256"), str):
        raise UserError(f"{path.parent / MANIFEST}: no entry for {name}", remedy=_REMEDY)
    if not path.exists():
        raise UserError(f"{path}: the file is missing", remedy=_REMEDY)
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise _not_plain(path, found.st_mode)
    if found.st_size != size:
        raise UserError(f"{path}: expected {size} bytes, got {found.st_size}", remedy=_REMEDY)
    return path, entry


def _check_digest(path: pathlib.Path, digest: str, entry: dict[str, Any]) -> None:
    if digest != entry["sha256"]:
        raise UserError(f"{path}: the bytes differ from their SHA-256", remedy=_REMEDY)


def refuse_existing(folder: StrPath, *, option: str = "out") -> None:
    """UserError if the folder, given by `option`, is the current one or is not empty."""
    path = pathlib.Path(folder)
    if path.exists() and path.resolve() == pathlib.Path.cwd():
        raise UserError(f"expected another folder than the current one, got {path}", setting=option)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = f"{path} exists already"
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


def write_folder(
    folder: StrPath,
    files: Mapping[str, bytes],
    *,
    also: Callable[[pathlib.Path], object] = bool,
    **facts: Any,
) -> None:
    """Replace a folder by these files and a manifest of them with these facts.

    also: called with the new folder, to write what shall lie in it besides.
    """
    with replace_folder(folder) as part:
        for name, data in files.items():
            with write_atomically(part / name) as file:
                file.write(data)
        write_manifest(part, files, **facts)
        also(part)


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

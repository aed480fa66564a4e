"""An index in a folder: every change is on disk before it counts, and nothing unverified is used.

    manifest.json           what there is: facts, and size and SHA-256 of each file of the build;
                            `sha256` is of all else that it says
    vectors-BUILD.faiss     as the index of vectors writes it
    vectors-BUILD.npy       the SHA-256 of each of its lists, if it has lists (see `stored_lists`)
    texts-BUILD.bin, rows-BUILD.npy, order-BUILD.npy
                            the questions of the build (see `built_questions`)
    changes-BUILD.sqlite    what was added and removed since (see `changes_file`)
    statistics-BUILD.safetensors
                            of the texts of the build (see `statistics`), where a re-ranker reads
                            them; otherwise they are made from the texts when one does

All are verified when the index is opened, but for texts, whose records have a CRC that is verified
whenever one is read, and for the lists of vectors, each of which is verified before its first use.

BUILD is drawn for each build and compaction, so a name never means another file. An index is
replaced by its manifest: the new files are written first, the old ones are removed last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pathlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from qpr_jax.errors import UserError
from qpr_jax.files import (
    MANIFEST,
    StrPath,
    check_size,
    file_entries,
    read_json,
    read_verified,
    verify,
    write_atomically,
    write_json,
)
from qpr_jax.index import changes_file
from qpr_jax.index.base import SHARDS, SUMS, Check, StoredQuestion, backend
from qpr_jax.index.built_questions import FILES, accept, read_questions, write_questions
from qpr_jax.index.changes_file import ChangesFile
from qpr_jax.index.documents import documents_folder, index_documents, query_encoder
from qpr_jax.index.question_index import QuestionIndex
from qpr_jax.index.question_store import QuestionStore
from qpr_jax.index.recipe import Recipe

if TYPE_CHECKING:
    from qpr_jax.index.statistics import Statistics

T = TypeVar("T")

FORMAT, OLD_FORMATS = "qpr_jax index 6", ("qpr_jax index 4", "qpr_jax index 5")
SEAL = "sha256"
_VECTORS, _SUMS = "vectors-{}.faiss", f"vectors-{{}}{SUMS}"
_STATISTICS = "statistics-{}.safetensors"
_BUILD = re.compile(r"[0-9a-f]{16}")
_OURS = re.compile(
    r"\.?(vectors|texts|rows|order|changes|statistics|questions|offsets|ids)-([0-9a-f]{16})\.\w+(-journal|\.part)?"
)
_ENCODER = re.compile(
    r"(export|documents)-[0-9a-f]{16}|\.(export|documents)(-[0-9a-f]{16})?\.(part|old)"
)


def new_build() -> str:
    """A name that no build had."""
    return secrets.token_hex(8)


def write_store(
    folder: pathlib.Path,
    questions: Iterable[StoredQuestion],
    build: str,
    next_id: int,
    check: Check = accept,
) -> QuestionStore:
    """Write the questions of a new build to its files; `check` as of `write_questions`."""
    built = write_questions(questions, folder, build, check=check)
    changes = folder / changes_file.NAME.format(build)
    ChangesFile.create(changes)
    return QuestionStore(built, ChangesFile(changes), next_id=next_id)


def write_index(
    folder: pathlib.Path, index: QuestionIndex, build: str, export: str, queries_by: str = ""
) -> None:
    """Write what `write_store` has not, then the manifest, then remove all older files.

    Needs the folder's `WriteLock`. index: without changes since it was built. export: the name of
    the folder of the queries' encoder, beside this one. queries_by: the identity of this encoder,
    where the index has another one of its questions.
    """
    if index.changed:
        raise ValueError("an index that was changed since it was built must be compacted first")
    refuse_links(folder)
    index.vectors.save(folder / _VECTORS.format(build))
    if index.statistics is not None:
        _write_statistics(folder, index.statistics, build)
    files = _built_files(build)
    files += [name for name in _further_files(build) if (folder / name).exists()]
    built = index.recipe
    manifest = {
        "format": FORMAT,
        "build": build,
        "export": export,
        "factory": built.factory,
        "wanted_factory": index.requested.factory,
        "metric": built.metric,
        "probes": built.probes,
        "assignments": built.assignments,
        "wanted_assignments": index.requested.assignments,
        "count": len(index),
        "dimension": index.dimension,
        "recall@10": index.vectors.recall,
        "next_id": index.next_id,
        "encoder": index.encoder,
        **({"queries_by": queries_by} if index.documents else {}),
        "files": file_entries(folder, files),
    }
    write_json(folder / MANIFEST, seal(manifest))
    remove_leftovers(folder)


def replace_encoder(folder: pathlib.Path, encoder: str, export: str) -> None:
    """Name another encoder of the queries, whose vectors are those of the former, in the manifest.

    Needs the folder's `WriteLock`; no other file changes. encoder: its identity. export: the name
    of its folder, next to this one.
    """
    manifest = read_manifest(folder)
    name = "queries_by" if "queries_by" in manifest else "encoder"
    write_json(folder / MANIFEST, seal(manifest | {name: encoder, "export": export}))
    remove_leftovers(folder)


def read_index(folder: StrPath, *, encoder: str | Sequence[str] = ()) -> tuple[QuestionIndex, str]:
    """The index of a folder as its manifest says, and the name of its build.

    UserError where a file is missing, changed or cut off, where the manifest does not fit the
    files, or where the queries have another `encoder` than this, or these, if any.
    """
    encoders = (encoder,) if isinstance(encoder, str) else encoder
    folder = pathlib.Path(folder)
    return _of_one_build(
        folder, lambda manifest: (_read(folder, manifest, encoders), str(manifest["build"]))
    )


def verify_index(folder: StrPath) -> None:
    """UserError where a file of the build is missing, changed or cut off; reads all of each."""

    def check(manifest: dict[str, Any]) -> None:
        for name in manifest["files"]:
            verify(folder, name, manifest)

    _of_one_build(pathlib.Path(folder), check)


def _of_one_build(folder: pathlib.Path, read: Callable[[dict[str, Any]], T]) -> T:
    """What `read` makes of a folder by its manifest, while another process may replace both."""
    while True:
        manifest = read_manifest(folder)
        try:
            return read(manifest)
        except (UserError, FileNotFoundError) as error:
            if read_manifest(folder)["build"] != manifest["build"]:
                continue
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"{folder}: a file is missing ({error})", remedy="remake the folder"
            ) from None


def read_manifest(folder: StrPath, *, format: str = FORMAT) -> dict[str, Any]:
    """The manifest of a folder; a UserError refuses a damaged one, and another format."""
    folder = pathlib.Path(folder)
    path = folder / MANIFEST
    refuse_links(folder)
    if not path.is_file():
        raise UserError(f"{folder}: expected a folder with a {MANIFEST}, found none; remake it")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise UserError(f"{path}: expected a manifest with `files`", remedy="remake the folder")
    found = manifest.get("format")
    if found in OLD_FORMATS and found != format:
        raise UserError(
            f"{path}: expected format {format!r}, got {found!r}",
            remedy="run `qpr compact` on the folder, which upgrades it",
        )
    if found != format:
        raise UserError(
            f"{path}: expected format {format!r}, got {found!r}",
            remedy="remake the folder with this version",
        )
    if seal(manifest) != manifest:
        raise UserError(
            f"{path}: what it says differs from its `{SEAL}`; restore the file, or build the index "
            "again"
        )
    build = manifest.get("build")
    if not isinstance(build, str) or not _BUILD.fullmatch(build):
        raise UserError(
            f"{path}: expected a `build` of 16 hexadecimal digits, got {build!r}",
            remedy="build the index again",
        )
    return manifest


def seal(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the SHA-256 of all else that it says."""
    said = {name: value for name, value in manifest.items() if name != SEAL}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode("ascii")).hexdigest()
    return said | {SEAL: digest}


def refuse_links(folder: pathlib.Path) -> None:
    """Raise a UserError where the folder is or has a symbolic link, which a writer would follow."""
    for path in [folder, *(folder.iterdir() if folder.is_dir() else ())]:
        if path.is_symlink():
            kind = "folder" if path == folder else "file"
            raise UserError(
                f"{path}: expected a plain {kind}, got a symbolic link",
                remedy="replace it by what it links to",
            )


def remove_leftovers(folder: pathlib.Path) -> None:
    """Remove what builds left in the folder, and beside it, that its manifest does not name.

    Needs the folder's `WriteLock`. Without a manifest that is whole nothing is removed, since the
    files may be all that is left of an index.
    """
    refuse_links(folder)
    manifest = _whole_manifest(folder)
    if manifest is None:
        return
    _remove_files(folder, lambda build, end: build != manifest["build"] or end == ".part")
    kept = {manifest.get("export"), documents_folder(manifest)}
    for path in folder.parent.iterdir():
        if _ENCODER.fullmatch(path.name) and path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _whole_manifest(folder: pathlib.Path) -> dict[str, Any] | None:
    """The manifest, of this format or of one before, if it is whole."""
    for format in (FORMAT, *OLD_FORMATS):
        with contextlib.suppress(UserError):
            return read_manifest(folder, format=format)
    return None


@contextlib.contextmanager
def new_files(folder: pathlib.Path, build: str) -> Iterator[None]:
    """Remove what unfinished builds left, and the files of `build` when the block fails."""
    remove_leftovers(folder)
    try:
        yield
    except BaseException:
        if (_whole_manifest(folder) or {}).get("build") != build:
            _remove_files(folder, lambda found, end: found == build)
        raise


def _remove_files(folder: pathlib.Path, is_left: Callable[[str, str | None], bool]) -> None:
    """Remove folders of shards, and each file for which `is_left(build, suffix)`."""
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _OURS.fullmatch(path.name)
        if path.name.startswith(SHARDS) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif match and is_left(match[2], match[3]):
            path.unlink()


def _built_files(build: str) -> list[str]:
    """The files that every build has, and that no change touches."""
    return [_VECTORS.format(build), *(n.format(build) for n in FILES.values())]


def _further_files(build: str) -> list[str]:
    """Those that a build may have besides."""
    return [_SUMS.format(build), _STATISTICS.format(build)]


def _write_statistics(folder: pathlib.Path, statistics: Statistics, build: str) -> None:
    with write_atomically(folder / _STATISTICS.format(build)) as file:
        file.write(statistics.to_bytes())


def _read_statistics(folder: pathlib.Path, manifest: dict[str, Any]) -> Statistics | None:
    """The statistics of a build; None where it has none, or another build has replaced it."""
    from qpr_jax.index.statistics import Statistics

    name = _STATISTICS.format(manifest["build"])
    if name not in manifest["files"]:
        return None
    try:
        data = read_verified(folder, name, manifest)
    except UserError:
        if read_manifest(folder)["build"] != manifest["build"]:
            return None
        raise
    return Statistics.from_bytes(data, f"{folder}: {name}")


def _read(folder: pathlib.Path, manifest: dict[str, Any], encoders: Sequence[str]) -> QuestionIndex:
    if encoders and (made := query_encoder(manifest)) not in encoders:
        raise UserError(
            f"{folder}: the index was made with encoder {made[:12]}, not with "
            f"{encoders[0][:12]}; build the index again"
        )
    build = manifest["build"]
    kept = [name for name in _further_files(build) if name in manifest["files"]]
    later = [FILES["texts"].format(build)]  # verified when they are read
    if _SUMS.format(build) in kept:
        later.append(_VECTORS.format(build))
    for name in [*_built_files(build), *kept]:
        check = check_size if name in later else verify
        check(folder, name, manifest)
    recipe = Recipe(*(manifest[k] for k in ("factory", "metric", "probes", "assignments")))
    requested = Recipe(
        manifest["wanted_factory"], recipe.metric, recipe.probes, manifest["wanted_assignments"]
    )
    try:
        built = read_questions(folder, build)
        vectors = backend(recipe.factory).read(
            folder / _VECTORS.format(build), recipe, manifest["recall@10"], manifest["dimension"]
        )
    except (RuntimeError, ValueError, EOFError) as error:
        if isinstance(error, UserError):
            raise
        reason = str(error).splitlines()[0]
        raise UserError(f"{folder}: cannot read the index ({reason}); build it again") from None
    changes = ChangesFile(folder.absolute() / changes_file.NAME.format(build))
    store = QuestionStore(built, changes, next_id=manifest["next_id"])
    index = QuestionIndex(
        *(vectors, store, requested, manifest["encoder"]),
        built_statistics=lambda: _read_statistics(folder.absolute(), manifest),
        documents=index_documents(folder, manifest),
    )
    index.catch_up()
    return index

"""The FAISS index over questions: built in a stream, written with hashes, read only if whole."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import (
    Path,
    read_manifest,
    read_verified,
    replace_folder,
    write_atomically,
    write_manifest,
)

FORMAT = "qpr_jax index 1"
_INDEX, _QUESTIONS = "index.faiss", "questions.jsonl"

# What FAISS asks for: with fewer training points a list its k-means warns, more it samples down.
_FEWEST_POINTS, _MOST_POINTS = 39, 256
_CHUNK = 32_768

Encode = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True, eq=False)
class QuestionIndex:
    """A searchable set of questions: row i of the FAISS index is `questions[i]`, id `ids[i]`.

    `factory` is what was built (see `lists_for`), `encoder` the identity of the encoder. A
    question stands in its `assignments` nearest lists (in the only one of `Flat`).
    """

    faiss_index: faiss.Index
    questions: list[str]
    ids: list[int | str]
    factory: str
    probes: int
    assignments: int
    encoder: str

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The `k` nearest of each vector, nearest first; safe from several threads.

        A query whose probed lists hold fewer than `k` questions is searched again in all lists,
        so only an index of fewer than `k` questions leaves places empty.

        Args:
          vectors: float32 [n, d].
          k: 1 or more.

        Returns:
          Squared Euclidean distances float32 [n, k] and positions int64 [n, k]; inf and -1 in
          places that stay empty.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        dimension = self.faiss_index.d
        if vectors.ndim != 2 or vectors.shape[1] != dimension:
            raise UserError(
                f"`vectors`: expected [n, {dimension}], got {list(vectors.shape)}; "
                "encode the queries with the encoder of the index"
            )
        if k < 1:
            raise UserError(f"`k`: expected 1 or more, got {k}")
        found = min(k, len(self.questions))
        distances = np.full((len(vectors), k), np.inf, np.float32)
        positions = np.full((len(vectors), k), -1, np.int64)
        near, at = self._search(vectors, found)
        short = np.flatnonzero(at[:, -1] < 0)
        if len(short) and isinstance(self.faiss_index, faiss.IndexIVF):
            every = faiss.SearchParametersIVF(nprobe=self.faiss_index.nlist)
            near[short], at[short] = self._search(vectors[short], found, params=every)
        distances[:, :found] = np.where(at < 0, np.inf, near)
        positions[:, :found] = at
        return distances, positions

    def _search(self, vectors: np.ndarray, k: int, **how: Any) -> tuple[np.ndarray, np.ndarray]:
        """The `k` nearest in the probed lists, each question once."""
        if self.assignments == 1:
            return self.faiss_index.search(vectors, k, **how)
        near, at = self.faiss_index.search(vectors, k * self.assignments, **how)
        by_question = np.argsort(at, axis=1, kind="stable")
        ordered = np.take_along_axis(at, by_question, axis=1)
        repeated = np.zeros(at.shape, bool)
        np.put_along_axis(repeated, by_question[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
        once_first = np.argsort(repeated, axis=1, kind="stable")[:, :k]
        at = np.where(repeated, -1, at)
        return (
            np.take_along_axis(near, once_first, axis=1),
            np.take_along_axis(at, once_first, axis=1),
        )


def lists_for(count: int, wanted: int = 2000, *, probes: int = 10) -> int:
    """The number of inverted lists for `count` questions; 0 stands for the exact index `Flat`.

    FAISS asks for 39 training points a list, so a small set gets count // 39 lists, if that is
    fewer than wanted. Where this leaves no more than `probes` lists, a search would read them all
    anyway, and `Flat` does so without training.
    """
    lists = min(wanted, count // _FEWEST_POINTS)
    return lists if lists > probes else 0


def build_index(
    encode: Encode,
    questions: Sequence[str],
    ids: Sequence[int | str] | None,
    *,
    factory: str = "IVF2000,Flat",
    probes: int = 10,
    assignments: int = 1,
    encoder: str,
    log: Callable[[str], object] = print,
) -> QuestionIndex:
    """Encode questions in a stream into a FAISS index with squared Euclidean distances.

    Trains on all questions, or on a fixed sample of 256 a list where there are more. At most the
    training vectors and the index are held at once.

    Args:
      encode: questions to float32 [n, d].
      questions: one or more strings.
      ids: distinct, one a question; 0, 1, 2, ... where None.
      factory: `Flat` (exact) or `IVF<lists>,Flat`; for small sets see `lists_for`.
      probes: how many lists a search reads.
      assignments: how many lists, the nearest, a question is stored in. A neighbour just across
        the border of a list is then found too, for as many times the memory and more time a query.
      encoder: identity of the encoder, kept with the index.
    """
    questions = list(questions)
    ids = _checked_ids(ids, len(questions))
    count = len(questions)
    if count == 0:
        raise UserError("`questions`: expected one or more, got none")
    if probes < 1:
        raise UserError(f"`probes`: expected 1 or more, got {probes}")
    if assignments < 1:
        raise UserError(f"`assignments`: expected 1 or more, got {assignments}")
    wanted = wanted_lists(factory)
    lists = lists_for(count, wanted, probes=probes)
    built = f"IVF{lists},Flat" if lists else "Flat"
    note = "" if built == factory else f" ({factory} is for more questions)"
    log(f"index: {built}{note}, {count:,} questions")

    sample = _sample(count, lists)
    training = encode([questions[i] for i in sample])
    index = faiss.index_factory(training.shape[1], built, faiss.METRIC_L2)
    if lists:
        index.nprobe = probes
        index.train(training)
    assignments = min(assignments, lists) or 1
    if lists and len(sample) == count:
        _add(index, training, 0, assignments)
    else:
        del training
        for start in range(0, count, _CHUNK):
            _add(index, encode(questions[start : start + _CHUNK]), start, assignments)
    return QuestionIndex(index, questions, ids, built, probes, assignments, encoder)


def _add(index: faiss.Index, vectors: np.ndarray, first: int, assignments: int) -> None:
    """Store vectors, of positions `first` and up, in their `assignments` nearest lists."""
    if not isinstance(index, faiss.IndexIVF):
        index.add(vectors)
        return
    vectors = np.ascontiguousarray(vectors, np.float32)
    positions = np.arange(first, first + len(vectors), dtype=np.int64)
    _, nearest = index.quantizer.search(vectors, assignments)
    for lists in np.ascontiguousarray(nearest.T):
        index.add_core(
            len(vectors), *(faiss.swig_ptr(array) for array in (vectors, positions, lists))
        )


def write_index(folder: Path, index: QuestionIndex) -> None:
    """Write an index to `folder`; the old one stays until the new one is whole."""
    with replace_folder(folder) as part:
        with write_atomically(part / _INDEX) as file:
            faiss.write_index(index.faiss_index, faiss.PyCallbackIOWriter(file.write))
        with write_atomically(part / _QUESTIONS) as file:
            for line in _question_lines(index):
                file.write(line)
        write_manifest(
            part,
            [_INDEX, _QUESTIONS],
            format=FORMAT,
            factory=index.factory,
            probes=index.probes,
            assignments=index.assignments,
            count=len(index.questions),
            dimension=index.faiss_index.d,
            encoder=index.encoder,
        )


def read_index(folder: Path, *, encoder: str | None = None) -> QuestionIndex:
    """Read the index that `write_index` wrote; FAISS sees only bytes that match their hash.

    UserError where a file is missing, changed or cut off, where the manifest does not fit the
    files, or where `encoder` is given and the index was made with another.
    """
    manifest = read_manifest(folder, format=FORMAT)
    _check_manifest(manifest, folder)
    if encoder is not None and manifest["encoder"] != encoder:
        raise UserError(
            f"{folder}: the index was made with encoder {manifest['encoder'][:12]}, not with "
            f"{encoder[:12]}; build the index again"
        )
    questions, ids = _parse_questions(read_verified(folder, _QUESTIONS, manifest), folder)
    data = io.BytesIO(read_verified(folder, _INDEX, manifest))
    try:
        index = faiss.read_index(faiss.PyCallbackIOReader(data.read))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{folder}: FAISS cannot read {_INDEX} ({reason}); build it again"
        ) from None
    probes, assignments, count = (manifest[k] for k in ("probes", "assignments", "count"))
    lists = isinstance(index, faiss.IndexIVF)
    held = {
        "factory": (manifest["factory"], _factory_of(index)),
        "probes": (probes, index.nprobe if lists else probes),
        "dimension": (manifest["dimension"], index.d),
        "count": (count, len(questions)),
        "count x assignments": (count * assignments, index.ntotal),
    }
    for name, (expected, got) in held.items():
        if got != expected:
            raise UserError(
                f"{folder}: the manifest's `{name}` is {expected}, the files hold {got}; "
                "build the index again"
            )
    return QuestionIndex(
        index,
        questions,
        ids,
        manifest["factory"],
        probes,
        assignments,
        manifest["encoder"],
    )


def wanted_lists(factory: str) -> int:
    """The lists that a factory string names, 0 for `Flat`; UserError where it is another string."""
    match = re.fullmatch(r"Flat|IVF([1-9][0-9]*),Flat", factory)
    if not match:
        raise UserError(f"index `factory`: expected `Flat` or `IVF<lists>,Flat`, got {factory!r}")
    return int(match[1] or 0)


def _factory_of(index: faiss.Index) -> str:
    if index.metric_type != faiss.METRIC_L2:
        return "an index of another metric"
    if isinstance(index, faiss.IndexIVFFlat):
        return f"IVF{index.nlist},Flat"
    return "Flat" if isinstance(index, faiss.IndexFlat) else type(index).__name__


def _sample(count: int, lists: int) -> Sequence[int]:
    """Positions to train on; one is enough for an index without lists (it shows the dimension)."""
    size = min(count, lists * _MOST_POINTS) or 1
    if size in (1, count):
        return range(size)
    chosen = np.random.default_rng(0).choice(count, size, replace=False)
    return np.sort(chosen).tolist()


def _checked_ids(ids: Sequence[int | str] | None, count: int) -> list[int | str]:
    if ids is None:
        return list(range(count))
    result = [int(i) if isinstance(i, np.integer) else i for i in ids]
    for i, value in enumerate(result):
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise UserError(f"`ids`: expected integers or strings, got {value!r} at position {i}")
    if len(result) != count:
        raise UserError(f"`ids`: expected one a question ({count}), got {len(result)}")
    if len(set(result)) != count:
        seen: set[int | str] = set()
        twice = next(i for i in result if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise UserError(f"`ids`: expected distinct ids, got {twice!r} twice")
    return result


def _question_lines(index: QuestionIndex) -> Iterator[bytes]:
    # ASCII, so that a lone surrogate (any string is a question) survives the file.
    for i, question in zip(index.ids, index.questions, strict=True):
        yield json.dumps({"id": i, "question": question}).encode("ascii") + b"\n"


def _parse_questions(data: bytes, folder: Path) -> tuple[list[str], list[int | str]]:
    questions, ids = [], []
    for number, line in enumerate(io.BytesIO(data), start=1):
        try:
            entry = json.loads(line)
            questions.append(entry["question"])
            ids.append(entry["id"])
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"{folder}: {_QUESTIONS}, line {number}: expected `id` and `question`; "
                "build the index again"
            ) from None
    return questions, ids


def _check_manifest(manifest: dict[str, Any], folder: Path) -> None:
    kinds = {
        "factory": str,
        "encoder": str,
        "probes": int,
        "assignments": int,
        "count": int,
        "dimension": int,
    }
    for name, kind in kinds.items():
        if not isinstance(manifest.get(name), kind) or (
            name in ("probes", "assignments") and manifest[name] < 1
        ):
            raise UserError(
                f"{folder}: the manifest's `{name}` is {manifest.get(name)!r}; build it again"
            )

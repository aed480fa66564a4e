"""What a path holds, and a column by its name, of what is read and written here."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
from collections.abc import Sequence

from qpr_jax.errors import UserError, did_you_mean
from qpr_jax.files import MANIFEST, StrPath, read_object

INDEX, RUN, ENCODER, PAIRS = "an index", "a run", "an encoder", "found pairs"
GROUPS, LABELS, TABLE = "groups of duplicates", "labels", "a table of questions"
VECTORS, FAILURES, RANKINGS = "vectors", "failing queries", "rankings"
PACKED = "a table"  # compressed or in another encoding, so that its columns are not known here
_FOLDERS = {  # files of which one is there
    RUN: ("run.json",),
    INDEX: (f"index/{MANIFEST}",),
    ENCODER: ("export", MANIFEST, "model.safetensors"),
}
_FILES = (  # words of the first line, which has the names of columns
    (FAILURES, ("expected_kinds",)),
    (RANKINGS, (" Q0 ",)),
    (LABELS, ("question1", "is_duplicate")),
    (PAIRS, ("question1", "distance")),
    ("", ("question1",)),
    (GROUPS, ("link1", "weakest")),
)
_MAKE_LABELS = (
    "`qpr duplicates {table} --threshold 0.2 --out loose`, then `qpr review loose` make some, "
    "in loose/labels.csv"
)
_INSTEAD = {  # what is wanted -> what a path holds, "" for all others -> what to do
    INDEX: {
        TABLE: "`qpr index FOLDER {path}` makes one",
        PACKED: "`qpr index FOLDER {path}` makes one",
        ENCODER: "`qpr index FOLDER TABLE --encoder {path}` makes one",
        RUN: "finish it, or `qpr index FOLDER TABLE --encoder {path}` makes one",
        "": "`qpr index FOLDER TABLE` makes one",
    },
    RUN: {"": "`qpr train` makes one"},
    ENCODER: {"": "name `minilm`, `open_student`, or the folder of a run or of an index"},
    PAIRS: {
        INDEX: "`qpr review {path} --queries FILE` judges the first hits of queries",
        TABLE: "`qpr duplicates {path}` finds some",
        GROUPS: "`qpr review {folder}` judges the pairs",
        "": "`qpr duplicates TABLE` finds some",
    },
    LABELS: {
        PAIRS: "`qpr review {path}` makes some, in labels.csv beside the pairs",
        GROUPS: "`qpr review {folder}` judges the pairs",
        TABLE: _MAKE_LABELS.format(table="{path}"),
        "": _MAKE_LABELS.format(table="TABLE"),
    },
    TABLE: {
        PAIRS: "name one of its files, as {path}/deduplicated.csv",
        "": "name a file of questions",
    },
}
_PACKED = (".gz", ".zst", ".parquet", ".pq", ".arrow", ".arrows", ".feather", ".ipc")
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")
_SUGGESTED = {  # what is wanted -> kinds of paths with it; of all others files of rows
    INDEX: (INDEX,),
    ENCODER: (ENCODER, RUN, INDEX),
    PAIRS: (PAIRS,),
}
_START = 1 << 14  # bytes of a file that have its first line

_TEXT_NAMES = (
    "question text query title sentence questions queries prompt utterance subject question_text "
    "query_text question_title"
)
TEXT_NAMES = tuple(_TEXT_NAMES.split())  # usual names of the question's column
ID_NAMES = ("id", "qid", "_id", "question_id", "query_id", "uuid")
_NOUN = (
    "questions? quer(?:y|ies) texts? titles? sentences? prompts? utterances? subjects? messages? "
    "[ei]nquir(?:y|ies) phrases?"
).replace(" ", "|")
# What stands before the noun where the column is no question, and after it where it is one.
_OTHERS = "are|avg|by|count|date|has|id|is|n|nr|num|number|of|per|total|was|answers?|repl(?:y|ies)"
_KINDS = "asked|body|clean|content|en|line|original|raw|string"
_TEXT_NAME = re.compile(
    rf"(?:(?!(?:{_OTHERS}) )\S+ )*(?:{_NOUN})(?: (?:{_KINDS}))*(?: (?:of|from|for|to) .+)?"
)
_ID_NAME = re.compile(
    r"(?:(?:case|faq|incident|[ei]nquiry|issue|message|query|question|reference|ref|request|"
    r"ticket) )+(?:code|id|key|no|nr|num|number|reference|ref)"
    r"|case|incident|key|reference|ref|ticket"
)


def kind_of(path: StrPath) -> str:
    """Return what a file or a folder holds, one of the names above; "" where that is not clear."""
    path = pathlib.Path(path)
    if os.path.isdir(path):
        for kind, names in _FOLDERS.items():
            if any(os.path.exists(path / name) for name in names):
                return kind
        with contextlib.suppress(OSError, UserError):
            return PAIRS if isinstance(read_object(path / "info.json").get("files"), list) else ""
        return ""
    if not os.path.isfile(path) or path.suffix not in (".npy", *_PACKED, *_TABLES):
        return ""
    start = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        start = file.read(_START)
    if path.suffix == ".npy" or not start:
        return VECTORS if start else ""
    if path.suffix in _PACKED or b"\0" in start:
        return PACKED
    head = start if path.suffix == ".json" else start.partition(b"\n")[0]
    return kind_of_columns(head.decode("latin-1"))


def kind_of_columns(names: str | Sequence[str]) -> str:
    """Return what a table with these columns holds, or one with this line of their names."""
    return next((kind for kind, words in _FILES if all(word in names for word in words)), TABLE)


def is_text_name(name: str) -> bool:
    """Return whether a column's name is a noun for a question, as `customerQuestion`.

    So are `Text of the mail` and `message_body`, but not `question_id` or `date of message`.
    """
    words = _words(name)
    # With other signs, the name may be several names, or a text.
    is_plain = len(words) <= 4 and not re.search(r"[^\w\s.()/'&-]", name.strip().rstrip(":*"))
    return is_plain and _TEXT_NAME.fullmatch(" ".join(words)) is not None


def is_id_name(name: str) -> bool:
    """Return whether a column's name is that of ids of questions, as `Ticket No` or `Case #`.

    Neither are ids of other things, as `order number`, nor counters of rows, as `No`.
    """
    return _ID_NAME.fullmatch(" ".join(_words(name.replace("#", " no ")))) is not None


def _words(name: str) -> list[str]:
    split = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return re.findall(r"[^\W_]+", split.lower())


def instead(wanted: str, path: StrPath = "", kind: str = "") -> str:
    """Return what to do where another thing is wanted than the `kind` that `path` holds."""
    remedies = _INSTEAD[wanted]
    path = os.fspath(path)
    folder = os.path.dirname(path) or "."
    remedy = remedies.get(kind, remedies[""])
    return remedy.format(path=shlex.quote(path), folder=shlex.quote(folder))


def similar_path(path: StrPath, wanted: str, *names: str) -> str:
    """Return what `did_you_mean` says of the paths with what is wanted beside a missing one.

    names: others that are meant, too.
    """
    folder, name = os.path.split(os.fspath(path).rstrip("/"))
    with contextlib.suppress(OSError):
        others = os.listdir(folder or ".")
        right = [other for other in others if _may_have(os.path.join(folder, other), wanted)]
        near = did_you_mean(name, [*right, *names], 0.75)
        return near.replace("`", f"`{os.path.join(folder, '')}", 1)
    return ""


def _may_have(path: str, wanted: str) -> bool:
    kind = kind_of(path)
    if wanted in _SUGGESTED:
        return kind in _SUGGESTED[wanted]
    if os.path.isdir(path):
        return not kind and any(name.endswith((*_TABLES, *_PACKED)) for name in os.listdir(path))
    return kind in (TABLE, LABELS, PACKED) or not (kind or os.path.splitext(path)[1])


def refuse_kind(path: StrPath, wanted: str, *allowed: str) -> None:
    """UserError where `path` holds a thing that is clearly another one than is wanted."""
    kind = kind_of(path)
    if kind and kind not in (wanted, *allowed):
        what = f"{path}: expected {wanted}, got {kind}"
        raise UserError(what, remedy=instead(wanted, path, kind))


def refuse_output(path: StrPath, *allowed: str) -> None:
    """UserError where an output would replace, or be mixed into, a thing of another kind."""
    kind = kind_of(path)
    if kind and kind not in allowed:
        raise UserError(f"{path}: holds {kind}", remedy="write the output elsewhere")

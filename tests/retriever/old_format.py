"""Indexes as older versions wrote them."""

import json
import pathlib
import zlib

import numpy as np

from qpr_jax.encoders.load import read_encoder
from qpr_jax.files import file_entries
from qpr_jax.index.changes_file import Change, ChangesFile
from qpr_jax.index.folder import seal
from tests.retriever.conftest import QUESTIONS

BUILD = "0123456789abcdef"
BUILT = dict(zip([7, 8, 3, 4], QUESTIONS, strict=True))
# What `upgrade_index` must find, in this order, and the next id that it must give.
EXPECTED, NEXT_ID = {7: QUESTIONS[0], 4: QUESTIONS[3], 9: "\ud800 added", 3: "replaced"}, 31


def write_format_4(folder: pathlib.Path) -> None:
    """An index as version 0.1.0 wrote it, with questions added, replaced and removed since."""
    changes = [
        {"id": 9, "question": "\ud800 added"},
        {"id": 8},
        {"id": 3, "question": "replaced"},
        {"id": 30, "question": "gone"},
        {"id": 30},
    ]
    written = "".join(json.dumps(change) + "\n" for change in changes)
    data = [question.encode() for question in BUILT.values()]
    contents = {
        f"texts-{BUILD}.bin": b"".join(data),
        f"offsets-{BUILD}.npy": np.cumsum([0, *map(len, data)]),
        f"ids-{BUILD}.npy": np.array([*BUILT]),
        f"vectors-{BUILD}.faiss": b"made again",
        f"changes-{BUILD}.jsonl": written.encode(),
    }
    _write(folder, "qpr_jax index 4", contents, next_id=NEXT_ID)
    with open(folder / "index" / f"changes-{BUILD}.jsonl", "a") as file:
        file.write('{"id": 77, "question": "never ackn')


def write_format_5(folder: pathlib.Path) -> None:
    """The same questions as version 0.2.0 wrote them; changes are not in its manifest."""
    data = [question.encode() for question in BUILT.values()]
    rows = zip(
        np.cumsum([0, *map(len, data)]).tolist(),
        [*BUILT, -1],
        [*map(zlib.crc32, data, BUILT), 0],
        strict=True,
    )
    contents = {
        f"texts-{BUILD}.bin": b"".join(data),
        f"rows-{BUILD}.npy": np.array([*rows]),
        f"questions-{BUILD}.sqlite": b"the row of each id",
        f"vectors-{BUILD}.faiss": b"made again",
    }
    _write(folder, "qpr_jax index 5", contents, next_id=9)
    vector = np.zeros(6, np.float32).tobytes()
    path = folder / "index" / f"changes-{BUILD}.sqlite"
    ChangesFile.create(path)
    ChangesFile(path).append(
        [
            Change(1, 4, 9, "\ud800 added", None, vector),
            Change(2, 1, 8, None),
            Change(3, 5, 3, "replaced", None, vector),
            Change(4, 6, 30, "gone", None, vector),
            Change(5, 6, 30, None),
        ]
    )


def _write(folder: pathlib.Path, format: str, contents: dict, next_id: int) -> None:
    index = folder / "index"
    index.mkdir()
    for name, content in contents.items():
        with open(index / name, "wb") as file:
            file.write(content) if isinstance(content, bytes) else np.save(file, content)
    manifest = {
        **{"format": format, "build": BUILD, "export": "export", "factory": "Flat"},
        **{"wanted_factory": "IVF2000,Flat", "metric": "ip", "probes": 7, "assignments": 1},
        **{"wanted_assignments": 2, "count": 4, "dimension": 6, "recall@10": 1.0},
        **{"next_id": next_id, "encoder": read_encoder(folder / "export").identity},
        "files": file_entries(index, contents),
    }
    (index / "manifest.json").write_text(json.dumps(seal(manifest)))

"""An index as version 0.1 wrote it."""

import json
import pathlib

import numpy as np

from qpr_jax.encoders.load import read_encoder
from qpr_jax.files import file_entries
from qpr_jax.index.folder import seal
from tests.retriever.conftest import QUESTIONS


def write_format_4(folder: pathlib.Path) -> None:
    """An index as version 0.1.0 wrote it, with questions added, replaced and removed since."""
    questions = dict(zip([7, 8, 3, 4], QUESTIONS, strict=True))
    build, encoder = "0123456789abcdef", read_encoder(folder / "export")
    data = [question.encode() for question in questions.values()]
    changes = [
        {"id": 9, "question": "\ud800 added"},
        {"id": 8},
        {"id": 3, "question": "replaced"},
        {"id": 30, "question": "gone"},
        {"id": 30},
    ]
    written = "".join(json.dumps(change) + "\n" for change in changes)
    contents = {
        f"texts-{build}.bin": b"".join(data),
        f"offsets-{build}.npy": np.cumsum([0, *map(len, data)]),
        f"ids-{build}.npy": np.array([*questions]),
        f"vectors-{build}.faiss": b"made again",
        f"changes-{build}.jsonl": written.encode(),
    }
    index = folder / "index"
    index.mkdir()
    for name, content in contents.items():
        with open(index / name, "wb") as file:
            file.write(content) if isinstance(content, bytes) else np.save(file, content)
    manifest = {
        **{"format": "qpr_jax index 4", "build": build, "export": "export", "factory": "Flat"},
        **{"wanted_factory": "IVF2000,Flat", "metric": "ip", "probes": 7, "assignments": 1},
        **{"wanted_assignments": 2, "count": 4, "dimension": 6, "recall@10": 1.0, "next_id": 31},
        **{"encoder": encoder.identity, "files": file_entries(index, contents)},
    }
    (index / "manifest.json").write_text(json.dumps(seal(manifest)))
    with open(index / f"changes-{build}.jsonl", "a") as file:
        file.write('{"id": 77, "question": "never ackn')

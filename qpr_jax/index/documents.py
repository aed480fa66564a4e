"""The encoder of an index's questions, where another one encodes the queries.

A large encoder reads the questions once; a small one, which learned its vectors, each query.
Readers of encoders are imported late, since an index is opened without them.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath

if TYPE_CHECKING:
    from qpr_jax.index.question_index import Encode, QuestionIndex

SAMPLE = 256  # questions that are searched to see whether two encoders fit
_FIT = 0.95  # of these, how many find themselves at least; less was worse than one fast encoder


class Documents:
    """An encoder of questions alone, read at its first use: a search does without it.

    Attributes:
      folder: of the encoder, with its re-rankers.
      identity: of the encoder.
    """

    def __init__(self, folder: pathlib.Path, identity: str, encoder: Encoder | None = None) -> None:
        """encoder: where it was read already."""
        self.folder, self.identity = folder, identity
        self._encoder = encoder
        self._lock = threading.Lock()

    @property
    def encoder(self) -> Encoder:
        """The encoder; UserError where its folder is damaged, or has another one."""
        from qpr_jax.encoders.load import read_encoder

        with self._lock:
            if self._encoder is None:
                found = read_encoder(self.folder)
                if found.identity != self.identity:
                    raise UserError(
                        f"{self.folder}: expected the encoder {self.identity[:12]}, by which the "
                        f"questions were encoded, got {found.identity[:12]}",
                        remedy="restore the folder, or build the index again",
                    )
                self._encoder = found
            return self._encoder

    def save(self, run: pathlib.Path) -> Documents:
        """Write the encoder beside the index of `run`, where `index_documents` finds it."""
        from qpr_jax.encoders.load import save_encoder

        folder = run / _folder_name(self.identity)
        save_encoder(folder, self.encoder)
        return Documents(folder, self.identity, self.encoder)


def read_documents(named: StrPath, queries: Encoder) -> Documents | None:
    """The encoder of `named`, for questions whose `queries` another encodes; None: the same one.

    named: a run, or as of `encoders.load.encoder_folder`. UserError where the vectors of the two
    differ in length.
    """
    from qpr_jax.encoders.load import read_encoder
    from qpr_jax.index.run import run_encoder_folder

    try:
        folder = run_encoder_folder(named)
    except UserError as error:
        setting = "documents_by" if error.setting == "run" else error.setting
        raise UserError(error.what, setting=setting, remedy=error.remedy) from None
    encoder = read_encoder(folder)
    if encoder.identity == queries.identity:
        return None
    if encoder.dimension != queries.dimension:
        raise UserError(
            f"expected an encoder of {queries.dimension} dimensions, as that of the queries, got "
            f"one of {encoder.dimension}",
            setting="documents_by",
            remedy="name the teacher whose vectors the encoder of the queries learned",
        )
    return Documents(folder, encoder.identity, encoder)


def index_documents(folder: pathlib.Path, manifest: Mapping[str, Any]) -> Documents | None:
    """The encoder of the questions of the index in `folder`; None: that of the queries."""
    name = documents_folder(manifest)
    return Documents(folder.absolute().parent / name, manifest["encoder"]) if name else None


def documents_folder(manifest: Mapping[str, Any]) -> str:
    """The name of the folder of the questions' encoder, beside the index; "" where it has none."""
    return _folder_name(str(manifest["encoder"])) if "queries_by" in manifest else ""


def query_encoder(manifest: Mapping[str, Any]) -> str:
    """The identity of the encoder of the queries of an index, "" where it has no manifest.

    `encoder` is that of the questions; of another one of the queries there is `queries_by`.
    """
    return str(manifest.get("queries_by", manifest.get("encoder", "")))


def describe_fit(index: QuestionIndex, encode: Encode) -> str:
    """A line about how many questions find themselves, with a warning where these are few.

    encode: queries to vectors.
    """
    rows = np.unique(np.linspace(0, len(index) - 1, SAMPLE).astype(np.int64))
    texts = index.store.fields(rows)[1]
    found = index.find(encode(texts), 1)
    share = np.mean([hits[0].question == text for hits, text in zip(found, texts, strict=True)])
    line = f"two encoders: {share:.0%} of {len(rows):,} questions find themselves"
    if share >= _FIT:
        return line
    return (
        f"warning: {line} ({_FIT:.0%} expected); an index by the encoder of the queries alone may "
        "well find more"
    )


def _folder_name(identity: str) -> str:
    return f"documents-{identity[:16]}"

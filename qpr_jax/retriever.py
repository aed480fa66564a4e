"""What a user holds: a trained encoder and an index of questions, without JAX."""

from __future__ import annotations

import dataclasses
import operator
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpr_jax.encoders.exported import (
    ExportedEncoder,
    question_list,
    read_export,
    write_export,
)
from qpr_jax.errors import UserError
from qpr_jax.files import Path
from qpr_jax.retrieval.index import QuestionIndex, build_index, read_index, write_index


@dataclass(frozen=True)
class Hit:
    """A question that was found; `distance` is squared Euclidean."""

    question: str
    id: int | str
    distance: float


@dataclass(frozen=True, eq=False)
class Retriever:
    """Finds the indexed questions that mean the same as a query.

    Safe to use from several threads.

        retriever = Retriever.load("runs/quora_sdml")
        for hit in retriever.search(["how can i learn python quickly"], k=5)[0]:
            print(hit.distance, hit.id, hit.question)
    """

    encoder: ExportedEncoder
    index: QuestionIndex

    @classmethod
    def load(cls, run: Path) -> Retriever:
        """The encoder and index of a finished run; UserError where one is missing or damaged."""
        encoder = _run_encoder(run)
        folder = pathlib.Path(run, "index")
        if not folder.is_dir():
            raise UserError(
                f"`run`: {run} has no index/; finish the run (the same command resumes it), or "
                "`Retriever.build` an index of your own"
            )
        return cls(encoder, read_index(folder, encoder=encoder.identity))

    @classmethod
    def build(
        cls, questions: Sequence[str], ids: Sequence[int | str] | None = None, *, run: Path
    ) -> Retriever:
        """An index of one's own questions with the encoder of `run`, which stays as it is.

        The index is made with the settings of the run (factory, probes, assignments). `ids` are
        distinct integers or strings, one a question; 0, 1, 2, ... where None.
        """
        encoder = _run_encoder(run)
        questions = question_list(questions)
        names = ("factory", "probes", "assignments")
        index = build_index(
            encoder.encode,
            questions,
            ids,
            encoder=encoder.identity,
            log=lambda line: None,
            **{
                n: encoder.settings[f"index.{n}"] for n in names if f"index.{n}" in encoder.settings
            },
        )
        return cls(encoder, index)

    def search(self, queries: Sequence[str], k: int = 5) -> list[list[Hit]]:
        """For each query its `k` nearest questions, nearest first; all where there are fewer."""
        try:
            wanted = operator.index(k)
        except TypeError:
            raise UserError(f"`k`: expected a whole number, got {k!r}") from None
        if wanted < 1:
            raise UserError(f"`k`: expected 1 or more, got {k}")
        vectors = self.encoder.encode(question_list(queries, "queries"))
        questions, ids = self.index.questions, self.index.ids
        distances, positions = self.index.search(vectors, min(wanted, len(questions)))
        return [
            [
                Hit(questions[at], ids[at], distance)
                for at, distance in zip(row, row_distances, strict=True)
                if at >= 0
            ]
            for row, row_distances in zip(positions.tolist(), distances.tolist(), strict=True)
        ]

    def encode(self, queries: Sequence[str]) -> np.ndarray:
        """Vectors of any strings, float32 [n, d]."""
        return self.encoder.encode(question_list(queries, "queries"))

    def save(self, folder: Path) -> None:
        """Write `folder`/export and `folder`/index, which `Retriever.load(folder)` reads."""
        encoder = self.encoder
        identity = write_export(
            pathlib.Path(folder, "export"),
            embedding=encoder.embedding,
            kernels=encoder.kernels,
            biases=encoder.biases,
            projection=encoder.projection,
            vocabulary=encoder.vocabulary,
            max_words=encoder.max_words,
            settings=encoder.settings,
        )
        index = dataclasses.replace(self.index, encoder=identity)
        write_index(pathlib.Path(folder, "index"), index)


def _run_encoder(run: Path) -> ExportedEncoder:
    if not pathlib.Path(run).is_dir():
        raise UserError(
            f"`run`: expected the folder of a run, found none at {run}; train one with "
            f"python -m experiments.main --config=quora_sdml --workdir={run}"
        )
    folder = pathlib.Path(run, "export")
    if not folder.is_dir():
        raise UserError(
            f"`run`: {run} has no export/; finish the run (the same command resumes it)"
        )
    return read_export(folder)

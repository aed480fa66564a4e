"""Scores on public benchmarks: data sets in BEIR's format, and the tasks of mteb.

The scores on a data set of BEIR are those of trec_eval, as BEIR's, by exact search: nDCG takes the
grade as gain, every other metric counts a grade of 1 or more as relevant, and each query of the
split counts. mteb is imported for the metadata, PyTorch for similarities, neither for encoding.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from qpr_jax.data.beir_tasks import Qrels, read_corpus, read_qrels, read_queries
from qpr_jax.encoders.encoder import Encoder, encode_in_parts, parse_tensors
from qpr_jax.encoders.sentence_transformers import WEIGHTS
from qpr_jax.errors import UserError, counted, needs
from qpr_jax.evaluation.scores import ranking_scores, reciprocal_rank
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.vectors import exact_top_k, nearest

if TYPE_CHECKING:
    import torch
    from mteb.models import ModelMeta

CUTOFFS = (1, 3, 5, 10, 100)
DEPTH = 100
CHUNK = 16_384

Encode = Callable[[list[str]], np.ndarray]
Rankings = dict[str, dict[str, float]]  # of each query, the scores of its documents, best first
log = logging.getLogger("qpr_jax")


def beir_scores(
    encode: Encode, folder: StrPath, split: str = "test", *, trec: StrPath | None = None
) -> dict[str, float]:
    """Return `graded_scores` of a split, with the counts of its `queries` and `documents`.

    trec: gets the run in TREC's format, with DEPTH documents a query.
    """
    qrels, texts = read_qrels(folder, split), read_queries(folder)
    if without := [query for query in qrels if query not in texts]:
        what = f"{folder}: expected a text for each query of {split}, got none for {without[0]}"
        raise UserError(what, remedy="add it to queries.jsonl")
    missing = {name for judged in qrels.values() for name, grade in judged.items() if grade > 0}
    documents = 0

    def corpus() -> Iterator[tuple[str, str]]:
        nonlocal documents
        for name, text in read_corpus(folder):
            documents += 1
            missing.discard(name)
            if trec:
                _refuse_blank(name)
            yield name, text

    with write_atomically(trec, "w") if trec else contextlib.nullcontext() as file:
        for query in qrels if file else ():
            _refuse_blank(query)
        queries = {query: texts[query] for query in qrels}
        rankings = ranked_documents(encode, queries, corpus())
        if file:
            write_run(file, rankings)
    if missing:
        log.warning("the corpus lacks relevant documents, which count as missed: %d", len(missing))
    return {"queries": len(queries), "documents": documents, **graded_scores(rankings, qrels)}


def ranked_documents(
    encode: Encode,
    queries: Mapping[str, str],
    corpus: Iterable[tuple[str, str]],
    *,
    depth: int = DEPTH,
    chunk: int = CHUNK,
) -> Rankings:
    """Return the `depth` nearest documents of each query, nearest first, without its own id.

    A score is minus the squared Euclidean distance. Of equal scores the document with the later id
    comes first, as in trec_eval.

    queries: id -> text. corpus: distinct ids and texts, of which `chunk` are in memory at once.
    """
    vectors = encode([*queries.values()])
    ids: list[str] = []
    # One more, since a document with the id of the query may be among them; twice as many, so that
    # the ids decide among equal scores at the end.
    k, stream = 2 * (depth + 1), iter(corpus)
    found = np.zeros((len(vectors), 0), np.float32), np.zeros((len(vectors), 0), np.int64)
    while some := list(itertools.islice(stream, chunk)):
        documents = encode([text for _, text in some])
        distances, rows = exact_top_k(vectors, documents, min(k, len(documents)))
        found = nearest(k, found, (distances, rows + len(ids)))
        ids += [document for document, _ in some]
        log.info("searched %s", counted(len(ids), "document"))
    if not ids:
        raise UserError("corpus: expected documents, got none")
    rankings = {}
    for query, *row in zip(queries, *(part.tolist() for part in found), strict=True):
        hits = [(0 - distance, ids[i]) for distance, i in zip(*row, strict=True) if i >= 0]
        others = sorted((hit for hit in hits if hit[1] != query), reverse=True)
        rankings[query] = {name: score for score, name in others[:depth]}
    return rankings


def graded_scores(rankings: Rankings, qrels: Qrels) -> dict[str, float]:
    """Return `ndcg`, `map`, `recall`, `precision` and `mrr` at CUTOFFS, means over `qrels`.

    A query without a relevant document counts 0, and documents that the corpus lacks are missed.
    """
    grades = np.zeros((len(qrels), DEPTH), np.int64)
    ideal = np.zeros((len(qrels), DEPTH), np.int64)
    for row, (query, judged) in enumerate(qrels.items()):
        first = [judged.get(name, 0) for name in rankings[query]][:DEPTH]
        best = sorted(judged.values(), reverse=True)[:DEPTH]
        grades[row, : len(first)], ideal[row, : len(best)] = first, best
    relevant = np.array([sum(grade > 0 for grade in judged.values()) for judged in qrels.values()])
    scores = ranking_scores(grades, ideal, relevant, CUTOFFS)
    scores |= {f"mrr@{k}": reciprocal_rank(grades > 0, k) for k in CUTOFFS}
    return {name: float(values.mean()) for name, values in scores.items()}


def write_run(file: IO[str], rankings: Rankings) -> None:
    """Write lines `query Q0 document rank score qpr_jax`, as trec_eval reads them."""
    for query, scores in rankings.items():
        for rank, (document, score) in enumerate(scores.items(), start=1):
            # Nine digits identify a float32.
            file.write(f"{query} Q0 {document} {rank} {score:.9g} qpr_jax\n")


def _refuse_blank(name: str) -> None:
    if name.split() != [name]:
        what = f"TREC's format: expected ids without blanks, got {name!r}"
        raise UserError(what, remedy="leave `trec` out")


class MtebEncoder:
    """An encoder of ours with the methods of `mteb.models.EncoderProtocol`.

        results = mteb.evaluate(MtebEncoder(encoder), mteb.get_tasks(tasks=["STS12"]))

    Vectors of length 1 are compared by their cosine, others by minus their Euclidean distance,
    which order as the squared distance of a search does.
    """

    def __init__(
        self, encoder: Encoder, *, name: str = "qpr_jax/encoder", languages: Sequence[str] = ()
    ) -> None:
        """Wrap an encoder, such as `qpr_jax.read_encoder("runs/mine")`.

        Args:
          encoder: the encoder.
          name: ORGANIZATION/MODEL in mteb's results; UserError without an organization.
          languages: that it is made for, as `eng-Latn`; if empty, not known.
        """
        if "/" not in name:
            raise UserError(f"`name`: expected ORGANIZATION/MODEL, got {name!r}")
        self.encoder, self.name, self.languages = encoder, name, [*languages]

    @functools.cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """What mteb keeps with the results; UserError without mteb, or for unknown languages."""
        with needs("the facts of a model", "mteb"):
            from mteb.languages import check_language_code
            from mteb.models import ModelMeta
            from mteb.models.model_meta import ScoringFunction
        for code in self.languages:
            try:
                check_language_code(code)
            except ValueError as error:
                what = f"`languages`: expected codes such as eng-Latn, got {code!r}"
                raise UserError(what) from error
        encoder = self.encoder
        parameters, size = _weights(encoder)
        cosine, euclidean = ScoringFunction.COSINE, ScoringFunction.EUCLIDEAN
        return ModelMeta(
            name=self.name,
            revision=encoder.fingerprint,
            languages=self.languages or None,
            n_parameters=parameters,
            memory_usage_mb=size / 2**20,
            max_tokens=encoder.max_tokens,
            embed_dim=encoder.dimension,
            framework=["JAX", "NumPy"],
            similarity_fn_name=cosine if encoder.normalize else euclidean,
            use_instructions=False,
            loader=None,  # mteb gets the model itself
            release_date=None,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            training_datasets=None,
        )

    def encode(self, inputs: Iterable[Mapping[str, Any]], **options: Any) -> np.ndarray:
        """Encode the texts of mteb's batches: float32 [n, dimension], in their order.

        inputs: batches, each with a list of strings under `text`. Options are ignored: encoders
        have no prompts, and the size of a batch changes no vector.
        """
        return encode_in_parts(self.encoder, [text for batch in inputs for text in batch["text"]])

    def similarity(
        self, embeddings1: Any, embeddings2: Any, *, paired: bool = False
    ) -> torch.Tensor:
        """Similarities of all vectors [n, d] to all others [m, d]: float32 [n, m]."""
        import torch

        one, other = map(np.atleast_2d, (embeddings1, embeddings2))
        found = similarities(one, other, normalized=self.encoder.normalize, paired=paired)
        return torch.from_numpy(found)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Similarities of vectors [n, d] to those of the same rows [n, d]: float32 [n]."""
        return self.similarity(embeddings1, embeddings2, paired=True)


def similarities(
    one: np.ndarray, other: np.ndarray, *, normalized: bool, paired: bool = False
) -> np.ndarray:
    """Cosines of `normalized` vectors, else minus Euclidean distances: float32 [n, m].

    Distances are computed in float64: products of float32 lose those of near vectors. If `paired`,
    rows [n, d] and [n, d] belong together: float32 [n].
    """
    from sklearn.metrics.pairwise import euclidean_distances, paired_euclidean_distances

    if normalized:
        return np.einsum("nd,nd->n", one, other) if paired else one @ other.T
    return -(paired_euclidean_distances if paired else euclidean_distances)(one, other)


def _weights(encoder: Encoder) -> tuple[int, int]:
    """Return how many parameters an encoder has, and their bytes."""
    tensors = parse_tensors(encoder.files()[WEIGHTS], WEIGHTS).values()
    floats = [tensor for tensor in tensors if tensor.dtype.kind == "f"]  # not ids of positions
    return sum(tensor.size for tensor in floats), sum(tensor.nbytes for tensor in floats)

"""What a user holds: an encoder, a store of questions and a model of pairs."""

from __future__ import annotations

import array
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qpr_jax import kinds, locations
from qpr_jax.data.entries import Id, check_ids
from qpr_jax.data.tables import as_queries, as_table, is_path
from qpr_jax.encoders.encoder import Encoder, check_language, encode_in_parts
from qpr_jax.encoders.load import default_encoder, encoder_folder, is_encoder
from qpr_jax.errors import UserError, check_number, short
from qpr_jax.files import StrPath
from qpr_jax.index.build import INDEX, found_nothing
from qpr_jax.index.protocol import (
    Entries,
    IndexConfig,
    Question,
    Store,
    as_questions,
    check_text_columns,
    similar_id,
    texts_of,
)
from qpr_jax.index.questions import RepeatedIdError
from qpr_jax.pair_model.cross_encoder import CrossEncoder, read_cross_encoder
from qpr_jax.pair_model.hits import PairModel, Rerank, explain, score_hits, search_texts
from qpr_jax.pair_model.plain import general_model
from qpr_jax.results import Results
from qpr_jax.text.differences import Explanation


class Retriever:
    """Finds the indexed questions that mean the same as a query.

    Any number of threads may search and encode while one changes the questions. A change is on disk
    when the call returns, and a kill at any point leaves the questions before it or after it.

        retriever = Retriever.build(table)  # or Retriever.load("runs/quora_sdml")
        for hit in retriever.search(["how can i learn python quickly"], k=5)[0]:
            print(hit.distance, hit.id, hit.question)

    Attributes:
      encoder: encodes questions and queries.
      store: the questions with their vectors.
      pair_model: orders and scores hits.
      cross_encoder: another one, for `rerank="cross_encoder"`, or None.
      encoder_name: what the encoder was read from, or "".
    """

    def __init__(
        self,
        encoder: Encoder,
        store: Store,
        pair_model: locations.FittedModel | None = None,
        encoder_name: str = "",
        *,
        cross_encoder: StrPath | CrossEncoder | None = None,
    ) -> None:
        self.encoder, self.store, self.encoder_name = encoder, store, encoder_name
        self.pair_model = pair_model or general_model(encoder)
        if isinstance(cross_encoder, str | os.PathLike):
            cross_encoder = read_cross_encoder(cross_encoder)
        self.cross_encoder = cross_encoder

    @classmethod
    def load(
        cls, location: StrPath, *, indexed: bool = False, cross_encoder: StrPath | None = None
    ) -> Retriever:
        """Load an index, its encoder and the model of pairs of that.

        Args:
          location: a folder, or an address milvus://HOST:19530/NAME. Unless `indexed`, it may be an
            encoder alone, as `minilm` or hf://ORG/NAME; added questions are lost unless saved.
          indexed: there must be an index.
          cross_encoder: folder of a cross-encoder, for `rerank="cross_encoder"`.
        """
        folder = encoder_folder(location)
        if not (indexed or folder.exists() or "://" in os.fspath(location)):
            raise found_nothing(location, kinds.ENCODER, f"{kinds.INDEX} or ")
        if not indexed and is_encoder(folder) and not (folder / INDEX).exists():
            encoder, model = locations.read_encoder_and_model(folder)
            save = functools.partial(locations.save_encoder_and_model, encoder, model)
            name, index_config = str(folder), locations.index_config_of(encoder)
            empty = locations.store_class("").build("", [], encoder, index_config, name, save)
            return cls(encoder, empty, model, name, cross_encoder=cross_encoder)
        while True:
            store = locations.open_store(folder if folder.is_dir() else location)
            version = store.version
            try:
                encoder, model = locations.read_encoder_and_model(store.encoder_name)
                store.require(encoder.fingerprint)
                return cls(encoder, store, model, store.encoder_name, cross_encoder=cross_encoder)
            except UserError:
                # Another process may have put the index of another encoder there.
                if store.version == version:
                    raise

    @classmethod
    def build(
        cls,
        questions: Any,
        ids: Iterable[Id] | None = None,
        payload: bool | Iterable[Any] = True,
        *,
        encoder: StrPath | Encoder | None = None,
        location: StrPath = "",
        cross_encoder: StrPath | None = None,
        index_config: IndexConfig | Mapping[str, Any] | None = None,
        text_column: str | Sequence[str] | None = None,
        id_column: str | None = None,
        skip_bad_rows: bool = False,
    ) -> Retriever:
        """Index questions by an encoder.

        Args:
          questions: strings; or a table of pandas, Polars, PyArrow or with an Arrow C stream; or
            mappings from names of columns to values; or a file, as a `pathlib.Path` or as a string
            that ends with the suffix of a table (.csv, .jsonl, .parquet, also before .gz); or what
            `read_table` returns, which may be larger than memory.
          ids: distinct, one a question, numbers from 0 to 2^63 - 1 or strings of at most 1,024
            bytes; None: those of the table, else 0, 1, 2, ...
          payload: kept with a question and returned with a hit. Of a table: its other columns
            (True), none (False), or those of these names. Of strings: a mapping for each.
          encoder: a name, folder or address, as in `load`, or an `Encoder`; None: `minilm`, above
            50,000 questions `open_student`.
          location: gets index/ and, if it has none, the encoder; or an address, as in `load`; "": a
            temporary folder, removed with the retriever unless it is saved.
          cross_encoder: as in `load`.
          index_config: how to index, or the fields that differ from the settings of the encoder.
          text_column: column of the questions; None: `question`, `text`, `query`, `title`, ...
            Several, as ["question", "answer"]: the best text of a row counts in a search.
          id_column: column of the ids; None: `id`, `qid`, ..., if there is one; "": none.
          skip_bad_rows: leave out rows without a question or with a bad id, instead of an error.
        """
        table = as_table(questions, ids, payload, text_column, id_column, skip_bad_rows)
        entries: Entries = table
        name = os.fspath(encoder) if isinstance(encoder, str | os.PathLike) else ""
        name = os.path.abspath(name) if os.path.exists(name) else name  # for other processes
        if encoder is None:
            encoder, entries = default_encoder(entries)
            name = encoder.name
        found, model = locations.read_encoder_and_model(encoder)
        kind = locations.store_class(location)
        if not isinstance(index_config, IndexConfig):
            fields = {**kind.defaults, **(index_config or {})}
            index_config = locations.index_config_of(found, **fields)
        index_config = index_config.of_table(table.named)
        lines: array.array[int] = array.array("q")
        questions = check_language(found, as_questions(entries, lines, table.place))
        try:
            save = functools.partial(locations.save_encoder_and_model, found, model)
            with locations.replacing(location):
                store = kind.build(os.fspath(location), questions, found, index_config, name, save)
        except RepeatedIdError as error:
            raise table.repeated(error.id, error.row, lines[error.row]) from None
        return cls(found, store, model, name, cross_encoder=cross_encoder)

    def __repr__(self) -> str:
        return f"<Retriever: {self.encoder!r}, {self.store!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the index is, from which another process loads it."""
        where = self.store.location
        if not where or self.cross_encoder is not None:
            kind = "with a cross-encoder" if where else "in memory"
            what = f"expected a retriever of a folder to pickle, got one {kind}"
            raise UserError(what, remedy="load it from a folder in each process; `save` writes one")
        return Retriever.load, (where,)

    def __len__(self) -> int:
        """Return the number of questions."""
        return len(self.store)

    def __iter__(self) -> Iterator[Question]:
        """Iterate over the questions."""
        return self.store.questions()

    def ids(self) -> list[Id]:
        """Return the ids of all questions."""
        return [question.id for question in self]

    def __contains__(self, id: object) -> bool:
        """Return whether a question has this id."""
        return isinstance(id, int | str) and self.store.get([id])[0] is not None

    def __getitem__(self, id: Id) -> Question:
        """Return the question of an id; KeyError if there is none."""
        (found,) = self.store.get([id])
        if found is None:
            raise KeyError(f"{id!r}{similar_id(self.store, id)}")
        return found

    def search(
        self,
        queries: Any,
        k: int = 5,
        *,
        text_column: str | None = None,
        rerank: Rerank = None,
        max_distance: float | None = None,
        min_score: float | None = None,
        distinct: bool = False,
    ) -> Results:
        """Find the `k` best questions of each query, best first; all if there are fewer.

        The text of the query itself is the first. A blank query has no hits.

        Args:
          queries: as `questions` of `build`; a string is one query.
          text_column: as in `build`.
          rerank: what orders and scores hits: None: the model of pairs; "cross_encoder"; False:
            the distance, with scores only for `min_score`, which is faster.
          max_distance, min_score: leave out hits that are farther, or have a lower score or none.
          distinct: of hits that are copies (`text.cleaning`), keeps the first.
        """
        if not isinstance(k, int | np.integer) or k < 1:
            raise UserError(f"expected a whole number from 1 on, got {k!r:.80}", setting="k")
        if max_distance is not None:
            check_number("max_distance", max_distance, "a number", -math.inf, math.inf)
        if min_score is not None:
            check_number("min_score", min_score, "a score, 0 to 1", 0, 1)
        count, texts = int(k), as_queries(queries, text_column)
        model, cleaned = self.ordering(rerank), self.store.cleaner.clean_all(texts)
        vectors = self.encoder.encode(cleaned)
        size = max(count, model.depth if model else 0)
        hits = search_texts(self.store, texts, vectors, size, distinct=distinct)
        scoring = model or (self.ordering(None) if min_score is not None else None)
        if scoring:
            asked = self.encoder, self.store, texts, hits
            hits = score_hits(scoring, *asked, cleaned=cleaned, sort=model is not None)
        hits = [found[:count] for found in hits]
        if max_distance is not None:
            hits = [[hit for hit in found if hit.distance <= max_distance] for found in hits]
        if min_score is not None:
            hits = [[hit for hit in found if (hit.score or 0) >= min_score] for found in hits]
        return Results.of(texts, hits)

    def explain(
        self, text: str, other: str | None = None, *, id: Id | None = None, rerank: Rerank = None
    ) -> Explanation:
        """Explain the score of a query and another text, or a question by its `id`."""
        return explain(self.ordering(rerank), self.encoder, self.store, text, other, id)

    def ordering(self, rerank: Rerank) -> PairModel | None:
        """Return what orders hits; None: the distance does. UserError if there is none."""
        if rerank is None and (self.store.index_config.metric == "l2" or self.encoder.normalize):
            return self.pair_model  # which reads squared distances
        if rerank is None or rerank is False:
            return None
        if rerank != "cross_encoder":
            what = f"expected None, False or 'cross_encoder', got {rerank!r:.80}"
            raise UserError(what, setting="rerank")
        if self.cross_encoder is None:
            remedy = "name the folder of one with `cross_encoder`"
            raise UserError("expected a cross-encoder, found none", setting="rerank", remedy=remedy)
        return self.cross_encoder

    def encode(self, queries: Any, *, text_column: str | None = None) -> np.ndarray:
        """Encode strings, one string or the questions of a table as float32 [n, d].

        HTML, and sentences that many questions of the index share, are left out.
        """
        texts = as_queries(queries, text_column)
        return self.encoder.encode(self.store.cleaner.clean_all(texts))

    def add(
        self,
        questions: Any,
        ids: Iterable[Id] | None = None,
        payload: bool | Iterable[Any] = True,
        *,
        text_column: str | Sequence[str] | None = None,
        id_column: str | None = None,
        skip_bad_rows: bool = False,
    ) -> list[Id]:
        """Add questions, or one text, and return their ids; an equal id replaces a question.

        Arguments as in `build`; questions without ids get numbers that no question has had.
        """
        one = isinstance(questions, str) and not is_path(questions)
        questions = [questions] if one else questions
        like, options = self.store.index_config.columns, (text_column, id_column, skip_bad_rows)
        table = as_table(questions, ids, payload, *options, like=like)
        check_text_columns(self.store.index_config, table.named.more)
        entries = table.entries
        rows = [*as_questions(entries, array.array("q"), table.place)] if entries else []
        vectors = self.encode(texts_of(rows, self.store.index_config))
        with self.store.changing():
            if entries and entries[0].id is None:
                new = self.store.new_ids(len(rows))
                rows = [row._replace(id=i) for row, i in zip(rows, new, strict=True)]
            new_ids = check_ids([row.id for row in rows])
            self.store.add(rows, vectors)
        return new_ids

    def add_new(self, pairs: Any) -> int:
        """Add the rows that the index lacks, and return their number.

        UserError, and no change, if the index was changed since the pairs were found.

        pairs: what `find_duplicates(..., against=RETRIEVER)` found with this index.
        """
        encode = functools.partial(encode_in_parts, self.encoder)
        questions, vectors = pairs.new_rows(encode, self.store.cleaner.clean)
        if self.store.index_config.text_columns:  # of which the pairs have the first text alone
            vectors = self.encode(texts_of(questions, self.store.index_config))
        with self.store.changing():
            if self.store.version != pairs.version:
                what = "the index was changed during the search, so nothing was added"
                raise UserError(what, remedy="do the same again")
            self.store.add(questions, vectors)
        return len(questions)

    def remove(self, ids: Id | Iterable[Id], *, ignore_missing: bool = False) -> int:
        """Remove the questions of ids, or of one, and return their number.

        UserError, and no change, for an unknown id.
        ignore_missing: pass over unknown ids instead.
        """
        with self.store.changing():
            checked = check_ids([ids] if isinstance(ids, int | str) else ids)
            there = zip(checked, [] if ignore_missing else self.store.get(checked), strict=False)
            if missing := [id for id, question in there if question is None]:
                what = f"`ids`: expected ids of indexed questions, got {short(missing[0])}"
                what += f" that no question has{similar_id(self.store, missing[0])}"
                raise UserError(what, remedy="leave it out")
            return self.store.remove(checked)

    def compact(self) -> None:
        """Build the index again without what was removed; searches go on, other changes wait."""
        self.store.compact()

    def save(self, folder: StrPath) -> None:
        """Write encoder, model of pairs and index to a folder or an address, as in `load`.

        Later changes are kept there. The retriever's own location is only compacted.
        """
        if self.store.location in (os.fspath(folder), os.path.abspath(folder)):
            self.compact()
            return
        save = functools.partial(locations.save_encoder_and_model, self.encoder, self.pair_model)
        self.store = locations.copy_store(self.store, folder, self.encoder, self.encoder_name, save)

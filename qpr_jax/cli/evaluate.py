"""Commands of scores: evaluate, and errors, the queries at which a run fails."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from qpr_jax import kinds
from qpr_jax.cli import command as cli
from qpr_jax.data.columns import Columns
from qpr_jax.data.entries import Id, id_key
from qpr_jax.data.question_pairs import QuestionPairs, read_question_pairs
from qpr_jax.data.splits import HELD_OUT, read_pairs
from qpr_jax.data.tables import Table, read_table
from qpr_jax.data.typed_rows import STANDARD_INPUT, input_name
from qpr_jax.errors import UserError, counted, needs
from qpr_jax.text.cleaning import folded

if TYPE_CHECKING:
    from qpr_jax.evaluation.retrieval import Encode
    from qpr_jax.index.protocol import Store
    from qpr_jax.pair_model.hits import Rerank

log = logging.getLogger("qpr_jax")

# The options of each way to score, besides --beir and --task.
_OPTIONS = {
    "retrieval": "format text_column id_column skip_bad_rows other_texts failed cross_encoder",
    "classification": "format validation skip_bad_rows",
    "mining": "format skip_bad_rows",
    "translation": "skip_bad_rows",
    "--beir": "split trec",
}


@cli.command(stopped="nothing was changed", prints_json=True)
@cli.argument("folder", type=cli.PATH)
@cli.argument("pairs", default="-")
@cli.option("--task", type=click.Choice([*_OPTIONS][:-1]), default="retrieval")
@cli.option("--validation", type=cli.PATH, help="Labeled pairs to choose thresholds on.")
@cli.table_format("PAIRS and --validation")
@cli.skip_bad_rows
@cli.option("--text-column", help="Column of the query.  [default: question, query, ...]")
@cli.option("--id-column", help="Column of the id.  [default: that of the index; id, qid, ...]")
@cli.option("--other-texts", is_flag=True, help="Skip hits with the text of the query.")
@cli.option("--failed", type=cli.FILE, help="CSV of the queries whose first hit is wrong.")
@cli.option("--cross-encoder", type=cli.PATH, help="Also score the order of this folder's model.")
@cli.option("--beir", type=cli.PATH, help="A folder in BEIR's format, instead of PAIRS.")
@cli.option("--split", help="Split of --beir.  [default: test]")
@cli.option("--trec", type=cli.FILE, help="Write the rankings of --beir here, in TREC's format.")
def evaluate(
    folder: str,
    pairs: str,
    task: str,
    validation: str | None,
    format: str | None,
    skip_bad_rows: bool,
    text_column: str | None,
    id_column: str | None,
    other_texts: bool,
    failed: str | None,
    cross_encoder: str | None,
    beir: str | None,
    split: str | None,
    trec: str | None,
) -> dict[str, Any]:
    """Score the run or index of FOLDER; prints JSON.

    retrieval: a row of PAIRS is a query and the id of an indexed question with the same meaning.
    A query can have several rows; its id is blank where no question answers it. Hits are in the
    order of distance; `reranked` has the scores of the order by score, `cross_encoded` those of
    --cross-encoder's. With blank ids, `has_answer` says how well the first hit tells which queries
    have an answer: ROC AUC, and the accuracy of "its score is at least .2".

    classification: say which of PAIRS (question1, question2, is_duplicate) are duplicates, by the
    distance that is the best threshold on --validation.

    mining: find all duplicates among the questions of PAIRS, also those linked through others.

    translation: PAIRS are sentences and their translations, named as in the setting data.parallel:
    en-de:FILE or en-de:FILE+FILE. Scores are how often the nearest sentence of the other language
    is the right one.

    --beir is a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, scored as BEIR does.

    \b
    Example: qpr evaluate my_index held_out.tsv
             qpr evaluate runs/quora_sdml test.jsonl --task classification --validation val.jsonl
             qpr evaluate runs/multilingual_distilled en-de:test.tsv --task translation
             qpr evaluate runs/quora_sdml --beir datasets/scifact --trec scifact.run
    """
    from qpr_jax.locations import read_encoder

    way = task if beir is None else "--beir"
    if beir is not None and (task, pairs) != ("retrieval", STANDARD_INPUT):
        raise click.UsageError("--beir goes without PAIRS and --task")
    for name, value in click.get_current_context().params.items():
        if value and name not in ("folder", "pairs", "task", "beir", *_OPTIONS[way].split()):
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with {way}")
    if way == "retrieval":
        read_relevant = functools.partial(
            read_table,
            pairs,
            text=text_column or "",
            id=id_column or "",
            payload=False,
            format=format or "",
            skip_bad_rows=skip_bad_rows,
        )
        if failed is not None:
            kinds.refuse_output(failed, kinds.FAILURES)
        return _score_retrieval(
            folder, read_relevant, cross_encoder, other_texts=other_texts, failed=failed
        )
    if way == "classification" and validation is None:
        raise click.UsageError("classification needs --validation")
    encode = read_encoder(folder).encode
    if beir is not None:
        from qpr_jax.evaluation.benchmarks import beir_scores

        if trec is not None:
            kinds.refuse_output(trec, kinds.RANKINGS)
        return beir_scores(encode, beir, split or "test", trec=trec)
    if way == "translation":
        return _score_translations(encode, pairs, skip_bad_rows=skip_bad_rows)
    read = functools.partial(read_question_pairs, format=format, skip_bad_rows=skip_bad_rows)
    return _score_pairs(encode, pairs, validation, read)


def _read_relevant(table: Table) -> dict[str, set[Id]]:
    """Read the ids that each query should find; none for a query without an answer."""
    relevant: dict[str, set[Id]] = {}
    for query in table:
        found = relevant.setdefault(query.question, set())
        if query.id is not None:
            found.add(id_key(query.id))
    if not any(relevant.values()):
        what = f"{table.where.removesuffix(', line')}: expected ids of the questions that queries "
        remedy = "give some queries the id of an answer, or name its column with `--id-column`"
        raise UserError(f"{what}should find, got none", remedy=remedy)
    return relevant


def _score_retrieval(
    folder: str,
    read: cli.Read,
    cross_encoder: str | None,
    *,
    other_texts: bool,
    failed: str | None,
) -> dict[str, Any]:
    from qpr_jax.evaluation.answers import relevance_scores
    from qpr_jax.index.protocol import similar_id

    retriever = cli.load_index(folder, cross_encoder)
    key = retriever.store.index_config.id_column
    relevant = _read_relevant(read(like=Columns(id=key)))
    ids = [*dict.fromkeys(value for values in relevant.values() for value in values)]
    there = dict(zip(ids, retriever.store.get(ids), strict=True))
    if missing := [value for value, question in there.items() if question is None]:
        _refuse_several(missing, retriever.store, folder)
        counts = f"{len(missing):,} of {len(ids):,}"
        what = f"ids that are not in {folder}: {counts}, such as {missing[0]}"
        what += similar_id(retriever.store, missing[0])
        raise UserError(what, remedy="remove their rows, or name the index of these ids")

    texts = {value: folded(question.text) for value, question in there.items() if question}
    copies = [text for text in relevant if folded(text) in map(texts.get, relevant[text])]
    if 2 * len(copies) > len(relevant) and not other_texts:
        log.warning(
            "%s of %s have the text of the question that they should find, so that these scores "
            "say little; evaluate with other wordings",
            f"{len(copies):,}",
            counted(len(relevant), "query"),
        )

    ways: dict[str, Rerank] = {"": False}
    if retriever.ordering(None):
        ways["reranked"] = None
    if cross_encoder:
        ways["cross_encoded"] = "cross_encoder"
    scores: dict[str, Any] = {}
    for name, word in ways.items():
        search = functools.partial(retriever.search, rerank=word)
        path = failed if name == [*ways][-1] else None
        found = relevance_scores(search, relevant, other_texts=other_texts, failed=path)
        scores |= {name: found} if name else found
    told = scores.get("reranked", scores).get("has_answer", {})
    if "no_min_score" in told:
        log.info("no `best_min_score`: %s", told["no_min_score"])
    return scores


def _refuse_several(missing: Sequence[Id], store: Store, folder: str) -> None:
    """UserError where one of the first unknown ids is a list of ids of the index."""
    for value in missing[:100]:
        parts = [id_key(part) for part in re.split(r"[\s;,|]+", f"{value}") if part]
        if len(parts) > 1 and all(store.get(parts)):
            what = f"expected one id in a row, got several of {folder}: {value}"
            raise UserError(what, remedy="repeat the query in a row for each id")


def _score_translations(encode: Encode, pairs: str, *, skip_bad_rows: bool) -> dict[str, Any]:
    from qpr_jax.data.parallel_sentences import file_names, read_translations

    with needs("the task translation", ".[train]"):
        from qpr_jax.evaluation.retrieval import score_set
    sentences = read_translations(pairs, skip_bad_rows=skip_bad_rows)
    return score_set(sentences._replace(name=file_names(pairs)), encode)


def _score_pairs(
    encode: Encode, pairs: str, validation: str | None, read: Callable[[str], QuestionPairs]
) -> dict[str, Any]:
    from qpr_jax.evaluation.scores import require_both_labels, score_classification, score_mining

    test = read(pairs)
    if validation is None:
        counts = {"questions": len(test.questions), "labelled_pairs": len(test.pairs)}
        counts["non_duplicates"] = int((~test.is_duplicate).sum())
        return counts | score_mining(encode, test)
    chosen_on = read(validation)
    if chosen_on.questions == test.questions:
        log.warning(
            "`validation` has the same questions, so these scores are too high: name others"
        )
    require_both_labels(chosen_on.is_duplicate, f"{input_name(validation)}: ")
    require_both_labels(test.is_duplicate, f"{input_name(pairs)}: ")
    return score_classification(encode, chosen_on, test)


@cli.command(stopped="{out} is complete or unchanged")
@cli.argument("run", type=cli.PATH)
@cli.option("--split", type=click.Choice(HELD_OUT), default="test")
@cli.option("--out", required=True, type=cli.FILE, help="A CSV file.")
def errors(run: str, split: str, out: str) -> dict[str, Any]:
    """Write the held-out queries at which RUN fails, and count them by kind.

    RUN is a work directory with splits/ and index/. A query fails if its first hit, without the
    query itself, is not a known paraphrase. The file has a row for each: the query, the paraphrase
    that was expected, the first hit, and what differs: numbers, negation, names, word order, unseen
    words, length.

    \b
    Example: qpr errors runs/quora_sdml --out errors.csv
             qpr errors runs/quora_sdml --split validation --out errors.csv > errors.md
    """
    from qpr_jax.evaluation import answers

    kinds.refuse_kind(run, kinds.RUN, kinds.INDEX)
    kinds.refuse_output(out, kinds.FAILURES)
    retriever, pairs = cli.load_index(run), read_pairs(run, split)
    questions = answers.questions_of_pairs(retriever.store, pairs, f"{run}: splits/{split}.tsv")
    words = retriever.encoder.summary().words
    vocabulary = None if words is None else frozenset(words)
    results = answers.search_results(retriever.search, questions, pairs, vocabulary)
    answers.write_failures(out, results)
    if not cli.wants_json():
        click.echo(answers.summarize(results))
    count = len(answers.failing(results))
    return {"out": out, "split": split, "queries": len(results), "failing": count}

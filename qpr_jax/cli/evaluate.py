"""Commands that judge a run: evaluate scores it, errors lists the queries at which it fails."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.cli import command as cli
from qpr_jax.data.columns import read_values
from qpr_jax.data.decoding import STANDARD_INPUT, input_name
from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.data.splits import HELD_OUT, read_pairs
from qpr_jax.errors import UserError, needs
from qpr_jax.ids import Id, parse_key

if TYPE_CHECKING:
    from qpr_jax.evaluation.translation import Encode
    from qpr_jax.reranking.model import Rerank

# The options of each way to score, besides --beir and --task.
_OPTIONS = {
    "retrieval": ("format", "text_column", "id_column", "other_texts", "cross_encoder"),
    "classification": ("format", "validation", "skip_bad_rows"),
    "mining": ("format", "skip_bad_rows"),
    "translation": ("skip_bad_rows",),
    "--beir": ("split", "trec"),
}


@cli.command(stopped="nothing was changed", prints_json=True)
@cli.argument("folder", type=cli.PATH)
@cli.argument("pairs", default="-")
@cli.option("--task", type=click.Choice([*_OPTIONS][:-1]), default="retrieval")
@cli.option("--validation", type=cli.PATH, help="Labeled pairs to choose thresholds on.")
@cli.table_format("PAIRS and --validation")
@cli.skip_bad_rows
@cli.option("--text-column", help="Column of the query.  [default: question]")
@cli.option("--id-column", help="Column of the id.  [default: id]")
@cli.option("--other-texts", is_flag=True, help="Skip hits with the text of the query.")
@cli.option("--cross-encoder", type=cli.PATH, help="Also score the order of this folder's model.")
@cli.option("--beir", type=cli.PATH, help="A folder in BEIR's format, instead of PAIRS.")
@cli.option("--split", help="Split of --beir.  [default: test]")
@cli.option("--trec", type=cli.FILE, help="Write the rankings of --beir here, in TREC's format.")
def evaluate(folder: str, pairs: str, task: str, **given: Any) -> dict[str, Any]:
    """Score the run or index of FOLDER; prints JSON.

    retrieval: a row of PAIRS is a query and the `id` of an indexed question with the same meaning.
    A query can have several rows. Hits are in the order of distance; `reranked` has the scores of
    the order by score, `cross_encoded` those of --cross-encoder's.

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
    from qpr_jax.retriever import read_encoder

    way = task if given["beir"] is None else "--beir"
    if way == "--beir" and (task, pairs) != ("retrieval", STANDARD_INPUT):
        raise click.UsageError("--beir goes without PAIRS and --task")
    for name, value in given.items():
        if value and name not in (*_OPTIONS[way], "beir"):
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with {way}")
    if way == "classification" and given["validation"] is None:
        raise click.UsageError("classification needs --validation")
    if way == "retrieval":
        return _score_retrieval(folder, pairs, given)
    encode = read_encoder(folder).encode
    if way == "translation":
        from qpr_jax.data.parallel_sentences import file_names, read_translations

        with needs("the task translation", ".[train]"):
            from qpr_jax.evaluation.translation import score_set
        sentences = read_translations(pairs, skip_bad_rows=given["skip_bad_rows"])
        return score_set(sentences._replace(name=file_names(pairs)), encode)
    if way != "--beir":
        return _score_pairs(encode, pairs, given)
    from qpr_jax.evaluation.beir_scores import beir_scores

    return beir_scores(encode, given["beir"], given["split"] or "test", run_file=given["trec"])


def _score_retrieval(folder: str, pairs: str, given: Mapping[str, Any]) -> dict[str, Any]:
    from qpr_jax.evaluation.retrieval import relevance_scores

    retriever = cli.load_index(folder, given["cross_encoder"])
    relevant: dict[str, set[Id]] = {}

    def parse(query: object, cell: object) -> tuple[str, Id] | None:
        value = parse_key(cell)
        asks = isinstance(query, str) and query.strip()
        return (str(query), value) if asks and value is not None else None

    columns = [given["text_column"] or "question", given["id_column"] or "id"]
    remedy = "name the columns with `--text-column` and `--id-column`"
    how = {"expected": "a query and an id", "format": given["format"] or "", "remedy": remedy}
    for query, value in read_values(pairs, columns, parse, **how):
        relevant.setdefault(query, set()).add(value)
    if not relevant:
        raise UserError(f"{input_name(pairs)}: expected pairs to score, got none")
    ids = [*dict.fromkeys(value for values in relevant.values() for value in values)]
    there = zip(ids, retriever.store.get(ids), strict=True)
    if missing := [value for value, question in there if question is None]:
        counts = f"{len(missing):,} of {len(ids):,}"
        what = f"{input_name(pairs)}: {counts} ids are not in {folder}, such as {missing[0]}"
        raise UserError(what, remedy="remove their rows, or name the index of these ids")

    def score(word: Rerank) -> dict[str, Any]:
        search = functools.partial(retriever.search, rerank=word)
        return relevance_scores(search, relevant, other_texts=given["other_texts"])

    scores = score(False)
    if retriever.ordering(None):
        scores["reranked"] = score(None)
    if given["cross_encoder"]:
        scores["cross_encoded"] = score("cross_encoder")
    return scores


def _score_pairs(encode: Encode, pairs: str, given: Mapping[str, Any]) -> dict[str, Any]:
    from qpr_jax.evaluation.judged_pairs import (
        require_both_labels,
        score_classification,
        score_mining,
    )

    how = {name: given[name] for name in ("format", "skip_bad_rows")}
    test = read_question_pairs(pairs, **how)
    if (validation := given["validation"]) is None:
        counts = {"questions": len(test.questions), "labelled_pairs": len(test.pairs)}
        counts["non_duplicates"] = int((~test.is_duplicate).sum())
        return counts | score_mining(encode, test)
    chosen_on = read_question_pairs(validation, **how)
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
    from qpr_jax.evaluation import failures

    retriever, pairs = cli.load_index(run), read_pairs(run, split)
    questions = failures.questions_of_pairs(retriever.store, pairs, f"{run}: splits/{split}.tsv")
    words = retriever.encoder.summary().words
    vocabulary = None if words is None else frozenset(words)
    results = failures.search_results(retriever.search, questions, pairs, vocabulary)
    failures.write_failures(out, results)
    if not cli.wants_json():
        click.echo(failures.summarize(results))
    count = len(failures.failing(results))
    return {"out": out, "split": split, "queries": len(results), "failing": count}

"""What newcomers do with tables of their own: each mistake is named, and so is what to do."""

import numpy as np
import pytest

from qpr_jax import Retriever, UserError, find_duplicates
from qpr_jax.data.tables import as_table, read_table
from qpr_jax.errors import counted
from qpr_jax.evaluation.answers import answer_scores
from qpr_jax.index.protocol import Hit

WRITTEN = "name the file deduplicated beside it, or name the question's column"


def test_an_index_that_is_replaced_is_counted(run, tmp_path, caplog):
    retriever = Retriever.build(["rice", "beans"], encoder=run, location=tmp_path / "mine")
    retriever.add("peas")
    assert "replaced" not in caplog.text
    Retriever.build(["rice"], encoder=run, location=tmp_path / "mine")
    assert caplog.text.count("mine: replaced an index of 3 questions") == 1
    Retriever.build(["peas"], encoder=run).save(tmp_path / "mine")
    assert caplog.text.count("mine: replaced an index of 1 question") == 1


def test_queries_that_are_the_indexed_questions_are_named(index, done, tmp_path):
    said = "4 of 4 queries have the text of the question that they should find"
    assert said in done("evaluate", "mine", "questions.jsonl")[1]
    assert "have the text" not in done("evaluate", "mine", "questions.jsonl", "--other-texts")[1]
    (tmp_path / "asked.csv").write_text("question,id\npython,5\nHow to cook rice?,8\nrice,8\n")
    assert "have the text" not in done("evaluate", "mine", "asked.csv")[1]


def test_a_least_score_is_named_only_where_scores_tell():
    def best(*scores):
        answered = np.arange(len(scores)) % 2 == 0
        return answer_scores([Hit(0, "", 1, score) for score in scores], answered)

    told = best(*[0.9, 0.1] * 5)
    assert (told["best_min_score"], told["best_balanced_accuracy"]) == (0.9, 1)
    assert "no_min_score" not in told
    for scores in ([0.9, 0.1], [0.5, 0.5] * 20, [0.1, 0.9] * 20, [0.6, 0.7, 0.7, 0.6, 0.8] * 8):
        found = best(*scores)
        assert (found["best_min_score"], found["best_balanced_accuracy"]) == (None, None)
        assert found["accuracy"] is not None
        half = len(scores) // 2
        counts = f"{counted(half, 'query')} that have an answer and {half} without, a ROC AUC up to"
        assert counts in found["no_min_score"]
        assert float(found["no_min_score"].split("up to ")[1][:4]) + 0.005 > found["roc_auc"]
    assert "have no score" in best(*[None] * 9)["no_min_score"]


@pytest.mark.parametrize(
    ("texts", "warns"),
    [
        (["1", "2.5", "$1,200", "none"], True),
        (["2026-01-05T10:00Z", "5 March 2026", "Mon, 5 Jan 2026 10:00 PM"], True),
        (["404", "SM-G991B", "502"], False),
        (["in march", "may i", "3 sat"], False),
        (["日期 2020年"] * 3, False),
        (["1", "2"], False),
        (["???", "2+2", "…", "why"], False),
    ],
)
def test_a_column_of_numbers_or_dates_is_named(texts, warns, caplog):
    rows = [{"when": text, "Question": "is it open"} for text in texts]
    list(as_table(rows, None, True, "when"))
    line = "`when` has numbers or dates; name the question's column (`text_column`), as `Question`"
    assert (line in caplog.text) == warns
    list(as_table(texts))  # which have no column
    assert caplog.text.count("`when`") == warns


def test_a_command_names_its_option_in_a_warning(done, run, tmp_path):
    for texts in (["sales", "vet"] * 30, ["1", "2"] * 2):
        (tmp_path / "t.csv").write_text("\n".join(["Dept,Message", *(f"{t},hi" for t in texts)]))
        words = ("encode", run, "t.csv", "--text-column", "Dept", "--out", "v.npy")
        assert "name the question's column (`--text-column`)" in done(*words)[1]


@pytest.mark.parametrize("texts", [["1", "2.5", "$1"] * 9, ["2026-01-05"] * 20, ["???"] * 1500])
def test_a_column_without_a_letter_is_refused(texts, tmp_path):
    rows = [{"when": text, "user_query": "is it open"} for text in texts]
    said = "expected questions in `when`, got no letter in .* rows, .*, as `user_query`"
    with pytest.raises(UserError, match=said):
        list(as_table(rows, None, True, "when"))
    (tmp_path / "lines.txt").write_text("\n".join(texts))
    assert read_table(tmp_path / "lines.txt").texts == texts
    assert as_table(texts).texts == texts


DEPARTMENTS = ["billing", "sales", "vet", "grooming"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (DEPARTMENTS * 50, "has only 4 distinct texts in 200 rows; name the question's column"),
        (["yes"] * 40, "has only 1 distinct text in 40 rows"),
        ([f"agent {n % 90}" for n in range(2500)], "has only 90 distinct texts in 2,500 rows"),
        (["yes"] * 39, ""),
        ([f"why {n % 2}" for n in range(40)], ""),  # 5 %
        ([f"how do i {n}" for n in range(200)], ""),
        ([f"how do i {n % 140}" for n in range(200)], ""),  # 30 % are copies
        (["hello"] * 150 + [f"how do i {n}" for n in range(50)], ""),
        (["hello"] * 3000 + [f"how do i {n}" for n in range(160)], ""),  # sorted
        ([f"intent {n % 101}" for n in range(5000)], ""),
    ],
)
def test_a_column_of_few_texts_is_named(texts, said, caplog):
    rows = [{"Dept": text, "Message": "is it open"} for text in texts]
    list(as_table(rows, None, True, "Dept"))
    assert caplog.text.count("distinct text") == bool(said)
    assert said in caplog.text
    assert not said or "(`text_column`), as `Message`" in caplog.text
    list(as_table(texts))  # which have no column
    assert caplog.text.count("distinct text") == bool(said)


def test_a_column_of_sentences_is_no_column_of_ids(caplog):
    rows = [{"n": n, "qid": n, "text": f"how do i go to {n}"} for n in range(4)]
    list(as_table(rows, None, True, None, "text"))
    assert "`text` has sentences; name the column of ids with `id_column`, as `qid`" in caplog.text
    caplog.clear()
    list(as_table(rows, None, True, None, "n"))
    list(as_table([{"text": row["text"]} for row in rows], None, True, None, "text"))
    assert not caplog.text


def test_a_file_that_is_compared_with_itself_is_named(done, table, run):
    words = ("duplicates", table, "--encoder", run, "--max-distance", "1", "--out", "found")
    assert "leave `--against` out" in done(*words, "--against", f"./{table}")[1]
    assert "leave" not in done(*words)[1]


def test_no_queries_are_an_error(index, refused, tmp_path):
    (tmp_path / "none.csv").write_text("id,question\n")
    refused("standard input: expected queries, got none", "search", "mine")
    refused("none.csv: expected queries, got none", "search", "mine", "none.csv")


@pytest.mark.parametrize("output", ["csv", "jsonl", "tsv"])
def test_what_the_package_wrote_is_no_table_of_questions(done, refused, run, table, output):
    options = ("--encoder", run, "--max-distance", "1", "--output", output)
    done("duplicates", table, *options, "--out", "found")
    for name, kind in (("groups", "groups of duplicates"), ("pairs", "found pairs")):
        file = f"found/{name}.{output}"
        refused(f": expected questions, got {kind}; {WRITTEN}", "encode", run, file, "--out=v.npy")
        with pytest.raises(UserError, match=f"expected questions, got {kind}"):
            find_duplicates(file)
    done("encode", run, f"found/groups.{output}", "--out", "v.npy", "--text-column", "question")
    done("encode", run, f"found/deduplicated.{output}", "--out", "w.npy")


def test_a_table_without_the_ids_of_the_index_is_not_added(done, refused, run, tmp_path):
    (tmp_path / "faq.csv").write_text("article,question\nKB-1,learn python\n")
    done("index", "faq", "faq.csv", "--encoder", run, "--id-column", "article")
    (tmp_path / "tickets.csv").write_text("when,question,who\nnow,cook rice,me\n")
    said = "tickets.csv: expected the column of ids `article`, as in faq, got `when`, `question`"
    refused(said, "add", "faq", "tickets.csv")
    assert "0 added, 1 replaced, 1 question" in done("add", "faq", "faq.csv")[1]
    done("add", "faq", "tickets.csv", "--no-ids")
    done("add", "faq", "tickets.csv", "--id-column", "who")
    done("add", "faq", given=b"bake bread\n")
    assert [q.id for q in Retriever.load(tmp_path / "faq")] == ["KB-1", 0, "me", 1]

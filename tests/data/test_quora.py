import csv
import random

import numpy as np
import pytest

from qpr_jax.data.quora import gather_pairs, read_quora
from qpr_jax.errors import UserError

HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
GOOD = "1\t11\t12\tHow?\tHow so?\t1\n"


def file_of(folder, text):
    path = folder / "pairs.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder, body, **settings):
    return read_quora(file_of(folder, HEADER + body), **settings)


def test_a_small_file(tmp_path):
    data = read(tmp_path, "5\t7\t3\tWhat is it?\tWhat's this?\t1\n6\t3\t9\tWhat's this?\tWho?\t0\n")
    assert data.questions == ["What is it?", "What's this?", "Who?"]
    assert data.ids.tolist() == [7, 3, 9]
    assert data.ids.dtype == np.int64
    assert data.pairs.tolist() == [[0, 1], [1, 2]]
    assert data.pairs.dtype == np.int32
    assert data.is_duplicate.tolist() == [True, False]
    assert data.is_duplicate.dtype == np.bool_
    assert data.report == {
        "rows": 2,
        "skipped_rows": 0,
        "same_text_ids": 0,
        "changed_texts": 0,
        "self_pairs": 0,
    }


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ('"say ""hi"" twice"', 'say "hi" twice'),
        ('"""x"""', '"x"'),
        ('""', ""),
        ('""""', '"'),
        ("", ""),
        ('"tab\there"', "tab\there"),
        ('"two\n\nlines"', "two\n\nlines"),
        ('"two\r\nlines"', "two\r\nlines"),
        ('a "b" c', 'a "b" c'),
        ('5"', '5"'),
        ("nul\0nul", "nul\0nul"),
        ('"nul\0\n"', "nul\0\n"),
        ("مرحبا 😀 é\u2028é\x0b\x85", "مرحبا 😀 é\u2028é\x0b\x85"),
        ("lone \r return", "lone \r return"),
        ("x" * 1_000_000, "x" * 1_000_000),
        ('"' + '""\n' * 300_000 + '"', '"\n' * 300_000),
    ],
)
def test_quoting(tmp_path, field, text):
    for ending in ("\n", "\r\n", ""):
        data = read(tmp_path, f"1\t1\t2\t{field}\tq\t1\n2\t3\t2\tother\tq\t0{ending}")
        assert data.questions == [text, "q", "other"]
    data = read(tmp_path, f"1\t1\t2\tq\t{field}\t1\n")
    assert data.questions == ["q", text]


def test_what_the_csv_module_writes_is_read_back(tmp_path):
    rng = random.Random(0)
    texts = ["".join(rng.choices('ab"\t\n\r é', k=rng.randrange(12))) for _ in range(400)]
    texts = list(dict.fromkeys(texts))
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
        path = tmp_path / "csv.tsv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t", quoting=quoting)
            writer.writerow(HEADER.split())
            writer.writerows([i, 0, i, texts[0], text, 0] for i, text in enumerate(texts) if i)
        assert read_quora(path).questions == texts


def test_byte_order_mark_crlf_quoted_header_and_blank_lines(tmp_path):
    text = "\ufeff" + HEADER.replace("qid1", '"qid1"') + "\n" + GOOD + "\n\n"
    data = read_quora(file_of(tmp_path, text.replace("\n", "\r\n")))
    assert data.questions == ["How?", "How so?"]
    assert data.report["rows"] == 1


def test_identity_of_questions(tmp_path):
    body = (
        "1\t1\t2\ta\tb\t1\n"
        "2\t3\t2\ta\tchanged\t1\n"  # 3 has the text of 1; 2 keeps its first text
        "3\t1\t3\ta\ta\t1\n"  # one question with itself
        "4\t4\t4\tc\tc\t0\n"
        "5\t2\t3\tchanged again\ta\t0\n"
        "6\t5\t3\tchanged\ta\t0\n"  # a text that was not kept is free
    )
    data = read(tmp_path, body)
    assert data.questions == ["a", "b", "c", "changed"]
    assert data.ids.tolist() == [1, 2, 4, 5]
    assert data.pairs.tolist() == [[0, 1], [0, 1], [1, 0], [3, 0]]
    assert data.is_duplicate.tolist() == [True, True, False, False]
    assert data.report == {
        "rows": 6,
        "skipped_rows": 0,
        "same_text_ids": 1,
        "changed_texts": 1,
        "self_pairs": 2,
    }


BAD = {
    "expected 6 fields, got 5 in": "1\t1\t2\ta\tb",
    "expected 6 fields, got 7 in": "1\t1\t2\ta\tb\t1\t",
    "expected 6 fields, got 1 in ' '": " ",
    "expected `id` to be a whole number, got 'x'": "x\t1\t2\ta\tb\t1",
    "expected `qid1` to be a whole number, got '-1'": "1\t-1\t2\ta\tb\t1",
    "expected `qid1` to be a whole number, got '1.0'": "1\t1.0\t2\ta\tb\t1",
    "expected `qid2` to be a whole number, got ''": "1\t1\t\ta\tb\t1",
    "expected `qid2` to be a whole number, got '9223372036854775808'": (
        "1\t1\t9223372036854775808\ta\tb\t1"
    ),
    "expected `qid2` to be a whole number, got '٣'": "1\t1\t٣\ta\tb\t1",
    "expected `qid2` to be a whole number, got '1_0'": "1\t1\t1_0\ta\tb\t1",
    "expected `qid2` to be a whole number, got '9+[.]{3}9+'": f"1\t1\t{'9' * 9999}\ta\tb\t1",
    "expected `is_duplicate` 0 or 1, got '2'": "1\t1\t2\ta\tb\t2",
    "expected `is_duplicate` 0 or 1, got ''": "1\t1\t2\ta\tb\t",
    r"expected UTF-8 in `question1`, got the bytes b'\\xff\\xfe'": b"1\t1\t2\ta \xff\xfe\tb\t1",
    r"expected UTF-8 in `question2`, got the bytes b'\\xed": b"1\t1\t2\ta\t\xed\xa0\x80\t1",
    "expected a tab after a closing quote .*got ' b": '1\t1\t2\t"a" b\tc\t1',
    "expected a closing quote in": '1\t1\t2\t"a\tb\t1',
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_row(tmp_path, message):
    row = BAD[message] if isinstance(BAD[message], bytes) else BAD[message].encode()
    two_lines = b'8\t13\t14\t"one\ntwo"\tthree\t1\n'
    path = file_of(tmp_path, HEADER.encode() + two_lines + row + b"\n" + GOOD.encode())
    with pytest.raises(UserError, match=rf"pairs.tsv, line 4: {message}.*--skip-bad-rows"):
        read_quora(path)
    data = read_quora(path, skip_bad_rows=True)
    assert data.questions == ["one\ntwo", "three", "How?", "How so?"]
    assert (data.report["rows"], data.report["skipped_rows"]) == (2, 1)


@pytest.mark.parametrize(
    "below",
    [
        '2\t3\t4\t"c ""d"""\te\t0\n',
        '2\t3\t4\tc\t"e\nf"\t0\n',
        '2\t3\t4\t"c"\t"e"\t0\n',
        '2\t3\t4\tc "d" c\te\t0\n',
    ],
)
def test_an_unclosed_quote_costs_its_row_only(tmp_path, below):
    good = read(tmp_path, below + GOOD).questions
    for bad in ('1\t1\t2\t"a\tb\t1\n', '1\t1\t2\ta\t"b\t1\n', '1\t1\t2\ta\tb\t"1\n', '"\n'):
        data = read(tmp_path, bad + bad + below + GOOD, skip_bad_rows=True)
        assert data.questions == good
        assert data.report["skipped_rows"] == 2


def test_a_quote_never_closed_and_one_never_opened_do_not_swallow_the_rows_between(tmp_path):
    rows = [f"{i}\t{2 * i}\t{2 * i + 1}\tq{2 * i}\tq{2 * i + 1}\t1\n" for i in range(1, 51)]
    rows[0] = '1\t2\t3\t"never closed\tq3\t1\n'
    rows[49] = '50\t100\t101\tlost its first quote"\tq101\t1\n'
    data = read(tmp_path, "".join(rows), skip_bad_rows=True)
    assert (data.report["rows"], data.report["skipped_rows"]) == (49, 1)
    with pytest.raises(UserError, match="line 2: expected a closing quote"):
        read(tmp_path, "".join(rows))


def test_a_bad_row_of_two_lines_counts_once(tmp_path):
    data = read(tmp_path, '1\t1\t2\t"a\nb"\tc\t7\n' + GOOD, skip_bad_rows=True)
    assert data.questions == ["How?", "How so?"]
    assert data.report["skipped_rows"] == 1


def test_max_rows(tmp_path):
    body = GOOD + "bad\n" + "2\t13\t14\ta\tb\t0\n" + "bad\n"
    assert len(read(tmp_path, body, max_rows=1).pairs) == 1
    data = read(tmp_path, body, max_rows=2, skip_bad_rows=True)
    assert (data.report["rows"], data.report["skipped_rows"]) == (2, 1)
    with pytest.raises(UserError, match="line 3"):
        read(tmp_path, body, max_rows=2)
    with pytest.raises(UserError, match="`max_rows`: expected 0"):
        read(tmp_path, body, max_rows=-1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got an empty file"),
        (b"\n", "line 1: expected the header 'id qid1 .*got ''"),
        (GOOD.encode(), r"line 1: expected the header .*got '1\\t11"),
        (HEADER.replace("\t", ",").encode(), "line 1: expected the header"),
        (b'"id\n', "line 1: expected the header"),
        (HEADER.encode("utf-16"), "line 1: expected the header"),
        (HEADER.encode(), "got no good row and 0 bad ones"),
    ],
)
def test_not_a_pair_file(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        read_quora(file_of(tmp_path, content))


def test_no_good_row_no_file_and_a_folder(tmp_path):
    with pytest.raises(UserError, match="got no good row and 2 bad ones"):
        read(tmp_path, "x\ny\n", skip_bad_rows=True)
    with pytest.raises(UserError, match=r"none\.tsv: expected a file .* No such file"):
        read_quora(tmp_path / "none.tsv")
    with pytest.raises(UserError, match=r"expected a file .* directory.*`data.path`"):
        read_quora(tmp_path)


def test_a_blank_text_gives_way_to_the_first_that_is_not():
    rows = [(1, 2, "", "b", False), (3, 1, "c", "a", True), (1, 3, "again", "c", True)]
    data = gather_pairs(rows)
    assert data.questions == ["a", "b", "c"]
    assert data.pairs.tolist() == [[0, 1], [2, 0], [0, 2]]
    assert data.report["changed_texts"] == 1


def test_no_rows_are_no_pairs():
    data = gather_pairs([])
    assert data.pairs.shape == (0, 2)
    assert data.ids.shape == (0,)


def test_the_real_file(quora_file):
    data = read_quora(quora_file)
    assert len(data.questions) == len(data.ids) == len(set(data.ids.tolist())) == 165_493
    assert data.pairs.shape == (150_898, 2)
    assert data.is_duplicate.sum() == 135_089
    assert data.questions[0].startswith("Why are so many Quora users posting")
    with open(quora_file, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))[1:]
    for row, (a, b) in zip(rows, data.pairs.tolist(), strict=True):
        assert row[3:5] == [data.questions[a], data.questions[b]]

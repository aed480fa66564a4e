import pathlib

import pytest

from qpr_jax.data.labeled_pairs import read_labeled
from qpr_jax.data.questions import Entry, read_questions
from qpr_jax.data.quora import PAIRS_HEADER, is_quora_file, read_quora
from qpr_jax.data.quoted_tsv import QUESTIONS, write_rows
from qpr_jax.errors import UserError

TEXTS = [
    'plain "inside" quotes',
    '"quoted" at the start',
    '"',
    '""',
    "tab\there",
    "1\t2\tlike\na row\t1\n3\t4\t",
    "ends in a return\r",
    "lone \r return",
    "two\r\n\nlines",
    "é \u2028 \x0b \x85 😀",
    "nul\0",
]


def write(path: pathlib.Path, header, rows) -> str:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        write_rows(file, header, rows)
    return str(path)


def test_questions_come_back_as_they_were(tmp_path):
    path = write(
        tmp_path / "corpus.tsv", QUESTIONS, [(7 * i, text) for i, text in enumerate(TEXTS)]
    )
    entries = list(read_questions(path))
    assert [entry.question for entry in entries] == TEXTS
    assert [entry.id for entry in entries] == [7 * i for i in range(len(TEXTS))]
    assert [entry.line for entry in entries][:7] == [2, 3, 4, 5, 6, 7, 10]


def test_pairs_come_back_as_they_were(tmp_path):
    rows = [(2 * i, 2 * i + 1, text, f"other {i}", i % 2) for i, text in enumerate(TEXTS)]
    path = write(tmp_path / "pairs.tsv", PAIRS_HEADER, rows)
    assert is_quora_file(path)
    data = read_quora(path)
    assert data.questions[::2] == TEXTS
    assert data.ids.tolist() == list(range(2 * len(TEXTS)))
    assert data.is_duplicate.tolist() == [bool(i % 2) for i in range(len(TEXTS))]
    assert read_labeled(path).questions == data.questions


def test_what_breaks_no_row_is_not_quoted(tmp_path):
    path = write(tmp_path / "corpus.tsv", QUESTIONS, [(1, 'a "b" c'), (2, '"b" c')])
    assert (tmp_path / "corpus.tsv").read_text() == 'qid\tquestion\n1\ta "b" c\n2\t"""b"" c"\n'
    assert list(read_questions(path, format="tsv"))[1] == Entry(3, 2, '"b" c')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1\ta\tb\n", "line 2: expected 2 fields, as the header, got 3"),
        ("1\t \n", "line 2: expected a question in `question`, got ' '"),
        ("1\t\udcff\n", "line 2: expected UTF-8"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path, caplog, body, said):
    path = tmp_path / "corpus.tsv"
    path.write_bytes(f"qid\tquestion\n{body}5\tgood\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"corpus\.tsv, line") as error:
        list(read_questions(str(path)))
    assert said in str(error.value)
    caplog.set_level("WARNING", logger="qpr_jax")
    assert list(read_questions(str(path), skip_bad_rows=True)) == [Entry(3, 5, "good")]
    assert "1 bad rows left out" in caplog.messages[0]


@pytest.mark.parametrize("text", ['"a', '"a"b', '"a" "b"', '""a', 'a "b"'])
def test_a_quote_that_is_no_quoting_is_a_character(tmp_path, text):
    path = tmp_path / "corpus.tsv"
    path.write_text(f'qid\tquestion\n1\t{text}\n2\tgood\nx\t"2\t3"\n')
    questions = [(entry.id, entry.question) for entry in read_questions(str(path))]
    assert questions == [(1, text), (2, "good"), ("x", "2\t3")]


def test_a_pair_file_without_ids_of_rows_says_which_row_is_bad(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("\t".join(PAIRS_HEADER) + "\n1\t2\ta\tb\t1\n3\t4\tc\td\n")
    with pytest.raises(UserError, match=r"pairs.tsv, line 3: expected 5 fields, got 4"):
        read_quora(path)

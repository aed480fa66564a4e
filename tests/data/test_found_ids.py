"""The column of ids that is found by its name and its values, where no name is usual."""

import json
import os
import threading

import pandas as pd
import polars as pl
import pytest

from qpr_jax import Retriever, find_duplicates
from qpr_jax.data.tables import as_table, read_table

TEXTS = ["is it open", "how do i pay", "where are you"]
KEYS = ["VT-7", "VT-9", "VT-12"]
NAMES = """Question_ID ticket_id TicketID Ticket_No. Case_# Case# ref_no Ref Ticket_Ref_No
    message-id issue_key Incident_Number Query_Nr FAQ_code Ticket
    CASE incident"""
OTHER_NAMES = """phone_number order_number zip_code No # key_word user_id customer_id parent_id row
    number_of_tickets ticket_count error_code S.No line_no ticket_id_date"""


def table_of(name, keys=KEYS, **others):
    return pd.DataFrame({name: keys, "Dept": ["vet"] * 3, "Message": TEXTS, **others})


@pytest.mark.parametrize("blank", [" ", "_"])
def test_the_name_of_ids_is_that_of_questions(tmp_path, blank):
    for names, ids in ((NAMES, KEYS), (OTHER_NAMES, [None] * 3)):
        for name in (name.replace("_", blank) for name in names.split()):
            table_of(name).to_csv(tmp_path / "a.csv", index=False)
            assert read_table(tmp_path / "a.csv").ids == ids, name


def test_every_kind_of_table_has_them(tmp_path):
    frame = table_of("Ticket No")
    rows = frame.to_dict("records")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    paths = [tmp_path / f"a.{kind}" for kind in ("csv", "parquet", "jsonl", "json")]
    for table in (*paths, frame, pl.from_pandas(frame), rows):
        found = as_table(table)
        assert (found.ids, found.named.id, found.texts) == (KEYS, "Ticket No", TEXTS), table
        assert found.entries[0].payload == {"Dept": "vet"}
        assert as_table(table, None, True, None, "").ids == [None] * 3
        assert as_table(table, None, True, None, "Message").ids == TEXTS
    for table in (iter(rows), pl.LazyFrame(frame)):  # which are read once
        assert as_table(table).ids == [None] * 3
    frame.index = TEXTS  # which are ids
    assert as_table(frame).ids == TEXTS
    frame.index = range(3)
    assert find_duplicates(frame, encoder="open_student").facts()["id_column"] == "Ticket No"


@pytest.mark.parametrize(
    ("keys", "others", "ids"),
    [
        (["7", "9", "7"], {}, [None] * 3),
        (["7", "", "9"], {}, [None] * 3),
        (["7", "x" * 41, "9"], {}, [None] * 3),
        (["7", "x" * 40, "9"], {}, [7, "x" * 40, 9]),
        (KEYS, {"case_ref": [1, 2, 3]}, [None] * 3),  # in doubt
        (KEYS, {"case_ref": [1, 2, 2]}, KEYS),
        (KEYS, {"uuid": [1, 2, 3]}, [1, 2, 3]),  # a usual name
        (["lost", "no light", "open"], {}, [None] * 3),
        (["case 7", "case 9", "open"], {}, ["case 7", "case 9", "open"]),
    ],
)
def test_values_decide(tmp_path, keys, others, ids):
    frame = table_of("Ticket No", keys, **others)
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert read_table(tmp_path / "a.csv").ids == as_table(tmp_path / "a.csv").ids == ids
    assert [*map(str, as_table(frame).ids)] == [*map(str, ids)]


def test_numbers_that_are_no_ids_are_none():
    assert as_table(table_of("Ticket No", [1.5, 2.5, 3.5])).ids == [None] * 3
    assert as_table(table_of("Ticket No", [1, 2, 3])).ids == [1, 2, 3]


def test_several_files_have_them_together(tmp_path):
    for name, keys in (("a", KEYS), ("b", KEYS), ("c", [1, 2, 3])):
        table_of("Ticket No", keys).to_csv(tmp_path / f"{name}.csv", index=False)
    pd.DataFrame({"Message": TEXTS}).to_csv(tmp_path / "d.csv", index=False)
    files = {name: tmp_path / f"{name}.csv" for name in "abcd"}
    assert read_table([files["a"], files["c"]]).ids == [*KEYS, 1, 2, 3]
    assert read_table([files["a"], files["b"]]).ids == [None] * 6
    assert read_table([files["a"], files["d"]]).ids == [None] * 6
    assert read_table([files["d"], files["a"]]).ids == [None] * 6


def test_a_pipe_is_read_once_and_a_file_speaks_once(tmp_path, caplog):
    caplog.set_level("INFO", logger="qpr_jax")
    text = table_of("Ticket No").to_csv(index=False)
    (tmp_path / "a.csv").write_text(text.replace(",", "\x01") + text.partition("\n")[0])
    (tmp_path / "b.csv").write_text(text + text.partition("\n")[0])
    assert read_table(tmp_path / "b.csv").ids == KEYS
    assert caplog.text.count("left out rows that repeat the header: 1") == 1
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,))
    writer.start()
    assert read_table(tmp_path / "pipe", format="csv").ids == [None] * 3
    writer.join()


def test_an_index_keeps_their_name(tmp_path):
    frame = table_of("Ticket No")
    frame.to_csv(tmp_path / "a.csv", index=False)
    for table in (frame, tmp_path / "a.csv", read_table(tmp_path / "a.csv")):
        retriever = Retriever.build(table, encoder="open_student")
        assert retriever.store.index_config.id_column == "Ticket No"
        retriever.add(table_of("Ticket No", ["VT-7", "VT-8", "VT-5"]))
        assert sorted(retriever.ids()) == ["VT-12", "VT-5", "VT-7", "VT-8", "VT-9"]
    retriever = Retriever.build(TEXTS, encoder="open_student")
    retriever.add(table_of("Ticket No", [0, 1, 2]))
    assert retriever.ids() == [0, 1, 2, 3, 4, 5]  # no question was replaced

"""What needs no server: addresses, settings, the words of indexes, entities."""

import pathlib
import subprocess
import sys
import time
import types

import httpx
import pytest

from qpr_jax import Retriever, UserError
from qpr_jax.errors import UnavailableError
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.milvus_entities import as_entity, as_question, batches, conditions, key_of
from qpr_jax.index.milvus_recipe import index_parameters, milvus_recipe, search_parameters
from qpr_jax.index.milvus_records import Records
from qpr_jax.index.milvus_server import Address, Settings
from qpr_jax.index.recipe import Recipe
from qpr_jax.serving.app import make_app
from tests.serving.conftest import running

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_an_address():
    assert Address.parse("milvus://db.example/q_1") == Address("db.example", 19530, "q_1")
    assert str(Address.parse("milvus://[::1]:7/a")) == "milvus://[::1]:7/a"


@pytest.mark.parametrize(
    "text",
    ["milvus://me:SECRET@h/c", "milvus://h/c?token=SECRET", "milvus://h/SECRET/x", "milvus://h"],
)
def test_another_address_is_refused_without_repeating_it(text):
    with pytest.raises(UserError, match="QPR_MILVUS_TOKEN") as caught:
        Retriever.load(text)
    assert "SECRET" not in str(caught.value)


def test_settings(monkeypatch):
    monkeypatch.setenv("QPR_MILVUS_TIMEOUT", "2.5")
    monkeypatch.setenv("QPR_MILVUS_TOKEN", "SECRET")
    found = Settings.read()
    assert (found.timeout, found.token, found.consistency) == (2.5, "SECRET", "session")
    assert "SECRET" not in repr(found)
    for name, value in (("TIMEOUT", "soon"), ("CONSISTENCY", "none"), ("TLS", "yes")):
        monkeypatch.setenv(f"QPR_MILVUS_{name}", value)
        with pytest.raises(UserError, match=f"QPR_MILVUS_{name}"):
            Settings.read()
        monkeypatch.delenv(f"QPR_MILVUS_{name}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"CA": "here"}, "expected QPR_MILVUS_TLS=1 with QPR_MILVUS_CA, got 0"),
        ({"TLS": "1", "CA": "none"}, "QPR_MILVUS_CA: expected a file that can be read, got none"),
        ({"TLS": "1", "CA": "here", "CERTIFICATE": "here"}, "got no QPR_MILVUS_KEY"),
        ({"TLS": "1", "KEY": "here"}, "got no QPR_MILVUS_CA, QPR_MILVUS_CERTIFICATE"),
    ],
)
def test_files_of_tls_that_would_not_be_used_are_refused(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    for name, value in given.items():
        monkeypatch.setenv(f"QPR_MILVUS_{name}", value)
    with pytest.raises(UserError, match=message):
        Settings.read()


@pytest.mark.parametrize(
    ("factory", "kind", "built", "searched"),
    [
        ("Flat", "FLAT", {}, {}),
        ("IVF2000,Flat", "IVF_FLAT", {"nlist": 2000}, {"nprobe": 10}),
        ("IVF4096,SQ8", "IVF_SQ8", {"nlist": 4096}, {"nprobe": 10}),
        ("IVF2000,PQ50", "IVF_PQ", {"nlist": 2000, "m": 50, "nbits": 8}, {"nprobe": 10}),
        ("HNSW32", "HNSW", {"M": 32, "efConstruction": 200}, {"ef": 160}),
    ],
)
def test_the_words_of_an_index(factory, kind, built, searched):
    recipe = milvus_recipe(Recipe(factory, "ip"), 300)
    expected = {"index_type": kind, "metric_type": "IP", "params": built}
    assert index_parameters(recipe) == expected
    assert search_parameters(recipe, 50, wide=False) == searched


@pytest.mark.parametrize(
    "factory", ["SQ8", "IVF10_HNSW32,Flat", "IVF10,SQ4", "HNSW900", "IVF99999,Flat"]
)
def test_an_index_that_milvus_lacks_is_refused_with_what_it_has(factory):
    with pytest.raises(UserError, match="IVF2000,SQ8, IVF2000,PQ50 or HNSW32"):
        milvus_recipe(Recipe(factory), 300)


def test_several_lists_a_question_are_refused_unless_a_run_asked_for_them():
    recipe = Recipe("Flat", assignments=3)
    with pytest.raises(UserError, match="one list"):
        milvus_recipe(recipe, 300)
    assert milvus_recipe(recipe, 300, assignments_given=False) == Recipe("Flat")


PAYLOADS = [
    None,
    {"a": None, "b": {"x": [1, 2.5, None, {"y": True}]}, "c": "é\u2028\0", "": 0},
    {
        "id": 3,
        "question": "x",
        "vector": [1],
        "qpr_row": 5,
        "qpr_payload": "{",
        "kept": 1,
        "$meta": 2,
    },
    {"n": 2**70, "kept": 1},
    {"s": "\ud800", "\ud800": [{"\ud800": 1}]},
    {"e": 1e300, "m": -0.0, "i": 2**63 - 1},
]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(
    "value", [7, "7", "007", 0, 2**63 - 1, "a b'c\"d\\{e}%", "é\ud800\n", "%41"]
)
def test_an_entity_gives_its_question_back(value, payload):
    question = StoredQuestion(value, f"why {value}?", payload)
    entity, _ = as_entity(question, 3)
    entity["question"].encode(), entity["id"].encode("ascii")
    found = as_question(entity)
    assert found == question
    assert type(found.id) is type(value)
    assert set((payload or {}).keys()) & {"a", "b", "kept"} <= set(entity)


def test_no_id_means_anything_in_an_expression():
    ids = ["' or 1==1 or '", 'x"]) or (1 == 1', "\\", "a\nb", 17]
    (where,) = conditions(ids)
    assert where == f"id in [{', '.join(f'{chr(34)}{key_of(value)}{chr(34)}' for value in ids)}]"
    assert where.count('"') == 2 * len(ids)
    assert not {"'", "\\", "\n"} & set(where)
    assert len(key_of("\ud800" * 341)) <= 3 * 1024


def test_what_is_too_large_for_milvus_is_refused():
    with pytest.raises(UserError, match="at most 65,535 bytes"):
        as_entity(StoredQuestion(1, "é" * 33_000), 0)
    with pytest.raises(UserError, match="at most 65,536 bytes"):
        as_entity(StoredQuestion(1, "q", {"x": "y" * 65_536}), 0)


def test_batches_are_sized_by_bytes(monkeypatch):
    monkeypatch.setattr("qpr_jax.index.milvus_entities.BATCH_BYTES", 1000)
    questions = [StoredQuestion(i, "x" * (i * 10)) for i in range(60)]
    found = [*batches(questions, 8, iter(range(60)))]
    assert [q for some, _ in found for q in some] == questions
    assert [e["qpr_row"] for _, entities in found for e in entities] == [*range(60)]
    assert len(found[0][0]) > len(found[-1][0]) > 0
    assert all(sum(len(q.question) + 32 for q in some) <= 1000 for some, _ in found)


def test_a_server_that_is_gone_is_an_error_in_time(monkeypatch):
    pytest.importorskip("pymilvus")
    monkeypatch.setenv("QPR_MILVUS_TIMEOUT", "0.5")
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="QPR_MILVUS_TIMEOUT"):
        Retriever.load("milvus://127.0.0.1:1/c")
    assert time.monotonic() - start < 30


def test_a_service_answers_503_while_its_index_is_gone(run, monkeypatch):
    retriever = Retriever.build(["why?"], run=run)

    def gone(*_, **__):
        raise UnavailableError("a host with SECRET facts")

    with running(make_app(retriever)) as url:
        ask = {"json": {"queries": ["why?"]}, "timeout": 60}
        monkeypatch.setattr(retriever.index, "find", gone)
        answer = httpx.post(f"{url}/search", **ask)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "SECRET" not in answer.text
        monkeypatch.undo()
        assert httpx.post(f"{url}/search", **ask).status_code == 200


def test_nothing_of_milvus_is_imported_without_an_address():
    code = "import sys, qpr_jax.facts; assert not {'pymilvus', 'grpc'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_collection_of_records_by_other_hands_is_refused():
    server = types.SimpleNamespace(
        address=Address("h", 1, "mine"), describe=lambda name: {"fields": [{"name": "id"}]}
    )
    with pytest.raises(UserError, match="in the collection mine_qpr, which is another"):
        Records(server).create()

"""An encoder for mteb: without mteb, and in mteb on tasks of made-up questions."""

import importlib.util
import shutil
import sys

import numpy as np
import pytest

from qpr_jax.encoders.load import load_encoder, save_encoder
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.benchmarks import MtebEncoder, graded_scores, ranked_documents, similarities
from tests.encoders.examples import QUESTIONS, TINY, WORDS, cnn_encoder


@pytest.fixture
def run(request, tmp_path):
    """The folder of an encoder, of vectors of any length by default."""
    kind = getattr(request, "param", "cnn")
    if kind == "bert":
        return shutil.copytree(TINY, tmp_path / "mine")
    save_encoder(tmp_path / "mine", cnn_encoder(normalize=kind == "normalized"))
    return tmp_path / "mine"


def test_the_texts_of_batches_are_encoded_in_order(run):
    batches = [{"text": QUESTIONS[:2], "id": ["a", "b"]}, {"text": QUESTIONS[2:]}]
    model = MtebEncoder(load_encoder(run))
    found = model.encode(iter(batches), prompt_type="query", batch_size=2, show_progress_bar=False)
    np.testing.assert_array_equal(found, load_encoder(run).encode(QUESTIONS))
    assert found.dtype == np.float32
    assert model.encode(iter([])).shape == (0, model.encoder.dimension)


def test_the_name_has_an_organization():
    with pytest.raises(UserError, match="expected ORGANIZATION/MODEL, got 'it'"):
        MtebEncoder(cnn_encoder(), name="it")


def test_near_vectors_far_from_the_origin_have_a_distance_and_unit_vectors_a_cosine():
    unit, other = np.eye(3, dtype=np.float32), np.full((3, 3), 3**-0.5, np.float32)
    np.testing.assert_allclose(similarities(unit, other, normalized=True), other)
    np.testing.assert_allclose(
        similarities(unit, other, normalized=True, paired=True), [3**-0.5] * 3
    )
    rng = np.random.default_rng(0)
    one = (100 + rng.normal(size=(40, 16))).astype(np.float32)
    other = (one[:30] + 1e-3 * rng.normal(size=(30, 16))).astype(np.float32)
    differences = one[:, None].astype(np.float64) - other
    expected = -np.sqrt((differences**2).sum(axis=2))
    found = similarities(one, other, normalized=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    paired = similarities(one[:30], other, normalized=False, paired=True)
    np.testing.assert_allclose(paired, np.diag(expected), rtol=1e-4)


def test_without_mteb_one_line_says_what_is_missing(run, monkeypatch):
    model = MtebEncoder(load_encoder(run))
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.setitem(sys.modules, "mteb.languages", None)
    with pytest.raises(UserError, match=r"expected the package mteb, found none; pip install"):
        _ = model.mteb_model_meta


def texts(count, seed):
    """Distinct questions of known words."""
    rng = np.random.default_rng(seed)
    found = {" ".join(rng.choice(WORDS, size=rng.integers(3, 9))) for _ in range(2 * count)}
    return sorted(found)[:count]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mteb") is None, reason="needs mteb")
@pytest.mark.filterwarnings("ignore")  # of PyTorch, datasets and mteb
@pytest.mark.parametrize("run", ["cnn", "normalized", "bert"], indirect=True)
def test_retrieval_has_the_scores_of_our_search_and_facts_of_the_encoder(run):
    import mteb
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models import EncoderProtocol
    from mteb.models.model_meta import ModelMeta

    facts = {"name": "MadeUp", "type": "Retrieval", "description": "made up", "reference": None}
    facts |= {"dataset": {"path": "none", "revision": "none"}, "main_score": "ndcg_at_10"}

    class Retrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(**facts, eval_splits=["test"], eval_langs=["eng-Latn"])

    rng = np.random.default_rng(0)
    queries = {f"q{i}": text for i, text in enumerate(texts(12, 1))}
    corpus = {f"d{i}": text for i, text in enumerate(texts(60, 2))}
    qrels = {
        q: {f"d{i}": int(grade) for i, grade in zip(rng.choice(60, 4), (2, 1, 1, 1), strict=True)}
        for q in queries
    }
    model = MtebEncoder(load_encoder(run), languages=["eng-Latn"])
    # a document is its title and its text
    documents = {
        "id": [*corpus],
        "title": [text.partition(" ")[0] for text in corpus.values()],
        "text": [text.partition(" ")[2] for text in corpus.values()],
    }
    test = {
        "corpus": Dataset.from_dict(documents),
        "queries": Dataset.from_dict({"id": [*queries], "text": [*queries.values()]}),
        "relevant_docs": qrels,
        "top_ranked": None,
    }
    task = Retrieval()
    task.dataset, task.data_loaded = {"default": {"test": test}}, True
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    (found,) = result.task_results[0].scores["test"]
    assert (result.model_name, result.model_revision) == (model.name, model.encoder.fingerprint)
    rankings = ranked_documents(load_encoder(run).encode, queries, corpus.items())
    ours = graded_scores(rankings, qrels)
    assert 0 < ours["ndcg@10"] < 1
    # mteb rounds to 1e-5. The vectors of the tiny transformer are so near to each other that their
    # float32 cosines, 1 but for 1e-7, swap neighbors.
    error = 1e-3 if isinstance(model.encoder, TransformerEncoder) else 2e-5
    theirs = {name: found[name.replace("@", "_at_")] for name in ours}
    assert theirs == pytest.approx(ours, abs=error)
    meta, encoder = model.mteb_model_meta, model.encoder
    assert isinstance(model, EncoderProtocol)
    assert isinstance(meta, ModelMeta)
    assert (meta.name, meta.revision) == ("qpr_jax/encoder", encoder.fingerprint)
    assert (meta.embed_dim, meta.max_tokens) == (encoder.dimension, encoder.max_tokens)
    assert meta.similarity_fn_name.value == ("cosine" if encoder.normalize else "euclidean")
    assert meta.languages == ["eng-Latn"]
    assert meta.memory_usage_mb == pytest.approx(meta.n_parameters * 4 / 2**20)
    with pytest.raises(UserError, match="expected codes such as eng-Latn, got 'xx'"):
        _ = MtebEncoder(load_encoder(run), languages=["xx"]).mteb_model_meta

"""The index of a run has the vectors of the texts as an index encodes them."""

import numpy as np

from qpr_jax.index.base import Question
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.recipe import Recipe
from qpr_jax.text.cleaning import clean
from qpr_jax.training.encoder_job import reuse_vectors


class Letters:
    """Counts letters, and the texts that it encoded."""

    def __init__(self):
        self.encoded = []

    def encode(self, texts):
        self.encoded += texts
        return np.array([[text.count(c) for c in "abcd<"] for text in texts], np.float32)


def test_known_vectors_are_used_and_cleaned_texts_encoded():
    encoder = Letters()
    texts = ["a bad cab", "what is <b>bad</b> &amp; a &lt;b&gt;?", "dad", "<p>dab</p>"]
    vectors = encoder.encode(texts)
    encoder.encoded.clear()
    store = FolderStore.create(
        None,
        [Question(i, text) for i, text in enumerate(texts)],
        reuse_vectors(encoder, texts, vectors),
        Recipe("Flat"),
        encoder="0" * 64,
        dimension=5,
    )
    plain = [clean(text, {}) for text in texts]
    assert encoder.encoded == [plain[1], plain[3]]
    np.testing.assert_array_equal(store.vectors.built, Letters().encode(plain))
    assert [q.text for q in store.questions()] == texts

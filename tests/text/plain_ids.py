"""The ids of words by plain Python: slow, and what `Vocabulary.flat_ids` must equal."""

import zlib

import numpy as np

from qpr_jax.text.base import NO_PARTS
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import NGRAMS, FlatTokens, fold
from tests.parts import make_parts

END = "\n"


def hash_text(text):
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def ngrams(word, length):
    marked = f"<{word}>"
    return [marked[i : i + length] for i in range(len(marked) - length + 1)]


def ngram_bins(word, bins):
    """The bins whose sum is the embedding of a word without an id, with `subwords`."""
    grams = (gram for length in NGRAMS for gram in ngrams(fold(word)[:64], length))
    return [hash_text(gram) % bins for gram in grams]


def ngram_rows(vocabulary, word):
    return [vocabulary.first_bin + bin for bin in ngram_bins(word, vocabulary.bins)]


def split(texts, signs):
    """The words of all texts, with END after each text."""
    return [word for text in texts for word in [*tokenize(text, signs=signs), END]]


class PlainIds(dict):
    """The ids of the words of a vocabulary; of others, what the vocabulary says of them."""

    def __init__(self, vocabulary):
        super().__init__({word: [i] for i, word in enumerate(vocabulary.words, start=1)})
        first_added = vocabulary.first_bin + vocabulary.bins
        self.update({w: [i] for i, w in enumerate(vocabulary.added, start=first_added)})
        self.vocabulary = vocabulary
        self.by_folded = {}
        for id, word in enumerate(vocabulary.words, start=1):
            self.by_folded.setdefault(fold(word), id)

    def __missing__(self, word):
        return [self.vocabulary.first_bin + hash_text(word) % self.vocabulary.bins]

    def flat_ids(self, questions, max_tokens=64):
        ids, offsets, of_question, unknown, truncated = [], [0], [], {}, 0
        for word in split(questions, self.vocabulary.signs):
            if word == END:
                truncated += len(of_question) > max_tokens
                ids += of_question[:max_tokens]
                offsets.append(len(ids))
                of_question = []
            elif self.vocabulary.subwords and word not in self:
                id = self.by_folded.get(fold(word))
                if id is None:
                    id = unknown.setdefault(word, self.vocabulary.size + len(unknown))
                of_question.append(id)
            else:
                of_question += self[word]
        rows = [ngram_rows(self.vocabulary, word) for word in unknown]
        parts = make_parts(rows) if rows else NO_PARTS
        return FlatTokens(np.array(ids, np.int32), np.array(offsets, np.int64), truncated, parts)

"""The ids of words by plain Python: slow, and what `Vocabulary.token_ids` must equal."""

import itertools
import zlib

import numpy as np

from qpr_jax.text.base import NO_PARTS, Parts, TokenIds
from qpr_jax.text.tokenizer import join_codes, tokenize
from qpr_jax.text.vocabulary import NGRAMS, fold

END = "\n"


def make_parts(tokens, limit=1e6):
    """The parts of tokens, each given by its rows; with no limit that matters."""
    offsets = np.cumsum([0, *map(len, tokens)])
    limits = np.full(len(tokens), limit, np.float32)
    return Parts(np.array([*itertools.chain(*tokens)], np.int32), offsets, limits)


def hash_text(text):
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def ngrams(word, length):
    marked = f"<{word}>"
    return [marked[i : i + length] for i in range(len(marked) - length + 1)]


def shorten_runs(word):
    """At most three of a letter in a row."""
    runs = ["".join(run) for _, run in itertools.groupby(word)]
    letters = [run[0] == "_" or (run[0].isalnum() and not run[0].isdecimal()) for run in runs]
    return "".join(run[:3] if letter else run for run, letter in zip(runs, letters, strict=True))


def ngram_rows(vocabulary, word):
    """The rows of the n-grams of a word, with `subwords`."""
    word = shorten_runs(fold(word))[:64]
    grams = (gram for length in NGRAMS for gram in ngrams(word, length))
    return [vocabulary.first_bin + hash_text(gram) % vocabulary.bins for gram in grams]


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

    def knows(self, word):
        return word in self or fold(word) in self.by_folded

    def rows(self, word):
        if "_" not in word:
            return ngram_rows(self.vocabulary, word)
        rows = []
        for piece in filter(None, fold(word)[:256].split("_")):
            known = self.by_folded.get(piece)
            rows += [known] if known else ngram_rows(self.vocabulary, piece)
        return rows

    def token_ids(self, questions, max_tokens=64):
        ids, offsets, of_question, unknown, truncated = [], [0], [], {}, 0
        if self.vocabulary.subwords:
            questions = [join_codes(question, self.knows) for question in questions]
        for word in split(questions, self.vocabulary.subwords):
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
        parts = NO_PARTS
        if unknown:
            codes = ["_" in word or any(map(str.isdecimal, word)) for word in unknown]
            limits = np.where(codes, 0.8, 1.5).astype(np.float32)
            parts = make_parts([*map(self.rows, unknown)])._replace(limits=limits)
        return TokenIds(np.array(ids, np.int32), np.array(offsets, np.int64), truncated, parts)

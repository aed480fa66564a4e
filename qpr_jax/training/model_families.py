"""The kinds of encoder that can be trained: one entry of MODEL_FAMILIES for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.cnn_format import round_to_half
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.errors import UserError
from qpr_jax.models.bert import init_bert
from qpr_jax.models.cnn import EMBEDDING_SCALE, ConvEncoder
from qpr_jax.retriever import run_encoder
from qpr_jax.text.base import Tokenizer
from qpr_jax.text.vocabulary import Vocabulary, build_vocabulary, frequent_words
from qpr_jax.training.config import (
    TrainConfig,
    identity,
    imitates_itself,
    trains,
)
from qpr_jax.training.sections import EncoderConfig
from qpr_jax.training.teacher import Teacher, word_vectors

_OF_VOCABULARY = ("vocabulary_size", "min_count", "hash_bins", "subwords")
# Settings of what a CNN starts with: its words, shapes and first weights.
_OF_CNN = frozenset(
    {f"text.{name}" for name in _OF_VOCABULARY}
    | {f"encoder.{name}" for name in ("embedding_dim", "kernel_sizes", "filters", "output_dim")}
    | {"encoder.bag_of_words", "encoder.normalize"}
)

_NGRAM_SCALE = 0.25  # words have about 16 n-grams

E = TypeVar("E", bound=Encoder)
Model = tuple[nnx.GraphDef, nnx.State]


class Corpora(NamedTuple):
    """The texts whose words a tokenizer may count.

    Attributes:
      by_language: sentences and questions, a list for each language.
      dictionaries: the words of dictionaries.
      dictionary_targets: those of them that are of other languages than the first.
    """

    by_language: Sequence[Iterable[str]]
    dictionaries: Iterable[str] = ()
    dictionary_targets: Iterable[str] = ()


@dataclass(frozen=True)
class ModelFamily:
    """A kind of encoder, from the settings to the exported encoder.

    Each function takes the encoder that `start` returns and the tokenizer that `tokenizer` returns.

    Attributes:
      has_end_tokens: whether each question begins and ends with a token that is no word.
      length_blocks: the most blocks of a batch, each of which is compiled separately.
      check: raises UserError for settings of the family that do not fit each other.
      start: the encoder that training starts from; None for fresh parameters.
      tokenizer: from that encoder, or from the texts of each language, whose words are counted.
      lengths_vary: whether vectors have other lengths than 1.
      init: the model before the first step, with `embedding` [V, e] and `encode_blocks`.
      export: the encoder of trained parameters.
    """

    length_blocks: int
    has_end_tokens: bool
    check: Callable[[TrainConfig], None]
    start: Callable[[TrainConfig], Encoder | None]
    tokenizer: Callable[[TrainConfig, Any, Corpora], Tokenizer]
    lengths_vary: Callable[[TrainConfig], bool]
    init: Callable[[TrainConfig, Any, Any, Teacher | None], Model]
    export: Callable[[TrainConfig, Any, Any, nnx.State], Encoder]


def _check_cnn(config: TrainConfig) -> None:
    if config.encoder.pretrained:  # has words of its own
        return
    if config.batch.subword_dropout and not config.text.subwords:
        raise UserError(
            f"expected 0, since words are no sums of n-grams, got {config.batch.subword_dropout:g}",
            setting="batch.subword_dropout",
            remedy="set `text.subwords=True`, or `batch.subword_dropout=0`",
        )


def _check_bert(config: TrainConfig) -> None:
    rate = config.batch.subword_dropout
    if not config.encoder.pretrained:
        raise UserError(
            "must name a folder to start from: bert has no fresh weights",
            setting="encoder.pretrained",
            remedy="set it, or another `encoder.kind`",
        )
    if rate and config.job == "encoder" and trains(config):
        raise UserError(
            f"expected 0, since words of bert are no sums of n-grams, got {rate:g}",
            setting="batch.subword_dropout",
            remedy="set `batch.subword_dropout=0`, or `encoder.kind=cnn`",
        )


def _init_cnn(
    config: TrainConfig,
    start: CnnEncoder | None,
    vocabulary: Vocabulary,
    teacher: Teacher | None,
) -> Model:
    """Parameters of `start`, or random; the embeddings may start at the teacher's of the words."""
    settings = _shape_of(start) if start else config.encoder
    model = ConvEncoder(
        vocabulary_size=vocabulary.size,
        embedding_dim=settings.embedding_dim,
        kernel_sizes=settings.kernel_sizes,
        filters=settings.filters,
        output_dim=settings.output_dim,
        bag_of_words=settings.bag_of_words,
        normalize=settings.normalize,
        compute_dtype=config.encoder.compute_dtype,
        precision=config.precision,
        rngs=nnx.Rngs(config.seed),
    )
    if vocabulary.subwords and not start:  # a word is the sum of many of these rows
        model.embedding[...] = (
            model.embedding[...].at[vocabulary.first_bin :].multiply(_NGRAM_SCALE)
        )
    if start:
        model.embedding[...] = model.embedding[...].at[: len(start.embedding)].set(start.embedding)
        for i, (kernel, bias) in enumerate(zip(start.kernels, start.biases, strict=True)):
            model.kernels[i][...] = jnp.array(kernel.transpose(1, 0, 2))  # [e, w, f]
            model.biases[i][...] = jnp.array(bias)
        model.projection[...] = jnp.array(start.projection)
    elif teacher and teacher.encoder:
        vectors = word_vectors(
            teacher.encoder, vocabulary.words, settings.embedding_dim, teacher.glossary
        )
        vectors *= EMBEDDING_SCALE / vectors.std()
        rows, width = vectors.shape
        model.embedding[...] = model.embedding[...].at[1 : 1 + rows, :width].set(vectors)
    return nnx.split(model)


def _export_cnn(
    config: TrainConfig, start: CnnEncoder | None, vocabulary: Vocabulary, params: nnx.State
) -> Encoder:
    tree = _copy_to_host(params)
    if start and config.text.added_words:
        rows = tree["embedding"][len(start.embedding) :]
        return start.with_words(vocabulary, rows, _settings(config, start))
    tree["embedding"][0] = 0
    if config.encoder.stored_dtype == "float16":
        tree = jax.tree.map(round_to_half, tree)
    kernels = (tree["kernels"][i].transpose(1, 0, 2) for i in sorted(tree["kernels"]))
    # Without a training it keeps its vectors, and so its own limit and what it extends.
    copied = start if not trains(config) else None
    return CnnEncoder(
        embedding=tree["embedding"],
        kernels=tuple(map(np.ascontiguousarray, kernels)),  # [w, e, f] each
        biases=tuple(tree["biases"][i] for i in sorted(tree["biases"])),
        projection=tree["projection"],
        vocabulary=vocabulary,
        max_tokens=copied.max_tokens if copied else config.text.max_tokens,
        settings=_settings(config, start),
        normalize=start.normalize if start else config.encoder.normalize,
        extends=copied.extends if copied else (),
    )


def _settings(config: TrainConfig, start: CnnEncoder | None) -> dict[str, Any]:
    """The settings of an export: those of the model are of the encoder that it started from."""
    kept = start.settings if start else {}
    return identity(config) | {name: kept[name] for name in _OF_CNN if name in kept}


def _vocabulary_of(config: TrainConfig, start: CnnEncoder | None, corpora: Corpora) -> Vocabulary:
    """That of the encoder that training starts from; else of the texts of each language.

    With `text.added_words` words of all languages but the first have rows, too.
    """
    if start:
        added = config.text.added_words
        return _with_added_words(config, start, corpora) if added else start.vocabulary
    return build_vocabulary(
        *corpora.by_language,
        fill=corpora.dictionaries,
        size=config.text.vocabulary_size,
        bins=config.text.hash_bins,
        min_count=config.text.min_count,
        subwords=config.text.subwords,
    )


def _with_added_words(config: TrainConfig, start: CnnEncoder, corpora: Corpora) -> Vocabulary:
    """The vocabulary of `start` and words of all languages but the first."""
    if not (start.normalize or imitates_itself(config)):
        raise UserError(
            f"expected vectors of length 1, as a teacher's, of {config.encoder.pretrained}, got "
            "others",
            setting="text.added_words",
            remedy="leave out `teacher.model`: the encoder then imitates itself",
        )
    words = frequent_words(
        corpora.by_language[1:],
        min_count=config.text.min_count,
        fill=corpora.dictionary_targets,
    )
    vocabulary = start.vocabulary.with_words(words, config.text.added_words)
    if vocabulary == start.vocabulary:
        raise UserError(
            f"expected words in {', '.join(config.data.parallel)} that "
            f"{config.encoder.pretrained} has no row for, found none",
            setting="text.added_words",
            remedy="give other files in `data.parallel`, or lower `text.min_count`",
        )
    return vocabulary


def _shape_of(start: CnnEncoder) -> EncoderConfig:
    """The settings that an encoder of these weights has."""
    (embedding_dim, filters), features = start.kernels[0].shape[1:], len(start.projection)
    return EncoderConfig(
        embedding_dim=embedding_dim,
        kernel_sizes=tuple(map(len, start.kernels)),
        filters=filters,
        output_dim=start.dimension,
        bag_of_words=features > filters * len(start.kernels),
        normalize=start.normalize,
    )


def _read_cnn(config: TrainConfig) -> CnnEncoder | None:
    if not config.encoder.pretrained:
        return None
    return _read_start(
        config,
        CnnEncoder,
        "expected the folder of a run with a CNN",
        remedy="name a run that was trained with `encoder.kind=cnn`",
    )


def _read_bert(config: TrainConfig) -> TransformerEncoder:
    return _read_start(
        config,
        TransformerEncoder,
        "expected a folder in the format of sentence-transformers",
        remedy="name such a folder or `minilm`, or set `encoder.kind=cnn` to start from a run",
    )


def _read_start(config: TrainConfig, kind: type[E], expected: str, *, remedy: str) -> E:
    path = config.encoder.pretrained
    try:
        encoder = run_encoder(os.path.expanduser(path))
    except UserError as error:
        raise UserError(error.what, setting="encoder.pretrained", remedy=error.remedy) from None
    if not isinstance(encoder, kind):
        what = f"{expected}, got {path!r}"
        raise UserError(what, setting="encoder.pretrained", remedy=remedy)
    return encoder


def _init_bert(
    config: TrainConfig, start: TransformerEncoder, tokenizer: Tokenizer, teacher: Teacher | None
) -> Model:
    settings = config.encoder
    # Copies: a step donates its state, and the model's weights are read again.
    weights = jax.tree.map(jnp.array, start.model.weights)
    return init_bert(start.model.shape, weights, settings.compute_dtype, config.precision)


def _export_bert(
    config: TrainConfig, start: TransformerEncoder, tokenizer: Tokenizer, params: nnx.State
) -> Encoder:
    # Without a training the encoder keeps its own limit.
    limit = config.text.max_tokens if trains(config) else start.max_tokens
    return start.trained(_copy_to_host(params), identity(config), max_tokens=limit)


def _copy_to_host(params: nnx.State) -> dict[str, Any]:
    # A copy: a step donates its state, and must not overwrite memory that is still read here.
    tree: dict[str, Any] = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(params)))
    return tree


MODEL_FAMILIES = {
    "cnn": ModelFamily(
        length_blocks=8,
        has_end_tokens=False,
        check=_check_cnn,
        start=_read_cnn,
        tokenizer=_vocabulary_of,
        lengths_vary=lambda config: not config.encoder.normalize,
        init=_init_cnn,
        export=_export_cnn,
    ),
    "bert": ModelFamily(
        length_blocks=4,  # a layer takes seconds to compile, and more for its gradient
        has_end_tokens=True,
        check=_check_bert,
        start=_read_bert,
        tokenizer=lambda config, start, corpora: start.tokenizer,
        lengths_vary=lambda config: False,
        init=_init_bert,
        export=_export_bert,
    ),
}

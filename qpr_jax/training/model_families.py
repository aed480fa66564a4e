"""The kinds of encoder that can be trained: one entry of MODEL_FAMILIES for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.errors import UserError
from qpr_jax.models.bert import init_bert
from qpr_jax.models.cnn import EMBEDDING_SCALE, ConvEncoder
from qpr_jax.precision import resolve
from qpr_jax.retriever import run_encoder
from qpr_jax.text.base import Tokenizer
from qpr_jax.text.vocabulary import Vocabulary, build_vocabulary
from qpr_jax.training.config import TrainConfig, identity, trains
from qpr_jax.training.teacher import Teacher, word_vectors
from qpr_jax.tuning import Tuning

Model = tuple[nnx.GraphDef, nnx.State]

# Settings of matrix products, which every family reads.
_PRODUCTS = ("encoder.compute_dtype", "encoder.precision")


@dataclass(frozen=True)
class ModelFamily:
    """A kind of encoder, from the settings to the exported encoder.

    Attributes:
      settings: dotted names of those that it reads and another may not. With
        `encoder.pretrained` it starts from an encoder; else vectors have `encoder.output_dim`.
      length_blocks: the most blocks of a batch, each of which is compiled separately.
      check: raises UserError for settings of the family that do not fit each other.
      start: the encoder that training starts from; None for fresh parameters.
      tokenizer: from that encoder, or from questions whose words may be counted.
      lengths_vary: whether vectors have other lengths than 1.
      init: the model before the first step, with `embedding` [V, e] and `encode_blocks`, for
        devices of this tuning.
      export: the encoder of trained parameters.
    """

    settings: frozenset[str]
    length_blocks: int
    check: Callable[[TrainConfig], None]
    start: Callable[[TrainConfig], Encoder | None]
    tokenizer: Callable[[TrainConfig, Encoder | None, Iterable[str]], Tokenizer]
    lengths_vary: Callable[[TrainConfig], bool]
    init: Callable[[TrainConfig, Encoder | None, Tokenizer, Teacher | None, Tuning], Model]
    export: Callable[[TrainConfig, Encoder | None, Tokenizer, nnx.State], Encoder]


def _check_cnn(config: TrainConfig) -> None:
    if not config.encoder.kernel_sizes:
        raise UserError("expected one size or more, got none", setting="encoder.kernel_sizes")


def _init_cnn(
    config: TrainConfig, vocabulary: Vocabulary, teacher: Teacher | None, tuning: Tuning
) -> Model:
    """Random parameters; the embeddings may start at the teacher's vectors of the words."""
    settings = config.encoder
    model = ConvEncoder(
        vocabulary_size=vocabulary.size,
        embedding_dim=settings.embedding_dim,
        kernel_sizes=settings.kernel_sizes,
        filters=settings.filters,
        output_dim=settings.output_dim,
        bag_of_words=settings.bag_of_words,
        normalize=settings.normalize,
        compute_dtype=settings.compute_dtype,
        precision=resolve(settings.precision, platform=tuning.platform),
        max_scores=tuning.scores_of_encoder(),
        rngs=nnx.Rngs(config.seed),
    )
    if teacher and teacher.encoder and config.teacher.init_embeddings:
        cache, words = config.teacher.cache, vocabulary.words
        vectors = word_vectors(teacher.encoder, cache, words, settings.embedding_dim)
        vectors *= EMBEDDING_SCALE / vectors.std()
        model.embedding[...] = model.embedding[...].at[1 : 1 + len(vectors)].set(vectors)
    return nnx.split(model)


def _export_cnn(config: TrainConfig, vocabulary: Vocabulary, params: nnx.State) -> Encoder:
    tree = _copy_to_host(params)
    tree["embedding"][0] = 0
    kernels = (tree["kernels"][i].transpose(1, 0, 2) for i in sorted(tree["kernels"]))
    return CnnEncoder(
        embedding=tree["embedding"],
        kernels=tuple(map(np.ascontiguousarray, kernels)),  # [w, e, f] each
        biases=tuple(tree["biases"][i] for i in sorted(tree["biases"])),
        projection=tree["projection"],
        vocabulary=vocabulary,
        max_tokens=config.text.max_tokens,
        settings=identity(config),
        normalize=config.encoder.normalize,
    )


def _read_bert(config: TrainConfig) -> TransformerEncoder:
    path = config.encoder.pretrained
    try:
        encoder = run_encoder(os.path.expanduser(path))
    except UserError as error:
        raise UserError(error.what, setting="encoder.pretrained", remedy=error.remedy) from None
    if not isinstance(encoder, TransformerEncoder):
        raise UserError(
            f"expected a folder in the format of sentence-transformers, got {path!r}",
            setting="encoder.pretrained",
        )
    return encoder


def _init_bert(config: TrainConfig, start: TransformerEncoder, tuning: Tuning) -> Model:
    settings = config.encoder
    # Copies: a step donates its state, and the model's weights are read again.
    weights = jax.tree.map(jnp.array, start.model.weights)
    precision = resolve(settings.precision, platform=tuning.platform)
    return init_bert(start.model.shape, weights, settings.compute_dtype, precision)


def _export_bert(config: TrainConfig, start: TransformerEncoder, params: nnx.State) -> Encoder:
    # Without a training the encoder keeps its own limit.
    limit = config.text.max_tokens if trains(config) else start.max_tokens
    return start.trained(_copy_to_host(params), identity(config), max_tokens=limit)


def _copy_to_host(params: nnx.State) -> dict[str, Any]:
    # A copy: a step donates its state, and must not overwrite memory that is still read here.
    tree: dict[str, Any] = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(params)))
    return tree


MODEL_FAMILIES = {
    "cnn": ModelFamily(
        settings=frozenset(
            {f"text.{name}" for name in ("vocabulary_size", "min_count", "hash_bins")}
            | {f"encoder.{name}" for name in ("embedding_dim", "kernel_sizes", "filters")}
            | {f"encoder.{name}" for name in ("output_dim", "bag_of_words", "normalize")}
            | {"text.char_ngrams", "batch.encode_chunk", *_PRODUCTS}
            | {"teacher.init_embeddings", "tuning.encoder_scores"}
        ),
        length_blocks=8,
        check=_check_cnn,
        start=lambda config: None,
        tokenizer=lambda config, start, questions: build_vocabulary(
            questions,
            size=config.text.vocabulary_size,
            bins=config.text.hash_bins,
            min_count=config.text.min_count,
            char_ngrams=config.text.char_ngrams,
        ),
        lengths_vary=lambda config: not config.encoder.normalize,
        init=lambda config, start, tokenizer, teacher, tuning: _init_cnn(
            config, cast(Vocabulary, tokenizer), teacher, tuning
        ),
        export=lambda config, start, tokenizer, params: _export_cnn(
            config, cast(Vocabulary, tokenizer), params
        ),
    ),
    "bert": ModelFamily(
        settings=frozenset({"encoder.pretrained", "batch.encode_chunk", *_PRODUCTS}),
        length_blocks=4,  # a layer takes seconds to compile, and more for its gradient
        check=lambda config: None,
        start=_read_bert,
        tokenizer=lambda config, start, questions: cast(TransformerEncoder, start).tokenizer,
        lengths_vary=lambda config: False,
        init=lambda config, start, tokenizer, teacher, tuning: _init_bert(
            config, cast(TransformerEncoder, start), tuning
        ),
        export=lambda config, start, tokenizer, params: _export_bert(
            config, cast(TransformerEncoder, start), params
        ),
    ),
}

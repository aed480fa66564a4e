"""The kinds of encoder that can be trained: one entry of MODEL_FAMILIES for each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol, cast

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
from qpr_jax.retriever import run_encoder
from qpr_jax.text.base import Tokenizer
from qpr_jax.text.vocabulary import Vocabulary, build_vocabulary
from qpr_jax.training.config import TrainConfig, identity, trains
from qpr_jax.training.teacher import Teacher, word_vectors


class ModelFamily(Protocol):
    """A kind of encoder, from the settings to the exported encoder.

    settings: dotted names of those that this family alone reads. length_blocks: the most blocks of
    a batch, each of which is compiled separately.
    """

    settings: frozenset[str]
    length_blocks: int

    def check(self, config: TrainConfig) -> None:
        """Raise UserError for settings of the family that do not fit each other."""

    def start(self, config: TrainConfig) -> Encoder | None:
        """The encoder that training starts from; None for fresh parameters."""

    def tokenizer(
        self, config: TrainConfig, start: Encoder | None, questions: Iterable[str]
    ) -> Tokenizer:
        """The tokenizer; `questions` are those that may be counted."""

    def init(
        self,
        config: TrainConfig,
        start: Encoder | None,
        tokenizer: Tokenizer,
        teacher: Teacher | None,
    ) -> tuple[nnx.GraphDef, nnx.State]:
        """The model before the first step: with `embedding` [V, e] and `encode_blocks`."""

    def export(
        self, config: TrainConfig, start: Encoder | None, tokenizer: Tokenizer, params: nnx.State
    ) -> Encoder:
        """The encoder of trained parameters."""


class CnnFamily:
    """The paper's convolutional encoder."""

    length_blocks = 8
    settings = frozenset(
        {f"text.{name}" for name in ("vocabulary_size", "min_count", "hash_bins", "char_ngrams")}
        | {f"encoder.{name}" for name in ("embedding_dim", "kernel_sizes", "filters")}
        | {f"encoder.{name}" for name in ("output_dim", "bag_of_words", "normalize")}
        | {"teacher.init_embeddings"}
    )

    def check(self, config: TrainConfig) -> None:
        """Refuse a model to start from, and no kernel at all."""
        if config.encoder.pretrained:
            raise UserError(
                "expected `bert` with a folder to start from, or `cnn` without one, got "
                f"{config.encoder.kind!r} and {config.encoder.pretrained!r}",
                remedy="set {encoder.kind=bert}, or leave {encoder.pretrained} out",
            )
        if not config.encoder.kernel_sizes:
            raise UserError("expected one size or more, got none", setting="encoder.kernel_sizes")

    def start(self, config: TrainConfig) -> Encoder | None:
        """None: its parameters are fresh."""
        return None

    def tokenizer(
        self, config: TrainConfig, start: Encoder | None, questions: Iterable[str]
    ) -> Tokenizer:
        """The most frequent words of the questions, and bins for all others."""
        return build_vocabulary(
            questions,
            size=config.text.vocabulary_size,
            bins=config.text.hash_bins,
            min_count=config.text.min_count,
            char_ngrams=config.text.char_ngrams,
        )

    def init(
        self,
        config: TrainConfig,
        start: Encoder | None,
        tokenizer: Tokenizer,
        teacher: Teacher | None,
    ) -> tuple[nnx.GraphDef, nnx.State]:
        """Random parameters; the embeddings may start at the teacher's vectors of the words."""
        settings = config.encoder
        graph, params = nnx.split(
            ConvEncoder(
                vocabulary_size=tokenizer.size,
                embedding_dim=settings.embedding_dim,
                kernel_sizes=settings.kernel_sizes,
                filters=settings.filters,
                output_dim=settings.output_dim,
                bag_of_words=settings.bag_of_words,
                normalize=settings.normalize,
                compute_dtype=settings.compute_dtype,
                rngs=nnx.Rngs(config.seed),
            )
        )
        if teacher and config.teacher.init_embeddings:
            words = cast(Vocabulary, tokenizer).words
            vectors = word_vectors(teacher, config.teacher.cache, words, settings.embedding_dim)
            vectors *= EMBEDDING_SCALE / vectors.std()
            table: Any = params["embedding"]
            table[...] = table[...].at[1 : 1 + len(vectors)].set(vectors)
        return graph, params

    def export(
        self, config: TrainConfig, start: Encoder | None, tokenizer: Tokenizer, params: nnx.State
    ) -> Encoder:
        """The parameters in NumPy, kernels as [w, e, f]."""
        tree = _copy_to_host(params)
        tree["embedding"][0] = 0
        kernels = (tree["kernels"][i].transpose(1, 0, 2) for i in sorted(tree["kernels"]))
        return CnnEncoder(
            embedding=tree["embedding"],
            kernels=tuple(map(np.ascontiguousarray, kernels)),
            biases=tuple(tree["biases"][i] for i in sorted(tree["biases"])),
            projection=tree["projection"],
            vocabulary=cast(Vocabulary, tokenizer),
            max_tokens=config.text.max_tokens,
            settings=identity(config),
            normalize=config.encoder.normalize,
        )


class BertFamily:
    """A BERT in the format of sentence-transformers, trained further."""

    settings = frozenset({"encoder.pretrained"})
    length_blocks = 4  # a layer takes seconds to compile, and more for its gradient

    def check(self, config: TrainConfig) -> None:
        """Require a model to start from."""
        if not config.encoder.pretrained:
            raise UserError(
                "expected `bert` with a folder to start from, or `cnn` without one, got "
                f"{config.encoder.kind!r} and {config.encoder.pretrained!r}",
                remedy="set {encoder.pretrained=minilm}, or another folder",
            )

    def start(self, config: TrainConfig) -> Encoder | None:
        """The transformer of `encoder.pretrained`."""
        path = config.encoder.pretrained
        try:
            found = run_encoder(os.path.expanduser(path))
        except UserError as error:
            raise UserError(error.what, setting="encoder.pretrained", remedy=error.remedy) from None
        if not isinstance(found, TransformerEncoder):
            raise UserError(
                f"expected a folder in the format of sentence-transformers, got {path!r}",
                setting="encoder.pretrained",
            )
        return found

    def tokenizer(
        self, config: TrainConfig, start: Encoder | None, questions: Iterable[str]
    ) -> Tokenizer:
        """The tokenizer of the folder."""
        return cast(TransformerEncoder, start).tokenizer

    def init(
        self,
        config: TrainConfig,
        start: Encoder | None,
        tokenizer: Tokenizer,
        teacher: Teacher | None,
    ) -> tuple[nnx.GraphDef, nnx.State]:
        """The parameters of the folder."""
        model = cast(TransformerEncoder, start).model
        # Copies: a step donates its state, and the model's weights are read again.
        weights = jax.tree.map(jnp.array, model.weights)
        return init_bert(model.shape, weights, config.encoder.compute_dtype)

    def export(
        self, config: TrainConfig, start: Encoder | None, tokenizer: Tokenizer, params: nnx.State
    ) -> Encoder:
        """The folder with the trained weights."""
        encoder = cast(TransformerEncoder, start)
        # Without a training the encoder keeps its own limit.
        limit = config.text.max_tokens if trains(config) else encoder.max_tokens
        return encoder.trained(_copy_to_host(params), identity(config), max_tokens=limit)


MODEL_FAMILIES: dict[str, ModelFamily] = {"cnn": CnnFamily(), "bert": BertFamily()}


def _copy_to_host(params: nnx.State) -> dict[str, Any]:
    # A copy: a step donates its state, and must not overwrite memory that is still read here.
    tree: dict[str, Any] = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(params)))
    return tree

"""The kinds of encoder that can be trained: one entry of MODEL_FAMILIES for each."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qpr_jax.encoders.cnn_encoder import CnnEncoder, round_to_half, round_to_int8
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.encoders.load import MINILM, MINILM_WEIGHTS, PACKAGED, encoder_folder
from qpr_jax.encoders.sentence_transformers import ROBERTAS
from qpr_jax.encoders.transformer_encoder import OnnxEncoder, TransformerEncoder
from qpr_jax.errors import UserError
from qpr_jax.locations import read_encoder
from qpr_jax.models import EMBEDDING_SCALE
from qpr_jax.models.bert import init_bert
from qpr_jax.models.cnn import ConvEncoder
from qpr_jax.text.vocabulary import Tokenizer, Vocabulary, frequent_words
from qpr_jax.training.config import TrainConfig, fingerprint, naming, trains
from qpr_jax.training.train_data import TrainDataset

log = logging.getLogger(__name__)

# Settings of the shape of a CNN, and those that an encoder trained from another one keeps.
_SHAPE = ("embedding_dim", "kernel_sizes", "filters", "output_dim", "bag_of_words", "normalize")
_KEPT = [f"text.{name}" for name in ("vocabulary_size", "hash_bins", "subwords")]
_KEPT += [f"encoder.{name}" for name in _SHAPE]
_NGRAM_SCALE = 0.25  # words have about 16 n-grams

Model = tuple[nnx.GraphDef, nnx.State]


@dataclasses.dataclass(frozen=True)
class ModelFamily:
    """A kind of encoder, from the settings to the exported encoder."""

    length_blocks: int  # the most blocks of a batch, each of which is compiled separately
    # From the encoder that training starts from, or from the texts of each language, whose words
    # are counted, and from texts of dictionaries, whose words come last.
    tokenizer: Callable[[TrainConfig, Any, Sequence[list[str]], list[str]], Tokenizer]
    # The model before the first step, with `embedding` [V, e] and `encode_blocks`.
    init: Callable[[TrainConfig, TrainDataset], Model]
    export: Callable[[TrainConfig, TrainDataset, nnx.State], Encoder]


def read_start(config: TrainConfig) -> Encoder | None:
    """Read the encoder that training starts from; UserError if it cannot be trained."""
    if not config.encoder.pretrained:
        return None
    with naming("encoder.pretrained"):
        named = config.encoder.pretrained
        if encoder_folder(named) == PACKAGED[MINILM]:
            named = MINILM_WEIGHTS
            log.info("%s has 8 bits: training starts from %s, and exports float32", MINILM, named)
        encoder = read_encoder(named)
        if not isinstance(encoder, CnnEncoder | TransformerEncoder):
            what, remedy = f"expected an encoder that can be trained, got {encoder}", ""
            if isinstance(encoder, OnnxEncoder):
                what += ", in 8 bits"
                remedy = f"name the transformer that it was made from, as `{MINILM_WEIGHTS}`"
            raise UserError(what, remedy=remedy)
        if isinstance(encoder, TransformerEncoder) and encoder.model_type in ROBERTAS:
            # Batches are padded with token 0, which begins each text of these.
            what = f"expected a BERT or a convolutional encoder, got the kind {encoder.model_type}"
            raise UserError(what, remedy="let it be the teacher: `teacher.model`")
    return encoder


def family_of(start: Encoder | None) -> ModelFamily:
    """The family of the encoder that training starts from, convolutional without one."""
    return MODEL_FAMILIES["bert" if isinstance(start, TransformerEncoder) else "cnn"]


def _cnn_vocabulary(
    config: TrainConfig, start: CnnEncoder | None, corpora: Sequence[list[str]], fill: list[str]
) -> Vocabulary:
    """Return the vocabulary of the start, or else that of the texts."""
    if start:
        return start.vocabulary
    text = config.text
    words = frequent_words(*corpora, min_count=2 if text.subwords else 1, fill=fill)
    return Vocabulary(tuple(words[: text.vocabulary_size]), text.hash_bins, text.subwords)


def _init_cnn(config: TrainConfig, dataset: TrainDataset) -> Model:
    """Parameters of the start, or random; embeddings may start at the teacher's of the words."""
    start = cast("CnnEncoder | None", dataset.start)
    vocabulary = cast(Vocabulary, dataset.tokenizer)
    make = functools.partial(
        ConvEncoder,
        vocabulary_size=vocabulary.size,
        compute_dtype=config.encoder.compute_dtype,
        precision=config.precision,
    )
    if start:
        return _continued(make, start)
    shape, teacher = config.encoder.model_dump(include=set(_SHAPE)), dataset.teacher
    model = make(rngs=nnx.Rngs(config.seed), **shape)
    table = model.embedding[...]
    if vocabulary.subwords:  # a word is the sum of many of these rows
        table = table.at[vocabulary.first_bin :].multiply(_NGRAM_SCALE)
    if teacher and teacher.encoder:
        # Words of other languages begin as their translations.
        translated = dataset.translations.word_translations() if dataset.translations else {}
        texts = [translated.get(word, word) for word in vocabulary.words]
        vectors = teacher.word_vectors(texts, config.encoder.embedding_dim)
        vectors *= EMBEDDING_SCALE / vectors.std()
        table = table.at[1 : 1 + len(vectors), : vectors.shape[1]].set(vectors)
    model.embedding[...] = table
    return nnx.split(model)


def _continued(make: Callable[..., ConvEncoder], start: CnnEncoder) -> Model:
    """The model with the parameters of the start."""
    filters = len(start.biases[0])
    # Shapes alone: random weights would take seconds to compile, and be replaced.
    model = nnx.eval_shape(
        lambda: make(
            embedding_dim=start.embedding.shape[1],
            kernel_sizes=tuple(map(len, start.kernels)),
            filters=filters,
            output_dim=start.dimension,
            bag_of_words=len(start.projection) > filters * len(start.kernels),
            normalize=start.normalize,
            rngs=nnx.Rngs(0),
        )
    )
    graph, params = nnx.split(model)
    kernels = [jnp.array(kernel.transpose(1, 0, 2)) for kernel in start.kernels]  # [e, w, f]
    weights = {
        "embedding": jnp.array(start.embedding),
        "kernels": dict(enumerate(kernels)),
        "biases": dict(enumerate(map(jnp.array, start.biases))),
        "projection": jnp.array(start.projection),
    }
    nnx.replace_by_pure_dict(params, weights)
    return graph, params


def _export_cnn(config: TrainConfig, dataset: TrainDataset, params: nnx.State) -> Encoder:
    start = cast("CnnEncoder | None", dataset.start)
    vocabulary = cast(Vocabulary, dataset.tokenizer)
    settings = fingerprint(config)
    if start:
        settings |= {name: start.settings[name] for name in _KEPT if name in start.settings}
        if not trains(config):
            return dataclasses.replace(start, settings=settings)
    tree = copy_to_host(params)
    tree["embedding"][0] = 0
    stored = config.encoder.stored_dtype
    if stored != "float32":
        round_table = round_to_int8 if stored == "int8" else round_to_half
        embedding = round_table(tree.pop("embedding"))
        tree = jax.tree.map(round_to_half, tree) | {"embedding": embedding}
    layers = sorted(tree["kernels"])
    kernels = (tree["kernels"][i].transpose(1, 0, 2) for i in layers)
    return CnnEncoder(
        embedding=tree["embedding"],
        kernels=tuple(map(np.ascontiguousarray, kernels)),  # [w, e, f] each
        biases=tuple(tree["biases"][i] for i in layers),
        projection=tree["projection"],
        vocabulary=vocabulary,
        max_tokens=config.text.max_tokens,
        settings=settings,
        normalize=start.normalize if start else config.encoder.normalize,
    )


def _init_bert(config: TrainConfig, dataset: TrainDataset) -> Model:
    start = cast(TransformerEncoder, dataset.start)
    # Copies: a step donates its state, and the model's weights are read again.
    weights = jax.tree.map(jnp.array, start.weights)
    return init_bert(start.shape, weights, config.encoder.compute_dtype, config.precision)


def _export_bert(config: TrainConfig, dataset: TrainDataset, params: nnx.State) -> Encoder:
    start = cast(TransformerEncoder, dataset.start)
    # Without a training the encoder keeps its own limit.
    limit = config.text.max_tokens if trains(config) else start.max_tokens
    return start.trained(copy_to_host(params), fingerprint(config), max_tokens=limit)


def copy_to_host(params: nnx.State) -> dict[str, Any]:
    """The arrays by name: copies, since a step donates its state, whose memory is overwritten."""
    tree: dict[str, Any] = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(params)))
    return tree


MODEL_FAMILIES = {
    "cnn": ModelFamily(
        length_blocks=8, tokenizer=_cnn_vocabulary, init=_init_cnn, export=_export_cnn
    ),
    "bert": ModelFamily(
        length_blocks=4,  # a layer takes seconds to compile, and more for its gradient
        tokenizer=lambda config, start, corpora, fill: start.tokenizer,
        init=_init_bert,
        export=_export_bert,
    ),
}

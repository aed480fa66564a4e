"""Folders of published encoders: weights as safetensors, vocabulary, settings, a card, hashes.

Nothing in them is code. A transformer is published in the format of sentence-transformers instead,
which other tools read.
"""

from __future__ import annotations

import os
import pathlib

from qpr_jax.encoders.cnn_encoder import (
    SETTINGS,
    VOCABULARY,
    CnnEncoder,
    arrays_of,
    assembled,
)
from qpr_jax.errors import UserError
from qpr_jax.files import (
    Path,
    manifest_format,
    read_manifest,
    read_verified,
    replace_folder,
    user_cache,
    write_atomically,
    write_json,
    write_manifest,
)
from qpr_jax.text.vocabulary import write_vocabulary

FORMAT = "qpr_jax model 1"
WEIGHTS, CARD = "model.safetensors", "README.md"


def write_published(folder: Path, encoder: CnnEncoder, card: str) -> None:
    """Write an encoder and its card to `folder`, whole or not at all; `read_published` reads it."""
    from safetensors.numpy import save

    with replace_folder(folder) as part:
        for name, data in ((WEIGHTS, save(arrays_of(encoder))), (CARD, card.encode())):
            with write_atomically(part / name) as file:
                file.write(data)
        write_vocabulary(part / VOCABULARY, encoder.vocabulary)
        facts = {
            "max_words": encoder.max_words,
            "normalize": encoder.normalize,
            "settings": encoder.settings,
        }
        write_json(part / SETTINGS, facts)
        write_manifest(part, [WEIGHTS, VOCABULARY, SETTINGS, CARD], format=FORMAT)


def read_published(folder: Path) -> CnnEncoder:
    """The encoder that `write_published` wrote, with its identity; UserError where damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    manifest = read_manifest(folder, format=FORMAT)
    files = {
        name: read_verified(folder, name, manifest) for name in (WEIGHTS, VOCABULARY, SETTINGS)
    }
    try:
        arrays = load(files[WEIGHTS])
    except (SafetensorError, KeyError) as error:
        raise UserError(f"{folder}: {WEIGHTS} holds no arrays ({error}); fetch it anew") from error
    return assembled(arrays, files[VOCABULARY], files[SETTINGS], folder)


def is_published(folder: Path) -> bool:
    """Whether a folder says that it is of this format."""
    return manifest_format(folder) == FORMAT


def model_folders() -> list[pathlib.Path]:
    """Where published models are looked for by name: `$QPR_MODELS`, then the cache."""
    own = os.environ.get("QPR_MODELS")
    return [*([pathlib.Path(own)] if own else []), user_cache() / "models"]

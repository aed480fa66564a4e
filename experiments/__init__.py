"""Experiments: named settings and the program that runs them."""

from qpr_jax.errors import UserError, needs

try:  # here, since each program imports it before it could print an error as one line
    with needs("experiments", ".[train]"):
        import pydantic  # noqa: F401
except UserError as error:
    raise SystemExit(f"error: {error}") from None

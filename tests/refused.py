"""A table of mistakes with the errors that they get."""

import re

from qpr_jax.errors import UserError


def check_refused(call, *cases):
    """Each case, arguments of `call` and then a pattern, is a UserError of one such line."""
    for *arguments, pattern in cases:
        try:
            call(*arguments)
            said = "no error"
        except UserError as error:
            said = str(error)
        assert re.search(pattern, said), (arguments, pattern, said)
        assert "\n" not in said

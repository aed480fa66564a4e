"""The matrix products of a function, as it is lowered for a platform that is not at hand."""

import math
import re
from typing import NamedTuple

_DOT = re.compile(r"stablehlo\.dot_general .*?: \(tensor<(\S+?)>, tensor<(\S+?)>\)")
_SETTING = re.compile(r"precision = \[(\w+), \w+\]")
_ALGORITHM = re.compile(r"lhs_precision_type = (\w+).*num_primitive_operations = (\d)")


class Dot(NamedTuple):
    """Shape and type of both factors, as "4x8xf32", and precision, as "HIGHEST" or "bf16 x3"."""

    left: str
    right: str
    precision: str

    @property
    def types(self):
        return {side.rpartition("x")[2] for side in (self.left, self.right)}


_COLLECTIVE = re.compile(
    r"= (.+?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


class Collective(NamedTuple):
    """A kind, and the numbers that it gives each device."""

    name: str
    numbers: int


def collectives(text):
    """The collectives of a compiled program, of its text."""
    found = []
    for shapes, name in _COLLECTIVE.findall(text):
        sizes = re.findall(r"\w+\[([\d,]*)\]", shapes)
        found.append(
            Collective(name, sum(math.prod(map(int, filter(None, s.split(",")))) for s in sizes))
        )
    return found


def dots(jitted, *arguments, platform):
    """All products in the text of `jitted`, lowered for `platform`: cpu, cuda or tpu."""
    text = jitted.trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    found = []
    for line in text.splitlines():
        if match := _DOT.search(line):
            algorithm, setting = _ALGORITHM.search(line), _SETTING.search(line)
            precision = setting[1] if setting else "DEFAULT"
            found.append(
                Dot(*match.groups(), " x".join(algorithm.groups()) if algorithm else precision)
            )
    assert len(found) == text.count("dot_general ") > 0
    return found

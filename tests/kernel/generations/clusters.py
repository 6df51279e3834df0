"""Random rings and their generations."""

from collections.abc import Sequence

from hypothesis import strategies as st

from ringlog.kernel.generations.describe import generate
from ringlog.kernel.model.state import Generation, Node
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, GenerationRange

Owners = dict[int, str]


def member(name: str, shards: int, ignore_msb: int) -> Node:
    return Node(name, name, f"{name}:1", "dc1", "r1", shards, ignore_msb, "0", (), 1, "normal", (), 1)


def directory(*shards: tuple[int, int]) -> dict[str, Node]:
    """Return nodes a, b, c, … with these (shards, ignored bits)."""
    names = "abcdefghij"[: len(shards)]
    return {name: member(name, *settings) for name, settings in zip(names, shards, strict=True)}


def generation(ranges: Sequence[GenerationRange], timestamp: int = 1, name: str = "g") -> Generation:
    return Generation(name, timestamp, tuple(ranges), "committed", 1, None, None, ())


edges = st.sampled_from([TOKEN_MIN, TOKEN_MIN + 1, -1, 0, 1, TOKEN_MAX - 1, TOKEN_MAX])
tokens = edges | st.integers(TOKEN_MIN, TOKEN_MAX) | st.integers(-50, 50)


@st.composite
def rings(draw: st.DrawFn) -> tuple[Owners, dict[str, Node]]:
    """Draw token owners and nodes: even and uneven rings, nodes with different shards."""
    settings = st.tuples(st.integers(1, 9), st.sampled_from([0, 1, 12, 60]))
    nodes = directory(*draw(st.lists(settings, min_size=1, max_size=4)))
    owned = draw(st.sets(tokens, min_size=1, max_size=24))
    return {token: draw(st.sampled_from(sorted(nodes))) for token in sorted(owned)}, nodes


@st.composite
def described(draw: st.DrawFn) -> tuple[GenerationRange, ...]:
    """Draw the ranges of a random ring."""
    owners, nodes = draw(rings())
    return generate(owners, nodes, draw(st.binary(min_size=16, max_size=16)))

"""Every plan that a cluster could be asked for: **the one place where a kind of operation is added**.

``KINDS`` maps the kind (as in ``ringlog.kernel.operations.stages.STAGES_OF``) to a function that gives every ``Case``
of it on a quiet cluster: the commands that prepare the ground, the request itself, and a title for people. All else
(driving it, its views, gates, streams, cancels, quorums) follows from the state and is the same for each kind. A new
kind is a function here and a line in ``KINDS``; a new strategy of replication is a line in ``walk.readers_of``.

Exhaustive means: every case that the rules can tell apart. Where exactly in a range a new token lies makes no
difference, only in which range: so one token stands for all of a gap, and several in one gap stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise
from math import comb

from ringlog.kernel.commands.model import Command, Join, RegisterNode
from ringlog.kernel.operations.stages import STAGES_OF
from ringlog.kernel.state import ClusterState, in_order
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Token

SEED = bytes(16)
STEP_MAX = 100
"""How far apart new tokens stand in a wide range: small numbers are easier to read."""

NEW_ID = "ffffffff-ffff-4fff-bfff-ffffffffff00"


@dataclass(frozen=True, slots=True)
class Options:
    """What the cases may vary in. ``new_tokens``: how many tokens a joining node asks for."""

    new_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One plan to be made: ``ground`` is applied first, then ``request`` begins the operation."""

    title: str
    ground: tuple[Command, ...]
    request: Command


@dataclass(frozen=True, slots=True)
class Kind:
    """``count``: how many cases there are, without making them; ``cases``: each of them."""

    count: Callable[[ClusterState, Options], int]
    cases: Callable[[ClusterState, Options], Iterator[Case]]


def _join_count(state: ClusterState, options: Options) -> int:
    gaps = len(_gaps(state, options.new_tokens))
    return len(_locations(state)) * comb(gaps + options.new_tokens - 1, options.new_tokens) if gaps else 0


def _join_cases(state: ClusterState, options: Options) -> Iterator[Case]:
    """A new node in every datacenter and rack that there is, its tokens in every choice of ranges."""
    name = _free_name(state)
    gaps = _gaps(state, options.new_tokens)
    for datacenter, rack in _locations(state):
        register = RegisterNode(name, NEW_ID, f"{name}.new:1", datacenter, rack, 1, 12, "any", ("any",), capacity=1)
        for chosen in combinations_with_replacement(range(len(gaps)), options.new_tokens):
            tokens = tuple(gaps[gap][chosen[:place].count(gap)] for place, gap in enumerate(chosen))
            title = f"{name} joins {datacenter}/{rack} with {', '.join(map(str, tokens))}"
            yield Case(title, (register,), Join(NEW_ID, tokens, SEED))


KINDS: dict[str, Kind] = {
    "join": Kind(_join_count, _join_cases),
}
"""Kind of operation to its cases."""


def unknown_here() -> tuple[str, ...]:
    """Kinds that the kernel knows and of which no case is made: to be named wherever "all" is claimed."""
    return tuple(sorted(STAGES_OF.keys() - KINDS.keys()))


# ------------------------------------------------------------------------------------------------- positions


def _gaps(state: ClusterState, count: int) -> list[tuple[Token, ...]]:
    """For each range of the ring with room for them, ``count`` free tokens inside it, ascending along the range."""
    owned = sorted(state.token_owners)
    if not owned:
        return [tuple(range(count))]
    # The wrapping range is the one that ends at the first token; its free tokens lie at one end of the line or both.
    last = (owned[-1], TOKEN_MAX + 1) if TOKEN_MAX - owned[-1] >= owned[0] - TOKEN_MIN else (TOKEN_MIN - 1, owned[0])
    gaps = []
    for low, high in (*pairwise(owned), last):
        step = min((high - low) // (count + 1), STEP_MAX)
        if step:
            gaps.append(tuple(low + step * place for place in range(1, count + 1)))
    return gaps


def _locations(state: ClusterState) -> list[tuple[str, str]]:
    """The (datacenter, rack) pairs of the nodes that own tokens."""
    return sorted({(node.datacenter, node.rack) for _, node in in_order(state.nodes) if node.tokens})


def _free_name(state: ClusterState) -> str:
    names = ("X", *(f"X{number}" for number in range(1, len(state.nodes) + 2)))
    return next(name for name in names if name not in state.node_names)

"""A case: one operation that a cluster could be asked for, and what the lists of cases have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise

from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.model.state import ClusterState, Node, in_order
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Command, Token

SEED = bytes(16)
STEP_MAX = 100
"""How far apart new tokens stand in a wide range: small numbers are easier to read."""

_NEW_ID = "ffffffff-ffff-4fff-bfff-"


@dataclass(frozen=True, slots=True)
class CaseOptions:
    """What the cases may vary in. ``new_tokens``: how many tokens a joining node asks for, and one that moves
    exchanges at most.
    """

    new_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One plan to be made: ``ground`` is applied first, then ``request`` begins the operation.

    ``refusals``: codes with which the request may be refused on some clusters. ``promised``: that quorums meet is what
    the operation promises; of one that admits loss only the layout is looked at.
    """

    title: str
    ground: tuple[Command, ...]
    request: Command
    refusals: tuple[str, ...] = ()
    promised: bool = True


Cases = Callable[[ClusterState, CaseOptions], Iterator[Case]]


def members(state: ClusterState) -> list[Node]:
    """The nodes that own tokens, by name."""
    return sorted((node for _, node in in_order(state.nodes) if node.tokens), key=lambda node: node.name)


def newcomer(state: ClusterState, datacenter: str, rack: str) -> RegisterNode:
    """A node under a name and an id that are free."""
    names = ("X", *(f"X{number}" for number in range(1, len(state.nodes) + 2)))
    number, name = next((number, name) for number, name in enumerate(names) if name not in state.node_names)
    return RegisterNode(
        name, f"{_NEW_ID}{number:012x}", f"{name}.new:1", datacenter, rack, 1, 12, "any", ("any",), capacity=1
    )


def placings(gaps: Sequence[tuple[Token, ...]], count: int) -> Iterator[tuple[Token, ...]]:
    """``count`` new tokens in every choice of gaps; several in one gap stand side by side."""
    for chosen in combinations_with_replacement(range(len(gaps)), count):
        yield tuple(gaps[gap][chosen[:place].count(gap)] for place, gap in enumerate(chosen))


def gaps_of(state: ClusterState, count: int) -> list[tuple[Token, ...]]:
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

"""A case (one operation that could be requested of a cluster), and helpers for the lists of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement, pairwise

from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.model.state import ClusterState, Node, in_order
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Command, Token, Value

SEED = bytes(16)
STEP_MAX = 100
"""Maximum distance between new tokens in a wide range. Small numbers are easier to read."""

_NEW_ID = "ffffffff-ffff-4fff-bfff-"


class CaseOptions(Value):
    """The variation of the cases. ``new_tokens``: tokens of a joining node, and maximum of tokens that a move
    exchanges.
    """

    new_tokens: int = 1


class Case(Value):
    """One plan: ``ground`` is applied first, then ``request`` begins the operation.

    ``refusals``: rejection codes of the request that some clusters may return. ``promised``: the operation guarantees
    quorum intersection. If it admits loss, only the layout is checked.
    """

    title: str
    ground: tuple[Command, ...]
    request: Command
    refusals: tuple[str, ...] = ()
    promised: bool = True


Cases = Callable[[ClusterState, CaseOptions], Iterator[Case]]


def members(state: ClusterState) -> list[Node]:
    """Return the nodes that own tokens, by name."""
    return sorted((node for _, node in in_order(state.nodes) if node.tokens), key=lambda node: node.name)


def newcomer(state: ClusterState, datacenter: str, rack: str) -> RegisterNode:
    """Return the registration of a node with an unused name and id."""
    names = ("X", *(f"X{number}" for number in range(1, len(state.nodes) + 2)))
    number, name = next((number, name) for number, name in enumerate(names) if name not in state.node_names)
    return RegisterNode(
        name, f"{_NEW_ID}{number:012x}", f"{name}.new:1", datacenter, rack, 1, 12, "any", ("any",), capacity=1
    )


def placings(gaps: Sequence[tuple[Token, ...]], count: int) -> Iterator[tuple[Token, ...]]:
    """Yield ``count`` new tokens in every choice of gaps. Several tokens in one gap are adjacent."""
    for chosen in combinations_with_replacement(range(len(gaps)), count):
        yield tuple(gaps[gap][chosen[:place].count(gap)] for place, gap in enumerate(chosen))


def gaps_of(state: ClusterState, count: int) -> list[tuple[Token, ...]]:
    """Return ``count`` free tokens inside each range of the ring with enough room, ascending along the range."""
    owned = sorted(state.token_owners)
    if not owned:
        return [tuple(range(count))]
    # The wrapping range ends at the first token. Its free tokens are at one or both ends of the token line.
    last = (owned[-1], TOKEN_MAX + 1) if TOKEN_MAX - owned[-1] >= owned[0] - TOKEN_MIN else (TOKEN_MIN - 1, owned[0])
    gaps = []
    for low, high in (*pairwise(owned), last):
        step = min((high - low) // (count + 1), STEP_MAX)
        if step:
            gaps.append(tuple(low + step * place for place in range(1, count + 1)))
    return gaps

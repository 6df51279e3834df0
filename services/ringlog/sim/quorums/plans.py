"""Every plan that a cluster could be asked for: **the one place where a kind of operation is added**.

``KINDS`` maps the kind (as in ``ringlog.kernel.operations.kinds``) to a function that gives every ``Case``
of it on a quiet cluster: the commands that prepare the ground, the request itself, and a title for people. All else
(driving it, its views, gates, streams, cancels, quorums) follows from the state and is the same for each kind. A new
kind is a function here and a line in ``KINDS``; a new strategy of replication is a line in ``walk.readers_of``.

Exhaustive means: every case that the rules can tell apart. Where exactly in a range a new token lies makes no
difference, only in which range: so one token stands for all of a gap, and several in one gap stand side by side. Of
dead nodes there are at most two: the one that the operation is about, and one that it ignores.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from ringlog.kernel.commands.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.nodes import DeclareDown
from ringlog.kernel.operations import kinds
from ringlog.kernel.state import ClusterState, Node
from ringlog.kernel.values import Command
from ringlog.sim.quorums.case import (
    SEED,
    Case,
    CaseOptions,
    Cases,
    gaps_of,
    members,
    newcomer,
    placings,
)
from ringlog.sim.quorums.settings import alterations

IMPOSSIBLE, TOO_FEW = "replication_impossible", "too_few_replicas"


def joins(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """A new node in every datacenter and rack that there is, its tokens in every choice of ranges."""
    gaps = gaps_of(state, options.new_tokens)
    for datacenter, rack in sorted({(node.datacenter, node.rack) for node in members(state)}):
        new = newcomer(state, datacenter, rack)
        for tokens in placings(gaps, options.new_tokens):
            title = f"{new.name} joins {datacenter}/{rack} with {', '.join(map(str, tokens))}"
            yield Case(title, (new,), Join(new.id, tokens, SEED))


def leaves(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Every node leaves."""
    for node in members(state):
        yield Case(f"{node.name} leaves", (), Leave(node.id), (IMPOSSIBLE,))


def moves(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Every node gives up to ``new_tokens`` of its tokens away and takes up to as many, in every choice of both."""
    most = options.new_tokens
    choices = [new for count in range(most + 1) for new in placings(gaps_of(state, most), count)]
    for node in members(state):
        kept = [keep for count in range(most + 1) for keep in combinations(node.tokens, max(0, _left(node, count)))]
        for keep in dict.fromkeys(kept):
            for new in choices:
                tokens = tuple(sorted((*keep, *new)))
                if tokens and tokens != node.tokens:
                    title = f"{node.name} moves from {_told(node.tokens)} to {_told(tokens)}"
                    yield Case(title, (), Move(node.id, tokens, SEED))


def replacements(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """A new node replaces each node, that being alive or dead, also while another one is dead and ignored."""
    for old in members(state):
        new = newcomer(state, old.datacenter, old.rack)
        for dead, ground in (("", ()), ("the dead ", (_down(old),))):
            for told, more, ignored in _ignoring(state, old):
                title = f"{new.name} replaces {dead}{old.name}{told}"
                yield Case(title, (*ground, *more, new), Replace(new.id, old.id, ignored), (TOO_FEW,))


def removals(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Each node is dead and removed, also while another one is dead and ignored."""
    refusals = (IMPOSSIBLE, TOO_FEW, "bad_field")  # the last: who is ignored would get rows
    for node in members(state):
        for told, more, ignored in _ignoring(state, node):
            request = Remove(node.id, ignored)
            yield Case(f"{node.name} is removed{told}", (_down(node), *more), request, refusals)


def assassinations(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Each node is dead and assassinated: one entry, nothing is streamed, nothing is promised."""
    for node in members(state):
        request = Assassinate(node.id)
        yield Case(f"{node.name} is assassinated", (_down(node),), request, (IMPOSSIBLE,), promised=False)


def rebuilds(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Every node streams all its ranges anew.

    From one datacenter alone it gets what a quorum there knows, and no more is promised.
    """
    for node in members(state):
        yield Case(f"{node.name} is rebuilt", (), Rebuild(node.id), (TOO_FEW,))
        for name in sorted({other.datacenter for other in members(state)}):
            request = Rebuild(node.id, name)
            yield Case(f"{node.name} is rebuilt from {name}", (), request, (TOO_FEW,), promised=False)


KINDS: dict[str, Cases] = {
    "join": joins,
    "leave": leaves,
    "move": moves,
    "replace": replacements,
    "remove": removals,
    "assassinate": assassinations,
    "rebuild": rebuilds,
    "alter": alterations,
}
"""Kind of operation to its cases."""


def unknown_here() -> tuple[str, ...]:
    """Kinds that the kernel knows and of which no case is made: to be named wherever "all" is claimed."""
    return tuple(sorted(kinds.KINDS.keys() - KINDS.keys()))


# ------------------------------------------------------------------------------------------------------ parts


def _ignoring(state: ClusterState, subject: Node) -> Iterator[tuple[str, tuple[Command, ...], tuple[str, ...]]]:
    """(words, ground, ignore_nodes): nobody is ignored, or one other node that is dead."""
    yield "", (), ()
    for other in members(state):
        if other.id != subject.id:
            yield f", ignoring the dead {other.name}", (_down(other),), (other.id,)


def _down(node: Node) -> DeclareDown:
    return DeclareDown(node.id, "tried")


def _left(node: Node, given: int) -> int:
    return len(node.tokens) - given


def _told(tokens: tuple[int, ...]) -> str:
    return ", ".join(map(str, tokens))

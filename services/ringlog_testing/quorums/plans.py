"""Every plan that could be requested of a cluster: **the one place to add a kind of operation**.

``KINDS`` maps the kind (as in ``ringlog.kernel.operations.kinds``) to a function that yields all its cases on a quiet
cluster: preparing commands, request, and title. All other steps (driving it, its views, gates, streams, cancels,
quorums) follow from the state and are equal for all kinds. A new kind needs a function here and a line in ``KINDS``. A
new replication strategy needs a line in ``walk.readers_of``.

The list is exhaustive: it has every case that the rules distinguish. The exact position of a new token in a range does
not matter, so one token represents a gap, and several in one gap are adjacent. At most two nodes are down: the subject
of the operation, and one ignored node.

A keyspace can be altered to every number of replicas under SimpleStrategy. Under NetworkTopologyStrategy, each
datacenter can have none, every number, and every list of racks. EntireStrategy is also possible. Settings with more
than ``REPLICAS_MAX`` replicas are left out, because smaller ones show the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import ClusterState, Node, in_order
from ringlog.kernel.operations import kinds
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.values import Command, DatacenterReplication, Replication
from ringlog_testing.quorums.case import (
    SEED,
    Case,
    CaseOptions,
    Cases,
    gaps_of,
    members,
    newcomer,
    placings,
)

REPLICAS_MAX = 6


def alterations(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield each other replication setting of each keyspace."""
    for name, keyspace in in_order(state.keyspaces):
        if not strategy_of(keyspace.replication).in_ring:
            continue  # the balancer applies it, tablet by tablet
        for setting in settings(state):
            if setting != keyspace.replication:
                title = f"{name} from {replication_key(keyspace.replication)} to {replication_key(setting)}"
                yield Case(title, (), AlterKeyspace(name, setting))


def settings(state: ClusterState) -> Iterator[Replication]:
    """Yield every setting that the nodes can satisfy, with at most ``REPLICAS_MAX`` replicas."""
    count = len(members(state))
    for factor in range(1, min(count, REPLICAS_MAX) + 1):
        yield Replication("simple", factor)
    names = sorted({node.datacenter for node in members(state)})
    for locals_ in product(*(_in(state, name) for name in names)):
        chosen = tuple(local for local in locals_ if local is not None)
        factor = sum(local.factor for local in chosen)
        if 1 <= factor <= REPLICAS_MAX:
            yield Replication("network", factor, chosen)
    if count <= REPLICAS_MAX:
        yield Replication("entire", 0)


def _in(state: ClusterState, name: str) -> list[DatacenterReplication | None]:
    """Return None, every number of replicas, and every list of racks of a datacenter."""
    here = [node for node in members(state) if node.datacenter == name]
    racks = sorted({node.rack for node in here})
    numbers = [DatacenterReplication(name, factor) for factor in range(1, min(len(here), REPLICAS_MAX) + 1)]
    lists = [
        DatacenterReplication(name, size, chosen)
        for size in range(1, min(len(racks), REPLICAS_MAX) + 1)
        for chosen in combinations(racks, size)
    ]
    return [None, *numbers, *lists]


IMPOSSIBLE, TOO_FEW, UNDRAINED = "replication_impossible", "too_few_replicas", "drain_impossible"
LAST_MEMBER = "last_member"
"""The node is the only readable member of the metadata service."""


def joins(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield joins of a new node in every existing datacenter and rack, with tokens in every choice of ranges."""
    gaps = gaps_of(state, options.new_tokens)
    for datacenter, rack in sorted({(node.datacenter, node.rack) for node in members(state)}):
        new = newcomer(state, datacenter, rack)
        for tokens in placings(gaps, options.new_tokens):
            title = f"{new.name} joins {datacenter}/{rack} with {', '.join(map(str, tokens))}"
            yield Case(title, (new,), Join(new.id, tokens, SEED))


def leaves(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield the leave of every node."""
    for node in members(state):
        yield Case(f"{node.name} leaves", (), Leave(node.id), (IMPOSSIBLE, UNDRAINED))


def moves(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield moves of every node that exchange up to ``new_tokens`` tokens, in every choice of old and new tokens."""
    most = options.new_tokens
    choices = [new for count in range(most + 1) for new in placings(gaps_of(state, most), count)]
    for node in members(state):
        kept = [keep for count in range(most + 1) for keep in combinations(node.tokens, max(0, _left(node, count)))]
        for keep in dict.fromkeys(kept):
            for new in choices:
                tokens = tuple(sorted((*keep, *new)))
                if tokens and tokens != node.tokens:
                    title = f"{node.name} moves from {_described_tokens(node.tokens)} to {_described_tokens(tokens)}"
                    yield Case(title, (), Move(node.id, tokens, SEED))


def replacements(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield replacements of each node, up or down, also while another node is down and ignored."""
    for old in members(state):
        new = newcomer(state, old.datacenter, old.rack)
        for dead, ground in (("", ()), ("the dead ", (_down(old),))):
            for description, more, ignored in _ignoring(state, old):
                title = f"{new.name} replaces {dead}{old.name}{description}"
                yield Case(title, (*ground, *more, new), Replace(new.id, old.id, ignored), (TOO_FEW, UNDRAINED))


def removals(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield removals of each node, which is down, also while another node is down and ignored."""
    refusals = (IMPOSSIBLE, TOO_FEW, UNDRAINED, "bad_field")  # the last code: an ignored node would get rows
    for node in members(state):
        for description, more, ignored in _ignoring(state, node):
            request = Remove(node.id, ignored)
            yield Case(f"{node.name} is removed{description}", (_down(node), *more), request, refusals)


def assassinations(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield assassinations of each node, which is down. It is one entry without streams or guarantees."""
    for node in members(state):
        refusals = (IMPOSSIBLE, UNDRAINED, LAST_MEMBER)
        yield Case(f"{node.name} is assassinated", (_down(node),), Assassinate(node.id), refusals, promised=False)


def rebuilds(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Yield rebuilds of every node, which streams all its ranges again.

    A rebuild from a single datacenter restores only rows that a quorum there has. The operation guarantees no more.
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
    """Return the kinds of the kernel without cases. A claim about all kinds must name them."""
    return tuple(sorted(kinds.KINDS.keys() - KINDS.keys()))


# ------------------------------------------------------------------------------------------------------ parts


def _ignoring(state: ClusterState, subject: Node) -> Iterator[tuple[str, tuple[Command, ...], tuple[str, ...]]]:
    """Yield (title suffix, preparing commands, ``ignore_nodes``): without an ignored node, and with each other node."""
    yield "", (), ()
    for other in members(state):
        if other.id != subject.id:
            yield f", ignoring the dead {other.name}", (_down(other),), (other.id,)


def _down(node: Node) -> DeclareDown:
    return DeclareDown(node.id, "tried")


def _left(node: Node, given: int) -> int:
    return len(node.tokens) - given


def _described_tokens(tokens: tuple[int, ...]) -> str:
    return ", ".join(map(str, tokens))

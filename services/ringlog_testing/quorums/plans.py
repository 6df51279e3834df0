"""Every plan that a cluster could be asked for: **the one place where a kind of operation is added**.

``KINDS`` maps the kind (as in ``ringlog.kernel.operations.kinds``) to a function that gives every ``Case`` of it on a
quiet cluster: the commands that prepare the ground, the request itself, and a title for people. All else (driving it,
its views, gates, streams, cancels, quorums) follows from the state and is the same for each kind. A new kind is a
function here and a line in ``KINDS``; a new strategy of replication is a line in ``walk.readers_of``.

Exhaustive means: every case that the rules can tell apart. The exact position of a new token in a range makes no
difference, so one token represents a gap, and several in one gap are adjacent. At most two nodes are dead: the subject
of the operation, and one that it ignores.

A keyspace can be altered to every number of replicas under SimpleStrategy; under NetworkTopologyStrategy, for each
datacenter, to none, every number, and every list of racks; and to EntireStrategy. Settings of more than
``REPLICAS_MAX`` replicas are left out: smaller ones show the same.
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
    """Each keyspace gets each other setting."""
    for name, keyspace in in_order(state.keyspaces):
        if not strategy_of(keyspace.replication).in_ring:
            continue  # the balancer carries that out, tablet by tablet
        for setting in settings(state):
            if setting != keyspace.replication:
                title = f"{name} from {replication_key(keyspace.replication)} to {replication_key(setting)}"
                yield Case(title, (), AlterKeyspace(name, setting))


def settings(state: ClusterState) -> Iterator[Replication]:
    """Every setting that the nodes can hold, of at most ``REPLICAS_MAX`` replicas."""
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
    """None, every number of replicas, and every list of racks of a datacenter."""
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
"""The node is the only one that can be read as a member of the metadata service."""


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
        yield Case(f"{node.name} leaves", (), Leave(node.id), (IMPOSSIBLE, UNDRAINED))


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
                    title = f"{node.name} moves from {_described_tokens(node.tokens)} to {_described_tokens(tokens)}"
                    yield Case(title, (), Move(node.id, tokens, SEED))


def replacements(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """A new node replaces each node, that being alive or dead, also while another one is dead and ignored."""
    for old in members(state):
        new = newcomer(state, old.datacenter, old.rack)
        for dead, ground in (("", ()), ("the dead ", (_down(old),))):
            for description, more, ignored in _ignoring(state, old):
                title = f"{new.name} replaces {dead}{old.name}{description}"
                yield Case(title, (*ground, *more, new), Replace(new.id, old.id, ignored), (TOO_FEW, UNDRAINED))


def removals(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Each node is dead and removed, also while another one is dead and ignored."""
    refusals = (IMPOSSIBLE, TOO_FEW, UNDRAINED, "bad_field")  # the last: who is ignored would get rows
    for node in members(state):
        for description, more, ignored in _ignoring(state, node):
            request = Remove(node.id, ignored)
            yield Case(f"{node.name} is removed{description}", (_down(node), *more), request, refusals)


def assassinations(state: ClusterState, options: CaseOptions) -> Iterator[Case]:
    """Each node is dead and assassinated: one entry, nothing is streamed, nothing is promised."""
    for node in members(state):
        refusals = (IMPOSSIBLE, UNDRAINED, LAST_MEMBER)
        yield Case(f"{node.name} is assassinated", (_down(node),), Assassinate(node.id), refusals, promised=False)


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


def _described_tokens(tokens: tuple[int, ...]) -> str:
    return ", ".join(map(str, tokens))

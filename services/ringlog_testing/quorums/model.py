"""Quorums as sets of bits, and what a range goes through, without a line of the production code.

A **group** is a set of nodes, one bit each. A **quorum** of a group is any choice of more than half of it, in each
datacenter that a gate names. Only inclusion-minimal choices are enumerated: every larger one contains a minimal one,
so if all minimal choices meet each other, all choices do; and a counterexample that exists at all exists among them.

A **history** is what one range goes through while an operation moves it: its **views** (who reads, who writes),
oldest first, the **gates** between them, and where the rows that a new replica answers with came from. Four rules
make it safe, and each can be replaced by a weaker one to see what it is good for:

====  ===========  ==================================================================================================
rule  choice       meaning
====  ===========  ==================================================================================================
R1    on           a write needs a quorum of the old *and* of the new write group while both are written
R1    majority     a write needs a majority of all present writers, of any group
R1    off          a write needs as many answers as a read does, of any writers: those who are moving in count
R3    on           an answer from a later view makes a coordinator plan again
R3    off          coordinators do not look at the epochs of answers
R4    on           rows come from the sources that the plan names
R4    off          rows come from any one replica of the old read group
R5    on           a view is left when the gate of the plan is met
R5    union        when a majority of all nodes of the old and new groups have acknowledged it
R5    off          at once
step  on           the views of the plan
step  off          straight from the old groups to the new ones
====  ===========  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

Mask = int
"""A set of nodes: bit n stands for the n-th node of a history."""

Needs = tuple[tuple[Mask, int], ...]
"""(group, number): at least ``number`` nodes of ``group``, for each of them."""

MEMBERS_MAX = 12
"""Most nodes that one range may involve: all their subsets are looked at."""

CHOICES: dict[str, tuple[str, ...]] = {
    "R1": ("on", "majority", "off"),
    "R3": ("on", "off"),
    "R4": ("on", "off"),
    "R5": ("on", "union", "off"),
    "step": ("on", "off"),
}
"""Rule to what it may be; the first is how the protocol is meant."""

EVERYWHERE = "QUORUM"
"""The consistency level that counts all replicas of a range."""

RULE_FIELDS = {"R1": "write", "R3": "recheck", "R4": "stream", "R5": "gate", "step": "step"}
"""Rule to the field of ``QuorumRules`` that holds its choice."""


@dataclass(frozen=True, slots=True)
class QuorumRules:
    """The rules in force; ``gates_off``: stages whose gate is passed at once while the others stand."""

    write: str = "on"
    recheck: str = "on"
    stream: str = "on"
    gate: str = "on"
    step: str = "on"
    gates_off: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeView:
    """Who reads and who writes a range. ``both``: writes go to the old and the new group, so R1 asks both."""

    name: str
    read: Mask
    write: Mask
    both: bool


@dataclass(frozen=True, slots=True)
class Passage:
    """A gate that must be met before view number ``view`` is left.

    ``informed``: the minimal sets of nodes whose acknowledgements meet it.
    """

    view: int
    stage: str
    informed: tuple[Mask, ...]


@dataclass(frozen=True, slots=True)
class RangeStream:
    """``target`` (one bit) gets rows of ``sources``, merged. ``others``: the replicas it could have asked.

    ``afresh``: the target was a replica already and has lost all its rows.
    """

    target: Mask
    sources: Mask
    others: Mask
    afresh: bool = False


@dataclass(frozen=True, slots=True)
class RangeHistory:
    """What one range goes through. ``datacenters``: that of each node, by bit; at least one view.

    ``local``: the setting counts replicas by datacenter, so that a quorum of those in one is more than chance.
    ``meant``: the write group that the transition of a tablet leads to, also if the tablet turns back; 0: the last one.
    ``cumulative_acks``: a node that acknowledged a gate has every write that was done before, as in a log.
    """

    datacenters: tuple[str, ...]
    views: tuple[RangeView, ...]
    gates: tuple[Passage, ...] = ()
    streams: tuple[RangeStream, ...] = ()
    local: bool = True
    meant: Mask = 0
    cumulative_acks: bool = False

    @property
    def old(self) -> Mask:
        """The write group before."""
        return self.views[0].write

    @property
    def new(self) -> Mask:
        """The write group afterwards, or the one that was meant."""
        return self.meant or self.views[-1].write


def majority(group: Mask) -> int:
    """How many of a group are more than half of it."""
    return group.bit_count() // 2 + 1


@cache
def minimal(needs: Needs) -> tuple[Mask, ...]:
    """The minimal sets that satisfy all needs, smallest first; none if there is nothing to choose from."""
    all_nodes = 0
    for group, _ in needs:
        all_nodes |= group
    if not all_nodes:
        return ()
    return minimal_where(all_nodes, lambda chosen: all((chosen & group).bit_count() >= need for group, need in needs))


def minimal_where(all_nodes: Mask, accepts: Callable[[Mask], bool]) -> tuple[Mask, ...]:
    """The subsets of ``all_nodes`` that ``accepts`` takes and that hold no smaller one it takes, smallest first."""
    found: list[Mask] = []
    for chosen in sorted(subsets(all_nodes), key=lambda mask: (mask.bit_count(), mask)):
        if not any(smaller & chosen == smaller for smaller in found) and accepts(chosen):
            found.append(chosen)
    return tuple(found)


def subsets(group: Mask) -> Iterable[Mask]:
    """All subsets, the empty one included."""
    chosen = group
    while True:
        yield chosen
        if not chosen:
            return
        chosen = (chosen - 1) & group


def bits(group: Mask) -> tuple[int, ...]:
    """The numbers of the nodes in a group, ascending."""
    return tuple(number for number in range(group.bit_length()) if group >> number & 1)


# ------------------------------------------------------------------------------------------------- the rules


def scopes(history: RangeHistory) -> tuple[tuple[str, Mask], ...]:
    """(consistency level, nodes that count): the whole cluster, and each datacenter if there are several."""
    everywhere = (EVERYWHERE, (1 << len(history.datacenters)) - 1)
    names = sorted(set(history.datacenters))
    if len(names) < 2:
        return (everywhere,)
    return (everywhere, *((f"LOCAL_QUORUM in {name}", _in_datacenter(history, name)) for name in names))


def read_quorums(view: RangeView, scope: Mask) -> tuple[Mask, ...]:
    """The minimal sets of answers that make a read; none where nobody reads."""
    group = view.read & scope
    return minimal(((group, majority(group)),)) if group else ()


def write_quorums(history: RangeHistory, view: RangeView, scope: Mask, rules: QuorumRules) -> tuple[Mask, ...]:
    """The minimal sets of answers that make a write; none where nobody writes."""
    writers = view.write & scope
    if not writers:
        return ()
    if rules.write == "majority":
        return minimal(((writers, majority(writers)),))
    if rules.write == "off":
        return minimal(((writers, min(majority(view.read & scope), writers.bit_count())),))
    groups = (history.old & scope, history.new & scope) if view.both else (writers,)
    return minimal(tuple((group, majority(group)) for group in groups if group))


def gate_in_force(history: RangeHistory, passage: Passage, rules: QuorumRules) -> tuple[Mask, ...]:
    """The minimal sets of nodes that a gate is content with; the empty set where it is passed at once."""
    if rules.gate == "off" or passage.stage in rules.gates_off:
        return (0,)
    if rules.gate == "union":
        all_nodes = history.old | history.new
        return minimal(((all_nodes, majority(all_nodes)),))
    return passage.informed


def demanded(history: RangeHistory) -> tuple[Mask, ...]:
    """What R5 asks of a gate, by this model: a quorum of each group, old and new, read and written, per datacenter."""
    first, last = history.views[0], history.views[-1]
    groups = {
        group & _in_datacenter(history, name)
        for group in (first.read, last.read, first.write, last.write)
        for name in set(history.datacenters)
    }
    return minimal(tuple((group, majority(group)) for group in sorted(groups) if group))


def _in_datacenter(history: RangeHistory, name: str) -> Mask:
    return sum(1 << number for number, datacenter in enumerate(history.datacenters) if datacenter == name)

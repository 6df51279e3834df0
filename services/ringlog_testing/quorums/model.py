"""Quorums as sets of bits, and the history of a range. It shares no code with the production code.

A **group** is a set of nodes, one bit each. A **quorum** of a group is any choice of more than half of it, in each
datacenter that a gate names. Only minimal choices are enumerated, because each larger choice contains a minimal one. So
if all minimal choices intersect, all choices do. If a counterexample exists, one exists among the minimal choices.

A **history** describes a range while an operation moves it. It has **views** (readers and writers), oldest first, the
**gates** between them, and the sources of the rows of new replicas. Four rules make it safe. Each can be replaced by a
weaker rule to show its effect:

====  ===========  ==================================================================================================
rule  choice       meaning
====  ===========  ==================================================================================================
R1    on           a write needs a quorum of the old *and* of the new write group while both are written
R1    majority     a write needs a majority of all present writers, of any group
R1    off          a write needs as many answers as a read, from any writers, including new replicas
R3    on           an answer from a later view makes a coordinator plan again
R3    off          coordinators ignore the epochs of answers
R4    on           rows come from the sources that the plan names
R4    off          rows come from any one replica of the old read group
R5    on           a view ends when the gate of the plan is met
R5    union        a view ends when a majority of all nodes of the old and new groups has acknowledged it
R5    off          a view ends at once
step  on           the views of the plan
step  off          only the old groups and the new groups
====  ===========  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from ringlog.kernel.values import Value

Mask = int
"""A set of nodes. Bit n represents the n-th node of a history."""

Needs = tuple[tuple[Mask, int], ...]
"""(group, number): at least ``number`` nodes of ``group``, for each pair."""

MEMBERS_MAX = 12
"""The maximum number of nodes of one range. The check enumerates all their subsets."""

CHOICES: dict[str, tuple[str, ...]] = {
    "R1": ("on", "majority", "off"),
    "R3": ("on", "off"),
    "R4": ("on", "off"),
    "R5": ("on", "union", "off"),
    "step": ("on", "off"),
}
"""Rule to its choices. The first choice is the protocol's own."""

EVERYWHERE = "QUORUM"
"""The consistency level that counts all replicas of a range."""

RULE_FIELDS = {"R1": "write", "R3": "recheck", "R4": "stream", "R5": "gate", "step": "step"}
"""Rule to the field of ``QuorumRules`` that has its choice."""


class QuorumRules(Value):
    """The active rules. ``gates_off``: stages whose gate is always met, while other gates apply."""

    write: str = "on"
    recheck: str = "on"
    stream: str = "on"
    gate: str = "on"
    step: str = "on"
    gates_off: tuple[str, ...] = ()


class RangeView(Value):
    """The readers and writers of a range. ``both``: writes go to the old and the new group, so R1 needs
    both quorums.
    """

    name: str
    read: Mask
    write: Mask
    both: bool


class Passage(Value):
    """A gate that must be met before view number ``view`` ends.

    ``informed``: the minimal sets of nodes whose acknowledgements meet it.
    """

    view: int
    stage: str
    informed: tuple[Mask, ...]


class RangeStream(Value):
    """A stream of the merged rows of ``sources`` to ``target`` (one bit). ``others``: possible source replicas.

    ``afresh``: the target already was a replica and has lost all its rows.
    """

    target: Mask
    sources: Mask
    others: Mask
    afresh: bool = False


class RangeHistory(Value):
    """The history of one range. ``datacenters``: the datacenter of each node, by bit. There is at least one view.

    ``local``: the setting counts replicas by datacenter, so quorums within a datacenter are meaningful. ``meant``: the
    write group that a tablet's transition leads to, also if the tablet reverts; 0 for the last one.
    ``cumulative_acks``: a node that acknowledged a gate has all earlier writes, as in a log.
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
        """Return the write group before the operation."""
        return self.views[0].write

    @property
    def new(self) -> Mask:
        """Return the write group after the operation, or the intended one."""
        return self.meant or self.views[-1].write


def majority(group: Mask) -> int:
    """Return the smallest number that is more than half of a group."""
    return group.bit_count() // 2 + 1


@cache
def minimal(needs: Needs) -> tuple[Mask, ...]:
    """Return the minimal sets that satisfy all needs, smallest first. Without nodes, return none."""
    all_nodes = 0
    for group, _ in needs:
        all_nodes |= group
    if not all_nodes:
        return ()
    return minimal_where(all_nodes, lambda chosen: all((chosen & group).bit_count() >= need for group, need in needs))


def minimal_where(all_nodes: Mask, accepts: Callable[[Mask], bool]) -> tuple[Mask, ...]:
    """Return the minimal subsets of ``all_nodes`` that ``accepts`` accepts, smallest first."""
    found: list[Mask] = []
    for chosen in sorted(subsets(all_nodes), key=lambda mask: (mask.bit_count(), mask)):
        if not any(smaller & chosen == smaller for smaller in found) and accepts(chosen):
            found.append(chosen)
    return tuple(found)


def subsets(group: Mask) -> Iterable[Mask]:
    """Yield all subsets, including the empty one."""
    chosen = group
    while True:
        yield chosen
        if not chosen:
            return
        chosen = (chosen - 1) & group


def bits(group: Mask) -> tuple[int, ...]:
    """Return the numbers of the nodes in a group, ascending."""
    return tuple(number for number in range(group.bit_length()) if group >> number & 1)


# ------------------------------------------------------------------------------------------------- the rules


def scopes(history: RangeHistory) -> tuple[tuple[str, Mask], ...]:
    """Return (consistency level, nodes that count): the whole cluster, and each datacenter if there are several."""
    everywhere = (EVERYWHERE, (1 << len(history.datacenters)) - 1)
    names = sorted(set(history.datacenters))
    if len(names) < 2:
        return (everywhere,)
    return (everywhere, *((f"LOCAL_QUORUM in {name}", _in_datacenter(history, name)) for name in names))


def read_quorums(view: RangeView, scope: Mask) -> tuple[Mask, ...]:
    """Return the minimal sets of answers for a read, or none without readers."""
    group = view.read & scope
    return minimal(((group, majority(group)),)) if group else ()


def write_quorums(history: RangeHistory, view: RangeView, scope: Mask, rules: QuorumRules) -> tuple[Mask, ...]:
    """Return the minimal sets of answers for a write, or none without writers."""
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
    """Return the minimal sets of nodes that meet a gate. The empty set represents a gate that is always met."""
    if rules.gate == "off" or passage.stage in rules.gates_off:
        return (0,)
    if rules.gate == "union":
        all_nodes = history.old | history.new
        return minimal(((all_nodes, majority(all_nodes)),))
    return passage.informed


def demanded(history: RangeHistory) -> tuple[Mask, ...]:
    """Return the minimal sets that R5 requires: a quorum of each old and new read and write group, per datacenter."""
    first, last = history.views[0], history.views[-1]
    groups = {
        group & _in_datacenter(history, name)
        for group in (first.read, last.read, first.write, last.write)
        for name in set(history.datacenters)
    }
    return minimal(tuple((group, majority(group)) for group in sorted(groups) if group))


def _in_datacenter(history: RangeHistory, name: str) -> Mask:
    return sum(1 << number for number, datacenter in enumerate(history.datacenters) if datacenter == name)

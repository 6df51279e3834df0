"""A partition of a zone, its nodes and several instances of the rebalancer: whatever is sent may come late, again, in
another order, or never.

Each node knows a beginning of the log, and has less of it on its disk; what it acknowledges are the words of
``node.protocol.groups``. Each instance knows a beginning of the log, too, and some of what nodes have acknowledged;
what it asks for is what ``rebalancer_core`` proposes of that. One that was taken over goes on asking. Operators ask on
what they have seen, which may be old.

Promises, checked at each entry and at each word:

- no two things that nodes know of the partition have a primary each that majorities follow;
- nothing is planned where nothing is pending;
- a trigger has a newer cause than each one before it; a switch, a cancel and its end name the revision that they mean;
- what is recorded as applied was said by who comes, and is on the disks of majorities; no cancel undoes it;
- in the end, when all have heard of everything, the partition is where the last trigger that was accepted wanted it,
  unless a cancel came after that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ringlog.kernel.commands.cluster.cluster import TakeOver
from ringlog.kernel.commands.placement.rebalances import CancelRebalance, FinishCancel, SwitchStable, TriggerRebalance
from ringlog.kernel.commands.placement.zones import SetDataNodes
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.zones import NEVER, ZonePartition, ZoneStep
from ringlog.kernel.values import Command, NodeId
from ringlog.kernel.zones.distribution import targets
from ringlog.kernel.zones.queue import is_same
from ringlog.node.protocol.groups import Member
from ringlog.protocol.coordinator.ack_book import AckBook
from ringlog.protocol.rebalancer.core import ROLE, RebalancerView, propose
from ringlog.protocol.rebalancer.zone_groups import session_reports
from ringlog.wire.records import NodeAck
from tests.kernel.entries import uuid
from tests.kernel.zones.scenes import NoRows, ids, partition, tried, with_zone

LETTERS = "ABCDE"
NODES = ids(LETTERS)


class Instance:
    """One life of a rebalancer: the epoch that it knows, and what it has heard of nodes."""

    def __init__(self, epoch: int) -> None:
        self.knows = epoch
        self.book = AckBook()


class ZoneWorld:
    """Everybody, and what is on its way. ``log``: the state at each epoch since the zone was made."""

    def __init__(self, letters: str, replicas: int) -> None:
        self.state = with_zone(LETTERS, replicas=replicas, scale_up=NEVER)
        self.log = {self.state.epoch: self.state}
        self.first = self.state.epoch
        self.knows = dict.fromkeys(NODES, self.first)
        self.kept = dict.fromkeys(NODES, self.first)
        self.acks: list[NodeAck] = []
        self.requests: list[Command] = []
        self.instances = [Instance(self.first)]
        self.owed: ZoneStep | None = None
        self.recorded: set[int] = set()
        self.undone: set[int] = set()
        self.heard = 0
        self.cancelled = 0
        self.most = dict.fromkeys(NODES, self.first)
        self.submit(SetDataNodes("z", ids(letters), self.state.epoch))

    @property
    def one(self) -> ZonePartition:
        """The partition as the log has it."""
        return partition(self.state)

    # ------------------------------------------------------------------------------------------------ nodes

    def hears(self, node: NodeId, upto: int) -> None:
        """It folds the log that far."""
        self.knows[node] = max(self.knows[node], upto)
        self.most[node] = max(self.most[node], upto)
        self.one_primary()

    def acknowledges(self, node: NodeId, is_synced: bool = True) -> None:
        """It says what it may; before that all that it knows is on its disk, if it ``is_synced``."""
        if is_synced:
            self.kept[node] = self.knows[node]
        state, kept = self.log[self.knows[node]], self.kept[node]
        words = Member(node, NoRows()).reports(state, kept)
        where = kept, kept, words, 0, 0, (), state_id_at(state, kept)
        self.acks.append(NodeAck(state.cluster_id, node, "1", *where))

    def crashes(self, node: NodeId) -> None:
        """It knows what is on its disk."""
        self.knows[node] = self.kept[node]
        self.one_primary()

    def one_primary(self) -> None:
        """Of what nodes know at this moment, one thing at most has a primary that majorities follow."""
        views: dict[tuple[int, int], set[NodeId]] = {}
        for node, epoch in self.knows.items():
            revisions = partition(self.log[epoch]).revisions
            views.setdefault((revisions.stable, revisions.pending), set()).add(node)
        confirmed = [
            view
            for view, nodes in views.items()
            if all(_most(group, nodes) for group in _groups(partition(self.log[max(view)])))
        ]
        assert len(confirmed) <= 1, f"two primaries: {confirmed}"

    # -------------------------------------------------------------------------------------------- instances

    def looks(self, instance: Instance, upto: int) -> None:
        """It folds the log that far, and asks for what it finds."""
        instance.knows = max(instance.knows, upto)
        self.requests += [one.command for one in propose(self.view(instance))]

    def view(self, instance: Instance) -> RebalancerView:
        state = self.log[instance.knows]
        return RebalancerView(state, session_reports(state, instance.book.newest(state)))

    def takes_over(self) -> None:
        """Another instance, which reads the log and the last word of each node."""
        found = self.state.terms.get(ROLE)
        term = 1 if found is None else found.term + 1
        self.submit(TakeOver(ROLE, uuid(term, space=5), term))
        self.instances.append(Instance(self.state.epoch))
        for place, ack in enumerate(self.acks):
            self.instances[-1].book.take(place, ack)

    # ----------------------------------------------------------------------------------------------- the log

    def submit(self, command: Command) -> str:
        """The log decides; the code of a refusal."""
        before = self.one
        self.state, code = tried(self.state, command)
        if code:
            return code
        self.log[self.state.epoch] = self.state
        after = self.one
        assert after.planned is None or after.pending, "nothing would ever lead to what is planned"
        if after is not before:
            self._decided(command, before, after)
        return ""

    def _decided(self, command: Command, before: ZonePartition, after: ZonePartition) -> None:
        revision = before.revisions.pending
        if isinstance(command, (CancelRebalance, FinishCancel)):
            assert command.pending_revision == revision, "it is about something else"
        if isinstance(command, SwitchStable):
            assert command.revisions.pending == revision, "it is about something else"
        if isinstance(command, TriggerRebalance):
            assert command.cause > self.heard, "it was acted on already"
            self.heard = command.cause
            (self.owed,) = targets(self.state, self.state.zones["z"], [before.stable], [0])
        elif isinstance(command, CancelRebalance):
            self.owed = None if after.planned is None else self.owed
            self.cancelled = self.state.epoch
        elif isinstance(command, SwitchStable) or (
            isinstance(command, FinishCancel) and command.result == "already_new"
        ):
            self._applied(before)
            assert revision not in self.undone, "what was undone is not applied"
            assert is_same(after.reached, before.pending[0])
            self.recorded.add(revision)
        elif isinstance(command, FinishCancel):
            assert revision not in self.recorded, "a cancel undoes a finished step"
            assert is_same(after.stable, before.reached), "a cancel returns to what was before"
            assert before.reached is not None
            having = {node for node, epoch in self.most.items() if epoch >= self.cancelled}
            assert _most(before.reached.peers, having), "most have seen it"
            self.undone.add(revision)

    def _applied(self, before: ZonePartition) -> None:
        """Who comes has it on its disk, and so have majorities of the voters before and after."""
        having = {node for node, epoch in self.kept.items() if epoch >= before.revisions.pending}
        assert before.reached is not None
        step = before.pending[0]
        assert set(step.nodes) - set(before.reached.nodes) <= having
        assert _most(before.reached.peers, having)
        assert _most(step.peers, having)

    # ----------------------------------------------------------------------------------------------- the end

    def settles(self) -> None:
        """Nothing is lost any more: each hears of everything, and one more instance leads the partition on."""
        self.takes_over()
        for _ in range(60):
            for node in NODES:
                self.hears(node, self.state.epoch)
                self.acknowledges(node)
            last = self.instances[-1]
            for place, ack in enumerate(self.acks[-len(NODES) :], start=len(self.acks)):
                last.book.take(place, ack)
            before = len(self.requests)
            self.looks(last, self.state.epoch)
            if len(self.requests) == before:
                break
            for command in self.requests[before:]:
                self.submit(command)
        one = self.one
        assert (one.pending, one.planned, one.cancel) == ((), None, None), "everything that was begun ends"
        if self.owed is not None:
            assert is_same(one.stable, self.owed), "a trigger that was accepted is stable, or something took its place"


def _groups(one: ZonePartition) -> Iterator[tuple[NodeId, ...]]:
    """The voters of which who knows this needs majorities."""
    if one.reached is not None:
        yield one.reached.peers
    if one.pending:
        yield one.pending[0].peers


def _most(group: tuple[NodeId, ...], nodes: Collection[NodeId]) -> bool:
    return 2 * len([node for node in group if node in nodes]) > len(group)

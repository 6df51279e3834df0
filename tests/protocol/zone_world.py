"""A zone partition, its nodes and several rebalancers with late, lost, repeated or reordered messages.

Each node knows a prefix of the log and has a shorter prefix on its disk. It acknowledges with the reports of
``protocol.nodes.groups``. Each instance also knows a prefix of the log and some acknowledgements. It sends the
requests that ``rebalancer_core`` proposes. A replaced instance continues to send. Operators send requests based on an
older state.

Invariants, checked at each entry and at each report:

- at most one configuration that nodes know of the partition has a primary that majorities follow;
- a step is planned only if a step is pending;
- a trigger has a newer cause than all earlier ones;
- a switch, a cancel and its end name their revision;
- a step recorded as applied was reported by its new nodes and is on the disks of majorities; no cancel undoes it;
- after all messages, the partition is at the target of the last accepted trigger, unless a cancel came later.
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
from ringlog.protocol.coordinator.ack_book import AckBook
from ringlog.protocol.nodes.groups import Member
from ringlog.protocol.rebalancer.core import ROLE, RebalancerView, propose
from ringlog.protocol.rebalancer.zone_groups import session_reports
from ringlog.wire.records import NodeAck
from tests.kernel.entries import uuid
from tests.kernel.zones.states import NoRows, ids, partition, tried, with_zone

LETTERS = "ABCDE"
NODES = ids(LETTERS)


class Instance:
    """One instance of a rebalancer: its epoch, and the reports that it has received."""

    def __init__(self, epoch: int) -> None:
        self.knows = epoch
        self.book = AckBook()


class ZoneWorld:
    """Nodes, instances and messages in transit. ``log``: the state at each epoch since the creation of the zone."""

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
        """Return the partition as the log has it."""
        return partition(self.state)

    # ------------------------------------------------------------------------------------------------ nodes

    def fold(self, node: NodeId, upto: int) -> None:
        """Fold the log up to that epoch."""
        self.knows[node] = max(self.knows[node], upto)
        self.most[node] = max(self.most[node], upto)
        self.one_primary()

    def acknowledge(self, node: NodeId, is_synced: bool = True) -> None:
        """Publish the permitted acknowledgement; if ``is_synced``, first store everything that it knows."""
        if is_synced:
            self.kept[node] = self.knows[node]
        state, kept = self.log[self.knows[node]], self.kept[node]
        words = Member(node, NoRows()).reports(state, kept)
        where = kept, kept, words, 0, 0, (), state_id_at(state, kept)
        self.acks.append(NodeAck(state.cluster_id, node, "1", *where))

    def crash(self, node: NodeId) -> None:
        """Reset the node to the content of its disk."""
        self.knows[node] = self.kept[node]
        self.one_primary()

    def one_primary(self) -> None:
        """Check that at most one known configuration has a primary that majorities follow."""
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

    def act(self, instance: Instance, upto: int) -> None:
        """Fold the log up to that epoch and send the due requests."""
        instance.knows = max(instance.knows, upto)
        self.requests += [one.command for one in propose(self.view(instance))]

    def view(self, instance: Instance) -> RebalancerView:
        state = self.log[instance.knows]
        return RebalancerView(state, session_reports(state, instance.book.newest(state)))

    def take_over(self) -> None:
        """Start another instance that reads the log and the last report of each node."""
        found = self.state.terms.get(ROLE)
        term = 1 if found is None else found.term + 1
        self.submit(TakeOver(ROLE, uuid(term, space=5), term))
        self.instances.append(Instance(self.state.epoch))
        for place, ack in enumerate(self.acks):
            self.instances[-1].book.take(place, ack)

    # ----------------------------------------------------------------------------------------------- the log

    def submit(self, command: Command) -> str:
        """Decide the request; return the code of a refusal."""
        before = self.one
        self.state, code = tried(self.state, command)
        if code:
            return code
        self.log[self.state.epoch] = self.state
        after = self.one
        assert after.planned is None or after.pending, "no request would ever start the planned step"
        if after is not before:
            self._decided(command, before, after)
        return ""

    def _decided(self, command: Command, before: ZonePartition, after: ZonePartition) -> None:
        revision = before.revisions.pending
        if isinstance(command, (CancelRebalance, FinishCancel)):
            assert command.pending_revision == revision, "the request names another revision"
        if isinstance(command, SwitchStable):
            assert command.revisions.pending == revision, "the request names another revision"
        if isinstance(command, TriggerRebalance):
            assert command.cause > self.heard, "the rebalancer acted on it already"
            self.heard = command.cause
            (self.owed,) = targets(self.state, self.state.zones["z"], [before.stable], [0])
        elif isinstance(command, CancelRebalance):
            self.owed = None if after.planned is None else self.owed
            self.cancelled = self.state.epoch
        elif isinstance(command, SwitchStable) or (
            isinstance(command, FinishCancel) and command.result == "already_new"
        ):
            self._applied(before)
            assert revision not in self.undone, "an undone step is not applied"
            assert is_same(after.reached, before.pending[0])
            self.recorded.add(revision)
        elif isinstance(command, FinishCancel):
            assert revision not in self.recorded, "a cancel undoes a finished step"
            assert is_same(after.stable, before.reached), "a cancel returns to the previous configuration"
            assert before.reached is not None
            having = {node for node, epoch in self.most.items() if epoch >= self.cancelled}
            assert _most(before.reached.peers, having), "a majority has seen it"
            self.undone.add(revision)

    def _applied(self, before: ZonePartition) -> None:
        """Check that new nodes have it on disk, and so have majorities of the voters before and after."""
        having = {node for node, epoch in self.kept.items() if epoch >= before.revisions.pending}
        assert before.reached is not None
        step = before.pending[0]
        assert set(step.nodes) - set(before.reached.nodes) <= having
        assert _most(before.reached.peers, having)
        assert _most(step.peers, having)

    # ------------------------------------------------------------------------------------------------------- completion

    def settle(self) -> None:
        """Deliver everything, and let one more instance move the partition to its end."""
        self.take_over()
        for _ in range(60):
            for node in NODES:
                self.fold(node, self.state.epoch)
                self.acknowledge(node)
            last = self.instances[-1]
            for place, ack in enumerate(self.acks[-len(NODES) :], start=len(self.acks)):
                last.book.take(place, ack)
            before = len(self.requests)
            self.act(last, self.state.epoch)
            if len(self.requests) == before:
                break
            for command in self.requests[before:]:
                self.submit(command)
        one = self.one
        assert (one.pending, one.planned, one.cancel) == ((), None, None), "every started step ends"
        if self.owed is not None:
            assert is_same(one.stable, self.owed), "an accepted trigger is stable, or a later event replaced it"


def _groups(one: ZonePartition) -> Iterator[tuple[NodeId, ...]]:
    """Return the groups of voters whose majorities a reader of this configuration needs."""
    if one.reached is not None:
        yield one.reached.peers
    if one.pending:
        yield one.pending[0].peers


def _most(group: tuple[NodeId, ...], nodes: Collection[NodeId]) -> bool:
    return 2 * len([node for node in group if node in nodes]) > len(group)

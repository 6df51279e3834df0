"""A check that the balancer's entries in the log are justified, and that they end.

The model has the state of the epoch that a plan was made on, as lists of replicas and their sizes. It does not have the
load reports that the planner used. So a move must be right under one of several interpretations. The model in
``tests/kernel/balance/naive.py`` has the input of one call of the planner, and applies each rule exactly.

*Back and forth.* For each replica, the model stores the shards that the balancer moved it from. While no other author
changes the planner's inputs, the balancer never moves it back to one of them. Another replica of the tablet may go
there, because a node with a late report becomes a target late. A move does not count while a node of the datacenter has
not reported all its tablets: hosts may give to that node later. Other changes (nodes, sizes, other moves, other
tablets) reset this memory. So does a copy that is added or removed to reach the replication
factor. A pair of siblings that is colocated for a merge resets it for all other tablets: siblings are colocated at any
load, each pair once.

*Each plan.* Its instance is active. The following must hold in the state of its epoch with all running moves finished.
Nothing was paused, no operation waited, and no replica leaves its datacenter or fills a rack. A giving host or shard
stays at least as loaded as the receiving one, unless it is drained, has more of the table or more than its share, or
siblings are colocated. Loads are bytes of nodes that reported, or counts. Plans on either basis are right, and so are
plans on a report from before a node's capacity was set.

*Any migration.* All operations in flight wait for a drain, no rack is filled, and new moves exceed no streaming limit.

*At the end.* No single move is still right. Hosts and shards are as even as moves can make them, within each host's
share of a table. A leaving node has no tablet that another node could take. ``ringlog_sim.runner.rest`` asks the
balancer itself whether a plan remains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, Node, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.operations.gates import leaving_node
from ringlog.protocol.balancer.balancer import ROLE
from ringlog.wire.records import TableLoad
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.broker import LOAD
from ringlog_sim.devices.memo import cached_load
from ringlog_sim.shape import tablet_bytes
from ringlog_sim.stories.balancing import LIMITS

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

Place = tuple[str, int]

_ADMINISTRATIVE = frozenset(
    {"AdvanceTablets", "Noop", "TakeOver", "SettleVerdicts", "AdvanceCdcWriter", "LowerCdcWriter"}
)
"""Entries that change none of the planner's inputs, except for planned moves."""
_BACK = frozenset({"write_both_read_old_fallback_cleanup", "cleanup_target", "revert_migration"})
_STREAMS = frozenset({"allow_write_both_read_old", "write_both_read_old", "rebuild_repair", "streaming", "repair"})
_WEIGHTS = {"rebuild_v2": 2, "repair": 2}
_ENDED = frozenset({"finished", "cancelled"})
CLOCK_AHEAD_US = 60_000_000


class ModelledPlacement:
    """The position of each replica after all running moves, and the loads of hosts and shards.

    ``by``: ``bytes`` or ``count``; loads are in proportion to the nodes' capacities. ``reported``: False for the state
    before a node's capacity was set. ``unknown``: tablets without a reported size; each has the target size.
    """

    def __init__(
        self, state: ClusterState, by: str, reported: bool = True, unknown: frozenset[tuple[str, int]] = frozenset()
    ) -> None:
        self.state = state
        self.by = by
        self.rooms = {node.id: _room(node, reported) for node in state.nodes.values()}
        waiting = (one for one in state.operations.values() if one.stage == "requested" and one.replaced)
        self._replacing = {one.node for one in waiting if not state.nodes[one.node].down}
        self.places: dict[tuple[str, int], list[Place]] = {}
        self.hosts: Counter[str] = Counter()
        self.shards: Counter[Place] = Counter()
        for name, tablets in in_order(state.tablets):
            for tablet in tablets:
                places = self.places[name, tablet.index] = _ends_as(tablet)
                is_unknown = by == "bytes" and (name, tablet.index) in unknown
                size = setting(state, "balance_tablet_bytes") if is_unknown else self.size(tablet.index)
                for place in places:
                    self._weigh(place, size)

    def size(self, number: int) -> int:
        """Return the load of a tablet of that number, which is the same for every table."""
        return tablet_bytes(number) if self.by == "bytes" else 1

    def _weigh(self, place: Place, size: int) -> None:
        self.hosts[place[0]] += size
        self.shards[place] += size

    def gives(self, source: Place, target: Place, size: int) -> bool:
        """Return True if the giver is at least as loaded as the receiver after a move of that size."""
        if source[0] == target[0]:
            return self.shards[source] - size >= self.shards[target] + size
        source_load, target_load = self.rooms[source[0]], self.rooms[target[0]]
        return (self.hosts[source[0]] - size) * target_load >= (self.hosts[target[0]] + size) * source_load

    def differs(self, source: Place, target: Place) -> bool:
        """Return True if the difference of the loads exceeds the threshold."""
        more, less = self.shards[source], self.shards[target]
        if source[0] != target[0]:
            more = self.hosts[source[0]] * self.rooms[target[0]]
            less = self.hosts[target[0]] * self.rooms[source[0]]
        most = setting(self.state, "balance_threshold_permille") if self.by == "bytes" else 0
        return more > less and (more - less) * 1000 >= more * most

    def fits(self, table: str, number: int, source: Place, target: Place, anywhere: bool = False) -> bool:
        """Return True if the placement rules allow the move. ``anywhere``: also to another datacenter."""
        if source[0] == target[0]:
            return True
        here, there = self.state.nodes[source[0]], self.state.nodes[target[0]]
        others = [node for node, _ in self.places[table, number] if node != source[0]]
        if (here.datacenter != there.datacenter and not anywhere) or target[0] in others:
            return False
        racks = Counter(_rack(self.state.nodes[node]) for node in [*others, source[0]])
        return _rack(here) == _rack(there) or racks[_rack(there)] < racks[_rack(here)]

    def move(self, table: str, number: int, source: Place, target: Place) -> None:
        """Move the replica to its new position."""
        places = self.places[table, number]
        places[places.index(source)] = target
        self._weigh(source, -self.size(number))
        self._weigh(target, self.size(number))

    def copy(self, move: TabletMigration) -> None:
        """Add or remove a replica."""
        places, size = self.places[move.table, move.tablet], self.size(move.tablet)
        if move.to is not None:
            places.append((move.to.node, move.to.shard))
            self._weigh(places[-1], size)
        if move.from_ is not None:
            places.remove((move.from_.node, move.from_.shard))
            self._weigh((move.from_.node, move.from_.shard), -size)

    def held(self, table: str, node: str) -> int:
        """Return the number of the table's replicas on the node."""
        return sum(node in dict(places) for (name, _), places in self.places.items() if name == table)

    def share(self, table: str, node: Node) -> int:
        """Return the minimum share of the table's tablets of the node, by its part of its rack's capacity."""
        racks: Counter[str] = Counter()
        for one in self.state.nodes.values():
            if one.datacenter == node.datacenter and (_serves(one) or one.id in self._replacing):
                racks[one.rack] += self.rooms[one.id]
        there = [node_ for (name, _), places in self.places.items() if name == table for node_, _ in places]
        replicas = sum(self.state.nodes[one].datacenter == node.datacenter for one in there)
        count = self.state.tablets[table].count
        least, most = replicas // (count * len(racks)) * count, -(-replicas // (count * len(racks))) * count
        in_rack = max(least, min(most, replicas * racks[node.rack] // sum(racks.values())))
        return in_rack * self.rooms[node.id] // racks[node.rack] + 1


class BalancerCheck(Check):
    """Replicas do not move back and forth, state and loads justify each plan, and at the end the load is even."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._left: dict[tuple[str, int], dict[Place, frozenset[Place]]] = {}
        self._chapter = 0

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check one more record of the true log."""
        command = item.command
        if isinstance(command, MigrateTablets):
            self._begun(before, after, command)
        if not isinstance(command, MigrateTablets) or not item.submitter.startswith(f"{ROLE}-"):
            if item.kind not in _ADMINISTRATIVE:
                self._left, self._chapter = {}, after.epoch
            return
        if item.submitter != before.terms[ROLE].instance:
            self.sim.broken("stale_plan", f"{item.submitter} began {command}, {before.terms[ROLE].instance} acts")
        for move in command.migrations:
            if before.keyspaces[move.table.partition(".")[0]].replication.zone:
                self.sim.broken("unjustified", f"{move.table}/{move.tablet} belongs to a zone, but has {move}")
        self._planned(self.sim.log.states[item.since_epoch], command)
        self._keeps_siblings(self.sim.log.states[item.since_epoch], before, command)
        if item.since_epoch >= self._chapter:
            planned_on = self.sim.log.states[item.since_epoch]
            pairs = {(move.table, move.tablet // 2) for move in command.migrations if _meets_sibling(planned_on, move)}
            if any(move.from_ is None or move.to is None for move in command.migrations):
                self._left = {}
            elif pairs:
                self._left = {key: left for key, left in self._left.items() if (key[0], key[1] // 2) in pairs}
            for move in command.migrations:
                self._come_back(planned_on, move)

    def _keeps_siblings(self, state: ClusterState, before: ClusterState, command: MigrateTablets) -> None:
        """Check that colocated siblings of a merge move together, unless their node or shard is given up."""
        for move in command.migrations:
            tablets = state.tablets[move.table]
            if not (_is_merging(tablets) and _is_merging(before.tablets[move.table])) or move.from_ is None:
                continue
            node, sibling = state.nodes[move.from_.node], move.tablet ^ 1
            is_given_up = self._is_drained(node) or move.from_.shard >= node.shards
            if is_given_up or sibling >= tablets.count or move.from_ not in _shards_of(tablets.tablet(sibling)):
                continue
            same = [
                (one.from_, one.to) for one in command.migrations if (one.table, one.tablet) == (move.table, sibling)
            ]
            if same != [(move.from_, move.to)]:
                self.sim.broken("siblings", f"{move.table}/{move.tablet} leaves its sibling at {move.from_}")

    def _come_back(self, state: ClusterState, move: TabletMigration) -> None:
        if move.from_ is None or move.to is None:
            return
        source, target = (move.from_.node, move.from_.shard), (move.to.node, move.to.shard)
        replicas = self._left.setdefault((move.table, move.tablet), {})
        left = replicas.pop(source, frozenset())
        if target in left:
            self.sim.broken("to_and_fro", f"{move.table}/{move.tablet} returns to {target}, from {source}")
        is_premature = self._is_late(state, state.nodes[source[0]].datacenter)
        replicas[target] = left if is_premature else left | {source}

    def _is_late(self, state: ClusterState, datacenter: str) -> bool:
        """Return True if one of the last two reports of a node there lacks a settled tablet that it has.

        The plan was made on one of these reports.
        """
        settled = [
            (one.node, (name, tablet.index))
            for name, tablets in state.tablets.items()
            for tablet in tablets
            if tablet.transition is None
            for one in tablet.replicas
            if state.nodes[one.node].datacenter == datacenter
        ]
        known = self._sizes_reported(state)
        return any(tablet not in sizes for node, tablet in settled for sizes in known.get(node, ())[-2:])

    # --------------------------------------------------------------------------------------------- each plan

    def _planned(self, state: ClusterState, command: MigrateTablets) -> None:
        unknown = self._unknown(state)
        views = [
            ModelledPlacement(state, by, reported, unknown) for by in ("bytes", "count") for reported in (True, False)
        ]
        for move in command.migrations:
            where = f"{move.table}/{move.tablet}"
            if any(pause.scope == "balancing" and _is_of(pause.of, move.table) for pause in state.pauses.values()):
                self.sim.broken("unjustified", f"{where} moves, although balancing it is paused")
            if state.tablets[move.table].tablet(move.tablet).transition is not None:
                self.sim.broken("unjustified", f"{where} moves twice")
            if move.from_ is None or move.to is None:
                self._copied(views, move)
                continue
            source, target = (move.from_.node, move.from_.shard), (move.to.node, move.to.shard)
            if not self._is_drained(state.nodes[source[0]]):
                meets = _is_merging(state.tablets[move.table])
                replication = state.keyspaces[move.table.partition(".")[0]].replication
                anywhere = meets and not replication.datacenters  # siblings may then be colocated in another datacenter
                if not views[0].fits(move.table, move.tablet, source, target, anywhere):
                    self.sim.broken("unjustified", f"{where} moves from {source} to {target}, against the rules")
                right = [view.gives(source, target, view.size(move.tablet)) for view in views]
                held = views[0].held(move.table, source[0])
                giver = state.nodes[source[0]]
                share = views[0].share(move.table, giver) if _serves(giver) else held
                more = held > min(share, views[0].held(move.table, target[0]))
                if not any(right) and not meets and not (more and source[0] != target[0]):
                    loads = [(view.by, dict(view.hosts), dict(view.shards)) for view in views]
                    self.sim.broken("unjustified", f"{where} moves from {source} to {target}, with {loads}")
            for view in views:
                view.move(move.table, move.tablet, source, target)

    def _copied(self, views: list[ModelledPlacement], move: TabletMigration) -> None:
        """Check that a replica is added only if there are too few, and removed only if there are too many."""
        state, where = views[0].state, f"{move.table}/{move.tablet}"
        there = len(views[0].places[move.table, move.tablet])
        wanted = state.keyspaces[move.table.partition(".")[0]].replication.factor
        if there >= wanted if move.from_ is None else there <= wanted:
            self.sim.broken("unjustified", f"{where} has {there} replicas, needs {wanted}, and gets {move}")
        for view in views:
            view.copy(move)

    def _is_drained(self, node: Node) -> bool:
        return node.down or node.state in ("leaving", "left")

    def _begun(self, before: ClusterState, after: ClusterState, command: MigrateTablets) -> None:
        """Check that no operation waits, and that new moves respect the limits."""
        for operation in before.operations.values():
            if operation.stage in _ENDED:
                continue
            goes = leaving_node(operation)
            has = any(goes in _nodes_of(tablet) for tablets in before.tablets.values() for tablet in tablets)
            if operation.stage != "requested" or not goes or not has:
                self.sim.broken("exclusion", f"{command} begins while {operation.id} is in {operation.stage}")
        view = ModelledPlacement(before, "count")
        for move in command.migrations:
            if before.keyspaces[move.table.partition(".")[0]].replication.zone:
                continue  # its zone determines the target
            if move.from_ is None or move.to is None or self._is_drained(before.nodes[move.from_.node]):
                continue
            source, target = (move.from_.node, move.from_.shard), (move.to.node, move.to.shard)
            if not view.fits(move.table, move.tablet, source, target, anywhere=True):
                self.sim.broken("placement", f"{move.table}/{move.tablet} moves from {source} to {target}")
        new = {(move.table, move.tablet) for move in command.migrations}
        for counted, name in zip(_streams(after, new), LIMITS, strict=True):
            most = setting(before, name)
            for place, (weight, several, grows) in counted.items():
                if most and grows and several > 1 and weight > most:
                    self.sim.broken("limits", f"{name} is {most}, {place} streams {weight} with {command}")

    # ----------------------------------------------------------------------------------------------- at rest

    def quiet(self) -> None:
        """Check that no single move would be right, and that no drain could continue."""
        state = self.sim.log.state
        moving = any(tablets.transitions for tablets in state.tablets.values())
        held_up = any(pause.scope == "balancing" for pause in state.pauses.values())
        if not self.sim.shared["balances"] or moving or held_up or not state.tablets:
            return
        reported = self._reported(state)
        flying = [one for one in state.operations.values() if one.stage not in _ENDED]
        holders = set(ModelledPlacement(state, "count").hosts)
        if all(one.stage == "requested" and leaving_node(one) for one in flying):
            left = [node for node in sorted(holders) if state.nodes[node].state == "left"]
            for node in [*(leaving_node(one) for one in flying), *left]:
                self._drained(state, node)
        if flying or any(self._is_drained(state.nodes[node]) for node in holders):
            return
        by = {node.datacenter: "bytes" for node in state.nodes.values() if _serves(node) and node.id in reported}
        for datacenter in sorted({node.datacenter for node in state.nodes.values()}):
            view = ModelledPlacement(state, by.get(datacenter, "count"))
            hosts = [
                node.id
                for _, node in in_order(state.nodes)
                if node.datacenter == datacenter and _serves(node) and (view.by == "count" or reported.get(node.id))
            ]
            for found in _uneven(view, hosts):
                self.sim.broken("uneven", f"{found}, with {view.by} {dict(view.hosts)} {dict(view.shards)}")

    def _drained(self, state: ClusterState, goes: str) -> None:
        """Check that a leaving or assassinated node has no tablet that another host of its datacenter could take.

        Reports do not matter here.
        """
        node = state.nodes[goes]
        others = [one for one in state.nodes.values() if one.datacenter == node.datacenter and _serves(one)]
        others = [one for one in others if one.state != "leaving" and one.id != goes]
        for (table, number), places in ModelledPlacement(state, "count").places.items():
            holders = [one for one, _ in places]
            living = [one for one in holders if not _is_dead(state.nodes[one])]
            away = [one for one in holders if _is_dead(state.nodes[one]) and state.nodes[one].state != "left"]
            knows = len(living) > len(holders) // 2 or not _is_dead(node) or not away
            if goes in holders and knows and any(one.id not in holders for one in others):
                self.sim.broken("drain", f"{node.name} leaves, but still has {table}/{number}")

    def _sizes_known(self, state: ClusterState) -> dict[str, set[tuple[str, int]]]:
        """Return node to the tablets in its last valid report."""
        return {node: sizes[-1] for node, sizes in self._sizes_reported(state).items()}

    def _sizes_reported(self, state: ClusterState) -> dict[str, list[set[tuple[str, int]]]]:
        """Return node to the tablets in each of its valid reports, in order."""
        found: dict[str, list[set[tuple[str, int]]]] = {}
        for record in self.sim.broker.partition(LOAD).records:
            load = cached_load(record.value)
            if load is not None and load.at <= record.time + CLOCK_AHEAD_US:
                present = [one for one in load.tables if _is_present(state, one)]
                sizes = {(one.table, number) for one in present for number in one.tablets}
                found.setdefault(load.node, []).append(sizes)
        return found

    def _unknown(self, state: ClusterState) -> frozenset[tuple[str, int]]:
        """Return the tablets in transition that no report of their nodes contains."""
        known = self._sizes_known(state)
        return frozenset(
            (name, tablet.index)
            for name, tablets in state.tablets.items()
            for tablet in tablets
            if tablet.transition is not None
            and not any((name, tablet.index) in known.get(node, ()) for node in _nodes_of(tablet))
        )

    def _reported(self, state: ClusterState) -> dict[str, bool]:
        """Return nodes with a valid report. The value is False if the last one lacks a tablet of the node, as after a
        split.
        """
        found = self._sizes_known(state)
        has = {
            node: {
                (name, tablet.index)
                for name, tablets in state.tablets.items()
                for tablet in tablets
                if node in _nodes_of(tablet)
            }
            for node in found
        }
        return {node: has[node] <= needed for node, needed in sorted(found.items())}


def _is_merging(tablets: TabletMap) -> bool:
    return tablets.resize is not None and tablets.resize.decision == "merge"


def _meets_sibling(state: ClusterState, move: TabletMigration) -> bool:
    """Return True if a tablet moves to the current or future position of its sibling for a merge."""
    tablets = state.tablets[move.table]
    if not _is_merging(tablets) or move.to is None:
        return False
    return (move.to.node, move.to.shard) in _ends_as(tablets.tablet(move.tablet ^ 1))


def _is_present(state: ClusterState, load: TableLoad) -> bool:
    """Return True if the tablet numbers of a report are those of the current table."""
    tablets = state.tablets.get(load.table)
    return tablets is not None and (load.id, load.count) == (state.tables[load.table].id, tablets.count)


def _uneven(view: ModelledPlacement, hosts: list[str]) -> Iterator[str]:
    """Yield moves that would be right."""
    shards = [(node, shard) for node in hosts for shard in range(view.state.nodes[node].shards)]
    for (table, number), places in view.places.items():
        is_merging = _is_merging(view.state.tablets[table])
        for source in () if is_merging else places:
            for target in shards if source[0] in hosts else ():
                if target == source or not view.differs(source, target) or not view.fits(table, number, source, target):
                    continue
                other = target[0] != source[0]
                if other and view.held(table, target[0]) >= view.share(table, view.state.nodes[target[0]]):
                    continue
                if view.gives(source, target, view.size(number)):
                    yield f"{table}/{number} could move from {source} to {target}"


Counted = dict[object, tuple[int, int, bool]]
"""Place to (weight, number of transitions, whether a new transition is included)."""


def _streams(state: ClusterState, new: set[tuple[str, int]]) -> tuple[Counted, ...]:
    """Return the current streams, for each of the limits."""
    found: tuple[Counted, ...] = ({}, {}, {}, {}, {})
    for name, tablets in in_order(state.tablets):
        for number, one in in_order(tablets.transitions):
            if one.stage not in _STREAMS:
                continue
            old = [(place.node, place.shard) for place in tablets.replicas(number)]
            to = [(place.node, place.shard) for place in one.next]
            alive = [place for place in old if not _is_dead(state.nodes[place[0]])]
            comes = [place for place in to if place not in old]
            leaves = [place for place in old if place not in to]
            reads = leaves if one.kind.endswith("migration") else [place for place in alive if place not in leaves]
            writes = alive if one.kind == "repair" else comes
            nodes = [sorted({node for node, _ in places}) for places in (reads, writes)]
            touched: tuple[Sequence[object], ...] = (reads, writes, *nodes, ["all"])
            for counted, places in zip(found, touched, strict=True):
                for place in places:
                    weight, several, grows = counted.get(place, (0, 0, False))
                    grown = grows or (name, number) in new
                    counted[place] = (weight + _WEIGHTS.get(one.kind, 1), several + 1, grown)
    return found


def _ends_as(tablet: Tablet) -> list[Place]:
    """Return the position of a tablet after its running transition."""
    stays = tablet.transition is None or tablet.transition.stage in _BACK
    replicas = tablet.replicas if tablet.transition is None or stays else tablet.transition.next
    return [(one.node, one.shard) for one in replicas]


def _shards_of(tablet: Tablet) -> list[Shard]:
    """Return the shards of a settled tablet; none while it is in transition."""
    return [Shard(one.node, one.shard) for one in tablet.replicas] if tablet.transition is None else []


def _nodes_of(tablet: Tablet) -> set[str]:
    """Return the current and future nodes of a tablet."""
    coming = () if tablet.transition is None else tablet.transition.next
    return {one.node for one in (*tablet.replicas, *coming)}


def _room(node: Node, reported: bool) -> int:
    """Return a node's capacity, in a unit of its datacenter."""
    return node.shards * node.capacity if reported else node.shards


def _is_of(of: str, table: str) -> bool:
    return of in ("", table, table.partition(".")[0])


def _rack(node: Node) -> tuple[str, str]:
    return node.datacenter, node.rack


def _is_dead(node: Node) -> bool:
    return node.down or node.state == "left"


def _serves(node: Node) -> bool:
    return node.state in ("normal", "moving") and not node.down

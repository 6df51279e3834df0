"""An independent model of tablets: lists of replicas that entries change. It shares with the kernel only the fields of
commands and the initial tablets of a table.

A tablet is two lists and the name of a stage. The readers and writers of each stage are defined here a second time, as
text (``STAGES``). An entry that the model does not allow, or a tablet that differs in the state, is a defect. In each
stage, every read quorum must intersect every write quorum of this stage and of the adjacent ones, because requests
that were planned one stage apart may overlap. The check tests each pair of sets. The register checks cover loss after
the reset of a partition. A salvage that admits no loss continues only while a majority of the tablet's nodes is up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from ringlog.kernel.commands.placement.rebalances import ResetPartitions
from ringlog.kernel.commands.placement.resizes import DecideResize, FinishResize
from ringlog.kernel.commands.placement.tablets import AdvanceTablets, MigrateTablets, RevertTablets, TabletAdvance
from ringlog.kernel.commands.schema.batch import SchemaBatch
from ringlog.kernel.commands.schema.tables import CreateTable, DropTable
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.groups import group_of, moving_of
from ringlog.kernel.values import Command, Witness
from ringlog_sim.checks.base import Check

Place = tuple[str, int]

STAGES: Mapping[str, str] = {
    "allow_write_both_read_old": "reads old, writes old",
    "write_both_read_old": "reads old, writes both",
    "rebuild_repair": "reads old, writes both, repaired",
    "streaming": "reads old, writes both, streamed",
    "write_both_read_new": "reads new, writes both",
    "use_new": "reads new, writes new",
    "cleanup": "reads new, writes new, leaver cleans",
    "end_migration": "reads new, writes new",
    "write_both_read_old_fallback_cleanup": "reads old, writes both",
    "cleanup_target": "reads old, writes old, comer cleans",
    "revert_migration": "reads old, writes old",
    "repair": "reads old, writes old, repaired",
    "end_repair": "reads old, writes old",
    "salvage": "reads old, writes both, survivor has all",
    "salvaged": "reads new, writes both",
    "end_salvage": "reads new, writes new",
}
FORTH = tuple(STAGES)[:8]
WAYS: Mapping[str, tuple[str, ...]] = {
    "migration": tuple(stage for stage in FORTH if stage != "rebuild_repair"),
    "intranode_migration": tuple(stage for stage in FORTH if stage != "rebuild_repair"),
    "rebuild": tuple(stage for stage in FORTH if stage != "rebuild_repair"),
    "rebuild_v2": FORTH,
    "repair": ("repair", "end_repair"),
    "salvage": ("salvage", "salvaged", "end_salvage"),
    "lossy_salvage": ("salvage", "salvaged", "end_salvage"),
}
BACK = tuple(STAGES)[8:11]


@dataclass(slots=True)
class ModelledTablet:
    """A tablet: its current and future replicas, its stage and that stage's epoch, and each writer's first epoch."""

    old: list[Place]
    since: dict[str, int]
    changed: int
    new: list[Place] = field(default_factory=list)
    kind: str = ""
    stage: str = ""
    entered: int = 0

    def group(self, access: str) -> list[str]:
        """Return the nodes that read or write now."""
        groups = STAGES[self.stage] if self.stage else "reads old, writes old"
        chosen = groups.split(f"{access} ")[1].split(",")[0]
        places = {"old": self.old, "new": self.new, "both": [*self.old, *self.new]}[chosen]
        return list(dict.fromkeys(node for node, _ in places))

    def following(self) -> str:
        """Return the stage after this one, or empty text at the end."""
        way = BACK if self.stage in BACK else WAYS[self.kind]
        return (*way, "")[way.index(self.stage) + 1]

    def enter(self, stage: str, epoch: int) -> None:
        """Enter a stage. An empty stage ends the transition."""
        before = self.groups()
        if not stage and self.stage in ("end_migration", "end_salvage"):
            self.old = self.new
        self.stage = stage
        if not stage:
            self.new, self.kind = [], ""
        self.entered = epoch
        self.since = {node: self.since.get(node, epoch) for node in self.group("writes")}
        if stage and self.groups() != before:
            self.changed = epoch

    def groups(self) -> list[str]:
        """Return the read and write groups, as text."""
        return STAGES[self.stage].split(", ")[:2] if self.stage else ["reads old", "writes old"]


Broken = Callable[[str], None]


class TabletModel:
    """The tablets of all tables. ``broken`` is called with each difference."""

    def __init__(self, broken: Broken) -> None:
        self.broken = broken
        self.tables: dict[str, list[ModelledTablet]] = {}

    def take(self, command: Command, before: ClusterState, after: ClusterState) -> None:
        """Apply an entry to the model."""
        match command:
            case CreateTable() | DropTable():
                self._made_or_dropped(command, before, after)
            case SchemaBatch():
                for statement in command.statements:
                    for stated in statement.commands:
                        self._made_or_dropped(stated, before, after)
            case MigrateTablets():
                self._migrate(command, before, after.epoch)
            case AdvanceTablets():
                for step in command.tablets:
                    self._advance(step, (*command.witnesses, *step.witnesses), before, after.epoch)
            case RevertTablets():
                for one in command.tablets:
                    self._revert(f"{one.table}/{one.tablet}", self.tables[one.table][one.tablet], before, after.epoch)
            case ResetPartitions():
                self._reset(command, before, after)
            case DeclareUp(node):
                for tablet in (tablet for modelled in self.tables.values() for tablet in modelled):
                    if (tablet.kind, tablet.stage) == ("lossy_salvage", "salvage") and node in dict(tablet.old):
                        tablet.enter("salvage", after.epoch)  # earlier reports without that node no longer count
            case DecideResize():
                pass
            case FinishResize():
                self._resize(command.table, before, after)
            case _:
                return
        self.compare(after)

    def compare(self, state: ClusterState) -> None:
        """Compare every tablet of the state with the model."""
        if set(state.tablets) != set(self.tables):
            self.broken(f"tables {sorted(state.tablets)} are in tablets, not {sorted(self.tables)}")
        for name, modelled in self.tables.items():
            tablets = state.tablets[name]
            if tablets.count != len(modelled):
                self.broken(f"{name} has {tablets.count} tablets, not {len(modelled)}")
            for index, tablet in enumerate(modelled):
                shown = tablets.tablet(index)
                found = [(one.node, one.shard) for one in shown.replicas]
                stage = "" if shown.transition is None else shown.transition.stage
                if found != tablet.old or stage != tablet.stage:
                    self.broken(f"{name}/{index} is {found} in {stage!r}, not {tablet.old} in {tablet.stage!r}")
                if tablet.kind != ("" if shown.transition is None else shown.transition.kind):
                    self.broken(f"{name}/{index} is in {shown.transition}, which is no {tablet.kind}")
                group = group_of(shown)
                reads = {one.node: one.since for one in group.read}
                writes = {one.node: one.since for one in group.write}
                if (set(reads), writes) != (
                    set(tablet.group("reads")),
                    tablet.since,
                ) or group.changed != tablet.changed:
                    self.broken(f"{name}/{index}: {group} in {stage!r}, expected {tablet}")
                moving = [(set(one.entering), set(one.leaving)) for one in moving_of(name, shown)]
                if moving != _moving(tablet):
                    self.broken(f"{name}/{index}: {moving} in {stage!r} is not what {tablet} moves")
                if tablet.stage:
                    self._meet(f"{name}/{index}", tablet)

    # ----------------------------------------------------------------------------------------------- entries

    def _made_or_dropped(self, command: Command, before: ClusterState, after: ClusterState) -> None:
        """Apply a statement about a table. A CREATE of an existing table has no effect."""
        match command:
            case CreateTable(keyspace, name) if f"{keyspace}.{name}" not in before.tables:
                self._create(f"{keyspace}.{name}", after)
            case DropTable(keyspace, name):
                self.tables.pop(f"{keyspace}.{name}", None)

    def _create(self, name: str, after: ClusterState) -> None:
        tablets = after.tablets.get(name)
        if tablets is None:
            return
        self.tables[name] = []
        for one in tablets:
            places = [(replica.node, replica.shard) for replica in one.replicas]
            self.tables[name].append(ModelledTablet(places, {node: after.epoch for node, _ in places}, after.epoch))

    def _migrate(self, command: MigrateTablets, before: ClusterState, epoch: int) -> None:
        for one in command.migrations:
            tablet, where = self.tables[one.table][one.tablet], f"{one.table}/{one.tablet}"
            source = None if one.from_ is None else (one.from_.node, one.from_.shard)
            target = None if one.to is None else (one.to.node, one.to.shard)
            if tablet.stage or (source is not None and source not in tablet.old):
                self.broken(f"{where} was in {tablet.stage!r}, {source} was to leave {tablet.old}")
            new = [place if place != source else target for place in tablet.old]
            new += [target] if source is None else []
            tablet.new = [place for place in new if place is not None]
            nodes = [node for node, _ in tablet.new]
            if len(set(nodes)) < len(nodes) or any(shard >= before.nodes[node].shards for node, shard in tablet.new):
                self.broken(f"{where} was to be on {tablet.new}")
            if target is not None:
                there, comes = before.nodes[target[0]], source is None or source[0] != target[0]
                placed = before.keyspaces[one.table.partition(".")[0]].replication.zone
                away = ("left",) if placed else ("leaving", "left")  # a partition may pass through a leaving node
                if there.down or (comes and there.state in away):
                    self.broken(f"{where} was to come to {there.id}, which is down, or {there.state}")
            tablet.kind = one.kind
            tablet.enter(WAYS[one.kind][0], epoch)

    def _advance(self, step: TabletAdvance, witnesses: Iterable[Witness], before: ClusterState, epoch: int) -> None:
        tablet, where = self.tables[step.table][step.tablet], f"{step.table}/{step.tablet}"
        if not tablet.stage or step.to != (tablet.following() or "settled"):
            self.broken(f"{where} went from {tablet.stage!r} to {step.to}")
            return
        seen = {one.node for one in witnesses if min(one.applied, one.drained) >= tablet.entered}
        for lacking in self._lacking(step.table, tablet, before, seen):
            self.broken(f"{where} left {tablet.stage} without {lacking}")
        reporters = {one.node for one in step.reports if one.operation == f"{where}@{tablet.entered}"}
        alive = [node for node, _ in tablet.old if not _dead(before, node)]
        may_return = any(before.nodes[node].state != "left" for node, _ in tablet.old if node not in alive)
        if (tablet.kind, tablet.stage) == ("salvage", "salvage") and may_return and 2 * len(alive) <= len(tablet.old):
            self.broken(f"{where} left {tablet.stage} with only {alive} alive of {tablet.old}, and no admitted loss")
        for worker in self._workers(tablet, before):
            if worker not in reporters:
                self.broken(f"{where} left {tablet.stage} before {worker} reported")
        tablet.enter(tablet.following(), epoch)

    def _revert(self, where: str, tablet: ModelledTablet, before: ClusterState, epoch: int) -> None:
        groups = STAGES.get(tablet.stage, "")
        if tablet.kind == "repair" and tablet.stage == "repair":
            tablet.enter("end_repair", epoch)
        elif tablet.stage in BACK or groups.startswith("reads new, writes new") or not groups:
            self.broken(f"{where} reverted from {tablet.stage!r}")
        elif groups.startswith("reads new"):
            groups_of_nodes = [[node for node, _ in group] for group in (tablet.old, tablet.new)]
            dead = [sum(_dead(before, node) for node in group) for group in groups_of_nodes]
            named = before.keyspaces[where.partition(".")[0]].replication.datacenters
            old_knows, new_knows = [_living_know_all(before, group, bool(named)) for group in groups_of_nodes]
            is_worse = dead[1] > dead[0] or (old_knows and not new_knows)
            if not is_worse or tablet.kind == "intranode_migration":
                self.broken(f"{where} reverted from {tablet.stage}, with {dead} dead")
            tablet.enter(BACK[0], epoch)
        else:
            tablet.enter(BACK[2] if tablet.stage == "allow_write_both_read_old" else BACK[1], epoch)

    def _reset(self, command: ResetPartitions, before: ClusterState, after: ClusterState) -> None:
        """Model a reset: all nodes with all rows of a tablet give them to the first node of the restarted
        partition.
        """
        zone, mode = command.zone, before.zones[command.zone].mode
        tables = [name for name in self.tables if before.keyspaces[name.partition(".")[0]].replication.zone == zone]
        for number in range(before.zones[zone].partitions):
            now = after.zone_partitions[f"{zone}/{number}"]
            if now is before.zone_partitions[f"{zone}/{number}"]:
                continue
            for name in tables:
                tablet, found = self.tables[name][number], after.tablets[name].tablet(number).transition
                if found is None or [one.node for one in found.next] != list(now.pending[0].peers):
                    self.broken(f"{name}/{number} must be salvaged to {now.pending[0]}: {found}")
                    return
                if tablet.stage:
                    groups, both = (
                        STAGES[tablet.stage],
                        [*tablet.old, *(one for one in tablet.new if one not in tablet.old)],
                    )
                    has_all = tablet.stage in ("write_both_read_new", BACK[0], "salvaged")
                    tablet.old = both if has_all else tablet.new if groups.startswith("reads new") else tablet.old
                    tablet.stage, tablet.changed = "", after.epoch
                    tablet.since = {node: tablet.since[node] for node, _ in tablet.old}
                tablet.new = [(one.node, one.shard) for one in found.next]
                tablet.kind = "lossy_salvage" if command.admits_loss or mode == "high_availability" else "salvage"
                tablet.enter("salvage", after.epoch)

    def _resize(self, name: str, before: ClusterState, after: ClusterState) -> None:
        resize = before.tablets[name].resize
        if resize is None or any(tablet.stage for tablet in self.tables[name]):
            self.broken(f"{name} was resized with the decision {resize}")
            return
        modelled = self.tables[name]
        if resize.decision == "split":
            pairs = [
                [tablet, ModelledTablet(list(tablet.old), dict(tablet.since), tablet.changed)] for tablet in modelled
            ]
            self.tables[name] = [tablet for pair in pairs for tablet in pair]
            return
        merged = []
        for even in range(0, len(modelled), 2):
            one, *others = modelled[even : even + 2]
            for other in others:
                if set(one.old) != set(other.old):
                    self.broken(f"{name}/{even} and its sibling have different replicas")
                one.since = {node: max(at, other.since[node]) for node, at in one.since.items()}
                one.changed = max(one.changed, other.changed)
            merged.append(one)
        self.tables[name] = merged

    # ------------------------------------------------------------------------------------------------- rules

    def _lacking(self, name: str, tablet: ModelledTablet, state: ClusterState, seen: set[str]) -> Iterator[str]:
        """Yield missing acknowledgements. Each majority of the asked replicas needs one. A salvage needs its survivor.

        Before the survivor is read, all other live nodes must acknowledge, and a majority of them unless a loss is
        admitted.
        """
        if "salvage" in tablet.kind:
            here = [node for node, _ in tablet.old if state.nodes[node].state != "left"]
            lacking = len(seen.intersection(here)) < min(len(tablet.old) // 2 + 1, len(here))
            if (tablet.kind, tablet.stage) == ("salvage", "salvaged") and lacking:
                yield f"a majority of {here}"
            others = [node for node, _ in tablet.old if not _dead(state, node)] if tablet.stage == "salvaged" else []
            yield from (node for node in [*(node for node, _ in tablet.new), *others] if node not in seen)
            return
        comes = {node for node, _ in tablet.new} - {node for node, _ in tablet.old}
        goes = {node for node, _ in tablet.old} - {node for node, _ in tablet.new}
        excused = self._excused(name, tablet, state)
        for local in self._asked(name, tablet, state):
            if _quorum_of([node for node in local if node not in seen.union(excused)], local):
                yield f"a node of each majority of {local}"
        if tablet.stage in FORTH[:4] and tablet.kind != "repair":
            yield from (f"{node}, which joins" for node in comes - seen)
        if tablet.stage == "use_new":
            yield from (f"{node}, which leaves" for node in goes - seen if not _dead(state, node))

    def _asked(self, name: str, tablet: ModelledTablet, state: ClusterState) -> list[list[str]]:
        """Return sets of replicas, each without a majority that does not know the stage.

        The sets are the readers before the stage, or the new readers before old rows are deleted, and their part in
        each datacenter with changes.
        """
        old, new = ([node for node, _ in group] for group in (tablet.old, tablet.new))
        here, there = {
            "write_both_read_old": (old, new),
            "write_both_read_new": (old, new),
            "use_new": (new, old),
            "write_both_read_old_fallback_cleanup": (new, old),
        }.get(tablet.stage, ([], []))
        if set(here) == set(there):
            return []
        if not state.keyspaces[name.partition(".")[0]].replication.datacenters:
            return [here]
        where = {node: state.nodes[node].datacenter for node in (*here, *there)}
        parts = [
            [[n for n in group if where[n] == one] for group in (here, there)] for one in sorted(set(where.values()))
        ]
        return [here, *(own for own, other in parts if set(own) != set(other) and own)]

    def _excused(self, name: str, tablet: ModelledTablet, state: ClusterState) -> set[str]:
        """Return nodes that have left, and nodes that an operation ignores if the live readers have every row."""
        reads = tablet.group("reads")
        named = state.keyspaces[name.partition(".")[0]].replication.datacenters
        where = {node: state.nodes[node].datacenter if named else "" for node in reads}
        parts = [[node for node in reads if where[node] == one] for one in set(where.values())]
        enough = not any(_quorum_of([node for node in part if _dead(state, node)], part) for part in parts)
        flying = [one for one in state.operations.values() if one.stage not in ("finished", "cancelled")]
        ignored = {node for one in flying for node in one.ignored} if enough else set()
        return ignored.union(node for node, found in state.nodes.items() if found.state == "left")

    def _workers(self, tablet: ModelledTablet, state: ClusterState) -> list[str]:
        """Return the nodes that must have reported."""
        groups = STAGES[tablet.stage]
        if "survivor" in groups:
            return [node for node, _ in tablet.new]
        comes = [node for node, shard in tablet.new if (node, shard) not in tablet.old]
        goes = [node for node, shard in tablet.old if (node, shard) not in tablet.new]
        if "streamed" in groups:
            return comes
        if "repaired" in groups:
            return [node for node, _ in tablet.old if not _dead(state, node)]
        if "leaver" in groups:
            return [node for node in goes if not _dead(state, node)]
        return [node for node in comes if not _dead(state, node)] if "comer" in groups else []

    def _meet(self, where: str, tablet: ModelledTablet) -> None:
        """Check that every read quorum intersects every write quorum, in this stage and the next."""
        here = _groups(tablet)
        stages = (
            [here, _groups(ModelledTablet(tablet.old, {}, 0, tablet.new, tablet.kind, tablet.following()))]
            if tablet.following()
            else [here]
        )
        for reads, _ in stages:
            for _, needs in stages:
                if missed := _missed(reads, needs):
                    self.broken(f"{where} in {tablet.stage}: a read of {missed[0]} misses a write of {missed[1]}")


def _groups(tablet: ModelledTablet) -> tuple[list[str], list[list[str]]]:
    """Return the read group, and the groups that a write needs a majority of."""
    old, new = ([node for node, _ in group] for group in (tablet.old, tablet.new))
    both = tablet.stage and "writes both" in STAGES[tablet.stage]
    return tablet.group("reads"), [old, new] if both else [tablet.group("writes")]


def _missed(reads: list[str], needs: list[list[str]]) -> tuple[object, object] | None:
    """Return a read quorum and a write quorum that do not intersect, or None."""
    nodes = sorted({node for group in needs for node in group})
    for size in range(1, len(nodes) + 1):
        for written in combinations(nodes, size):
            if all(len(set(written).intersection(group)) > len(group) // 2 for group in needs):
                rest = [node for node in reads if node not in written]
                if len(rest) > len(reads) // 2:
                    return rest, written
    return None


def _quorum_of(these: list[str], group: list[str]) -> bool:
    """Return True if these are a majority of the group."""
    return 2 * len(these) > len(group)


def _moving(tablet: ModelledTablet) -> list[tuple[set[str], set[str]]]:
    old, new = ({node for node, _ in group} for group in (tablet.old, tablet.new))
    both = bool(tablet.stage) and "writes both" in STAGES[tablet.stage]
    return [(new - old, old - new)] if both and old != new else []


def _living_know_all(state: ClusterState, group: list[str], by_datacenter: bool) -> bool:
    """Return True if each majority of the group, and of its part in each datacenter, has a live node."""
    parts = [group]
    if by_datacenter:
        names = sorted({state.nodes[node].datacenter for node in group})
        parts += [[node for node in group if state.nodes[node].datacenter == name] for name in names]
    return all(sum(_dead(state, node) for node in part) <= len(part) // 2 for part in parts)


def _dead(state: ClusterState, node: str) -> bool:
    return state.nodes[node].down or state.nodes[node].state == "left"


class TabletsCheck(Check):
    """At every epoch, tablets are as the entries made them, and every read quorum intersects every write quorum."""

    _model: TabletModel | None = None

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Apply an entry to the model."""
        if self._model is None:
            self._model = TabletModel(lambda detail: self.sim.broken("tablets", detail))
        assert isinstance(item.command, Command), "an applied record is decoded"
        self._model.take(item.command, before, after)

"""An own record of tablets: lists of replicas, moved about as the entries say. It shares nothing with the kernel but
the fields of commands, and where a table was first cut.

A tablet is two lists and the name of a stage; who reads and writes in a stage stands here a second time (``LIFE``), as
words. An entry that the record would not allow, or a tablet that the state shows otherwise, is a defect. In each stage
every read quorum must share a node with every write quorum, of this stage and of those next to it, tried out set by
set: requests that were planned one stage apart may meet. What may be lost by the reset of a partition the checks of
registers say; one whose loss nobody has admitted goes on only while most of those who had the tablet are alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from ringlog.kernel.commands.nodes import DeclareUp
from ringlog.kernel.commands.rebalances import ResetPartitions
from ringlog.kernel.commands.resizes import DecideResize, FinishResize
from ringlog.kernel.commands.schema import CreateTable, DropTable
from ringlog.kernel.commands.schema_batch import SchemaBatch
from ringlog.kernel.commands.tablets import AdvanceTablets, MigrateTablets, RevertTablets, TabletAdvance
from ringlog.kernel.outcome import Entry
from ringlog.kernel.state import ClusterState
from ringlog.kernel.tablets.groups import group_of, moving_of
from ringlog.kernel.values import Command, Witness
from ringlog.sim.checks.base import Check

Place = tuple[str, int]

LIFE: Mapping[str, str] = {
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
FORTH = tuple(LIFE)[:8]
WAYS: Mapping[str, tuple[str, ...]] = {
    "migration": tuple(stage for stage in FORTH if stage != "rebuild_repair"),
    "intranode_migration": tuple(stage for stage in FORTH if stage != "rebuild_repair"),
    "rebuild": tuple(stage for stage in FORTH if stage != "rebuild_repair"),
    "rebuild_v2": FORTH,
    "repair": ("repair", "end_repair"),
    "salvage": ("salvage", "salvaged", "end_salvage"),
    "lossy_salvage": ("salvage", "salvaged", "end_salvage"),
}
BACK = tuple(LIFE)[8:11]


@dataclass(slots=True)
class TabletLife:
    """A tablet: its replicas, those that it is to have, its stage and since when, who writes since when."""

    old: list[Place]
    since: dict[str, int]
    changed: int
    new: list[Place] = field(default_factory=list)
    kind: str = ""
    stage: str = ""
    entered: int = 0

    def group(self, what: str) -> list[str]:
        """The nodes that read or write now."""
        words = LIFE[self.stage] if self.stage else "reads old, writes old"
        chosen = words.split(f"{what} ")[1].split(",")[0]
        places = {"old": self.old, "new": self.new, "both": [*self.old, *self.new]}[chosen]
        return list(dict.fromkeys(node for node, _ in places))

    def following(self) -> str:
        """The stage after this one; empty at the end."""
        way = BACK if self.stage in BACK else WAYS[self.kind]
        return (*way, "")[way.index(self.stage) + 1]

    def enter(self, stage: str, epoch: int) -> None:
        """The stage is entered, or (empty) the life goes on without a transition."""
        before = self.words()
        if not stage and self.stage in ("end_migration", "end_salvage"):
            self.old = self.new
        self.stage = stage
        if not stage:
            self.new, self.kind = [], ""
        self.entered = epoch
        self.since = {node: self.since.get(node, epoch) for node in self.group("writes")}
        if stage and self.words() != before:
            self.changed = epoch

    def words(self) -> list[str]:
        """Who reads and who writes, in words."""
        return LIFE[self.stage].split(", ")[:2] if self.stage else ["reads old", "writes old"]


Broken = Callable[[str], None]


class TabletModel:
    """The tablets of all tables; ``broken`` is called with each difference."""

    def __init__(self, broken: Broken) -> None:
        self.broken = broken
        self.tables: dict[str, list[TabletLife]] = {}

    def take(self, command: Command, before: ClusterState, after: ClusterState) -> None:
        """An entry was applied."""
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
                for life in (life for lives in self.tables.values() for life in lives):
                    if (life.kind, life.stage) == ("lossy_salvage", "salvage") and node in dict(life.old):
                        life.enter("salvage", after.epoch)  # what was reported without that node counts no more
            case DecideResize():
                pass
            case FinishResize():
                self._resize(command.table, before, after)
            case _:
                return
        self.compare(after)

    def compare(self, state: ClusterState) -> None:
        """The state shows every tablet as the record has it."""
        if set(state.tablets) != set(self.tables):
            self.broken(f"tables {sorted(state.tablets)} are in tablets, not {sorted(self.tables)}")
        for name, lives in self.tables.items():
            tablets = state.tablets[name]
            if tablets.count != len(lives):
                self.broken(f"{name} has {tablets.count} tablets, not {len(lives)}")
            for index, life in enumerate(lives):
                shown = tablets.tablet(index)
                found = [(one.node, one.shard) for one in shown.replicas]
                stage = "" if shown.transition is None else shown.transition.stage
                if found != life.old or stage != life.stage:
                    self.broken(f"{name}/{index} is {found} in {stage!r}, not {life.old} in {life.stage!r}")
                if life.kind != ("" if shown.transition is None else shown.transition.kind):
                    self.broken(f"{name}/{index} is in {shown.transition}, which is no {life.kind}")
                group = group_of(shown)
                reads = {one.node: one.since for one in group.read}
                writes = {one.node: one.since for one in group.write}
                if (set(reads), writes) != (set(life.group("reads")), life.since) or group.changed != life.changed:
                    self.broken(f"{name}/{index}: {group} in {stage!r}, expected {life}")
                moving = [(set(one.entering), set(one.leaving)) for one in moving_of(name, shown)]
                if moving != _moving(life):
                    self.broken(f"{name}/{index}: {moving} in {stage!r} is not what {life} moves")
                if life.stage:
                    self._meet(f"{name}/{index}", life)

    # ----------------------------------------------------------------------------------------------- entries

    def _made_or_dropped(self, command: Command, before: ClusterState, after: ClusterState) -> None:
        """A statement about a table; a CREATE of one that is there was not needed."""
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
            self.tables[name].append(TabletLife(places, {node: after.epoch for node, _ in places}, after.epoch))

    def _migrate(self, command: MigrateTablets, before: ClusterState, epoch: int) -> None:
        for one in command.migrations:
            life, where = self.tables[one.table][one.tablet], f"{one.table}/{one.tablet}"
            source = None if one.from_ is None else (one.from_.node, one.from_.shard)
            target = None if one.to is None else (one.to.node, one.to.shard)
            if life.stage or (source is not None and source not in life.old):
                self.broken(f"{where} was in {life.stage!r}, {source} was to leave {life.old}")
            new = [place if place != source else target for place in life.old]
            new += [target] if source is None else []
            life.new = [place for place in new if place is not None]
            nodes = [node for node, _ in life.new]
            if len(set(nodes)) < len(nodes) or any(shard >= before.nodes[node].shards for node, shard in life.new):
                self.broken(f"{where} was to be on {life.new}")
            if target is not None:
                there, comes = before.nodes[target[0]], source is None or source[0] != target[0]
                placed = before.keyspaces[one.table.partition(".")[0]].replication.zone
                away = ("left",) if placed else ("leaving", "left")  # a partition may go through who leaves
                if there.down or (comes and there.state in away):
                    self.broken(f"{where} was to come to {there.id}, which is down, or {there.state}")
            life.kind = one.kind
            life.enter(WAYS[one.kind][0], epoch)

    def _advance(self, step: TabletAdvance, witnesses: Iterable[Witness], before: ClusterState, epoch: int) -> None:
        life, where = self.tables[step.table][step.tablet], f"{step.table}/{step.tablet}"
        if not life.stage or step.to != (life.following() or "settled"):
            self.broken(f"{where} was in {life.stage!r} and went to {step.to}")
            return
        seen = {one.node for one in witnesses if min(one.applied, one.drained) >= life.entered}
        for lacking in self._lacking(step.table, life, before, seen):
            self.broken(f"{where} left {life.stage} without {lacking}")
        told = {one.node for one in step.reports if one.operation == f"{where}@{life.entered}"}
        alive = [node for node, _ in life.old if not _dead(before, node)]
        may_return = any(before.nodes[node].state != "left" for node, _ in life.old if node not in alive)
        if (life.kind, life.stage) == ("salvage", "salvage") and may_return and 2 * len(alive) <= len(life.old):
            self.broken(f"{where} left {life.stage} with {alive} alive of {life.old}, and nobody admits the loss")
        for worker in self._workers(life, before):
            if worker not in told:
                self.broken(f"{where} left {life.stage}, and {worker} had not reported")
        life.enter(life.following(), epoch)

    def _revert(self, where: str, life: TabletLife, before: ClusterState, epoch: int) -> None:
        words = LIFE.get(life.stage, "")
        if life.kind == "repair" and life.stage == "repair":
            life.enter("end_repair", epoch)
        elif life.stage in BACK or words.startswith("reads new, writes new") or not words:
            self.broken(f"{where} was in {life.stage!r} and turned back")
        elif words.startswith("reads new"):
            dead = [sum(_dead(before, node) for node, _ in group) for group in (life.old, life.new)]
            if dead[1] <= dead[0] or life.kind == "intranode_migration":
                self.broken(f"{where} turned back from {life.stage}, with {dead} dead")
            life.enter(BACK[0], epoch)
        else:
            life.enter(BACK[1], epoch)

    def _reset(self, command: ResetPartitions, before: ClusterState, after: ClusterState) -> None:
        """All who have all of a tablet give it to the one with whom its partition begins anew."""
        zone, mode = command.zone, before.zones[command.zone].mode
        tables = [name for name in self.tables if before.keyspaces[name.partition(".")[0]].replication.zone == zone]
        for number in range(before.zones[zone].partitions):
            now = after.zone_partitions[f"{zone}/{number}"]
            if now is before.zone_partitions[f"{zone}/{number}"]:
                continue
            for name in tables:
                life, found = self.tables[name][number], after.tablets[name].tablet(number).transition
                if found is None or [one.node for one in found.next] != list(now.pending[0].peers):
                    self.broken(f"{name}/{number} was to be salvaged to {now.pending[0]}: {found}")
                    return
                if life.stage:
                    words, both = LIFE[life.stage], [*life.old, *(one for one in life.new if one not in life.old)]
                    has_all = life.stage in ("write_both_read_new", BACK[0], "salvaged")
                    life.old = both if has_all else life.new if words.startswith("reads new") else life.old
                    life.stage, life.changed = "", after.epoch
                    life.since = {node: life.since[node] for node, _ in life.old}
                life.new = [(one.node, one.shard) for one in found.next]
                life.kind = "lossy_salvage" if command.admits_loss or mode == "high_availability" else "salvage"
                life.enter("salvage", after.epoch)

    def _resize(self, name: str, before: ClusterState, after: ClusterState) -> None:
        resize = before.tablets[name].resize
        if resize is None or any(life.stage for life in self.tables[name]):
            self.broken(f"{name} was cut with {resize}")
            return
        lives = self.tables[name]
        if resize.decision == "split":
            pairs = [[life, TabletLife(list(life.old), dict(life.since), life.changed)] for life in lives]
            self.tables[name] = [life for pair in pairs for life in pair]
            return
        merged = []
        for even in range(0, len(lives), 2):
            one, *others = lives[even : even + 2]
            for other in others:
                if set(one.old) != set(other.old):
                    self.broken(f"{name}/{even} and its sibling were apart")
                one.since = {node: max(at, other.since[node]) for node, at in one.since.items()}
                one.changed = max(one.changed, other.changed)
            merged.append(one)
        self.tables[name] = merged

    # ------------------------------------------------------------------------------------------------- rules

    def _lacking(self, name: str, life: TabletLife, state: ClusterState, seen: set[str]) -> Iterator[str]:
        """Who had to have acknowledged: a majority of both sets, in each datacenter if the keyspace names some, of the
        dead as far as they may; or the survivor of a salvage, and when he is read all of the others who are alive, and
        a majority of them if nobody has admitted a loss.
        """
        if "salvage" in life.kind:
            here = [node for node, _ in life.old if state.nodes[node].state != "left"]
            lacking = len(seen.intersection(here)) < min(len(life.old) // 2 + 1, len(here))
            if (life.kind, life.stage) == ("salvage", "salvaged") and lacking:
                yield f"a majority of {here}"
            others = [node for node, _ in life.old if not _dead(state, node)] if life.stage == "salvaged" else []
            yield from (node for node in [*(node for node, _ in life.new), *others] if node not in seen)
            return
        comes = {node for node, _ in life.new} - {node for node, _ in life.old}
        goes = {node for node, _ in life.old} - {node for node, _ in life.new}
        excused = {node for node, _ in {*life.old} ^ {*life.new} if _dead(state, node)}
        named = state.keyspaces[name.partition(".")[0]].replication.datacenters
        for group in (life.old, life.new):
            nodes = [node for node, _ in group]
            where = {node: state.nodes[node].datacenter if named else "" for node in nodes}
            for datacenter in sorted(set(where.values())):
                local = [node for node in nodes if where[node] == datacenter]
                here = [node for node in local if state.nodes[node].state != "left"]
                left = [node for node in here if node not in excused] or here
                if len(seen.intersection(left)) < min(len(local) // 2 + 1, len(left)):
                    yield f"a majority of {local}"
        if life.stage in FORTH[:4] and life.kind != "repair":
            yield from (f"{node}, which comes" for node in comes - seen)
        if life.stage == "use_new":
            yield from (f"{node}, which leaves" for node in goes - seen - excused)

    def _workers(self, life: TabletLife, state: ClusterState) -> list[str]:
        """Who had to have reported, as far as it is one for sure."""
        words = LIFE[life.stage]
        if "survivor" in words:
            return [node for node, _ in life.new]
        comes = [node for node, shard in life.new if (node, shard) not in life.old]
        goes = [node for node, shard in life.old if (node, shard) not in life.new]
        if "streamed" in words:
            return comes
        if "repaired" in words:
            return [node for node, _ in life.old if not _dead(state, node)]
        if "leaver" in words:
            return [node for node in goes if not _dead(state, node)]
        return [node for node in comes if not _dead(state, node)] if "comer" in words else []

    def _meet(self, where: str, life: TabletLife) -> None:
        """Every read quorum meets every write quorum, of this stage and the next."""
        here = _groups(life)
        stages = (
            [here, _groups(TabletLife(life.old, {}, 0, life.new, life.kind, life.following()))]
            if life.following()
            else [here]
        )
        for reads, _ in stages:
            for _, needs in stages:
                if missed := _missed(reads, needs):
                    self.broken(f"{where} in {life.stage}: a read of {missed[0]} misses a write of {missed[1]}")


def _groups(life: TabletLife) -> tuple[list[str], list[list[str]]]:
    """The read group, and the groups of which a write needs a majority."""
    old, new = ([node for node, _ in group] for group in (life.old, life.new))
    both = life.stage and "writes both" in LIFE[life.stage]
    return life.group("reads"), [old, new] if both else [life.group("writes")]


def _missed(reads: list[str], needs: list[list[str]]) -> tuple[object, object] | None:
    """A read quorum and a write that it misses."""
    everybody = sorted({node for group in needs for node in group})
    for size in range(1, len(everybody) + 1):
        for written in combinations(everybody, size):
            if all(len(set(written).intersection(group)) > len(group) // 2 for group in needs):
                rest = [node for node in reads if node not in written]
                if len(rest) > len(reads) // 2:
                    return rest, written
    return None


def _moving(life: TabletLife) -> list[tuple[set[str], set[str]]]:
    old, new = ({node for node, _ in group} for group in (life.old, life.new))
    both = bool(life.stage) and "writes both" in LIFE[life.stage]
    return [(new - old, old - new)] if both and old != new else []


def _dead(state: ClusterState, node: str) -> bool:
    return state.nodes[node].down or state.nodes[node].state == "left"


class TabletsCheck(Check):
    """Tablets are, at every epoch, what the entries made of them; no quorum of readers misses one of writers."""

    _model: TabletModel | None = None

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Take what was applied into the record."""
        if self._model is None:
            self._model = TabletModel(lambda detail: self.sim.broken("tablets", detail))
        assert isinstance(item.command, Command), "what is applied was read"
        self._model.take(item.command, before, after)

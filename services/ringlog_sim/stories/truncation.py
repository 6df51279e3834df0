"""Snapshots, an archive and truncations, in a part of the runs, while the responsible machines fail.

Agents die in any of their writes. Readers restart repeatedly, and one reader is paused during a truncation. Sometimes a
cache writer stores a wrong state, the topic has a snapshot of another log, or the archive's location fails completely
or for writes. This may happen before the log knows of an archive. Then a truncation is accepted, and only the cache
writer's own check of the archive prevents it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ringlog.agents.maintenance.snapshots import CONFIRM
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.cluster.snapshots import OWN_ENTRIES_MAX, SNAPSHOTS_KEPT_MAX, TakeSnapshot, last_snapshot
from ringlog.kernel.commands.cluster.truncation import TruncateLog
from ringlog.kernel.history import ARCHIVED, confirmed_snapshots
from ringlog.kernel.model.settings import setting
from ringlog.kernel.values import Micros, replace
from ringlog.log.folding import Start
from ringlog.log.snapshots import encode_snapshot, key_of
from ringlog.runtime.draw import draw_uuid
from ringlog.wire.records import (
    SnapshotConfirmation,
    SnapshotRecord,
    StoredSnapshot,
    decode_snapshot_record,
    encode_snapshot_record,
)
from ringlog_sim.devices.at_once import IDENTITY, PlaceAtOnce
from ringlog_sim.devices.broker import METADATA, SNAPSHOTS
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.members import CUTS
from ringlog_sim.stories.members import PROFILE as MEMBERS
from ringlog_sim.stories.story import AGENT_HOSTS, Drawn, StorySetting

if TYPE_CHECKING:
    from ringlog_sim.operator import SimOperator
    from ringlog_sim.simulation import Simulation

PROFILE: Final = "truncation"
"""The profile that always has this story."""
SHARE: Final = 0.03
"""Share of the other runs with this story, of those without a scenario."""
LASTS: Micros = 6 * SECOND
ACTIONS: Final = (
    "archive",
    "snapshot",
    "truncate",
    "dies",
    "forgets",
    "foreign_snapshot",
    "by_size",
    "archive_refuses",
    "dissent",
)
BY_SIZE: Final = (600, 1_200, 2_500)
"""Bytes of entries between two snapshots. An entry has about 150 bytes."""


def draw_truncations(setting: StorySetting) -> list[Drawn]:
    """Draw snapshots and truncations for every run of the profile, and for a part of the others."""
    chance, agents, readers = setting.chance("truncating"), AGENT_HOSTS, setting.readers
    if not chance.happens({PROFILE: 1.0, MEMBERS: CUTS}.get(setting.profile, SHARE)):
        return []
    drawn: list[Drawn] = [(0, "archive", ())] if chance.happens(0.7) else []

    def add(low: int, high: int, what: str, *arguments: Any) -> int:
        at = chance.between(low, high)
        drawn.append((at * MS, what, arguments))
        return at

    for _ in range(chance.between(4, 9)):
        add(100, 5_000, "snapshot")
    for _ in range(chance.between(3, 6)):
        taken = chance.between(1, 4)
        at = add(600, 5_400, "truncate", taken)
        if chance.happens(0.4):
            add(max(at - 100, 0), at, "pause", chance.pick(readers), chance.between(300, 1_500))
    for _ in range(chance.between(0, 4)):
        add(100, 5_000, "dies", chance.between(1, 10))
    for _ in range(chance.between(2, 5)):
        add(500, 5_800, "crash", chance.pick([*agents, *readers]), chance.between(50, 1_500))
    if chance.happens(0.3):
        add(100, 3_000, "forgets")
    if chance.happens(0.3):
        at = add(800, 5_000, "foreign_snapshot")
        add(at + 20, at + 300, "crash", chance.pick([*agents, *readers]), 50)
    if chance.happens(0.5):
        add(300, 4_000, "by_size", chance.pick(BY_SIZE))
    if drawn[0][1] == "archive" and chance.happens(0.2):
        refused = chance.pick([PlaceAtOnce.ALL, PlaceAtOnce.WRITES])
        add(0, chance.pick([0, 4_000]), "archive_refuses", refused, chance.between(500, 4_000))
    if chance.happens(0.3):
        at = add(1_500, 5_000, "snapshot")
        drawn += [(at * MS, "snapshot", ())] * SNAPSHOTS_KEPT_MAX  # too many at once to store them all
    for _ in range(chance.between(0, 2)):
        at = add(1_000, 5_500, "dissent")
        add(at + 20, at + 300, "crash", chance.pick([*agents, *readers]), 50)
    return drawn


def perform_fault(sim: Simulation, operator: SimOperator, number: int, what: str, arguments: tuple[Any, ...]) -> None:
    """Perform one of ``ACTIONS``."""
    ends = sim.log_ends
    match what, arguments:
        case "archive", ():
            pass  # it exists from the beginning
        case "snapshot", ():
            operator.images([TakeSnapshot()])
        case "truncate", (taken,):
            epochs = sorted((mark.epoch for mark in sim.log.state.snapshots.values()), reverse=True)
            if epochs:
                operator.images([TruncateLog(epochs[min(taken, len(epochs)) - 1])])
        case "dies", (writes,):
            ends.deaths.left = writes
        case "by_size", (size,):
            operator.images([ChangeSettings((("snapshot_bytes", size),))])
        case "forgets", ():
            ends.forgetful = True
        case "archive_refuses", (refused, duration):
            ends.refuses = refused
            sim.world.on(None, duration * MS, lambda _: ends.take_again())
        case "dissent", ():
            _dissent(sim)
        case "foreign_snapshot", ():
            _foreign(sim, Chance(sim.world.seed, f"foreign/{number}"))


def unended_snapshots(sim: Simulation) -> list[str]:
    """Return missing snapshots: one that the size of the log requires, and the newest requested one if it is
    incomplete.

    A snapshot that the broker rejected is not missing.
    """
    state, ends = sim.log.state, sim.log_ends
    epoch, size = last_snapshot(state), setting(state, "snapshot_bytes")
    if ends.looked_after and 0 < size <= ends.unmarked_bytes and state.epoch - epoch > OWN_ENTRIES_MAX:
        return [f"{ends.unmarked_bytes} bytes of entries were applied since epoch {epoch}, the limit is {size}"]
    if not ends.looked_after or not epoch or epoch in ends.given_up:
        return []
    partition, wanted = sim.broker.partition(SNAPSHOTS), sim.log.states[epoch].state_id
    there = {record.key: record for record in partition.records[: partition.visible]}
    found = there.get(f"{epoch}/head")
    head = decode_snapshot_record(found.value) if found is not None and found.value else None
    if isinstance(head, StoredSnapshot) and head.state_id == wanted:
        chunks = [there.get(f"{head.id}/{number}") for number in range(len(head.chunks))]
        if all(chunk is not None and chunk.value and chunk.offset >= head.first for chunk in chunks):
            return []
        return [f"the snapshot of epoch {epoch} is stored, but incomplete"]
    return [f"a snapshot of epoch {epoch} was requested, but not stored"]


def unarchived(sim: Simulation) -> list[str]:
    """Return the newest confirmed snapshot if there is an archive that, by the log, does not reach it."""
    state, ends = sim.log.state, sim.log_ends
    if ends.files is None or not ends.looked_after or not (confirmed := confirmed_snapshots(state)):
        return []
    bound = state.log_bounds.get(ARCHIVED)
    epoch = 0 if bound is None else bound.epoch
    newest = confirmed[-1].epoch
    return [f"the archive ends at epoch {epoch}, but a snapshot of {newest} is confirmed"] if epoch < newest else []


def _dissent(sim: Simulation) -> None:
    """Write a confirmation of the newest confirmed snapshot by a third reader, with a different digest."""
    confirmed = confirmed_snapshots(sim.log.state)
    third = [role for role in sorted(CONFIRM) if confirmed and role not in confirmed[-1].witnesses]
    if not third:
        return
    mark, state = confirmed[-1], sim.log.states[confirmed[-1].epoch]
    header = state.cluster_id, IDENTITY, state.epoch, state.state_id
    confirmation = SnapshotConfirmation(*header, mark.position, "0" * 64, third[0], 0)
    sim.broker.put(SNAPSHOTS, key_of(confirmation), encode_snapshot_record(confirmation))


def _foreign(sim: Simulation, chance: Chance) -> None:
    """Write a snapshot of another log, with its confirmation, as after a restore of a copied topic."""
    broker, state = sim.broker, sim.log.state
    state = replace(state, state_id=draw_uuid(chance))
    topic_id = chance.pick([IDENTITY, "another"])
    position = broker.partition(METADATA).high
    head, chunks = encode_snapshot(Start(state, position), topic_id, "keeper", 0, f"foreign/{state.epoch}")
    header = state.cluster_id, topic_id, state.epoch, state.state_id
    confirmation = SnapshotConfirmation(*header, position, head.digest, "publisher", 0)
    sim.log_ends.given_up.add(state.epoch)  # a snapshot of that epoch has the same key, so it is overwritten
    first = broker.partition(SNAPSHOTS).high
    records: tuple[SnapshotRecord, ...] = (*chunks, replace(head, first=first), confirmation)
    for record in records:
        broker.put(SNAPSHOTS, key_of(record), encode_snapshot_record(record))

"""Random logs of commands that affect validation, decided by the kernel, and a comparison of all their readers.

A reader is a prefix of the log, as in ``model``. If a log lowers the validation watermark, a write that uses a later
time is appended afterwards, and only later prefixes validate it. Times are small multiples of ``UNIT``. A replaced
version can be named for two units, so logs of twenty entries cover all rules. A disagreement prints the seed of its
log.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

from ringlog.kernel.commands.cdc.clock import LowerSettledTime, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc.generations import CommitCdcGeneration
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType
from ringlog.kernel.fold import decide
from ringlog.kernel.generations.admission import AdmissionRules, rules_of, verdict
from ringlog.kernel.generations.describe import ranges_digest
from ringlog.kernel.generations.verdicts import FORGOTTEN
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.schema.table_versions import NAMED_US
from ringlog.kernel.values import Column, Command, Replication, TypeField, Value, replace
from ringlog.wire.records import Cell, Mutation
from tests.kernel.entries import SEED, TABLE, uuid
from tests.kernel.generations.switch_model import founded_with, prepared_in

UNIT = NAMED_US // 2
TIMES = range(1, 9)
LENGTH = 24
NAME = f"{TABLE.keyspace}.{TABLE.name}"
WRITERS = ("w",)


class Disagreement(Value):
    """Two readers that disagree about one write."""

    write: Mutation
    appended: int
    verdicts: tuple[str, ...]


def start() -> ClusterState:
    """Return a state with a keyspace, a CDC writer and an active generation, without a validation watermark."""
    state = founded_with(WRITERS, 1)
    for command in (CreateKeyspace(TABLE.keyspace, Replication("simple", 1)), CreateType("ks", "u", (field(0),))):
        after = decided(state, command)
        assert after is not None, command
        state = after
    return state


def field(number: int) -> TypeField:
    """Return a field of the user type."""
    return TypeField(f"f{number}", "int")


def decided(state: ClusterState, command: Command) -> ClusterState | None:
    """Return the next state, or None for a rejected command."""
    decision = decide(state, command, EntryContext(state.epoch + 1, uuid(state.epoch + 1), 0))
    return replace(decision.state, epoch=state.epoch + 1) if isinstance(decision, Accepted) else None


def random_step(draw: random.Random, state: ClusterState, kinds: int) -> ClusterState | None:
    """Return the state after a random entry, or None for a rejected one."""
    time = max(1, state.settled.until // UNIT + draw.randrange(-1, 3)) * UNIT
    table = state.tables.get(NAME)
    match draw.randrange(kinds):
        case 0 | 1 if table is None:
            columns = (*TABLE.columns, Column("w", "frozen<u>"))[: draw.choice([3, 4])]
            keys = draw.choice([("k",), ("k", "c")])
            made = replace(TABLE, id=uuid(state.epoch, space=4), columns=columns, partition_key=keys[:1])
            return decided(state, replace(made, cdc=replace(made.cdc, enabled=draw.random() < 0.8)))
        case 0 | 1 | 2 if table is not None:
            column = Column(f"v{len(table.columns)}", "int")
            return decided(state, AlterTable("ks", "t", (column,), draw.choice([None, table.cdc])))
        case 3:
            return decided(state, DropTable("ks", "t"))
        case 4 | 5:
            return decided(state, SettleVerdicts(time, draw.choice([0, 0, time - draw.randrange(3) * UNIT])))
        case 6:
            leeway = draw.choice([0, UNIT, 2 * UNIT])
            return decided(state, ChangeSettings((("cdc_leeway_us", leeway),)))
        case 7 if len(state.generations) < 4:
            return _committed(state, time)
        case 8:
            last = state.generations[-1]
            return decided(state, WithdrawCdcGeneration(last.id, SEED, "a clock was ahead"))
        case 9:
            writer = state.writers["w"]
            low = draw.choice([writer.low_watermark, time - UNIT])
            return decided(state, AdvanceCdcWriter("w", writer.incarnation, time, max(low, 1), ()))
        case 10:
            fields = state.types["ks.u"].fields
            return decided(state, AlterType("ks", "u", (field(len(fields)),)))
        case 11 | 12 | 13:
            return decided(state, LowerSettledTime(time - UNIT + 1, "a clock was ahead"))
    return None


def _committed(state: ClusterState, timestamp: int) -> ClusterState | None:
    ready = prepared_in(replace(state, prepared=None))
    assert ready.prepared is not None
    ready = replace(ready, prepared=replace(ready.prepared, id=f"generation-of-{state.epoch}"))
    assert ready.prepared is not None
    ranges = tuple(item for _, part in ready.prepared.received for item in part)
    after = decided(ready, CommitCdcGeneration(ready.prepared.id, timestamp, ranges_digest(ranges)))
    if after is None:
        return None
    last = replace(after.generations[-1], status="published", published=1)
    return replace(after, generations=(*after.generations[:-1], last))


def random_log(seed: int, lowers: bool = False) -> list[ClusterState]:
    """Return the states of a log, including the first. With ``lowers``, the validation watermark may decrease."""
    draw = random.Random(seed)
    states = [start()]
    for _ in range(LENGTH):
        after = random_step(draw, states[-1], 14 if lowers else 11)
        if after is not None:
            states.append(after)
    return states


def writes(states: list[ClusterState]) -> Iterator[tuple[Mutation, int]]:
    """Yield writes with append times. They name no table, existing tables and versions, or nonexistent ones."""
    base = Mutation(None, None, "ks", "t", 0, None, "UPDATE", (b"a",), (b"\0\0\0\1",), ())
    cell = Cell("v4", b"\0\0\0\1")
    versions = sorted({(found.id, found.version, found.changed) for state in states for found in state.tables.values()})
    for time in TIMES:
        for timestamp in range(0, 11, 2):
            yield replace(base, timestamp=timestamp * UNIT), time * UNIT
        plain = replace(base, timestamp=time * UNIT)
        named = [replace(plain, cells=(replace(cell, column=column),)) for column in ("v", "v3", "v4")]
        for table, version, epoch in versions[:8]:
            named += [replace(plain, table_id=table, table_version=version, cells=cells) for cells in ((), (cell,))]
            named += [replace(plain, table_id=table), replace(plain, epoch=epoch)]
        named += [replace(plain, table_id=uuid(99, space=4)), replace(plain, table_version=uuid(99))]
        named += [replace(plain, epoch=10**9), replace(plain, cluster_id=uuid(98))]
        yield from ((write, time * UNIT) for write in named)


def disagreement(states: list[ClusterState]) -> Disagreement | None:
    """Return the first write with different decisions by two readers."""
    begun = next((index for index, state in enumerate(states) if state.settled.until), len(states))
    rules = [rules_of(state) for state in states[begun:]]
    lowered = [
        (index, after.settled.until)
        for index, (before, after) in enumerate(pairwise(states[begun:]), start=1)
        if after.settled.lowered != before.settled.lowered
    ]
    for write, appended in writes(states):
        uses = max(appended, write.timestamp)
        first = max((index for index, until in lowered if until <= uses), default=0)
        found = _verdicts(rules[first:], write, appended)
        if len(found) > 1:
            return Disagreement(write, appended, found)
    return None


def _verdicts(rules: list[AdmissionRules], write: Mutation, now: int) -> tuple[str, ...]:
    found: set[str] = set()
    for one in rules:
        given = verdict(one, write, now)
        if given is not None and given.code != FORGOTTEN:
            found.add(given.code or f"{given.version and (given.version.id, given.version.version)}")
    return tuple(sorted(found))

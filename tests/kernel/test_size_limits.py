"""The consequences of a command are bounded at its decision, for each cause and for growth in many steps."""

from __future__ import annotations

import random

from ringlog.kernel.changes import diff
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import REPLICATION_BYTES_MAX, AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind, Rejected
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.schema.sizes import CHANGED_BYTES_MAX, changed_items
from ringlog.kernel.size_limits import CHANGE_BYTES_MAX, too_large
from ringlog.kernel.values import (
    CdcOptions,
    Column,
    Command,
    DatacenterReplication,
    Position,
    Replication,
    StreamReport,
    TypeField,
    Witness,
    replace,
)
from tests.kernel.commands.test_schema import ready
from tests.kernel.entries import SEED, applied, entry, founded, node, random_command, uuid, with_normal_nodes

WIDE = CreateType("ks", "wide", tuple(TypeField(f"field_{number:03}", "varint") for number in range(190)))
"""A type with 3,400 characters in expanded form."""


def columns(count: int, kind: str = "frozen<wide>", first: int = 0) -> tuple[Column, ...]:
    return tuple(Column(f"c{number:03}", kind) for number in range(first, first + count))


def table(count: int, kind: str = "frozen<wide>", name: str = "big", number: int = 9) -> CreateTable:
    return CreateTable(
        "ks", name, uuid(number, space=6), (Column("k", "text"), *columns(count, kind)), ("k",), (), CdcOptions()
    )


def refused(state: ClusterState, command: Command) -> Rejected:
    """Return the rejection of an entry."""
    folded = fold(state, entry(state, command))
    assert folded.outcome.kind is OutcomeKind.REFUSED, folded.outcome
    assert folded.state is state
    return Rejected(folded.outcome.code, folded.outcome.detail)


def sized(rejected: Rejected, what: str, most: int) -> None:
    """Assert that the rejection names the oversized record, its size and the bound."""
    assert rejected.code == "too_large"
    assert rejected.detail.startswith(what)
    assert f"{most:,}" in rejected.detail
    assert any(int(word.replace(",", "")) > most for word in rejected.detail.split() if word[0].isdigit())


# Tables


def test_a_table_with_an_oversized_record_is_rejected() -> None:
    state = applied(ready(), WIDE)
    sized(refused(state, table(999)), "table ks.big", CHANGE_BYTES_MAX)
    assert "ks.big" in applied(state, table(400)).tables


def test_a_table_does_not_grow_too_large_step_by_step() -> None:
    state = applied(ready(), WIDE, table(0))
    added = 0
    while True:
        more = AlterTable("ks", "big", columns(50, first=added))
        folded = fold(state, entry(state, more))
        if folded.outcome.kind is not OutcomeKind.APPLIED:
            break
        state, added = folded.state, added + 50
    sized(Rejected(folded.outcome.code, folded.outcome.detail), "table ks.big", CHANGE_BYTES_MAX)
    assert 400 <= added < 500


def test_a_type_does_not_grow_under_the_columns_that_use_it() -> None:
    small = CreateType("ks", "wide", WIDE.fields[:10])
    state = applied(ready(), small, table(900))
    sized(refused(state, AlterType("ks", "wide", WIDE.fields[10:])), "table ks.big", CHANGE_BYTES_MAX)
    assert refused(state, AlterType("ks", "wide", WIDE.fields[:1])).code == "field_exists"


def test_a_type_alteration_is_bounded_by_one_transaction() -> None:
    small = CreateType("ks", "wide", WIDE.fields[:10])
    state = applied(ready(), small, *(table(400, name=f"t{number}", number=number) for number in range(50)))
    sized(refused(state, AlterType("ks", "wide", WIDE.fields[10:])), "schema: the records", CHANGED_BYTES_MAX)


def test_type_sizes_count_encoded_bytes() -> None:
    wide = f"list<{chr(0x3000) * 3_900}text>"
    sized(refused(ready(), table(300, wide)), "table ks.big", CHANGE_BYTES_MAX)


def test_a_far_too_large_command_is_rejected_early() -> None:
    """The first field or column has an unknown type, which the rejection does not mention."""
    state = applied(ready(), WIDE, CreateType("ks", "other", WIDE.fields[:1]), table(0, name="t", number=1))
    fields = (TypeField("none", "none"), *(TypeField(f"f{number}", "frozen<wide>") for number in range(100_000)))
    none = (Column("none", "none"), *columns(100_000))
    for command in (
        CreateType("ks", "huge", fields),
        AlterType("ks", "other", fields),
        replace(table(0), columns=none),
        AlterTable("ks", "t", none),
    ):
        assert refused(state, command).code == "bad_field"


def test_fields_are_checked_up_to_the_size_limit() -> None:
    fields = (*(TypeField(f"f{number}", "frozen<wide>") for number in range(5)), TypeField("none", "none"))
    assert refused(applied(ready(), WIDE), CreateType("ks", "huge", fields)).code == "bad_field"


# Replication


def racks(count: int, length: int) -> Replication:
    names = tuple(f"r{number:02}".ljust(length, "x") for number in range(count))
    return Replication("network", count, (DatacenterReplication("dc1", count, names),))


def in_racks(count: int, length: int) -> ClusterState:
    state = founded()
    for number in range(1, count + 1):
        name = f"r{number - 1:02}".ljust(length, "x")
        state = applied(state, node(number, rack=name))
        known = replace(state.nodes[uuid(number, space=2)], state="normal", tokens=(number,))
        owners = state.token_owners.set(number, known.id)
        state = replace(state, nodes=state.nodes.set(known.id, known), token_owners=owners)
    return state


def test_the_key_of_a_replication_is_bounded() -> None:
    datacenters = tuple(
        DatacenterReplication(f"dc{number:02}".ljust(100, "x"), 3, tuple(f"{one}".ljust(100, "r") for one in "abc"))
        for number in range(64)
    )
    long = Replication("network", 192, datacenters)
    state = founded()
    for number, (place, rack) in enumerate(((one, rack) for one in datacenters for rack in one.racks), 1):
        state = applied(state, node(number, datacenter=place.datacenter, rack=rack))
        known = replace(state.nodes[uuid(number, space=2)], state="normal", tokens=(number,))
        owners = state.token_owners.set(number, known.id)
        state = replace(state, nodes=state.nodes.set(known.id, known), token_owners=owners)
    sized(refused(state, CreateKeyspace("a", long)), "replication.datacenters", REPLICATION_BYTES_MAX)
    state = applied(state, CreateKeyspace("a", Replication("simple", 3)))
    sized(refused(state, AlterKeyspace("a", long)), "replication.datacenters", REPLICATION_BYTES_MAX)


def test_entire_replication_is_limited_by_record_size() -> None:
    state = with_normal_nodes(founded(), 1)
    everybody = CreateKeyspace("a", Replication("entire", 0))
    crowd = {uuid(n, space=2): replace(state.nodes[uuid(1, space=2)], id=uuid(n, space=2)) for n in range(2, 12_001)}
    crowded = replace(state, nodes=state.nodes.update(crowd))
    sized(refused(crowded, everybody), "placement", CHANGE_BYTES_MAX)
    gone = {key: replace(one, state="left") for key, one in crowd.items()}
    before = applied(replace(state, nodes=state.nodes.update(gone)), everybody)
    assert applied(before, node(20_000)).keyspaces
    full = replace(crowded, keyspaces=before.keyspaces, placements=before.placements)
    coming = applied(before, node(20_000))
    full = replace(coming, nodes=full.nodes.set(uuid(20_000, space=2), coming.nodes[uuid(20_000, space=2)]))
    sized(refused(full, Join(uuid(20_000, space=2), (77,), SEED)), "placement", CHANGE_BYTES_MAX)


# Positions


def test_positions_are_limited_by_the_generation_record() -> None:
    state = applied(founded(), RegisterCdcWriter("w", uuid(1, space=5)))
    for step in range(40):
        positions = tuple(Position(step * 4_096 + number, 1) for number in range(4_096))
        advance = AdvanceCdcWriter("w", uuid(1, space=5), step + 1, 0, positions)
        folded = fold(state, entry(state, advance))
        if folded.outcome.kind is not OutcomeKind.APPLIED:
            break
        state = folded.state
    sized(Rejected(folded.outcome.code, folded.outcome.detail), "positions", CHANGE_BYTES_MAX)
    assert step > 10


def test_many_writers_of_the_same_partitions_are_not_refused() -> None:
    state = founded()
    positions = tuple(Position(number, 1) for number in range(4_000))
    for number in range(20):
        incarnation = uuid(number, space=5)
        state = applied(
            state,
            RegisterCdcWriter(f"w{number}", incarnation),
            AdvanceCdcWriter(f"w{number}", incarnation, 1, 0, positions),
        )
    assert len(state.writers) == 20


# No other rejections


def test_an_ordinary_history_is_never_refused_for_its_size() -> None:
    for seed in range(8):
        draw = random.Random(seed)
        state = founded()
        for _ in range(200):
            command = random_command(draw, state)
            folded = fold(state, entry(state, command))
            assert folded.outcome.code != "too_large"
            looked_at, every = (
                list(changed_items("tables", state.tables, folded.state.tables, one)) for one in (command, Noop())
            )
            assert folded.state is state or looked_at == every, "a command changes only the entities that it names"
            state = folded.state
        assert too_large(EMPTY_STATE, state, Noop()) is None
        assert diff(EMPTY_STATE, state)


def test_an_admitted_operation_is_not_rejected_later() -> None:
    """Admission has checked the possible size. At the exact bounds, each step applies."""
    state = in_racks(4, 90)
    state = applied(state, CreateKeyspace("a", racks(3, 90)), AlterKeyspace("a", racks(4, 90)))
    while flying := in_flight(state):
        witnesses = tuple(Witness(name, state.epoch, state.epoch) for name in sorted(state.nodes))
        operation = flying[0]
        gaining = sorted({source.target for source in operation.plan.sources})
        reports = tuple(StreamReport(name, operation.id, 1, "ab") for name in gaining)
        step = AdvanceOperation(operation.id, next_stage(operation) or "", witnesses, reports)
        folded = fold(state, entry(state, step))
        assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
        state = folded.state
    assert state.keyspaces["a"].replication.factor == 4

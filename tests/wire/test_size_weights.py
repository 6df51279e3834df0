"""The encoder agrees with the weights that the kernel uses to reject oversized records."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.client.participant.stream_attempts import REASON_LENGTH_MAX as TRIED_LENGTH_MAX
from ringlog.client.participant.stream_attempts import TRIES_REPORTED_MAX
from ringlog.kernel import size_limits as carried
from ringlog.kernel.changes import PUBLICATIONS, ChangeRecord, EpochChange, PlacementChange, TableChange, diff
from ringlog.kernel.commands.cdc.writers import POSITIONS_MAX, AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.control.recovery import FORCED_KEPT_MAX, OPERATOR_LENGTH_MAX
from ringlog.kernel.commands.rules import REASON_LENGTH_MAX
from ringlog.kernel.commands.schema.functions import ARGUMENTS_MAX, BODY_BYTES_MAX
from ringlog.kernel.commands.schema.keyspaces import DATACENTERS_MAX, FACTOR_MAX, REPLICATION_BYTES_MAX, CreateKeyspace
from ringlog.kernel.commands.schema.tables import COLUMNS_MAX, AlterTable, CreateTable
from ringlog.kernel.commands.schema.user_types import FIELDS_MAX, AlterType, CreateType
from ringlog.kernel.commands.topology.nodes import FEATURES_MAX
from ringlog.kernel.commands.topology.operations import FAILURES_KEPT_MAX
from ringlog.kernel.cql.collections import LENGTH_MAX
from ringlog.kernel.cql.literals import LITERAL_MAX
from ringlog.kernel.fold import fold
from ringlog.kernel.model.modes import Feature, Recovery, ServiceMember
from ringlog.kernel.model.outcome import EntryContext, OutcomeKind
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.model.state import (
    EMPTY_STATE,
    CdcWriter,
    ClusterState,
    Failure,
    Generation,
    Node,
    Placement,
    RangeGroup,
    Replica,
    Retry,
    StageMark,
)
from ringlog.kernel.model.tables import Aggregate, Function, Keyspace, Table, TableIndex, UserType, View
from ringlog.kernel.model.tablet_map import Resize, TabletReplica
from ringlog.kernel.movements.admission import requested
from ringlog.kernel.operations.kinds import ASSASSINATE
from ringlog.kernel.operations.moving import RangeChange, ServedRange
from ringlog.kernel.operations.stages import STAGES
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.ring.shards import SHARDS_MAX
from ringlog.kernel.schema import sizes as schema_sizes
from ringlog.kernel.schema.sizes import weight_of, weight_of_part
from ringlog.kernel.sections import CDC_GENERATIONS
from ringlog.kernel.size_limits import CHANGE_BYTES_MAX, too_large
from ringlog.kernel.tablets.change_records import TabletChange, TabletsChange
from ringlog.kernel.values import (
    TOKEN_MAX,
    TOKEN_MIN,
    CdcOptions,
    Column,
    Command,
    DatacenterReplication,
    GenerationRange,
    Position,
    Replication,
    StreamReport,
    TypeField,
    replace,
)
from ringlog.log.kafka.topics import RECORD_BYTES_MAX
from ringlog.protocol.nodes.groups import REPORTS_MAX
from ringlog.wire.records import FailedTries, NodeAck, encode_node_ack
from tests.kernel.entries import applied, entry, founded, random_command, uuid, with_normal_nodes
from tests.wire import test_zone_size_limits
from tests.wire.test_zone_size_limits import size

FRAMING_BYTES = 1_024
"""Upper bound of the bytes that Kafka adds to a single record."""

LATEST = 2**62
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.just("n" * 100)


def sizes(state: ClusterState) -> dict[str, int]:
    """Return the size of the largest record of each topic for a state."""
    found: dict[str, int] = {}
    for record in diff(EMPTY_STATE, replace(state, epoch=LATEST)):
        found[record.topic] = max(found.get(record.topic, 0), size(record))
    return found


# Each weight is an upper bound

column = st.builds(Column, names, texts, st.booleans())
tables = st.builds(
    Table,
    id=st.just(uuid(1)),
    keyspace=names,
    name=names,
    columns=st.lists(column, max_size=40).map(tuple),
    partition_key=st.lists(names, max_size=20).map(tuple),
    clustering_key=st.lists(names, max_size=20).map(tuple),
    cdc=st.builds(CdcOptions, preimage=st.just("false"), ttl=st.just(2**31)),
    version=st.just(uuid(1)),
    changed=st.just(LATEST),
    declared=st.lists(st.tuples(names, texts), max_size=40).map(tuple),
)


@given(tables)
def test_a_table_record_is_at_most_its_weight(table: Table) -> None:
    state = replace(EMPTY_STATE, tables=EMPTY_STATE.tables.set(table.full_name, table))
    assert sizes(state)["schema"] <= weight_of(table)


# Largest records without a weight of their own


def test_weights_are_below_the_topic_limit() -> None:
    assert CHANGE_BYTES_MAX + 500_000 + FRAMING_BYTES < RECORD_BYTES_MAX


TOKENS = (TOKEN_MIN,) * SETTINGS["tokens_per_node_max"].maximum
LONGEST = "n" * 100


def test_the_largest_node_fits() -> None:
    found = Node(
        id=uuid(1),
        name=LONGEST,
        address="h" * 253 + ":65535",
        datacenter=LONGEST,
        rack=LONGEST,
        shards=2**62,
        ignore_msb=2**62,
        release=LONGEST,
        features=(LONGEST,) * FEATURES_MAX,
        capacity=2**62,
        state="joining",
        tokens=TOKENS,
        registered=LATEST,
        down=True,
        down_reason="r" * 500,
    )
    assert sizes(replace(EMPTY_STATE, nodes=EMPTY_STATE.nodes.set(found.id, found)))["nodes"] < CHANGE_BYTES_MAX


LONGEST_REPLICATION = Replication(
    "network",
    160,
    (DatacenterReplication("d" * 100, 160, tuple(f"{number:04}".ljust(100, "r") for number in range(160))),),
)


def test_the_largest_operation_fits() -> None:
    """Its messages may contain a range with the key of a replication change."""
    worst = chr(0x10FFFF) * REASON_LENGTH_MAX
    found = replace(
        requested(ASSASSINATE, uuid(1), EntryContext(LATEST, uuid(1), 2**62), b"s" * 16),
        reason=worst + "k" * (2 * REPLICATION_BYTES_MAX + 1_000),
        marks=tuple(StageMark(stage, LATEST, LATEST) for stage in STAGES),
        relaxed=STAGES,
        failures=(Failure(LATEST, worst, uuid(1), LATEST),) * FAILURES_KEPT_MAX,
        retries=(Retry(LATEST, worst),) * FAILURES_KEPT_MAX,
        replication=LONGEST_REPLICATION,
        source_datacenter=LONGEST,
        tokens=TOKENS,
        gone=TOKENS,
        replaced=uuid(1),
        keyspace="k" * 48,
        generation="g" * 100,
    )
    state = replace(EMPTY_STATE, operations=EMPTY_STATE.operations.set(found.id, found))
    assert sizes(state)["operations"] < CHANGE_BYTES_MAX


def test_the_largest_group_of_a_strategy_with_factors_fits() -> None:
    most = tuple(Replica(uuid(number), LATEST) for number in range(FACTOR_MAX * DATACENTERS_MAX))
    others = tuple(Replica(uuid(number, space=1), LATEST) for number in range(FACTOR_MAX * DATACENTERS_MAX))
    key = "n" * REPLICATION_BYTES_MAX + ">" + "o" * REPLICATION_BYTES_MAX
    group = RangeGroup(TOKEN_MIN, TOKEN_MAX, most, most + others, LATEST)
    state = replace(EMPTY_STATE, placements=EMPTY_STATE.placements.set(key, Placement(key, (group,), (TOKEN_MAX,))))
    assert sizes(state)["placements"] < CHANGE_BYTES_MAX


def largest_range(key: str, group: ServedRange) -> int:
    """Return the record size of a range with moving replicas."""
    values = {name: getattr(group, name) for name in group.__struct_fields__}
    return size(ChangeRecord("placements", f"{key}/{group.end}", PlacementChange(LATEST, key, **values)))


def test_the_largest_moving_group_fits() -> None:
    """The maximum number of operations each replace all members."""
    count = FACTOR_MAX * DATACENTERS_MAX
    ids, others = (tuple(uuid(number, space=space) for number in range(count)) for space in (0, 1))
    members = tuple(Replica(node, LATEST) for node in (*ids, *others))
    moving = RangeChange(f"assassinate-{LATEST}", others, ids)
    key = "n" * REPLICATION_BYTES_MAX + ">" + "o" * REPLICATION_BYTES_MAX
    group = ServedRange(TOKEN_MIN, TOKEN_MAX, members[:count], members, LATEST, (moving,))
    assert largest_range(key, group) < CHANGE_BYTES_MAX


def test_a_range_with_all_nodes_moving_fits() -> None:
    """The moving replicas must fit into the space above the weights."""
    members = tuple(Replica(uuid(number), LATEST) for number in range(CHANGE_BYTES_MAX // carried._MEMBER))
    moving = RangeChange(f"alter-{LATEST}", tuple(member.node for member in members), ())
    key = "n" * REPLICATION_BYTES_MAX + ">" + "o" * REPLICATION_BYTES_MAX
    group = ServedRange(TOKEN_MIN, TOKEN_MAX, members, members, LATEST, (moving,))
    assert largest_range(key, group) + FRAMING_BYTES < RECORD_BYTES_MAX - 400_000


def test_the_largest_user_type_fits() -> None:
    """A type is limited by the longest text of a value of it, regardless of its users."""
    names = tuple(TypeField(f"f{number}".ljust(48, "n"), "int") for number in range(FIELDS_MAX))
    found = UserType("k" * 48, "t" * 48, names, uuid(1), LATEST)
    state = replace(EMPTY_STATE, types=EMPTY_STATE.types.set("k.t", found))
    assert sizes(state)["schema"] <= weight_of_part(found) < CHANGE_BYTES_MAX


def test_the_largest_unweighed_schema_parts_fit() -> None:
    """Long parts are column names, types and the body of a function."""
    name, kind = "n" * 48, "t" * LENGTH_MAX
    names = tuple(f"c{number}".ljust(48, "n") for number in range(COLUMNS_MAX))
    view = View(name, name, name, names, names[:100], names[:100], uuid(1), LATEST)
    types = (kind,) * ARGUMENTS_MAX
    function = Function(
        name, name, types, names[:ARGUMENTS_MAX], kind, name, "b" * BODY_BYTES_MAX, True, uuid(1), LATEST
    )
    aggregate = Aggregate(name, name, types, name, kind, name, "\u2603" * LITERAL_MAX, uuid(1), LATEST)
    state = replace(
        EMPTY_STATE,
        views=EMPTY_STATE.views.set("k.v", view),
        functions=EMPTY_STATE.functions.set(function.signature, function),
        aggregates=EMPTY_STATE.aggregates.set(aggregate.signature, aggregate),
    )
    assert CHANGE_BYTES_MAX // 3 < sizes(state)["schema"] < CHANGE_BYTES_MAX
    for section in ("views", "functions", "aggregates"):
        (item,) = getattr(state, section).values()
        alone: dict[str, Any] = {section: getattr(state, section)}
        assert sizes(replace(EMPTY_STATE, **alone))["schema"] <= weight_of_part(item)


def test_the_largest_range_of_a_generation_fits() -> None:
    described = GenerationRange(TOKEN_MAX, 63, (b"x" * 16,) * SHARDS_MAX)
    generation = Generation("g" * 100, LATEST, (described,), "committed", LATEST, LATEST, LATEST, ())
    assert sizes(replace(EMPTY_STATE, generations=(generation,)))["cdc-streams"] < CHANGE_BYTES_MAX


def test_the_largest_tablet_fits() -> None:
    """All replicas move from the maximum number of nodes to other nodes."""
    count = FACTOR_MAX * DATACENTERS_MAX
    ids, others = (tuple(uuid(number, space=space) for number in range(count)) for space in (0, 1))
    settled, coming = (tuple(TabletReplica(node, SHARDS_MAX, LATEST) for node in nodes) for nodes in (ids, others))
    members = tuple(Replica(node, LATEST) for node in (*ids, *others))
    table = f"{'k' * 48}.{'t' * 48}"
    tablet = TabletChange(
        epoch=LATEST,
        table=table,
        tablet=2**20,
        start=TOKEN_MIN,
        end=TOKEN_MAX,
        replicas=settled,
        read=members[:count],
        write=members,
        changed=LATEST,
        moving=(RangeChange("s" * 200, others, ids),),
        kind="k" * 48,
        stage="s" * 48,
        stage_epoch=LATEST,
        next=coming,
        session="s" * 200,
        reason=chr(0x10FFFF) * REASON_LENGTH_MAX,
    )
    assert size(ChangeRecord("tablets", f"{table}/{2**20}", tablet)) < CHANGE_BYTES_MAX


def test_the_largest_small_records_fit() -> None:
    worst, name = chr(0x10FFFF) * REASON_LENGTH_MAX, "n" * 100
    operator = chr(0x10FFFF) * OPERATOR_LENGTH_MAX
    forced = (LATEST,) * FORCED_KEPT_MAX
    table = f"{'k' * 48}.{'t' * 48}"
    state = replace(
        EMPTY_STATE,
        epoch=LATEST,
        cluster_id=uuid(1),
        name=name,
        features=EMPTY_STATE.features.set(name, Feature(name, LATEST, LATEST)),
        indexes=EMPTY_STATE.indexes.set(table, TableIndex(*("n" * 48,) * 4, uuid(1), LATEST)),
        service=EMPTY_STATE.service.set(uuid(1), ServiceMember(uuid(1), "joining", LATEST)),
        recoveries=EMPTY_STATE.recoveries.set(
            str(LATEST), Recovery(LATEST, LATEST, operator, worst, forced, LATEST, operator)
        ),
    )
    assert sizes(replace(EMPTY_STATE, indexes=state.indexes))["schema"] <= weight_of_part(state.indexes[table])
    found = sizes(state)
    assert {"features", "schema", "service", "epochs"} <= found.keys()
    assert max(found.values()) < CHANGE_BYTES_MAX // 100
    tablets = TabletsChange(LATEST, table, 2**20, LATEST, Resize("split", 2**62, LATEST), 2**62)
    assert size(ChangeRecord("tablets", table, tablets)) < CHANGE_BYTES_MAX // 100


def test_the_largest_acknowledgement_fits() -> None:
    """If its topic rejected an acknowledgement, each barrier that counts the node would block."""
    table = f"{'k' * 48}.{'t' * 48}"
    report = StreamReport(uuid(1), f"{table}/{2**20}@{LATEST}/returned", LATEST, "f" * 64)
    worst = chr(0x10FFFF) * TRIED_LENGTH_MAX
    tries = (FailedTries(f"{table}/{2**20}@{LATEST}", uuid(2), 2**31, LATEST, LATEST, worst),) * TRIES_REPORTED_MAX
    ack = NodeAck(uuid(1), uuid(1), "i" * 100, LATEST, LATEST, (report,) * REPORTS_MAX, LATEST, LATEST, tries, uuid(3))
    assert RECORD_BYTES_MAX // 2 < len(encode_node_ack(ack)) + FRAMING_BYTES < RECORD_BYTES_MAX


HELD = {
    "NodeChange": "test_the_largest_node_fits",
    "PlacementChange": "test_the_largest_moving_group_fits",
    "KeyspaceChange": "test_the_longest_replication_fits",
    "TableChange": "test_a_table_record_is_at_most_its_weight",
    "TypeChange": "test_the_largest_user_type_fits",
    "OperationChange": "test_the_largest_operation_fits",
    "TabletsChange": "test_the_largest_small_records_fit",
    "TabletChange": "test_the_largest_tablet_fits",
    "StreamsChange": "test_the_largest_range_of_a_generation_fits",
    "GenerationChange": "test_accepted_positions_fit_into_a_generation_record",
    "FeatureChange": "test_the_largest_small_records_fit",
    "ViewChange": "test_the_largest_unweighed_schema_parts_fit",
    "TableIndexChange": "test_the_largest_small_records_fit",
    "FunctionChange": "test_the_largest_unweighed_schema_parts_fit",
    "AggregateChange": "test_the_largest_unweighed_schema_parts_fit",
    "ZoneChange": "test_the_largest_zone_fits",
    "ZonePartitionChange": "test_a_partition_record_is_at_most_its_weight",
    "ServiceMemberChange": "test_the_largest_small_records_fit",
    "RecoveryChange": "test_the_largest_small_records_fit",
    "EpochChange": "test_the_largest_small_records_fit",
}
"""Change record to the test that builds its largest instance."""


def test_each_change_record_has_a_largest_instance() -> None:
    """A new state section needs a test that builds its largest record."""
    assert HELD.keys() == {publication.change.__name__ for publication in PUBLICATIONS} | {EpochChange.__name__}
    assert set(HELD.values()) <= {*globals(), *vars(test_zone_size_limits)}


def test_the_longest_replication_fits() -> None:
    assert len(replication_key(LONGEST_REPLICATION)) < REPLICATION_BYTES_MAX
    keyspace = Keyspace("k" * 48, LONGEST_REPLICATION, uuid(1), "n" * (2 * REPLICATION_BYTES_MAX + 1))
    assert sizes(replace(EMPTY_STATE, keyspaces=EMPTY_STATE.keyspaces.set("k", keyspace)))["schema"] < CHANGE_BYTES_MAX


# No sequence of commands creates an oversized record


def growing(draw: random.Random, state: ClusterState) -> Command:
    """Return a command that enlarges an entity, often an existing one."""
    number = draw.randrange(10**6)
    kinds = ["text", "frozen<wide>", "map<int, frozen<wide>>", f"list<{chr(0x3000) * 200}int>"]
    more = tuple(Column(f"c{number + one}", draw.choice(kinds)) for one in range(draw.choice([1, 5, 20])))
    fields = tuple(TypeField(f"f{number + one}", "varint") for one in range(draw.choice([1, 10])))
    positions = tuple(Position(draw.randrange(2**31), 2**62) for _ in range(draw.choice([1, 40])))
    registered = [writer for _, writer in sorted(state.writers.items())]
    choices: list[Command] = [
        CreateKeyspace("a", Replication("simple", 1)),
        CreateType("a", "wide", fields),
        AlterType("a", "wide", fields),
        CreateTable(
            "a", f"t{number % 5}", uuid(number, space=4), (Column("k", "text"), *more), ("k",), (), CdcOptions()
        ),
        AlterTable("a", f"t{number % 5}", more),
        RegisterCdcWriter(f"w{number % 3}", uuid(number, space=5)),
        *(AdvanceCdcWriter(one.name, one.incarnation, one.horizon + 1, 0, positions) for one in registered),
        *(FenceCdcWriter(one.name, one.incarnation, positions, "gone") for one in registered[:1]),
    ]
    return draw.choice(choices) if draw.random() < 0.8 else random_command(draw, state)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4_000, 8_000, 16_000]))
def test_no_sequence_of_accepted_commands_makes_a_record_too_large(seed: int, most: int) -> None:
    """The bounds are low enough for a hundred small commands to reach them."""
    draw = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carried, "CHANGE_BYTES_MAX", most)
        patch.setattr(schema_sizes, "RECORD_BYTES_MAX", most)
        state = applied(with_normal_nodes(founded(), 2), CreateKeyspace("a", Replication("simple", 1)))
        for _ in range(100):
            folded = fold(state, entry(state, growing(draw, state)))
            assert folded.outcome.kind in (OutcomeKind.APPLIED, OutcomeKind.REFUSED)
            for record in diff(state, folded.state):
                if isinstance(record.value, TableChange):
                    assert size(record) <= most
            state = folded.state
        assert sizes(closing(state))[CDC_GENERATIONS] <= most


def closing(state: ClusterState) -> ClusterState:
    """Return a state with one generation that records the greatest positions of all writers, as its end does."""
    known: dict[int, Position] = {}
    for writer in state.writers.values():
        known |= {position.partition: position for position in writer.positions}
    positions = tuple(known[partition] for partition in sorted(known))
    generation = Generation("g" * 100, LATEST, (), "closed", LATEST, LATEST, LATEST, positions)
    return replace(EMPTY_STATE, generations=(generation,))


def test_accepted_positions_fit_into_a_generation_record() -> None:
    count = 0
    while count < 200_000:
        positions = tuple(Position(2**31 - 1 - number, 2**62) for number in reversed(range(count)))
        writer = CdcWriter("w", uuid(1), LATEST, LATEST, LATEST, LATEST, positions, ())
        state = replace(EMPTY_STATE, writers=EMPTY_STATE.writers.set("w", writer))
        if too_large(EMPTY_STATE, state, Noop()) is not None:
            break
        assert sizes(closing(state))[CDC_GENERATIONS] < CHANGE_BYTES_MAX
        count += 5 * POSITIONS_MAX
    assert count < 200_000

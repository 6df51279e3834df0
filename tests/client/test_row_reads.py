"""Row reads on the replicas of three nodes: positions, lagging replicas, lost rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ringlog.client.data import row_reads
from ringlog.client.data.plans import Level
from ringlog.client.data.registers import AskReplica, AwaitReplies, ReadNewest, ReceivedReply
from ringlog.client.data.row_reads import FoundPartition, PartitionRequest, ReadEnds, found_rows, message_of
from ringlog.client.data.row_writer import VerdictSearch, WrittenRow, with_context
from ringlog.client.errors import RequestImpossible, RequestTimedOut
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.generations.admission import rules_of, verdict
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Column, Micros, Replication, replace
from ringlog.node.protocol import requests
from ringlog.node.rows.replica import KEPT, RowReplica
from ringlog.node.rows.row_reads import answered
from ringlog.protocol.effects import Newest, Now, Steps, Until, run_steps
from ringlog.wire.data import BEHIND, NOT_MEMBER, OTHER_HISTORY, PARTITION_BYTES_MAX, TOO_LARGE
from ringlog.wire.records import Cell, encode_mutation
from tests.kernel.entries import applied
from tests.node.world import APPENDED, TABLE, cluster, name_of, write
from tests.record_keys import record_key

ONE, TWO, THREE = NODES = tuple(name_of(number) for number in (1, 2, 3))
KEY = b"ann"
SECOND: Micros = 1_000_000


def settled() -> ClusterState:
    """Return three nodes with a replica of every range; the writes of the tests can be decided."""
    state = cluster((0,), (2**60,), (-(2**60),), factor=3)
    return applied(state, SettleVerdicts(APPENDED + SECOND))


class Replicas:
    """The replicas, and a topic of one partition that each has read up to some offset."""

    def __init__(self) -> None:
        self.state = settled()
        self.holders = {node: RowReplica(node) for node in NODES}
        self.topic: list[bytes] = []
        self.asked: list[AskReplica] = []
        self.ends: Callable[[], Mapping[int, int] | None] = lambda: {0: len(self.topic)}
        self.silent: set[str] = set()
        self.reads_on = True
        self._open: list[AskReplica] = []
        self._now: Micros = 0
        for row_replica in self.holders.values():
            row_replica.adopt(self.state)
            row_replica.caught_up = True
            row_replica.positions = {0: 0}

    def write(self, number: int, *nodes: str, at: int = 0) -> bytes:
        """Append a write that these nodes have read together with everything before it."""
        value = encode_mutation(write("ann", number, APPENDED + at))
        self.topic.append(value)
        for node in nodes:
            self.judge(node, len(self.topic))
        return value

    def judge(self, node: str, end: int) -> None:
        row_replica = self.holders[node]
        for offset in range(row_replica.positions[0], end):
            assert row_replica.validate_record(self.topic[offset], APPENDED, record_key(self.topic[offset])) == KEPT
            row_replica.advance_position(0, offset + 1)

    def read(self, at: Mapping[int, int] | None = None, level: Level = Level.QUORUM) -> FoundPartition:
        steps: Steps[FoundPartition] = row_reads.read(TABLE, KEY, at or {}, level, "dc1", SECOND)
        return run_steps(steps, self._perform)

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Newest():
                return self.state
            case Now():
                return self._now
            case AskReplica():
                self.asked.append(effect)
                self._open.append(effect)
            case AwaitReplies():
                taken, self._open = self._open, []
                self._now += 150_000 if taken else effect.timeout
                return [self._reply(asked) for asked in taken]
            case ReadNewest():
                return True
            case ReadEnds():
                return self.ends()
            case Until():
                self._now += effect.timeout

    def _reply(self, asked: AskReplica) -> ReceivedReply:
        assert isinstance(asked.request, PartitionRequest)
        if asked.node in self.silent:
            return asked, None
        reply = answered(self.holders[asked.node], message_of(asked))
        if reply.refused == BEHIND and self.reads_on:
            self.judge(asked.node, len(self.topic))  # When the replica is asked again.
        return asked, found_rows(reply)


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


def test_a_replica_lagging_in_unrelated_epochs_serves_at_once(replicas: Replicas) -> None:
    written = replicas.write(1, *NODES)
    for _ in range(3):
        replicas.state = applied(replicas.state, Noop())
    replicas.state = applied(replicas.state, CreateKeyspace("other", Replication("simple", 3)))
    found = replicas.read()
    assert (found.writes, found.epoch, found.attempts) == ((written,), replicas.state.epoch, 1)
    assert {answer.epoch for answer in found.answers} == {replicas.state.epoch - 4}
    assert len(replicas.asked) == len(NODES), "no replica is asked twice"
    replicas.asked.clear()
    keyspace, _, table = TABLE.partition(".")
    replicas.state = applied(replicas.state, AlterTable(keyspace, table, (Column("more", "int"),)))
    with pytest.raises(RequestTimedOut):
        replicas.read()
    for row_replica in replicas.holders.values():
        row_replica.adopt(replicas.state)
    assert replicas.read().writes == (written,)


def test_a_read_at_a_position_contains_all_writes_below_it(replicas: Replicas) -> None:
    first, second = replicas.write(1, *NODES), replicas.write(2, TWO)
    for silent in ({TWO}, {ONE, TWO}, set[str]()):
        replicas.silent = silent
        found = replicas.read({0: 2}, Level.ONE)
        assert set(found.writes) == {first, second}
        assert found.positions[0] >= 2
        assert found.repair is None


def test_replicas_that_removed_redundant_writes_at_different_times_agree(replicas: Replicas) -> None:
    replicas.write(1, *NODES)
    last = replicas.write(1, *NODES, at=1)
    row_replica = replicas.holders[TWO]
    (redundant,) = [one for one in row_replica.partition(TABLE, KEY) or () if one.value != last]
    row_replica.remove([redundant])
    found = replicas.read()
    assert found.lacking == ()
    assert found.repair is None
    assert last in found.writes


def test_a_replica_below_the_position_does_not_count(replicas: Replicas) -> None:
    replicas.write(1, ONE, TWO)
    replicas.reads_on = False
    assert replicas.read({0: 1}, Level.QUORUM).positions == {0: 1}
    with pytest.raises(RequestTimedOut, match="n1"):
        replicas.read({0: 2}, Level.ONE)


def test_a_row_of_one_replica_is_returned_once_a_quorum_has_it(replicas: Replicas) -> None:
    first, second = replicas.write(1, *NODES), replicas.write(2, ONE)
    found = replicas.read()
    assert set(found.writes) == {first, second}
    assert found.repair is not None
    assert sum(row_replica.positions[0] == 2 for row_replica in replicas.holders.values()) >= 2
    asked = [one.request for one in replicas.asked if isinstance(one.request, PartitionRequest)]
    assert asked[-1].is_position
    assert asked[-1].at == ((0, 2),)
    replicas.asked.clear()
    again = replicas.read()
    assert set(again.writes) == {first, second}
    assert [one.is_digest for one in replicas.asked] == [False, True, True]


def test_a_quorum_that_has_the_same_rows_need_not_be_at_one_position(replicas: Replicas) -> None:
    value = replicas.write(1, *NODES)
    replicas.holders[ONE].advance_position(0, 9)
    found = replicas.read()
    assert (found.writes, found.repair, found.attempts) == ((value,), None, 1)


def test_a_row_lost_by_one_replica_is_returned_and_reported(replicas: Replicas) -> None:
    value = replicas.write(1, *NODES)
    replicas.holders[TWO].store.drop(TABLE, [(0, 0)])
    found = replicas.read()
    assert (found.writes, found.lacking) == ((value,), (TWO,))
    replicas.ends = lambda: None
    assert replicas.read().lacking == (), "no answer contains the end of the topic"


def test_rows_streamed_from_above_a_position_are_not_losses(replicas: Replicas) -> None:
    ahead = replicas.write(1, ONE)
    replicas.holders[ONE].positions = {0: 0}
    found = replicas.read()
    assert (found.writes, found.lacking) == ((ahead,), ())
    assert all(row_replica.positions == {0: 1} for row_replica in replicas.holders.values())


def test_a_read_is_one_of_a_table_and_not_of_its_name(replicas: Replicas) -> None:
    replicas.write(1, *NODES)
    planned = replicas.state
    replicas.state = applied(planned, DropTable("shop", "orders"))
    with pytest.raises(RequestImpossible, match="unknown_table"):
        replicas.read()
    replicas.state = planned
    gone = applied(planned, DropTable("shop", "orders"))
    for row_replica in replicas.holders.values():
        row_replica.adopt(gone)
    with pytest.raises(RequestTimedOut, match=f"n1 {NOT_MEMBER}"):
        replicas.read()


def test_a_replica_gives_the_reason_of_a_refusal(replicas: Replicas) -> None:
    replicas.write(1, *NODES)
    replicas.read()
    asked = replicas.asked[0]
    assert isinstance(asked.request, PartitionRequest)
    request, row_replica = message_of(asked), replicas.holders[asked.node]
    assert answered(row_replica, replace(request, at=((7, 1),))).refused == BEHIND, "the partition may be new"
    assert answered(row_replica, replace(request, at=((0, 2),))).refused == BEHIND
    assert answered(row_replica, replace(request, epoch=row_replica.state.epoch + 1)).refused == BEHIND
    assert answered(row_replica, replace(request, state_id="another")).refused == OTHER_HISTORY
    assert answered(row_replica, replace(request, table_id="another")).refused == NOT_MEMBER
    row_replica.caught_up = False
    assert answered(row_replica, request).refused == "not_ready"
    row_replica.caught_up = True
    for number in range(5):
        cells = (Cell("note", bytes(PARTITION_BYTES_MAX // 4)),)
        row_replica.validate_record(
            encode_mutation(write("ann", number, cells=cells)), APPENDED, record_key(write("ann", number, cells=cells))
        )
    assert answered(row_replica, request).refused == TOO_LARGE
    assert answered(row_replica, replace(request, position=True)).refused == ""


def test_a_request_waits_until_its_position_is_read(replicas: Replicas) -> None:
    replicas.write(1, TWO)
    replicas.read({0: 0}, Level.ONE)
    asked = next(one for one in replicas.asked if one.node == ONE)
    assert isinstance(asked.request, PartitionRequest)
    row_replica, request = replicas.holders[ONE], replace(message_of(asked), at=((0, 1),))
    steps = requests.answer_row_request(row_replica, request)
    held = steps.send(None)
    assert isinstance(held, requests.WaitUntil)
    assert not held.over()
    replicas.judge(ONE, 1)
    assert held.over()
    assert run_steps(steps, lambda _: None).refused == ""


# The metadata that a write contains, and the decision that its author computes.


ROW_WRITER_SECOND = 1_000_000


def test_a_write_names_cluster_table_and_epoch_unless_it_does_already() -> None:
    state = cluster((0,), factor=1)
    plain = write("ann", 1, cluster_id=None)
    found = with_context(state, plain)
    assert (found.cluster_id, found.table_id, found.epoch) == (state.cluster_id, state.tables[TABLE].id, state.epoch)
    assert found.table_version is None
    for own in (
        {"cluster_id": "c", "table_id": "t", "epoch": 3},
        {"cluster_id": "c", "table_id": "t", "table_version": "v"},
    ):
        said = write("ann", 1, **own)
        assert with_context(state, said) == said
    assert with_context(state, write("ann", 1, table="nosuch")).table_id is None


def test_the_decision_is_final_at_the_watermark() -> None:
    state = cluster((0,), factor=1)
    mutation = with_context(state, write("ann", 1))
    sought = VerdictSearch(mutation, APPENDED)
    assert sought.found(state) is None, "no decision is guaranteed yet"
    early = applied(state, SettleVerdicts(APPENDED))
    assert sought.found(early) is None
    late = applied(early, SettleVerdicts(APPENDED + ROW_WRITER_SECOND))
    found = sought.found(late)
    assert found is not None
    assert (found[0].code, found[1]) == ("", late.epoch)
    for later in (
        applied(late, DropTable("shop", "orders")),
        applied(late, SettleVerdicts(APPENDED + 9 * ROW_WRITER_SECOND)),
    ):
        assert sought.found(later) == (found[0], later.epoch)


def test_a_write_is_read_with_the_table_of_its_epoch() -> None:
    state = applied(cluster((0,), factor=1), SettleVerdicts(APPENDED - ROW_WRITER_SECOND))
    mutation = with_context(state, write("ann", 1))
    changed = applied(state, AlterTable("shop", "orders", add_columns=(Column("more", "text"),)))
    newer = with_context(changed, write("ann", 1))
    assert newer.epoch == changed.epoch
    state = applied(changed, SettleVerdicts(APPENDED + ROW_WRITER_SECOND))
    for one in (mutation, newer):
        found = VerdictSearch(one, APPENDED).found(state)
        assert found is not None
        assert found[0] == verdict(rules_of(state), one, APPENDED)
        assert not found[0].code
    refused = VerdictSearch(with_context(state, write("ann", 1, table="nosuch")), APPENDED).found(state)
    assert refused is not None
    assert refused[0].code == "unknown_table"


def test_a_position_is_above_the_write() -> None:
    assert WrittenRow(write("ann", 1), 3, 41, APPENDED).at == {3: 42}

"""Reads of rows, performed on the holders of three nodes: positions, who is behind, who has lost something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ringlog.client import row_reads
from ringlog.client.errors import RequestImpossible, RequestTimedOut
from ringlog.client.plans import Level
from ringlog.client.protocol import AskReplica, AwaitReplies, LookForNewest, ReceivedReply
from ringlog.client.row_reads import FoundPartition, LookForEnds, PartitionRequest, found_rows, message_of
from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema import AlterTable, DropTable
from ringlog.kernel.commands.verdicts import SettleVerdicts
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Column, Micros, Replication
from ringlog.node.holder import KEPT, Holder
from ringlog.node.protocol import requests
from ringlog.node.row_reads import answered
from ringlog.protocol.effects import Newest, Now, Steps, Until, carry_out
from ringlog.wire.data import BAD_POSITION, BEHIND, NOT_MEMBER, OTHER_HISTORY, PARTITION_BYTES_MAX, TOO_LARGE
from ringlog.wire.records import Cell, encode_mutation
from tests.kernel.entries import applied
from tests.node.world import APPENDED, TABLE, cluster, name_of, write

ONE, TWO, THREE = NODES = tuple(name_of(number) for number in (1, 2, 3))
KEY = b"ann"
SECOND: Micros = 1_000_000


def settled() -> ClusterState:
    """Three nodes, each with everything; writes of the tests can be judged."""
    state = cluster((0,), (2**60,), (-(2**60),), factor=3)
    return applied(state, SettleVerdicts(APPENDED + SECOND))


class Replicas:
    """The holders, and a topic of one partition that each has judged up to some offset."""

    def __init__(self) -> None:
        self.state = settled()
        self.holders = {node: Holder(node) for node in NODES}
        self.topic: list[bytes] = []
        self.asked: list[AskReplica] = []
        self.ends: Callable[[], Mapping[int, int] | None] = lambda: {0: len(self.topic)}
        self.silent: set[str] = set()
        self.reads_on = True
        self._open: list[AskReplica] = []
        self._now: Micros = 0
        for holder in self.holders.values():
            holder.adopt(self.state)
            holder.caught_up = True
            holder.positions = {0: 0}

    def write(self, number: int, *nodes: str) -> bytes:
        """Append a write, which these nodes have judged, and everything before it."""
        value = encode_mutation(write("ann", number))
        self.topic.append(value)
        for node in nodes:
            self.judge(node, len(self.topic))
        return value

    def judge(self, node: str, end: int) -> None:
        holder = self.holders[node]
        for offset in range(holder.positions[0], end):
            assert holder.judge(self.topic[offset], APPENDED) == KEPT
            holder.passed(0, offset + 1)

    def read(self, at: Mapping[int, int] | None = None, level: Level = Level.QUORUM) -> FoundPartition:
        steps: Steps[FoundPartition] = row_reads.read(TABLE, KEY, at or {}, level, "dc1", SECOND)
        return carry_out(steps, self._perform)

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
                self._now += 150_000 if taken else effect.patience
                return [self._reply(asked) for asked in taken]
            case LookForNewest():
                return True
            case LookForEnds():
                return self.ends()
            case Until():
                self._now += effect.patience

    def _reply(self, asked: AskReplica) -> ReceivedReply:
        assert isinstance(asked.request, PartitionRequest)
        if asked.node in self.silent:
            return asked, None
        reply = answered(self.holders[asked.node], message_of(asked))
        if reply.refused == BEHIND and self.reads_on:
            self.judge(asked.node, len(self.topic))  # by the time it is asked again
        return asked, found_rows(reply)


def test_a_replica_that_is_behind_in_what_does_not_matter_serves_at_once() -> None:
    replicas = Replicas()
    written = replicas.write(1, *NODES)
    for _ in range(3):
        replicas.state = applied(replicas.state, Noop())
    replicas.state = applied(replicas.state, CreateKeyspace("other", Replication("simple", 3)))
    found = replicas.read()
    assert (found.writes, found.epoch, found.attempts) == ((written,), replicas.state.epoch, 1)
    assert {answer.epoch for answer in found.answers} == {replicas.state.epoch - 4}
    assert len(replicas.asked) == len(NODES), "nobody is asked twice"
    replicas.asked.clear()
    keyspace, _, table = TABLE.partition(".")
    replicas.state = applied(replicas.state, AlterTable(keyspace, table, (Column("more", "int"),)))
    with pytest.raises(RequestTimedOut):
        replicas.read()
    for holder in replicas.holders.values():
        holder.adopt(replicas.state)
    assert replicas.read().writes == (written,)


def test_a_read_at_a_position_has_what_was_written_below_it_wherever_it_comes_from() -> None:
    replicas = Replicas()
    first, second = replicas.write(1, *NODES), replicas.write(2, TWO)
    for silent in ({TWO}, {ONE, TWO}, set[str]()):
        replicas.silent = silent
        found = replicas.read({0: 2}, Level.ONE)
        assert set(found.writes) == {first, second}
        assert found.positions[0] >= 2
        assert found.repair is None


def test_who_does_not_get_to_a_position_is_not_believed() -> None:
    replicas = Replicas()
    replicas.write(1, ONE, TWO)
    replicas.reads_on = False
    assert replicas.read({0: 1}, Level.QUORUM).positions == {0: 1}
    with pytest.raises(RequestTimedOut, match="n1"):
        replicas.read({0: 2}, Level.ONE)


def test_what_one_replica_has_is_given_away_once_a_quorum_has_it() -> None:
    replicas = Replicas()
    first, second = replicas.write(1, *NODES), replicas.write(2, ONE)
    found = replicas.read()
    assert set(found.writes) == {first, second}
    assert found.repair is not None
    assert sum(holder.positions[0] == 2 for holder in replicas.holders.values()) >= 2
    asked = [one.request for one in replicas.asked if isinstance(one.request, PartitionRequest)]
    assert asked[-1].is_position
    assert asked[-1].at == ((0, 2),)
    replicas.asked.clear()
    again = replicas.read()
    assert set(again.writes) == {first, second}
    assert [one.is_digest for one in replicas.asked] == [False, True, True]


def test_a_quorum_that_has_the_same_rows_need_not_be_at_one_position() -> None:
    replicas = Replicas()
    value = replicas.write(1, *NODES)
    replicas.holders[ONE].passed(0, 9)
    found = replicas.read()
    assert (found.writes, found.repair, found.attempts) == ((value,), None, 1)


def test_a_row_that_one_replica_has_lost_is_given_and_the_loss_is_said() -> None:
    replicas = Replicas()
    value = replicas.write(1, *NODES)
    replicas.holders[TWO].store.drop(TABLE, [(0, 0)])
    found = replicas.read()
    assert (found.writes, found.lacking) == ((value,), (TWO,))
    replicas.ends = lambda: None
    assert replicas.read().lacking == (), "nobody says where the topic ends"


def test_what_a_stream_brought_from_above_is_no_loss_of_others() -> None:
    replicas = Replicas()
    ahead = replicas.write(1, ONE)
    replicas.holders[ONE].positions = {0: 0}
    found = replicas.read()
    assert (found.writes, found.lacking) == ((ahead,), ())
    assert all(holder.positions == {0: 1} for holder in replicas.holders.values())


def test_a_read_is_one_of_a_table_and_not_of_its_name() -> None:
    replicas = Replicas()
    replicas.write(1, *NODES)
    planned = replicas.state
    replicas.state = applied(planned, DropTable("shop", "orders"))
    with pytest.raises(RequestImpossible, match="unknown_table"):
        replicas.read()
    replicas.state = planned
    gone = applied(planned, DropTable("shop", "orders"))
    for holder in replicas.holders.values():
        holder.adopt(gone)
    with pytest.raises(RequestTimedOut, match=f"n1 {NOT_MEMBER}"):
        replicas.read()


def test_a_replica_says_why_it_does_not_answer() -> None:
    replicas = Replicas()
    replicas.write(1, *NODES)
    replicas.read()
    asked = replicas.asked[0]
    assert isinstance(asked.request, PartitionRequest)
    request, holder = message_of(asked), replicas.holders[asked.node]
    assert answered(holder, replace(request, at=((7, 1),))).refused == BAD_POSITION
    assert answered(holder, replace(request, at=((0, 2),))).refused == BEHIND
    assert answered(holder, replace(request, epoch=holder.state.epoch + 1)).refused == BEHIND
    assert answered(holder, replace(request, state_id="another")).refused == OTHER_HISTORY
    assert answered(holder, replace(request, table_id="another")).refused == NOT_MEMBER
    holder.caught_up = False
    assert answered(holder, request).refused == "not_ready"
    holder.caught_up = True
    for number in range(5):
        cells = (Cell("note", bytes(PARTITION_BYTES_MAX // 4)),)
        holder.judge(encode_mutation(write("ann", number, cells=cells)), APPENDED)
    assert answered(holder, request).refused == TOO_LARGE
    assert answered(holder, replace(request, position=True)).refused == ""


def test_a_request_waits_for_the_turn_that_brings_its_position() -> None:
    replicas = Replicas()
    replicas.write(1, TWO)
    replicas.read({0: 0}, Level.ONE)
    asked = next(one for one in replicas.asked if one.node == ONE)
    assert isinstance(asked.request, PartitionRequest)
    holder, request = replicas.holders[ONE], replace(message_of(asked), at=((0, 1),))
    steps = requests.answer(holder, request)
    held = next(steps)
    assert isinstance(held, requests.Hold)
    assert not held.over()
    replicas.judge(ONE, 1)
    assert held.over()
    assert carry_out(steps, lambda _: None).refused == ""

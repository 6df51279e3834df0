"""Pruning of past table versions by evidence: the start of the topic, and the positions that members report."""

from __future__ import annotations

import pytest

from ringlog.client.node_reports import load_reports
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.generations.verdicts import FORGOTTEN
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Column, Position
from ringlog.log.port import LogRecord
from ringlog.node.rows.replica import KEPT, RowReplica
from ringlog.protocol.coordinator.pruning import SLACK_US, TopicBeginning, next_pruning, validated_positions
from ringlog.protocol.validator.limits import too_far_ahead
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.trust import Trust
from ringlog.wire.acks import key_of, load_with_mac
from ringlog.wire.records import NodeLoad, encode_mutation, encode_node_load
from tests.kernel.commands.test_service import joined
from tests.kernel.entries import NODES, applied, node
from tests.node.world import APPENDED, TABLE, with_table, write
from tests.record_keys import record_key

MASTER = "ab" * 32
HOUR = 3_600_000_000
DAY = 24 * HOUR
BEGINS = TopicBeginning({0: 100, 1: 7}, APPENDED + 2 * DAY)
ALL = {NODES[0]: {0: 100, 1: 7}, NODES[1]: {0: 500, 1: 8}}


@pytest.fixture(scope="module")
def altered() -> ClusterState:
    """Return two members and a table that was altered three days ago."""
    state = applied(with_table(joined(2), 1), SettleVerdicts(APPENDED))
    state = applied(state, AlterTable("shop", "orders", (Column("more", "text"),)))
    return applied(state, SettleVerdicts(APPENDED + 3 * DAY))


def test_versions_of_deleted_and_validated_records_are_pruned(altered: ClusterState) -> None:
    found = next_pruning(altered, BEGINS, ALL)
    assert found == SettleVerdicts(1, forget_below=APPENDED + 2 * DAY - SLACK_US)
    assert isinstance(found, SettleVerdicts)
    assert TABLE in altered.table_lives
    after = applied(altered, found)
    assert not after.table_lives
    assert next_pruning(after, BEGINS, ALL) is None, "the pruning happens once"


@pytest.mark.parametrize(
    "judged",
    [{}, {NODES[0]: ALL[NODES[0]]}, ALL | {NODES[1]: {0: 99, 1: 8}}, ALL | {NODES[1]: {0: 500}}],
    ids=["nobody", "one is silent", "one is behind", "a partition is missing"],
)
def test_every_member_must_have_validated_the_deleted_records(
    altered: ClusterState, judged: dict[str, dict[int, int]]
) -> None:
    found = next_pruning(altered, BEGINS, judged)
    assert isinstance(found, str)
    assert "n" in found


def test_other_nodes_are_not_asked(altered: ClusterState) -> None:
    """Nodes outside the group own no rows: other nodes validate the records that it reads later, and its ranges arrive
    with rows.
    """
    assert isinstance(next_pruning(applied(altered, node(9)), BEGINS, ALL), SettleVerdicts)


def test_versions_of_existing_records_are_kept(altered: ClusterState) -> None:
    assert next_pruning(altered, TopicBeginning(BEGINS.offsets, APPENDED + HOUR), ALL) is None


def test_the_validator_refuses_to_prune_the_last_hour(altered: ClusterState) -> None:
    """Any client may send the command, and a slightly lagging node must still be able to validate."""
    now = APPENDED + 3 * DAY
    asked = [too_far_ahead(altered, SettleVerdicts(1, forget_below=now - SLACK_US + late), now) for late in (0, 1)]
    assert [one and one.code for one in asked] == [None, "verdicts_needed"]


def test_the_time_of_an_empty_topic_comes_from_the_broker(altered: ClusterState) -> None:
    """A wrong clock may set the validation watermark far ahead. Nodes must still validate a write that is
    appended now.
    """
    now = APPENDED + 2 * DAY
    empty = {0: 100, 1: 7}
    assert isinstance(next_pruning(altered, TopicBeginning(empty, None), ALL), str)
    found = next_pruning(altered, TopicBeginning(empty, now), ALL)
    assert found == SettleVerdicts(1, forget_below=now - SLACK_US)
    assert isinstance(found, SettleVerdicts)
    rows = RowReplica(NODES[0])
    rows.adopt(applied(altered, found))
    assert rows.validate_record(encode_mutation(write("ann", 1, now)), now, record_key(write("ann", 1, now))) == KEPT
    rows.adopt(applied(altered, SettleVerdicts(1, forget_below=altered.settled.until - SLACK_US), Noop()))
    assert (
        rows.validate_record(encode_mutation(write("ann", 2, now)), now, record_key(write("ann", 2, now))) == FORGOTTEN
    ), "the result with the watermark"


def test_an_unsigned_report_does_not_count(altered: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise any client with write access to the topic ``load`` could prune versions."""
    monkeypatch.setattr("ringlog.client.node_reports.current", lambda: Trust(ack_masters=(MASTER,)))

    def found(*reports: bytes) -> SettleVerdicts | str | None:
        records = [LogRecord(offset, data, APPENDED) for offset, data in enumerate(reports)]
        heard = load_reports(records, RateLimitedWarnings(get_logger("tests")))
        return next_pruning(altered, BEGINS, validated_positions(one.load for one in heard if one.load is not None))

    loads = [
        encode_node_load(NodeLoad(one, 1, 1, (), tuple(Position(*place) for place in sorted(judged.items()))))
        for one, judged in ALL.items()
    ]
    mine, other = (load_with_mac(data, key_of(MASTER, one)) for data, one in zip(loads, ALL, strict=True))
    forged = load_with_mac(loads[1], key_of(MASTER, NODES[0]))
    behind = encode_node_load(NodeLoad(NODES[1], 1, 1, (), ()))
    for wrong in (
        loads[1],
        forged,
        load_with_mac(loads[1], key_of("ef" * 32, NODES[1])),
        load_with_mac(behind, key_of(MASTER, NODES[1])),
    ):
        assert isinstance(found(mine, wrong), str)
    assert isinstance(found(mine, other, forged, behind), SettleVerdicts), "ignored reports change nothing"


def test_without_a_past_nothing_is_proposed() -> None:
    state = applied(with_table(joined(2), 1), SettleVerdicts(APPENDED + 3 * DAY))
    assert next_pruning(state, BEGINS, ALL) is None

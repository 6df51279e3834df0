"""Past table versions are pruned by evidence: the beginning of the topic, and positions that members reported."""

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

MASTER = "ab" * 32
HOUR = 3_600_000_000
DAY = 24 * HOUR
BEGINS = TopicBeginning({0: 100, 1: 7}, APPENDED + 2 * DAY)
ALL = {NODES[0]: {0: 100, 1: 7}, NODES[1]: {0: 500, 1: 8}}


@pytest.fixture(scope="module")
def altered() -> ClusterState:
    """Two members, a table that was altered, and three days since."""
    state = applied(with_table(joined(2), 1), SettleVerdicts(APPENDED))
    state = applied(state, AlterTable("shop", "orders", (Column("more", "text"),)))
    return applied(state, SettleVerdicts(APPENDED + 3 * DAY))


def test_what_the_topic_has_deleted_and_all_have_validated_is_pruned(altered: ClusterState) -> None:
    found = next_pruning(altered, BEGINS, ALL)
    assert found == SettleVerdicts(1, forget_below=APPENDED + 2 * DAY - SLACK_US)
    assert isinstance(found, SettleVerdicts)
    assert TABLE in altered.table_lives
    after = applied(altered, found)
    assert not after.table_lives
    assert next_pruning(after, BEGINS, ALL) is None, "once"


@pytest.mark.parametrize(
    "judged",
    [{}, {NODES[0]: ALL[NODES[0]]}, ALL | {NODES[1]: {0: 99, 1: 8}}, ALL | {NODES[1]: {0: 500}}],
    ids=["nobody", "one is silent", "one is behind", "a partition is missing"],
)
def test_each_member_has_validated_what_is_deleted(altered: ClusterState, judged: dict[str, dict[int, int]]) -> None:
    found = next_pruning(altered, BEGINS, judged)
    assert isinstance(found, str)
    assert "n" in found


def test_who_is_no_member_is_not_asked(altered: ClusterState) -> None:
    """It owns nothing: what it reads later was validated by others, and comes with the rows that it gains."""
    assert isinstance(next_pruning(applied(altered, node(9)), BEGINS, ALL), SettleVerdicts)


def test_what_counts_for_records_that_are_there_is_kept(altered: ClusterState) -> None:
    assert next_pruning(altered, TopicBeginning(BEGINS.offsets, APPENDED + HOUR), ALL) is None


def test_the_validator_refuses_to_prune_the_last_hour(altered: ClusterState) -> None:
    """Anybody may send the command; a node that is a little behind must still be able to validate."""
    now = APPENDED + 3 * DAY
    asked = [too_far_ahead(altered, SettleVerdicts(1, forget_below=now - SLACK_US + late), now) for late in (0, 1)]
    assert [one and one.code for one in asked] == [None, "verdicts_needed"]


def test_the_time_of_an_empty_topic_comes_from_the_broker(altered: ClusterState) -> None:
    """The settled time may be far ahead, by a wrong clock. A write that is appended now must still be validated."""
    now = APPENDED + 2 * DAY
    empty = {0: 100, 1: 7}
    assert isinstance(next_pruning(altered, TopicBeginning(empty, None), ALL), str)
    found = next_pruning(altered, TopicBeginning(empty, now), ALL)
    assert found == SettleVerdicts(1, forget_below=now - SLACK_US)
    assert isinstance(found, SettleVerdicts)
    rows = RowReplica(NODES[0])
    rows.adopt(applied(altered, found))
    assert rows.validate_record(encode_mutation(write("ann", 1, now)), now) == KEPT
    rows.adopt(applied(altered, SettleVerdicts(1, forget_below=altered.settled.until - SLACK_US), Noop()))
    assert rows.validate_record(encode_mutation(write("ann", 2, now)), now) == FORGOTTEN, "what the watermark would do"


def test_a_report_without_a_code_is_no_evidence(altered: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who may write to the topic ``load`` could have versions pruned."""
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
    assert isinstance(found(mine, other, forged, behind), SettleVerdicts), "what does not count changes nothing"


def test_without_a_past_nothing_is_proposed() -> None:
    state = applied(with_table(joined(2), 1), SettleVerdicts(APPENDED + 3 * DAY))
    assert next_pruning(state, BEGINS, ALL) is None

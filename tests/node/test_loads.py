"""Load reports of a node: bytes of rows and registers per tablet, by token."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import chain
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from ringlog.client.node_reports import load_reports
from ringlog.client.participant.retry import Stopped
from ringlog.kernel.balance.advice import advise
from ringlog.kernel.balance.model import READS, WRITES
from ringlog.kernel.balance.reports import UNREGISTERED, Reports
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.log.errors import RecordTooLarge
from ringlog.log.kafka.producer import Delivered
from ringlog.log.port import LogRecord
from ringlog.node.protocol.lifecycle import AwaitLoads, MeasureTablets, PublishLoad, report_loads
from ringlog.node.registers.cells import CellMap
from ringlog.node.registers.served import ServedRequests
from ringlog.node.reports.loads import Loads, sizes_of
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.balancer.load_book import ReceivedLoad, measured, take
from ringlog.protocol.balancer.load_reports import SELDOM_US, load_of, own_tablets
from ringlog.protocol.effects import Now, WallClock, run_steps
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.trust import Trust
from ringlog.wire.acks import key_of
from ringlog.wire.data import Key, RegisterCell
from ringlog.wire.records import NodeLoad
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters

MASTER = "a-master-of-many-letters"
STATE = clusters.with_table(clusters.three_racks(), clusters.factor(3), 8)


def test_rows_and_registers_count_for_the_tablet_of_their_token() -> None:
    tablets = STATE.tablets[clusters.TABLE]
    keys = [Key(clusters.TABLE, token_of(name), name) for name in (b"a", b"b", b"c", b"d")]
    foreign = [Key(other, 0, b"x") for other in ("ks", clusters.TABLE + "x", "zz")]
    cells = CellMap().with_newest((key, RegisterCell(1, b"x" * 100)) for key in (*keys, *foreign))
    rows = [(token_of(b"e"), 1_000), (token_of(b"a"), 10)]
    wanted = dict.fromkeys(range(8), 0)
    for token, size in (*((key.token, 118) for key in keys), *rows):
        wanted[tablets.index_of(token)] += size
    found = sizes_of(STATE, clusters.TABLE, chain(rows, cells.sizes(clusters.TABLE)))
    assert found == {index: size for index, size in wanted.items() if size}


def test_a_node_without_tablets_reports_an_empty_load() -> None:
    assert sizes_of(STATE, clusters.TABLE, CellMap().sizes(clusters.TABLE)) == {}


def test_rates_are_of_the_last_whole_period() -> None:
    served, tablets = ServedRequests(), STATE.tablets[clusters.TABLE]
    first, last = tablets.ends[0], tablets.ends[7]
    assert served.rates(STATE, 0) == {READS: {}, WRITES: {}}
    for _ in range(90):
        served.count_request(READS, STATE, clusters.TABLE, first)
    served.count_request(WRITES, STATE, clusters.TABLE, last)
    for space in ("ks", "ks.none"):
        served.count_request(WRITES, STATE, space, last)
    assert served.rates(STATE, 30_000_000) == {READS: {clusters.TABLE: {0: 3}}, WRITES: {clusters.TABLE: {7: 1}}}
    served.count_request(READS, STATE, clusters.TABLE, last)
    whole = {READS: {clusters.TABLE: {0: 2, 7: 1}}, WRITES: {clusters.TABLE: {7: 1}}}
    assert served.rates(STATE, SELDOM_US) == whole, "91 reads in a minute"
    served.count_request(READS, STATE, clusters.TABLE, first)
    assert served.rates(STATE, SELDOM_US + 1_000_000) == whole, "a second is too short"
    assert served.rates(STATE, 2 * SELDOM_US) == {READS: {clusters.TABLE: {0: 1}}, WRITES: {}}


def test_read_weight_moves_hot_tablets() -> None:
    """Two nodes store the same bytes; all reads go to tablets of one of them."""
    state = clusters.with_table(clusters.cluster(clusters.register(1), clusters.register(2)), clusters.factor(1), 16)
    tablets, reports = state.tablets[clusters.TABLE], Reports()
    busy = tablets.replicas(0)[0].node
    heard = []
    for node in sorted(state.nodes):
        served, own = ServedRequests(), own_tablets(state, node)
        served.rates(state, 0)
        for number in own[clusters.TABLE] if node == busy else ():
            for _ in range(600):
                served.count_request(READS, state, clusters.TABLE, tablets.ends[number])
        sizes = {clusters.TABLE: dict.fromkeys(own[clusters.TABLE], 2**30)}
        heard.append(ReceivedLoad(load_of(state, node, own, sizes, 0, served.rates(state, SELDOM_US)), 1))
    reports = take(reports, heard, state)
    assert not advise(state, measured(reports, state)).moves
    state = applied(state, ChangeSettings((("balance_load_reads_percent", 33),)))
    moves = advise(state, measured(reports, state)).moves
    assert moves
    assert all(one.from_ is not None and one.from_.node == busy for one in moves)


def test_a_node_reports_after_catching_up_and_then_on_schedule() -> None:
    row_replica = RowReplica(STATE.tablets[clusters.TABLE].nodes[0])
    row_replica.state = STATE
    waits, published = [0], list[tuple[int, NodeLoad]]()

    def perform(effect: Any) -> Any:
        match effect:
            case AwaitLoads():
                waits[0] += 1
                row_replica.advance_position(waits[0] % 2, 10 * waits[0])
                row_replica.caught_up = waits[0] > 2
                if waits[0] == 8:
                    raise Stopped
            case Now() | WallClock():
                return waits[0] * SELDOM_US // 3
            case MeasureTablets():
                return {table: dict.fromkeys(numbers, 7) for table, numbers in effect.own.items()}
            case PublishLoad():
                published.append((waits[0], effect.load))

    with pytest.raises(Stopped):
        run_steps(report_loads(row_replica), perform)
    assert [wait for wait, _ in published] == [3, 6]
    (table,) = published[0][1].tables
    assert (table.table, set(table.bytes)) == (clusters.TABLE, {7})
    judged = [[(each.partition, each.offset) for each in load.judged] for _, load in published]
    assert judged == [[(0, 20), (1, 30)], [(0, 60), (1, 50)]]


def test_a_node_with_a_key_signs_its_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    class Sender:
        def __init__(self, *_: object) -> None:
            pass

        def send(self, _: str, value: bytes, **__: object) -> Future[Delivered]:
            sent.append(value)
            return Future()

    monkeypatch.setattr("ringlog.node.reports.loads.AckedProducer", Sender)
    loads, report = Loads("b:1", "c", RowReplica("n1"), CellMap, Event()), NodeLoad("n1", 1, 1, ())
    loads.handlers[PublishLoad](PublishLoad(report))
    monkeypatch.setattr(
        "ringlog.node.reports.loads.current", lambda: Trust(ack_keys=(key_of(MASTER, "n1"), "an older one"))
    )
    loads.handlers[PublishLoad](PublishLoad(report))
    monkeypatch.setattr("ringlog.client.node_reports.current", lambda: Trust(ack_masters=(MASTER,)))
    with capture_logs() as said:
        plain, coded = load_reports(
            (LogRecord(number, value, 7) for number, value in enumerate(sent)), RateLimitedWarnings(get_logger("test"))
        )
    assert (plain.load, plain.code) == (None, "load_not_believed")
    assert (coded.load, coded.appended) == (report, 7)
    assert [line["event"] for line in said] == ["load_not_believed"]
    assert take(Reports(), (plain,), STATE).ignored[UNREGISTERED].code == "load_not_believed"


def test_a_report_that_the_broker_rejects_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker rejects a too large report. Without a message the operator cannot see why no tablet moves."""
    sent: Future[Delivered] = Future()

    class Sender:
        def __init__(self, *_: object) -> None:
            pass

        def send(self, *_: object, **__: object) -> Future[Delivered]:
            return sent

    monkeypatch.setattr("ringlog.node.reports.loads.AckedProducer", Sender)
    loads = Loads("b:1", "c", RowReplica("n1"), CellMap, Event())
    with capture_logs() as said:
        loads.handlers[PublishLoad](PublishLoad(NodeLoad("n1", 1, 1, ())))
        assert said == []
        sent.set_exception(RecordTooLarge("c.load", b"n1", 3_000_000, "raise the limit of the topic"))
    assert [(line["event"], "3,000,000" in line["why"]) for line in said] == [("load_not_reported", True)]

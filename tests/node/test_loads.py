"""Load reports of a node: bytes of rows and registers per tablet, by token."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from threading import Event
from time import thread_time_ns
from typing import Any

import pytest
from structlog.testing import capture_logs

from ringlog.client.node_reports import load_reports
from ringlog.client.participant.retry import Stopped
from ringlog.kernel.balance.advice import advise
from ringlog.kernel.balance.model import BYTES, CPU, READS, WRITES
from ringlog.kernel.balance.reports import UNREGISTERED, Reports
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import replace
from ringlog.log.errors import RecordTooLarge
from ringlog.log.kafka.producer import Delivered
from ringlog.log.port import LogRecord
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.protocol.lifecycle import AwaitLoads, MeasureTablets, PublishLoad, report_loads
from ringlog.node.registers.cells import CellMap
from ringlog.node.registers.served import HALF_LIFE, ServedRequests
from ringlog.node.reports.loads import Loads, sizes_of
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.balancer.load_book import ReceivedLoad, measured, report_of, take
from ringlog.protocol.balancer.load_reports import SELDOM_US, load_of, own_tablets
from ringlog.protocol.effects import Now, WallClock, run_steps
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.trust import Trust
from ringlog.wire.acks import key_of
from ringlog.wire.data import Key, RegisterCell, WriteRequest
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


OWN = {clusters.TABLE: tuple(range(8))}


def served_at(served: ServedRequests, kind: str, number: int, requests: int) -> None:
    """Count requests of a tablet of ``STATE``."""
    for _ in range(requests):
        served.count_request(kind, STATE, clusters.TABLE, STATE.tablets[clusters.TABLE].ends[number])


def test_the_first_average_is_the_mean_of_a_whole_period() -> None:
    served = ServedRequests()
    assert served.rates(STATE, OWN, 0)[READS] == {clusters.TABLE: {}}
    served_at(served, READS, 0, 90)
    served_at(served, WRITES, 7, 1)
    for space in ("ks", "ks.none"):
        served.count_request(WRITES, STATE, space, 0)
    assert served.rates(STATE, OWN, SELDOM_US - 1)[READS] == {clusters.TABLE: {}}, "not measured yet"
    found = served.rates(STATE, OWN, SELDOM_US)
    assert found[READS] == {clusters.TABLE: {0: 2} | dict.fromkeys(range(1, 8), 0)}, "90 reads in a minute"
    assert found[WRITES] == {clusters.TABLE: dict.fromkeys(range(7), 0) | {7: 1}}


def test_an_average_halves_in_its_half_life_without_requests() -> None:
    served, now = ServedRequests(), 0
    served.rates(STATE, OWN, now)
    served_at(served, READS, 3, 60 * 1_000)
    rates = []
    while now < (HALF_LIFE + 1) * SELDOM_US:
        now += SELDOM_US
        rates.append(served.rates(STATE, OWN, now)[READS][clusters.TABLE][3])
    assert rates[0] == 1_000
    assert rates[-1] in (500, 501), "rounded up"
    assert rates == sorted(rates, reverse=True)
    for _ in range(200):
        now += SELDOM_US
        rates.append(served.rates(STATE, OWN, now)[READS][clusters.TABLE][3])
    assert rates[-1] == 0


def test_a_new_tablet_is_measured_after_a_period_of_its_own() -> None:
    served = ServedRequests()
    served.rates(STATE, {clusters.TABLE: (0,)}, 0)
    served.rates(STATE, {clusters.TABLE: (0, 1)}, SELDOM_US // 2)
    served_at(served, READS, 1, 600)
    own = {clusters.TABLE: (0, 1)}
    at_first, later = served.rates(STATE, own, SELDOM_US), served.rates(STATE, own, 2 * SELDOM_US)
    assert [found[READS][clusters.TABLE].keys() for found in (at_first, later)] == [{0}, {0, 1}]
    sizes = {clusters.TABLE: {0: 7, 1: 9}}
    record = load_of(STATE, "n", own, sizes, 5, at_first)
    assert [(row.tablets, row.bytes, row.reads) for row in record.tables] == [((0,), (7,), (0,)), ((1,), (9,), ())]
    report = report_of(record)
    table = STATE.tables[clusters.TABLE].id
    assert (report.loads[BYTES][table], report.loads[READS][table]) == ({0: 7, 1: 9}, {0: 0})


@pytest.mark.parametrize(("count", "wanted"), [(16, {6: 5, 7: 5}), (4, {1: 10})])
def test_averages_survive_a_split_and_a_merge(count: int, wanted: dict[int, int]) -> None:
    """A zero after a split would merge the table again."""
    served = ServedRequests()
    served.rates(STATE, OWN, 0)
    served_at(served, READS, 3, 600)
    served.rates(STATE, OWN, SELDOM_US)
    resized = clusters.with_table(clusters.three_racks(), clusters.factor(3), count)
    assert resized.tables[clusters.TABLE].id == STATE.tables[clusters.TABLE].id
    own = {clusters.TABLE: tuple(range(count))}
    found = served.rates(resized, own, SELDOM_US + 1)[READS][clusters.TABLE]
    assert found == dict.fromkeys(range(count), 0) | wanted


def test_a_table_of_the_same_name_starts_without_averages() -> None:
    served = ServedRequests()
    served.rates(STATE, OWN, 0)
    served_at(served, READS, 3, 600)
    served.rates(STATE, OWN, SELDOM_US)
    table = replace(STATE.tables[clusters.TABLE], id="another")
    state = replace(STATE, tables=STATE.tables.set(clusters.TABLE, table))
    assert served.rates(state, OWN, SELDOM_US + 1)[READS] == {clusters.TABLE: {}}


def test_processor_time_is_that_of_the_thread_of_the_request() -> None:
    """60 ms of work, and a wait that uses no processor."""
    served, end = ServedRequests(), STATE.tablets[clusters.TABLE].ends[2]
    served.rates(STATE, OWN, 0)
    began = thread_time_ns()
    while thread_time_ns() - began < 60_000_000:
        pass
    Event().wait(0.2)
    served.count_request(WRITES, STATE, clusters.TABLE, end, began)
    found = served.rates(STATE, OWN, SELDOM_US)[CPU][clusters.TABLE]
    assert 1_000 <= found[2] < 3_000, "60 ms in 60 s are 1,000 microseconds per second"
    assert all(found[number] == 0 for number in range(8) if number != 2)


def test_register_requests_are_measured(tmp_path: Path) -> None:
    node, served = STATE.tablets[clusters.TABLE].nodes[0], ServedRequests()
    own = own_tablets(STATE, node)
    number = own[clusters.TABLE][0]
    end = STATE.tablets[clusters.TABLE].ends[number]
    served.rates(STATE, own, 0)
    host = RegisterHost(node, tmp_path, served=served)
    host.adopt(STATE)
    key = Key(clusters.TABLE, end, b"k")
    assert host.answered(WriteRequest("", node, STATE.epoch, "", key, RegisterCell(1, b"v"))) is not None
    host.close()
    found = served.rates(STATE, own, SELDOM_US)
    assert (found[WRITES][clusters.TABLE][number], found[READS][clusters.TABLE][number]) == (1, 0)
    assert found[CPU][clusters.TABLE][number] > 0


def test_read_weight_moves_hot_tablets() -> None:
    """Two nodes store the same bytes; all reads go to tablets of one of them."""
    state = clusters.with_table(clusters.cluster(clusters.register(1), clusters.register(2)), clusters.factor(1), 16)
    tablets, reports = state.tablets[clusters.TABLE], Reports()
    busy = tablets.replicas(0)[0].node
    heard = []
    for node in sorted(state.nodes):
        served, own = ServedRequests(), own_tablets(state, node)
        served.rates(state, own, 0)
        for number in own[clusters.TABLE] if node == busy else ():
            for _ in range(600):
                served.count_request(READS, state, clusters.TABLE, tablets.ends[number])
        sizes = {clusters.TABLE: dict.fromkeys(own[clusters.TABLE], 2**30)}
        heard.append(ReceivedLoad(load_of(state, node, own, sizes, 0, served.rates(state, own, SELDOM_US)), 1))
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


def test_a_node_with_a_key_signs_its_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    class Sender:
        def __init__(self, *_: object) -> None:
            pass

        def send(self, _: str, value: bytes, **__: object) -> Future[Delivered]:
            sent.append(value)
            return Future()

    monkeypatch.setattr("ringlog.node.reports.loads.AckedProducer", Sender)
    loads, report = Loads("b:1", "c", RowReplica("n1"), CellMap, Event(), tmp_path), NodeLoad("n1", 1, 1, ())
    loads.handlers[PublishLoad](PublishLoad(report))
    monkeypatch.setattr(
        "ringlog.node.reports.loads.current", lambda: Trust(ack_keys=(key_of(MASTER, "n1"), "an older one"), expires=9)
    )
    loads.handlers[PublishLoad](PublishLoad(report))
    monkeypatch.setattr("ringlog.client.node_reports.current", lambda: Trust(ack_masters=(MASTER,)))
    with capture_logs() as said:
        plain, coded = load_reports(
            (LogRecord(number, value, 7) for number, value in enumerate(sent)), RateLimitedWarnings(get_logger("test"))
        )
    assert (plain.load, plain.code) == (None, "load_not_believed")
    assert coded.load is not None
    assert (coded.load.disk_free or 0) > 0
    assert (replace(coded.load, disk_free=None), coded.appended) == (replace(report, certificate_end=9_000_000), 7)
    loads = Loads("b:1", "c", RowReplica("n1"), CellMap, Event(), tmp_path / "gone")
    loads.handlers[PublishLoad](PublishLoad(report))
    assert len(sent) == 3, "a node whose folder is away still reports its load"
    assert [line["event"] for line in said] == ["load_not_believed"]
    assert take(Reports(), (plain,), STATE).ignored[UNREGISTERED].code == "load_not_believed"


def test_a_report_that_the_broker_rejects_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker rejects a too large report. Without a message the operator cannot see why no tablet moves."""
    sent: Future[Delivered] = Future()

    class Sender:
        def __init__(self, *_: object) -> None:
            pass

        def send(self, *_: object, **__: object) -> Future[Delivered]:
            return sent

    monkeypatch.setattr("ringlog.node.reports.loads.AckedProducer", Sender)
    loads = Loads("b:1", "c", RowReplica("n1"), CellMap, Event(), tmp_path)
    with capture_logs() as said:
        loads.handlers[PublishLoad](PublishLoad(NodeLoad("n1", 1, 1, ())))
        assert said == []
        sent.set_exception(RecordTooLarge("c.load", b"n1", 3_000_000, "raise the limit of the topic"))
    assert [(line["event"], "3,000,000" in line["why"]) for line in said] == [("load_not_reported", True)]

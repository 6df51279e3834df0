"""Health messages and metrics of a node in each of its states."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import TopicPartition

from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.values import replace
from ringlog.log.replicas.metrics import LogView
from ringlog.log.replicas.subscribers import Halt
from ringlog.node.protocol.mutation_loop import TailItem
from ringlog.node.reports.health_view import SAMPLES_KEPT, BrokerClock, NodeView, health_of, samples_of
from ringlog.node.streams.mutation_tail import MutationsTail
from ringlog.runtime.monitoring.metrics import ALL_METRICS, NODE, Durations
from ringlog.runtime.monitoring.scrape import exposition
from ringlog.wire.data import StatusReply
from ringlog.wire.records import FailedTries
from tests.node.world import cluster, name_of

STATE = cluster((-(2**62),), (0,), (2**62,))
NODE_ID = name_of(1)
LOG = LogView(STATE.epoch, STATE.time, 0, 1.0, None, (("applied", STATE.epoch),))
READY = NodeView(
    NODE_ID, LOG, STATE, 5_000_000, caught_up=True, registers=StatusReply(NODE_ID, STATE.epoch, ready=True, cells=3)
)


def as_member(**fields: object) -> NodeView:
    member = replace(STATE.nodes[NODE_ID], **fields)  # type: ignore[arg-type]
    return replace(READY, state=replace(STATE, nodes=STATE.nodes.set(NODE_ID, member)))


def test_a_node_that_answers_is_ready() -> None:
    health = health_of(READY)
    assert (health.state, health.is_ready, health.why) == ("ready", True, "")
    assert (health.epoch, health.behind) == (STATE.epoch, 0)


@pytest.mark.parametrize(
    ("view", "state", "why"),
    [
        (NodeView(NODE_ID, LogView(0, 0, None, None, None)), "starting", "the broker has not returned the log yet"),
        (NodeView(NODE_ID, replace(LOG, epoch=0)), "starting", "the node reads the metadata log"),
        (replace(READY, node="someone else"), "starting", "not registered"),
        (replace(READY, registers=None), "starting", "not registered"),
        (replace(READY, caught_up=False), "catching_up", "the node reads its earlier mutations again;"),
        (replace(READY, caught_up=False, mutations_behind=9), "catching_up", "9 records behind"),
        (replace(READY, registers=StatusReply(NODE_ID, 1)), "catching_up", "registers"),
        (as_member(state="left"), "left", "left the cluster"),
        (replace(READY, stopping=True), "stopping", "the node stops"),
        (replace(READY, failure="rows_damaged: x"), "halted", "rows_damaged: x"),
        (replace(READY, log=replace(LOG, halted=Halt("log_forked", "other entry", 4))), "halted", "log_forked: other"),
        (replace(READY, failure="disk", stopping=True, caught_up=False), "halted", "disk"),
    ],
)
def test_a_node_that_does_not_answer_reports_the_reason(view: NodeView, state: str, why: str) -> None:
    health = health_of(view)
    assert (health.state, health.is_ready) == (state, False)
    assert why in health.why


def test_a_node_keeps_serving_without_a_broker_and_reports_it() -> None:
    health = health_of(replace(READY, log=replace(LOG, silent_s=61.4)))
    assert health.is_ready
    assert health.why == f"the broker has not answered for 61 s: the node serves at epoch {STATE.epoch}"


def test_a_node_that_was_declared_down_reports_it() -> None:
    health = health_of(as_member(down=True, down_reason="disk"))
    assert (health.is_ready, health.why) == (True, "declared down: disk")


def values(view: NodeView) -> dict[tuple[str, ...], float]:
    return {
        (one.name, *one.labels): float(one.value) for one in samples_of(view) if not isinstance(one.value, Durations)
    }


def test_every_metric_of_a_node_is_exported() -> None:
    most = SETTINGS["stream_tries_max"].default
    full = replace(
        READY,
        acknowledged=4,
        copied=3,
        rows=40,
        row_streams=2,
        mutations_behind=7,
        clock_ahead=-1_500_000,
        tries=tuple(FailedTries("join-1", "s", count, 0, 0, "") for count in (2, most)),
        verdicts={"kept": 5, "too_late": 1},
        disk={"rows": 8_192, "registers": 10, "log_copy": 0},
    )
    found = values(full)
    assert {name for name, figure in ALL_METRICS.items() if figure.by == NODE} <= {name for name, *_ in found}
    assert found[("ringlog_node_writes", "too_late")] == 1
    assert found[("ringlog_node_stream_tries",)] == most + 2
    assert found[("ringlog_node_streams_given_up",)] == 1
    assert found[("ringlog_node_streams", "rows")] == 2
    assert found[("ringlog_node_clock_ahead_seconds",)] == -1.5
    assert found[("ringlog_clock_seconds",)] == 5.0
    assert found[("ringlog_log_behind_records",)] == 0
    exposition(samples_of(full), {"node": "n1"})


def test_unknown_metrics_are_not_exported() -> None:
    found = {name for name, *_ in values(NodeView(NODE_ID, LogView(0, 0, None, None, None)))}
    assert found.isdisjoint(
        {
            "ringlog_log_behind_records",
            "ringlog_log_silent_seconds",
            "ringlog_node_registers",
            "ringlog_node_mutations_behind_records",
            "ringlog_node_copy_epoch",
            "ringlog_node_clock_ahead_seconds",
        }
    )


def record(time_ms: int) -> TailItem:
    return TailItem(0, 0, b"x", time_ms)


def test_the_broker_clock_is_read_from_a_prompt_write() -> None:
    clock = BrokerClock()
    clock.took([record(1_000)], True, 9_000_000)
    assert clock.ahead is None, "the time that the record spent there is unknown"
    clock.took([], True, 0)
    clock.took([record(2_000), record(1)], True, 2_040_000)
    assert clock.ahead == 40_000
    clock.took([record(1)], True, 3_000_000)
    assert clock.ahead == 40_000, "nothing was idle before"
    clock.took([], True, 0)
    clock.took([TailItem(0, 1, None)], True, 3_000_000)
    clock.took([], True, 0)
    clock.took([record(5_000)], True, 4_000_000)
    assert clock.ahead == -1_000_000, "the minimum counts: the remainder is transport time"
    for _ in range(SAMPLES_KEPT):
        clock.took([], True, 0)
        clock.took([record(5_000)], True, 5_010_000)
    assert clock.ahead == 10_000, "old samples are dropped"


def test_a_lagging_node_measures_no_clock() -> None:
    clock = BrokerClock()
    clock.took([], False, 0)
    clock.took([record(1_000)], True, 9_000_000)
    assert clock.ahead is None


# The lag of a node behind the mutations topic, as another thread reads it.


class OneThread:
    """A client that only its creating thread may call; a call from another thread would block both."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends = ends
        self._owner = threading.get_ident()

    def consume(self, _most: int, _wait_s: float) -> list[object]:
        assert threading.get_ident() == self._owner
        return []

    def get_watermark_offsets(self, place: TopicPartition, cached: bool) -> tuple[int, int]:
        assert threading.get_ident() == self._owner
        assert cached, "the call does not wait for a broker"
        return 0, self.ends[place.partition]


def test_a_monitor_asks_the_reader_and_not_its_client() -> None:
    tail = MutationsTail("127.0.0.1:1", "c")
    tail.close()
    tail._consumer = OneThread({0: 10, 1: 5, 2: -1001})  # type: ignore[assignment]
    tail.ends = {0: 1, 1: 1, 2: 1}
    with ThreadPoolExecutor(1) as other:
        assert other.submit(tail.behind, {0: 4, 1: 9, 2: 0}).result() is None, "nothing has been read yet"
        assert tail.take() == []
        assert other.submit(tail.behind, {0: 4, 1: 9, 2: 0}).result() == 6, (
            "a partition without new records does not count"
        )
        assert other.submit(tail.behind, {}).result() is None

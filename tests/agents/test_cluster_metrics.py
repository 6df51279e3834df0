"""The coordinator's metrics of the cluster, and the waits of movements."""

from __future__ import annotations

import pytest
import yaml
from immutables import Map

from ringlog.agents.monitoring.metrics import cluster_samples
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.commands.topology.operations import FailOperation
from ringlog.kernel.model.modes import LogBound, Recovery, TakenSnapshot
from ringlog.kernel.model.state import CdcWriter, ClusterState
from ringlog.kernel.values import replace
from ringlog.log.kafka.lag import Lag
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.protocol.coordinator.waits import WAITS
from ringlog.runtime.monitoring.metrics import ALL_METRICS, COORDINATOR
from ringlog.runtime.monitoring.scrape import exposition
from ringlog.wire.records import NodeAck
from tests.kernel.operations.driver import applied, driven
from tests.kernel.tablets.clusters import factor, migration, started, three_racks, with_table
from tests.operator.test_waiting import asked
from tests.tidy.files import ROOT

NOW = 2_000_000_000


def shown(state: ClusterState, acks: dict[str, NodeAck], *lags: Lag) -> dict[tuple[str, ...], float]:
    samples = list(cluster_samples(state, acks, NOW, dict.fromkeys(state.nodes, NOW), lags))
    exposition(samples, {"role": "coordinator"})
    return {(one.name, *one.labels): float(one.value) for one in samples if isinstance(one.value, int | float)}


def open_waits(found: dict[tuple[str, ...], float], figure: str) -> dict[str, float]:
    """Return the kinds of waits with a number above 0."""
    by_kind = {kind: found[(figure, kind)] for kind in WAITS}
    return {kind: number for kind, number in by_kind.items() if number}


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        ("requested", "coordinator"),
        ("prepared", "acknowledgements"),
        ("commit_cdc_generation", "generation"),
        ("publish_cdc_generation", "publication"),
        ("write_both_read_old", "acknowledgements"),
        ("write_both_read_new", "acknowledgements"),
    ],
)
def test_an_operation_is_counted_by_its_wait(stage: str, kind: str) -> None:
    state, operation = asked("join")
    state = driven(state, operation, stage) if stage != "requested" else state
    found = shown(state, {})
    assert open_waits(found, "ringlog_operations") == {kind: 1}
    begun_at = state.operations[operation].marks[-1].at
    assert open_waits(found, "ringlog_operations_oldest_seconds") == {kind: (NOW - begun_at) / 1e6}
    names = {name for figure, *labels in found if figure == "ringlog_awaited_node" for name in labels}
    assert bool(names) == (kind == "acknowledgements")
    assert names <= {node.name for node in state.nodes.values()}
    assert found[("ringlog_awaited_nodes",)] == len(names)


def test_a_node_that_has_streamed_its_rows_is_not_awaited() -> None:
    state, operation = asked("join")
    state = driven(state, operation, "write_both_read_old")
    silent = {node: replace(ack, reports=()) for node, ack in acknowledgements(state, 0).items()}
    found = shown(state, silent)
    assert open_waits(found, "ringlog_operations") == {"streams": 1}
    assert found[("ringlog_awaited_node", "x")] == 1


def test_a_failure_waits_for_a_decision() -> None:
    state, operation = asked("join")
    state = driven(state, operation, "write_both_read_new")
    failed = applied(state, FailOperation(operation, "the disk is full"))
    assert open_waits(shown(failed, {}), "ringlog_operations") == {"decision": 1}


def test_tablets_are_counted_separately() -> None:
    start = with_table(three_racks(), factor(1), 2)
    state = started(start, migration(start), "streaming")
    found = shown(state, {})
    assert open_waits(found, "ringlog_operations") == {}
    assert sum(open_waits(found, "ringlog_tablets_on_their_way").values()) == 1
    assert found[("ringlog_awaited_nodes",)] >= 1


def test_every_metric_of_the_cluster_is_exported() -> None:
    state, operation = asked("join")
    state = applied(driven(state, operation, "prepared"), DeclareDown("n3", "disk"))
    writer = CdcWriter("w", "a", 1, 9_000_000, 0, 7_000_000, (), ())
    state = replace(
        state,
        writers=Map(
            {
                "w": writer,
                "late": replace(writer, name="late", low_watermark=5_000_000),
                "gone": replace(writer, name="gone", low_watermark=1, fenced=4),
            }
        ),
        snapshots=Map({"3": TakenSnapshot(3, 0, 4, "d", ("keeper", "publisher")), "5": TakenSnapshot(5, 0)}),
        log_bounds=Map({"archived": LogBound(3, 4), "truncated": LogBound(2, 1)}),
        recoveries=Map({"4": Recovery(4, 0, "ann", "test", (), None, "")}),
    )
    found = shown(state, {}, Lag(7, 3.5, 0), Lag(2, 9.0, 0), Lag(1, None, 0))
    assert {name for name, *_ in found} == {name for name, one in ALL_METRICS.items() if one.by == COORDINATOR}
    assert found[("ringlog_cluster_nodes", "normal")] == 5
    assert found[("ringlog_cluster_nodes", "joining")] == 1
    assert found[("ringlog_cluster_nodes_down",)] == 1
    assert found[("ringlog_cdc_writers", "live")] == 2
    assert found[("ringlog_cdc_writers", "fenced")] == 1
    assert found[("ringlog_cdc_writers_low_watermark_seconds",)] == 5
    assert (found[("ringlog_cdc_writers_behind_offsets",)], found[("ringlog_cdc_writers_behind_seconds",)]) == (7, 9)
    assert found[("ringlog_snapshot_epoch",)] == 3, "a mark becomes a snapshot only when it is confirmed"
    assert (found[("ringlog_archive_epoch",)], found[("ringlog_log_begin_epoch",)]) == (3, 2)
    assert found[("ringlog_cluster_in_recovery",)] == 1


def test_the_alert_about_a_writer_follows_its_lag_only() -> None:
    """The low-watermark of a healthy writer stays for as long as its generation."""
    rules = yaml.safe_load((ROOT / "compose/watch/rules.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    (expression,) = (rule["expr"] for rule in rules if rule["alert"] == "RinglogWriterBehind")
    name, limit = expression.split(" > ")
    writer = CdcWriter("w", "a", 1, NOW, 0, NOW - 86_400_000_000, (), ())
    state = replace(ClusterState(), writers=Map({"w": writer}))
    assert shown(state, {}, Lag(0, 0.0, 0))[(name,)] <= float(limit), "healthy and idle for a day"
    assert (name,) not in shown(state, {}), "unknown"
    assert shown(state, {}, Lag(1, 901.0, 0))[(name,)] > float(limit), "a stuck or missing job"


def test_an_empty_cluster_has_metrics_too() -> None:
    found = shown(ClusterState(), {})
    assert ("ringlog_cdc_writers_low_watermark_seconds",) not in found
    assert open_waits(found, "ringlog_operations") == {}
    assert open_waits(found, "ringlog_operations_oldest_seconds") == {}

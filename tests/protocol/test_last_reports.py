"""The time of each node's last report, by the broker's clock and independent of the clocks of nodes and readers."""

from __future__ import annotations

import pytest

from ringlog.agents.monitoring.metrics import NODES_MAX, cluster_samples
from ringlog.agents.worker import _worker_of
from ringlog.kernel.balance.advice import advise
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from ringlog.log.kafka.topics import TOPICS
from ringlog.operator.views import views
from ringlog.operator.views.tablets import explained, explanation
from ringlog.operator.views.words import described, format_last_heard, format_node_state, span, wait_lines
from ringlog.operator.views.zones import full_view
from ringlog.protocol.balancer.load_book import SILENT_US, LastReports, ReceivedLoad, report_times
from ringlog.protocol.balancer.load_reports import SELDOM_US
from ringlog.protocol.roles import ROLES
from ringlog.wire.records import NodeLoad
from ringlog_sim.devices.world import SECOND
from ringlog_sim.runner.run import WORKERS, run_script, workers_of
from ringlog_sim.runner.script import PROFILES, Action, draw_script
from tests.kernel.operations.driver import applied, driven
from tests.kernel.tablets import clusters
from tests.kernel.zones.zone_keyspaces import with_data
from tests.operator.test_waiting import asked

NOW = 1_000_000_000


def report(node: str, appended: int, own_clock: int = 0) -> ReceivedLoad:
    return ReceivedLoad(NodeLoad(node, own_clock, 1, ()), appended)


def last(state: ClusterState, *silent: str, age: int = SILENT_US) -> LastReports:
    """Return reports of all nodes from just now, except for the ``silent`` ones (names)."""
    return LastReports({node.id: NOW - age if node.name in silent else NOW for node in state.nodes.values()}, NOW)


def test_only_the_brokers_clock_counts() -> None:
    found = report_times([report("a", 50, own_clock=10**15), ReceivedLoad(None, 900), report("a", 40), report("b", 60)])
    assert found == {"a": 50, "b": 60}
    assert report_times([report("b", 80)], found) == {"a": 50, "b": 80}, "the reader continues from its position"


def test_a_node_is_silent_when_a_report_is_overdue() -> None:
    found = LastReports({"a": NOW - SILENT_US + 1, "b": NOW - SILENT_US}, NOW)
    assert (found.is_silent("a"), found.is_silent("b")) == (False, True)
    assert SELDOM_US < SILENT_US < 2 * SELDOM_US
    assert found.age("c") is None
    assert not found.is_silent("c"), "the node may run a program that sends no reports"


def test_a_reader_whose_clock_is_behind_counts_from_the_newest_report() -> None:
    found = LastReports({"a": NOW, "b": NOW - SILENT_US}, NOW - 10**9)
    assert (found.age("a"), found.age("b")) == (0, SILENT_US)


def test_a_dead_node_is_shown_as_silent_in_every_view() -> None:
    state, operation = asked("join")
    state = driven(state, operation, "prepared")
    heard = last(state, "n2", age=4 * 60_000_000)
    rows = {row["name"]: row for row in views.nodes(state, heard)}
    assert [name for name, row in rows.items() if row["silent"]] == ["n2"]
    assert format_node_state(rows["n2"]) == ("normal, silent", "4 min ago")
    assert rows["n2"]["heard_age_s"] == 240.0
    assert format_last_heard(views.nodes(state, LastReports())[0]) == "never"
    view = views.operation(state, state.operations[operation], {}, last_reports=heard)
    line = "n2 is silent: last heard 4 min ago"
    assert line in wait_lines(view)
    assert line in described(view)
    assert [one["node"] for one in view["silent"]] == ["n2"]


def test_the_owners_of_a_tablet_and_of_a_partition_are_shown_as_silent() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), 2)
    tablets = state.tablets[clusters.TABLE]
    dead = state.nodes[tablets.tablet(0).replicas[0].node].name
    view = explanation(state, advise(state, {}), tablets, 0, {}, last(state, dead))
    assert f"{dead} is silent: last heard 90 s ago" in list(explained(view))
    zoned = with_data("AB", partitions=1, replicas=2)
    assert [one["node"] for one in full_view(zoned, zoned.zones["z"], {}, last(zoned, "B"))["silent"]] == ["B"]


def test_a_node_that_left_is_not_silent() -> None:
    state, _ = asked("join")
    (gone,) = (node for node in state.nodes.values() if node.name == "n2")
    state = replace(state, nodes=state.nodes.set(gone.id, replace(gone, state="left", tokens=())))
    assert last(state, "n1", "n2").silent(state, state.nodes) == ("n1",)


def test_the_metric_lists_active_nodes_with_silent_ones_first() -> None:
    state, _ = asked("join")
    state = applied(state, DeclareDown("n3", "disk"))
    heard = {node.id: NOW + number for number, node in enumerate(state.nodes.values()) if node.name != "n4"}
    shown = {
        one.labels[0]: one.value
        for one in cluster_samples(state, {}, NOW, heard)
        if one.name == "ringlog_node_heard_seconds"
    }
    assert shown.keys() == {node.name for node in state.nodes.values()} - {"n3", "n4"}
    assert list(shown.values()) == sorted(shown.values())  # type: ignore[type-var]
    assert len(shown) <= NODES_MAX


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (966, "16 min"), (7_200, "2 h"), (10**6, "11 days")],
)
def test_durations_have_one_unit(seconds: int, words: str) -> None:
    assert span(seconds * 1_000_000) == words


# The topics of each agent role exist, for threads and for the simulator.


SUFFIXES = {topic.suffix for topic in TOPICS}


def test_a_role_s_topics_are_topics_of_a_cluster() -> None:
    for row in ROLES.values():
        assert {row.source, *row.uses} <= SUFFIXES, row.name
        assert row.reset in ("earliest", "latest")


def test_every_role_has_a_thread_and_a_worker_of_the_simulator() -> None:
    assert WORKERS.keys() == ROLES.keys()
    for row in ROLES.values():
        made = _worker_of(row)
        assert getattr(made, "role", row.name) == row.name
        assert callable(made)


def test_a_script_moves_an_optional_role() -> None:
    script = draw_script(3, PROFILES["small"])
    assert "balancer" not in [worker.role for worker in workers_of(script)]
    actions = (Action(9_000, 1, "hand_over", ("balancer",)), Action(9_001, SECOND, "hand_over", ("balancer",)))
    asked = replace(script, actions=tuple(sorted((*script.actions, *actions), key=lambda one: one.at)))
    report = run_script(asked, tracing=True)
    assert report.rule == ""
    acts = [line for line in report.story if "balancer" in line and "acts in term" in line]
    assert len(acts) >= 2, report.story[-5:]

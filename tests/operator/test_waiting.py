"""The awaited nodes of an operation, at every stage of every kind, and the advice for an operator."""

from __future__ import annotations

import re
import shlex

import pytest

from ringlog.cli.shared.following import StagePrinter
from ringlog.kernel.commands.placement.tablets import Shard, TabletMigration
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.commands.topology.operations import AdvanceOperation, FailOperation, RetryOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import counts_from
from ringlog.kernel.operations.kinds import KINDS as KNOWN
from ringlog.kernel.values import Command, StreamReport, replace
from ringlog.operator.answers import dry_run
from ringlog.operator.intents.intents import named
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views import views
from ringlog.operator.views.views import silent_source_lines
from ringlog.operator.views.waiting import COORDINATOR, tries, waiting
from ringlog.operator.views.words import described, subject, wait_lines
from ringlog.operator.views.zones import full_view
from ringlog.protocol.balancer.load_book import LastReports
from ringlog.protocol.coordinator import waits
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.protocol.coordinator.waits import operation_waits
from ringlog.protocol.rebalancer.zone_groups import FAILED, SessionReports, session
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.records import FailedTries, NodeAck
from tests.cli.known_commands import unknown
from tests.kernel.entries import applied as folded
from tests.kernel.movements.clusters import network, placed, simple
from tests.kernel.operations.driver import SEED, admitted, applied, at_every_stage, driven
from tests.kernel.tablets import clusters
from tests.kernel.zones.states import done, down, ids, moved, partition, tried
from tests.kernel.zones.zone_keyspaces import node_reports, of_coordinator, of_rebalancer, with_data

HOUR = 3_600_000_000
FIVE = {f"n{number}": ("dc1/r1", [100 * number]) for number in range(1, 6)} | {"x": ("dc1/r1", [])}
REQUESTS: dict[str, Command] = {
    "join": Join("x", (150,), SEED),
    "leave": Leave("n3"),
    "move": Move("n3", (150,), SEED),
    "replace": Replace("x", "n3"),
    "remove": Remove("n3"),
    "rebuild": Rebuild("n3"),
    "alter": AlterKeyspace("ks0", network(dc1=5)),
}
KINDS = [kind for kind in KNOWN if kind != "assassinate"]  # the kind that never waits


def asked(kind: str) -> tuple[ClusterState, str]:
    """Return the state with a requested operation of that kind, and its id."""
    cluster = placed(FIVE, simple(3))
    if kind == "remove":
        cluster = applied(cluster, DeclareDown("n3", "disk"))
    return admitted(replace(cluster, cluster_id="c"), REQUESTS[kind])


def all_acks(state: ClusterState) -> dict[str, NodeAck]:
    return acknowledgements(state, 0)


def goes_on(state: ClusterState, operation: str, acks: dict[str, NodeAck]) -> bool:
    commands = [proposal.command for proposal in propose(CoordinatorView(state, acks, state.epoch, 0))]
    return any(isinstance(one, AdvanceOperation) and one.operation == operation for one in commands)


@pytest.mark.parametrize("kind", KINDS)
def test_the_coordinator_is_awaited_only_if_it_would_advance(kind: str) -> None:
    first, operation = asked(kind)
    for stage, state in at_every_stage(first, operation).items():
        if stage == "finished":
            continue
        for silent in (None, *sorted(state.nodes)):
            acks = {node: ack for node, ack in all_acks(state).items() if node != silent}
            found = waiting(state, state.operations[operation], acks)
            kind_of_wait = operation_waits(state, state.operations[operation], acks)
            assert (kind_of_wait.kind == waits.COORDINATOR) == (found.text == COORDINATOR)
            assert set(found.nodes) == set(kind_of_wait.nodes)
            if "cdc_generation" not in stage:
                assert (found.text == COORDINATOR) == goes_on(state, operation, acks), (stage, silent, found)
            assert silent in found.nodes or not found.nodes
        nobody = waiting(state, state.operations[operation], {})
        assert bool(nobody.nodes) == (stage in ("prepared", "streaming", "write_both_read_old", "write_both_read_new"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_remedy_is_a_valid_command(kind: str) -> None:
    first, operation = asked(kind)
    for stage, state in at_every_stage(first, operation).items():
        if stage == "finished":
            continue
        found = waiting(state, state.operations[operation], {})
        assert bool(found.ways_out) == bool(found.nodes)
        for way in found.ways_out:
            for shown in re.findall(r"ringlog [^,;]*", way):
                assert unknown(shlex.split(shown)) is None
        cancels = [way for way in found.ways_out if "operation cancel" in way]
        assert not cancels or stage != "write_both_read_new"
        assert cancels or not found.nodes or stage == "write_both_read_new"


def test_a_queued_operation_names_those_ahead() -> None:
    state = placed(
        {f"n{n}": ("d/r", [1000 * n]) for n in range(1, 13)} | {"x": ("d/r", []), "y": ("d/r", [])}, simple(1)
    )
    state = replace(state, settings=state.settings.set("operations_concurrent_max", 1))
    state, first = admitted(state, Join("x", (1500,), SEED))
    state, second = admitted(state, Join("y", (7500,), SEED))
    assert waiting(state, state.operations[first], {}).text == COORDINATOR
    state = driven(state, first, "prepared")
    found = waiting(state, state.operations[second], all_acks(state))
    assert found.text == f"its turn: one of {first} to end"
    assert [unknown(shlex.split(shown)) for way in found.ways_out for shown in re.findall("ringlog .*", way)] == [
        None
    ] * 2


def test_tablets_are_awaited_before_the_queue() -> None:
    """A leaving node still has tablets; a joining node waits until no tablet migrates."""
    settled = clusters.with_table(clusters.three_racks(), clusters.factor(2), 4)
    full = clusters.places(clusters.tablet(settled))[0][0]
    leaving, operation = admitted(settled, Leave(full))
    moving = clusters.joining(clusters.started(settled, clusters.migration(settled)), 7)
    (join,) = moving.operations
    name, held = (
        leaving.nodes[full].name,
        sum(full in dict(clusters.places(clusters.tablet(settled, index))) for index in range(4)),
    )
    assert held > 1
    first = f"1 migrating tablet to arrive, the first is {clusters.TABLE}/0 (allow_write_both_read_old)"
    for state, one, text in (
        (leaving, operation, f"the balancer to move {held} tablets of {clusters.TABLE} away from {name}"),
        (moving, join, first),
    ):
        acks = all_acks(state)
        assert not goes_on(state, one, acks)
        assert operation_waits(state, state.operations[one], acks).kind == waits.TABLET_TRACK
        found = waiting(state, state.operations[one], acks)
        assert found.text == text
        shown = [shown for way in found.ways_out for shown in re.findall(r"ringlog [^,;]*", way)]
        assert len(shown) == 2
        assert [unknown(shlex.split(command)) for command in shown] == [None, None]


def test_a_leaving_node_that_died_may_be_declared_down() -> None:
    first, operation = asked("leave")
    state = driven(first, operation, "write_both_read_new")
    silent = {node: ack for node, ack in all_acks(state).items() if node not in ("n3", "n4")}
    before = waiting(state, state.operations[operation], silent)
    assert "n3" in before.nodes
    assert any("ringlog node down n3" in way for way in before.ways_out)
    view = views.operation(applied(state, DeclareDown("n4", "power")), state.operations[operation], silent)
    assert view["down"] == ["n4"]
    assert view["ways_out"][0] == "start n4 again, which was declared down"
    alone = {node: ack for node, ack in all_acks(state).items() if node != "n3"}
    dead = applied(state, DeclareDown("n3", "disk"))
    assert waiting(dead, dead.operations[operation], alone).nodes == ()


def test_a_dead_leaving_source_is_assassinated_or_the_leave_cancelled() -> None:
    """With the excluded n4 it is a quorum: the declaration as down is not offered again."""
    state = applied(placed(FIVE, simple(3)), DeclareDown("n4", "fire"))
    state, operation = admitted(replace(state, cluster_id="c"), Replace("x", "n3", ("n4",)))
    for stage, way in (("write_both_read_old", "operation cancel"), ("write_both_read_new", "node assassinate n3")):
        dead = applied(driven(state, operation, stage), DeclareDown("n3", "fire"))
        alive = {node: ack for node, ack in all_acks(dead).items() if node not in ("n3", "n4")}
        found = waiting(dead, dead.operations[operation], alive)
        assert found.nodes == ("n3",)
        assert any(way in one for one in found.ways_out)
        assert not any("node down n3" in one for one in found.ways_out)


def test_a_replacement_that_streams_from_a_dead_node_is_cancelled_and_repeated() -> None:
    """The sources are part of the plan, so after a declaration alone the new node would wait forever."""
    first, operation = asked("replace")
    state = driven(first, operation, "write_both_read_old")
    found = state.operations[operation]
    acks = {node: ack for node, ack in all_acks(state).items() if node != "n3"}
    acks["x"] = replace(acks["x"], reports=())
    heard = LastReports({node: 0 if node == "n3" else HOUR for node in state.nodes}, HOUR)
    view = views.operation(state, found, acks, HOUR, last_reports=heard)
    assert view["waits_for"].startswith("x to stream its rows")
    assert [one["node"] for one in view["silent"]] == ["n3"]
    begins = f"if n3 is permanently lost: ringlog operation cancel {operation} --reason …, then "
    end = "ringlog node replace x n3"
    assert [way for way in view["ways_out"] if "n3" in way] == [f"{begins}ringlog node down n3 --reason …, then {end}"]
    assert silent_source_lines(state, found, heard) == (
        "n3 is silent: last heard 60 min ago, and x streams from it",
        f"{begins}ringlog node down n3 --reason …, then {end}",
    )
    state = applied(state, DeclareDown("n3", "fire"))
    view = views.operation(state, state.operations[operation], acks, HOUR, last_reports=heard)
    assert f"{begins}{end}" in view["ways_out"]


def test_a_replacement_that_moves_tablets_from_a_dead_node_continues_without_it() -> None:
    """It can be cancelled until the new node has a tablet. Then other replicas replace the tablets of a down node."""
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), 4)
    old = clusters.places(clusters.tablet(state))[0][0]
    state = folded(state, clusters.register(7, state.nodes[old].rack), Replace(clusters.node_id(7), old))
    operation = f"replace-{state.epoch}"
    name = state.nodes[old].name
    dead = f"if {name} is permanently lost"
    (way,) = [way for way in waiting(state, state.operations[operation], {}).ways_out if dead in way]
    down_first = f"ringlog node down {name} --reason …, then ringlog node replace n7 {name}"
    assert way == f"{dead}: ringlog operation cancel {operation} --reason …, then {down_first}"
    shard = Shard(old, clusters.places(clusters.tablet(state))[0][1])
    move = TabletMigration(clusters.TABLE, 0, "migration", shard, Shard(clusters.node_id(7), 0))
    state = clusters.settled(clusters.started(state, move))
    (way,) = [way for way in waiting(state, state.operations[operation], {}).ways_out if dead in way]
    assert way == f"{dead}, continue without it: ringlog node down {name} --reason …"
    state = folded(state, DeclareDown(old, "fire"))
    assert not [way for way in waiting(state, state.operations[operation], {}).ways_out if dead in way]


def test_a_replacement_of_a_live_node_has_no_warning() -> None:
    first, operation = asked("replace")
    heard = LastReports(dict.fromkeys(first.nodes, HOUR), HOUR)
    assert silent_source_lines(first, first.operations[operation], heard) == ()
    dead = applied(placed(FIVE, simple(3)), DeclareDown("n3", "disk"))
    state, operation = admitted(replace(dead, cluster_id="c"), Replace("x", "n3"))
    heard = LastReports({"n3": 0}, HOUR)
    assert silent_source_lines(state, state.operations[operation], heard) == ()


def test_operations_in_words() -> None:
    first, operation = asked("alter")
    view = views.operation(first, first.operations[operation], {})
    assert subject(view) == "keyspace ks0, to dc1=5"
    assert described(view)[0] == f"{operation} of keyspace ks0, to dc1=5: requested"
    assert described(view)[-2:] == ["waits for the coordinator", "in this stage since 1970-01-01 00:00:00.011000 UTC"]
    swap, operation = asked("replace")
    state = driven(swap, operation, "write_both_read_old")
    view = views.operation(state, state.operations[operation], {})
    assert subject(view) == "x for n3"
    assert wait_lines(view)[0].startswith("waits for witnesses: epoch")
    failed = applied(state, FailOperation(operation, "bad disk"))
    lines = described(views.operation(failed, failed.operations[operation], {}))
    assert lines[-1] == "bad disk"
    assert any(line.startswith("failed at epoch") for line in lines)


def test_losses_of_an_assassination_are_predicted() -> None:
    state = placed(FIVE, simple(3), down=["n2", "n3"])
    told = dry_run(state, named(Assassinate("n3")), SeededDraw(b"x"))
    assert told.startswith("3 ranges have replicas without all")
    assert "rows of 2 ranges may be lost" in told
    tablets = clusters.with_table(clusters.three_racks(), clusters.factor(1), 6)
    alone = applied(tablets, DeclareDown(clusters.places(clusters.tablet(tablets))[0][0], "disk"))
    told = dry_run(alone, named(Assassinate(clusters.places(clusters.tablet(tablets))[0][0])), SeededDraw(b"x"))
    assert told.endswith(f"tablets that may lose rows: 1, the first is {clusters.TABLE}/0")


def test_attempts_of_another_log_do_not_count() -> None:
    """A log that lost its newest entries may contain the same operation again; acknowledgements survive the lost
    entries.
    """
    state, operation = asked("join")
    state = driven(state, operation, "write_both_read_old")
    found = state.operations[operation]
    tried = (FailedTries(operation, "n2", 200, counts_from(found), 0, "refused"),)
    ack = replace(all_acks(state)["x"], reports=(), tries=tried)
    for given, count in (
        (ack, 1),
        (replace(ack, state_id="of a log that is gone"), 0),
        (replace(ack, cluster_id="d"), 0),
    ):
        acks = all_acks(state) | {"x": given}
        given_up = [
            one
            for one in propose(CoordinatorView(state, acks, state.epoch, 0))
            if isinstance(one.command, FailOperation)
        ]
        assert len(tries(state, found, acks)) == len(given_up) == count


def test_failed_streams_are_shown_and_wait_for_a_decision() -> None:
    state, operation = asked("join")
    state = driven(state, operation, "write_both_read_old")
    tries = (FailedTries(operation, "n2", 7, counts_from(state.operations[operation]), 0, "connection refused"),)
    acks = {node: replace(ack, reports=(), tries=tries if node == "x" else ()) for node, ack in all_acks(state).items()}
    view = views.operation(state, state.operations[operation], acks)
    asked_so_far = "x asked n2 7 of 200 times without success since 1970-01-01 00:00:00.000000 UTC: connection refused"
    assert view["waits_for"] == f"x to stream its rows; {asked_so_far}"
    assert (view["tries"][0]["source"], view["tries"][0]["count"], view["awaits_decision"]) == ("n2", 7, False)

    stopped = applied(state, FailOperation(operation, "rows from n2: refused", "x", 200, tries[0].since))
    view = views.operation(stopped, stopped.operations[operation], acks)
    assert view["awaits_decision"]
    assert view["waits_for_nodes"] == ["x"]
    begins = f"an operator's decision since epoch {stopped.epoch}: x failed after 200 tries"
    assert view["waits_for"].startswith(begins)
    assert [re.findall(r"ringlog operation (\w+)", way) for way in view["ways_out"]] == [["retry"], ["cancel"]]
    again = applied(stopped, RetryOperation(operation, "n2 is back"))
    lines = described(views.operation(again, again.operations[operation], {}))
    assert f"x failed at epoch {stopped.epoch} after 200 tries: rows from n2: refused" in lines
    assert f"tried again from epoch {again.epoch}: n2 is back" in lines


@pytest.mark.parametrize(("factor", "loss"), [(1, True), (2, False)])
def test_past_the_point_of_no_return_advice_excludes_a_dead_node(factor: int, loss: bool) -> None:
    state, operation = admitted(replace(placed(FIVE, simple(factor)), cluster_id="c"), Join("x", (150,), SEED))
    state = driven(state, operation, "write_both_read_new")
    acks = {node: ack for node, ack in all_acks(state).items() if node != "n2"}
    found = waiting(state, state.operations[operation], acks)
    assert found.nodes == ("n2",)
    (way,) = [way for way in found.ways_out if "n2 is permanently lost" in way]
    assert f"ringlog node down n2 --reason …, then ringlog operation retry {operation} --ignore n2 --reason …" in way
    assert ("--admit-loss" in way) == loss


def test_a_node_with_rejected_acks_is_awaited_and_named_with_a_remedy() -> None:
    """An operator without a master key sees acknowledgements that the coordinator ignores."""
    state, operation = asked("join")
    state = driven(state, operation, "prepared")
    found, acks = state.operations[operation], all_acks(state)
    assert waiting(state, found, acks).text == COORDINATOR
    waits_for = waiting(state, found, acks, None, ["x"])
    assert waits_for.nodes == ("x",)
    assert waits_for.ways_out[0].startswith("x sends acknowledgements that are rejected: give the node its ack.key")
    (view,) = views.operations(state, acks, None, ["x"])
    assert (view["waits_for_nodes"], view["ways_out"]) == (["x"], list(waits_for.ways_out))


# The states of the replicas of a zone's partition in ``ringlog zone show`` during a move.


def replicas(state: ClusterState, words: SessionReports) -> dict[str, str]:
    (row,) = full_view(state, state.zones["z"], words)["partitions"]
    found: dict[str, str] = row["replicas"]
    return found


def test_a_new_replica_is_initializing_then_catching_up_then_healthy() -> None:
    state = with_data("AB", "C", partitions=1, replicas=2)
    state = moved(state, "AC")
    assert replicas(state, {}) == {"A": "healthy", "B": "healthy", "C": "initializing"}
    met = []
    for _ in range(40):
        found = replicas(state, node_reports(state))
        if not met or met[-1] != found:
            met.append(found)
        for command in (*of_coordinator(state), *of_rebalancer(state)):
            after, code = tried(state, command)
            if not code:
                state = after
                break
        else:
            break
    assert met == [
        {"A": "healthy", "B": "healthy", "C": "catching_up"},
        {"A": "healthy", "B": "healthy", "C": "healthy"},
        {"A": "healthy", "C": "healthy"},
    ]


def test_a_replica_that_never_follows_is_broken_and_one_that_is_down_unavailable() -> None:
    state = moved(with_data("AB", "C", partitions=1, replicas=2), "AC")
    (node,) = ids("C")
    operation = session(partition(state), FAILED)
    words: SessionReports = {operation: {node: StreamReport(node, operation, 0, "")}}
    assert replicas(state, words)["C"] == "broken"
    assert replicas(done(state, *down("C")), words)["C"] == "unavailable"


def test_a_wait_of_a_stage_that_changes_is_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    printer, mark = StagePrinter(), {"stage": "requested", "epoch": 7, "at": 0}
    view = {"id": "leave-7", "stage": "requested", "stages": [mark], "ways_out": ["cancel it"]}
    for seconds, tablets in ((1, 9), (6, 8), (7, 7), (16, 7), (17, 6)):
        view = {
            "id": "leave-7",
            "stage": "requested",
            "stages": [mark],
            "waits_for": f"{tablets} tablets",
            "ways_out": ["cancel it"],
        }
        printer.report(view, seconds)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "since" not in line] == [
        "requested, epoch 7",
        "waits for 8 tablets",
        "cancel it",
        "waits for 7 tablets",
    ]

"""``ringlog zone`` with each sub-command, on a log in memory: output, JSON and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.cli.placement import zone
from ringlog.client.client import Client
from ringlog.kernel.commands.placement.rebalances import SwitchStable, TriggerRebalance
from ringlog.kernel.commands.placement.zones import SetDataNodes
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import NEVER, ZonePartition
from ringlog.kernel.values import Command
from ringlog.operator.views.views import NO_REPORTS
from ringlog.wire.ids import time_of
from tests.agents.operation_runner import finish_operations
from tests.cli.authoring import authoring
from tests.cli.authoring import run as authoring_run
from tests.kernel.zones.states import ids, letter, partition
from tests.tidy.files import ROOT


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return the client of four nodes, for the command line; C has another disk type."""
    with authoring(monkeypatch) as client:
        for name in "ABCD":
            joins(client, name, features=("ssd",) if name == "C" else ())
        monkeypatch.setattr(zone, "read_acks", lambda *_: {})
        monkeypatch.setattr(zone, "last_heard", lambda *_: NO_REPORTS)
        yield client


def joins(client: Client, name: str, **changes: Any) -> None:
    """Register a node and complete its join."""

    def after(_: ClusterState, command: Command) -> ClusterState:
        client.submit(command)
        return client.read_barrier()

    node = letter(name, **changes)
    client.submit(node)
    client.submit(Join(node.id, (1_000 * ord(name),), bytes(16)))
    finish_operations(client.read_barrier(), after)


def run(*words: str) -> tuple[int, str, str]:
    """Run ``ringlog zone`` with these arguments."""
    return authoring_run("zone", *words)


def shown(*words: str) -> Any:
    """Return the JSON output of a sub-command."""
    status, out, err = run(*words, "--json")
    assert status == 0, err
    return json.loads(out)


def refused(code: str, *words: str) -> None:
    """Assert that the sub-command fails with status 1 and the code."""
    status, out, err = run(*words)
    assert (status, out, err.split(":")[0]) == (1, "", code)


def one(client: Client) -> ZonePartition:
    return partition(client.read_barrier())


def moved(client: Client, letters: str) -> None:
    """Give the zone other data nodes, so that its partitions migrate."""
    client.submit(SetDataNodes("z", ids(letters), client.read_barrier().epoch))
    client.submit(TriggerRebalance("z", client.read_barrier().epoch))


def test_a_zone_is_created_shown_altered_and_dropped(client: Client) -> None:
    assert run("list")[1] == "no zones\n"
    assert shown("list") == []
    made = shown("create", "z", "--partitions", "2", "--replicas", "2", "--quorum", "2", "--scale-up", "5")
    assert made["outcome"] == "applied"
    status, out, _ = run("create", "fast", "--profile", "ssd", "--filter", "$[?(@.rack == 'rC')]", "--partitions", "1")
    assert (status, out) == (0, f"applied at epoch {client.state.epoch} of cluster tests\n")
    fast, z = shown("list")
    assert (fast["zone"], fast["data_nodes"], fast["profiles"]) == ("fast", ["C"], ["ssd"])
    assert (z["partitions"], z["replicas"], z["quorum"], z["scale_up"], z["scale_down"]) == (2, 2, 2, 5, None)
    listed = run("list")[1]
    assert "data nodes" in listed
    assert [row["partition"] for row in shown("show", "z", "1")["partitions"]] == [1]
    refused("unknown_partition", "show", "z", "2")
    assert "A, B, C, D" in listed
    assert run("alter", "z", "--replicas", "3", "--mode", "high_availability")[0] == 0
    assert [row["waits"] for row in shown("show", "z")["partitions"]] == [
        f"for the rebalancer to act on epoch {client.state.epoch}"
    ] * 2
    assert run("drop", "fast")[0] == 0
    assert [row["zone"] for row in shown("list")] == ["z"]


def test_a_trigger_follows_the_plan(client: Client) -> None:
    assert run("create", "z", "--partitions", "1", "--replicas", "3", "--filter", "$[?(@.name != 'D')]")[0] == 0
    assert run("plan", "z")[1] == "each partition is on its nodes\n"
    client.submit(SetDataNodes("z", ids("ABD"), client.read_barrier().epoch))
    assert run("plan", "z")[1] == "0: A, B, C to A, B, D\n"
    plan = shown("plan", "z")
    assert plan["replicas"] == {"D": 1}
    client.submit(TriggerRebalance("z", client.read_barrier().epoch))
    (row,) = shown("show", "z")["partitions"]
    assert row["pending"] == plan["moves"][0]["steps"] == [["A", "B", "D"]]
    assert row["waits"] == "for its group to have A, B, D; not yet: A, B, C, D"
    status, out, _ = run("show", "z")
    assert status == 0
    assert out.startswith("z: 3 replicas, quorum 2, $[?(@.name != 'D')]\n")
    assert "for its group to have A, B, D" in " ".join(out.split())


def test_a_running_timer_is_shown_with_node_start_and_end(client: Client) -> None:
    assert run("create", "z", "--partitions", "1", "--replicas", "4", "--scale-up", "50", "--scale-down", "60")[0] == 0
    assert shown("list")[0]["timers"] == []
    joins(client, "E")
    client.submit(DeclareDown(ids("B")[0], "burnt"))
    since = time_of(client.read_barrier().state_id)
    up, down = shown("show", "z")["timers"]
    assert (up["timer"], up["nodes"], up["since"], up["fires"]) == ("scale_up", ["E"], since, since + 50_000_000)
    assert (down["timer"], down["nodes"], down["fires"]) == ("scale_down", ["B"], since + 60_000_000)
    assert shown("list")[0]["timers"] == [up, down]
    (row,) = shown("show", "z")["partitions"]
    assert (row["waits"].split("; ", 1)[1], row["stuck"]) == (down["text"], False)
    printed = " ".join(run("show", "z")[1].split())
    assert up["text"] in printed
    assert "at once: ringlog zone alter z --scale-up 0" in up["text"]
    assert f"z: {down['text']}" in " ".join(run("list")[1].split())
    assert run("alter", "z", "--scale-down", str(NEVER))[0] == 0
    (down,) = [one for one in shown("show", "z")["timers"] if one["timer"] == "scale_down"]
    assert (down["fires"], "never" in down["text"]) == (None, True)
    assert "scale_down" not in shown("show", "z")["partitions"][0]["waits"]


def test_a_plan_names_excluded_down_nodes(client: Client) -> None:
    mode = ("--mode", "high_availability")
    assert run("create", "z", "--partitions", "8", "--replicas", "2", *mode)[0] == 0
    assert shown("plan", "z")["left_out"] == []
    joins(client, "E")
    client.submit(SetDataNodes("z", ids("ABCDE"), client.read_barrier().epoch))
    comes = shown("plan", "z")["replicas"]["E"]
    for node in ids("E"):
        client.submit(DeclareDown(node, "burnt"))
    plan = shown("plan", "z")
    assert plan["left_out"] == [{"node": "E", "why": "down", "data_node": True, "partitions": comes}]
    assert "E" not in plan["replicas"]
    assert f"left out of {comes} partitions because it is down: E" in run("plan", "z")[1]
    client.submit(SetDataNodes("z", ids("ABCD"), client.read_barrier().epoch))
    assert shown("plan", "z")["left_out"] == [{"node": "E", "why": "down", "data_node": False, "partitions": 0}]
    assert "left out of the data nodes because it is down: E" in run("plan", "z")[1]


def test_a_cancel_applies_once_to_the_named_move(client: Client) -> None:
    assert run("create", "z", "--partitions", "1", "--replicas", "2", "--filter", "$[?(@.rack < 'rC')]")[0] == 0
    refused("nothing_pending", "cancel", "z", "0")
    moved(client, "CD")
    revision = one(client).revisions.pending
    refused("outdated_revision", "cancel", "z", "0", "--revision", str(revision - 1))
    assert one(client).cancel is None
    assert shown("cancel", "z", "0", "--revision", str(revision), "--reason", "too slow")["outcome"] == "applied"
    (row,) = shown("show", "z")["partitions"]
    assert row["cancel"] == {"old": ["A", "B"], "new": ["C", "D"]}
    assert row["waits"] == "for its group to return to A, B; not yet: A, B"
    assert row["cancelled"] == "too slow"
    assert "its last step is cancelled: too slow" in " ".join(run("show", "z")[1].split())
    assert run("cancel", "z", "0")[0] == 0, "a repetition changes nothing"


def test_partitions_without_a_majority_are_reset(client: Client) -> None:
    filter_ = ("--filter", "$[?(@.rack != 'rD')]")
    assert run("create", "z", "--partitions", "1", "--replicas", "3", *filter_)[0] == 0
    refused("partition_healthy", "reset", "z")
    for name in ids("AB"):
        client.submit(DeclareDown(name, "burnt"))
    assert "ringlog zone reset" in shown("show", "z")["partitions"][0]["waits"]
    assert shown("reset", "z", "0")["outcome"] == "applied"
    assert shown("reset", "z", "--admit-loss")["outcome"] == "applied", "whatever it loses"
    head = one(client).pending[0]
    assert head.forced
    client.submit(SwitchStable("z", 0, head.nodes, (), one(client).revisions))
    assert shown("show", "z")["partitions"][0]["stable"] == ["C"]


def test_a_recreated_replica_is_shown_with_its_start_time(client: Client) -> None:
    assert run("create", "z", "--partitions", "1", "--replicas", "3", "--filter", "$[?(@.name != 'D')]")[0] == 0
    (row,) = shown("show", "z")["partitions"]
    assert (row["state"], row["since"]) == ("available", client.state.epoch)
    assert shown("restart", "z", "0", "C")["outcome"] == "applied"
    epoch = client.read_barrier().epoch
    (row,) = shown("show", "z")["partitions"]
    assert (row["pending"], row["since"], row["revision"]) == ([["A", "B"]], epoch, epoch)
    assert row["at"] == time_of(client.state.state_id)
    assert "since 2" in " ".join(run("show", "z")[1].split())
    client.submit(DeclareDown(ids("C")[0], "burnt"))
    (row,) = shown("show", "z")["partitions"]
    assert (row["state"], row["replicas"]) == ("degraded", {"A": "healthy", "B": "healthy", "C": "unavailable"})
    for name, state in (("B", "read_only"), ("A", "unavailable")):
        client.submit(DeclareDown(ids(name)[0], "burnt"))
        assert shown("show", "z")["partitions"][0]["state"] == state


BAD_INPUT = {
    "a filter that is no JSONPath": ("bad_filter", "create n --filter rack==r1"),
    "a filter that is no JSONPath, for a zone that there is": ("bad_filter", "alter z --filter $[?(@.rack==]"),
    "a filter that matches nobody": ("no_data_nodes", "create n --filter $[?(@.rack=='r9')]"),
    "a filter that matches nobody, for a zone that there is": ("no_data_nodes", "alter z --filter $[?(@.rack=='r9')]"),
    "replicas above nodes": ("too_few_data_nodes", "create n --replicas 5"),
    "replicas above nodes, for a zone that there is": ("too_few_data_nodes", "alter z --replicas 5"),
    "a filter that leaves fewer nodes than replicas": ("too_few_data_nodes", "alter z --filter $[?(@.rack=='rA')]"),
    "no replicas": ("bad_field", "create n --replicas 0"),
    "a quorum of nobody": ("bad_field", "create n --replicas 3 --quorum 0"),
    "a quorum that two halves have": ("bad_field", "create n --replicas 4 --quorum 1"),
    "a quorum above the majority": ("bad_field", "create n --replicas 3 --quorum 3"),
    "a quorum that is none, for a zone that there is": ("bad_field", "alter z --quorum 9"),
    "a timer below its bound": ("bad_field", "create n --scale-up -1"),
    "a timer above its bound": ("bad_field", "alter z --scale-down 2147483648"),
    "a cancel with an old revision": ("outdated_revision", "cancel z 0 --revision {old}"),
    "a cancel with a revision that nobody has seen": ("outdated_revision", "cancel z 0 --revision {next}"),
    "a cancel of what is at rest": ("nothing_pending", "cancel still 0"),
    "a reset of a healthy partition": ("partition_healthy", "reset z 0"),
    "a reset of healthy partitions, all of them": ("partition_healthy", "reset still"),
    "a reset of a healthy partition that admits loss": ("partition_healthy", "reset still 0 --admit-loss"),
    "a restart beside a move": ("already_pending", "restart z 0 {member}"),
    "a restart that leaves no quorum": ("quorum_needed", "restart still 0 A"),
    "a restart of who does not have it": ("bad_field", "restart still 0 D"),
    "a restart on a node that there is not": ("bad_field", "restart still 0 nobody"),
    "a filter without operators": ("bad_filter", "create n --filter nonsense"),
    "a profile that nobody has": ("no_data_nodes", "create n --profile nvme"),
    "partitions above their bound": ("bad_field", "create n --partitions 65001"),
    "more replicas of partitions than there may be": ("too_large", "create n --partitions 65000 --replicas 2"),
    "a mode that is none": ("bad_field", "create n --mode fast"),
    "a name that is none": ("bad_field", "create no-name"),
    "a name that is taken": ("zone_exists", "create z"),
    "a change of nothing": ("bad_field", "alter z"),
} | {
    f"{words} of a zone that there is not": ("unknown_zone", words)
    for words in ("alter n --replicas 1", "drop n", "show n", "plan n", "reset n", "cancel n 0", "restart n 0 A")
} | {
    f"{words} of a partition that there is not": ("unknown_zone_partition", words)
    for words in ("cancel z 7", "reset z 7", "restart z 7 A")
}  # fmt: skip
"""The fault, its code, and the arguments."""


def test_bad_input_is_refused_with_its_code_and_without_effect(client: Client) -> None:
    """One zone migrates and one is settled; each refusal is tested as text and as JSON."""
    assert run("create", "z", "--partitions", "1", "--replicas", "2", "--filter", "$[?(@.rack < 'rC')]")[0] == 0
    assert run("create", "still", "--partitions", "1", "--filter", "$[?(@.rack == 'rA')]")[0] == 0
    moved(client, "CD")
    state = client.read_barrier()
    revision, was = one(client).revisions.pending, digest(state)
    explain = {"old": revision - 1, "next": revision + 1, "member": "A"}
    for what, (code, words) in BAD_INPUT.items():
        given = words.format(**explain).split()
        status, out, err = run(*given)
        assert (status, out, err.split(":")[0]) == (1, "", code), (what, out, err)
        if given[0] not in ("show", "plan"):  # only the program itself prints these errors as JSON
            status, out, err = run(*given, "--json")
            assert status == 1, what
            assert json.loads(out or err)["code"] == code, (what, out, err)
        after = client.read_barrier()
        assert (after.epoch, digest(after)) == (state.epoch, was), what


def test_the_rehearsal_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "operate" / "zones.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("{")]
    ended = CliRunner().invoke(app, ["rehearse"], input="\n".join(lines))
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(answers) == len(lines) > 8
    assert [one.get("code") for one in answers if one.get("outcome") == "rejected"] == []
    assert answers[-1]["partitions"][0]["stable"] == ["A", "B", "C"]

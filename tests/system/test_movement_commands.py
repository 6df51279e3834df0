"""Output and exit status of the commands for range movements, with real agents and real nodes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.agents_world import until
from tests.system.nodes_world import opened
from tests.system.test_node_cluster import World

from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.values import CdcOptions, Column
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[World]:
    with opened(World, stack, tmp_path, cluster_name) as made:
        yield made


def test_a_day_of_an_operator(world: World) -> None:
    run, done = world.agents.typed, world.agents.done
    world.begin_all("n1", "n2", "n3", "n4")
    world.create()
    world.write(300)
    world.await_rows()

    altered = json.loads(done("keyspace", "alter", "ks", "--replication", "dc1=3", "--json"))
    assert (altered["outcome"], altered["stage"], altered["ended"]["keyspace"]) == ("applied", "finished", "ks")
    assert "dc1=3" in done("keyspace", "list")
    world.await_rows()
    # The factor returns to fewer replicas: the remaining ones catch up to a quorum. (Four spaces precede the reason of
    # a wait.)
    shown = done("keyspace", "alter", "ks", "--factor", "1")
    stages = [line.split(",")[0].strip() for line in shown.splitlines()[1:] if not line.startswith("    ")]
    assert stages == ["requested", "prepared", "write_both_read_old", "write_both_read_new", "finished"]
    world.await_rows()
    done("keyspace", "alter", "ks", "--factor", "2")
    assert "finished, epoch" in done("node", "move", "n2", "--num-tokens", "4")
    assert "finished, epoch" in done("node", "rebuild", "n1")
    world.begin("n5", join=False)
    until(lambda: world.member("n5"), "n5 to register")
    assert "finished, epoch" in done("node", "replace", "n5", "n4")
    world.nodes.pop("n4").kill()
    world.await_rows()

    # A node dies: the operation waits, names the dead node, and may be cancelled.
    refused = run("node", "remove", "n3")
    assert (refused.exit_code, refused.stderr.split(":")[0]) == (1, "wrong_node_state")
    world.nodes["n3"].kill()
    waits = run("node", "rebuild", "n3", "--timeout", "8")
    assert (waits.exit_code, waits.stderr.split(":")[0]) == (1, "still_in_flight")
    assert "n3" in waits.stderr

    def held_by(*names: str) -> dict[str, Any] | None:
        (found,) = [one for one in json.loads(done("operation", "list", "--json")) if "waits_for" in one]
        return found if found["waits_for_nodes"] == [*names] else None

    held = until(lambda: held_by("n3"), "the operation to wait only for n3")
    assert any("ringlog operation cancel" in way for way in held["ways_out"])
    assert "waits for" in done("operation", "show", held["id"])
    done("operation", "fail", held["id"], "--reason", "its disk is gone")
    done("node", "down", "n3", "--reason", "its disk is gone")
    assert "normal, down" in done("node", "list")
    declined = run("node", "assassinate", "n3")
    assert (declined.exit_code, declined.stderr.split(":")[0]) == (1, "not_confirmed")
    assert "enough old replicas of every range are left" in declined.stdout
    assert "finished, epoch" in done("node", "remove", "n3")
    world.nodes.pop("n3")
    world.await_rows()
    world.check_answers()
    rows_are_readable_at_their_position(world)


def rows_are_readable_at_their_position(world: World) -> None:
    columns = (Column("k", "text"), Column("n", "int"), Column("v", "text"))
    table = CreateTable("ks", "seats", str(uuid.uuid4()), columns, ("k",), ("n",), CdcOptions(enabled=False))
    world.agents.client.submit(table)
    put = json.loads(world.agents.done("data", "put", "ks.seats", "seat", "5", "--set", "v=taken", "--json"))
    for more in (("--at", put["position"], "--level", "ALL"), ()):
        assert json.loads(world.agents.done("data", "rows", "ks.seats", "seat", "--json", *more))["rows"] == [
            {"n": 5, "v": "taken"}
        ]

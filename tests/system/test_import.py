"""A recorded cluster of Cassandra is imported into an empty one, with real agents and nodes: owners are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.operator.test_imports import DATA, REAL, owner_at
from tests.system.agents_world import until
from tests.system.nodes_world import NodesWorld, opened

from ringlog.operator.imports.mapping import plan_of
from ringlog.operator.imports.recording import read_recording
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]

NAMES = ("127.0.71.1", "127.0.71.2", "127.0.71.3")


def test_an_imported_cluster_has_the_owners_of_its_source(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    """The pages operate/import.md and operate/plans.md: start the nodes, join them, then create the schema."""
    plan = tmp_path / "plan.json"
    with opened(NodesWorld, stack, tmp_path, cluster_name) as world:
        done = world.agents.done
        for name in NAMES:
            world.begin(name, join=False)
        until(lambda: all(map(world.member, NAMES)), "the nodes to register")
        plan.write_text(plan_of(read_recording(REAL.read_text()), registered=True).text())
        for part, name in enumerate(("joins", "schema"), start=1):
            done("plan", "stage", name, str(plan), "--part", str(part))
            done("plan", "approve", name)
            world.await_normal(*NAMES)
        shown = {name: json.loads(done("keyspace", "placements", name, "--json")) for name in ("shop", "small")}
        for line in (DATA / "cassandra-5.0-ring.txt").read_text().splitlines()[1:]:
            keyspace, _, end, *nodes = line.split()
            found = {(one["start"], one["end"]): set(one["replicas"]) for one in shown[keyspace]["read"]}
            assert owner_at(found, int(end)) == {*nodes}, line
        assert done("schema", "describe", "shop") == (DATA / "cassandra-5.0.cql").read_text()

"""``ringlog load`` against real nodes: nodes that are killed, and nodes with a planted bug."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.system.agents_world import until
from tests.system.registers_cluster import RegistersCluster
from tests.system.tablets_cluster import TABLE, TABLE_ID, TABLETS

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.placement.zones import CreateZone
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, Replication, TabletOptions
from ringlog.operator.intents.replication import in_zone
from ringlog.protocol.balancer.balancer import ROLE as BALANCER

pytestmark = [pytest.mark.system, pytest.mark.slow]

RING_TABLE, ZONE_TABLE = "ring.load", "placed.load"
COLUMNS = (Column("key", "text"), Column("value", "bigint"))
EVENTS = 300
FORGETFUL = """
import sys
from ringlog.kernel.values import replace
from ringlog.node.registers import registers

real, calls = registers.apply, 0

def apply(replica, number):
    global calls
    calls += 1
    after, replies = real(replica, number)
    return (after if calls % 10 else replace(replica, pending=after.pending)), replies

registers.apply = apply
sys.argv[0] = "ringlog"
from ringlog.cli.main import main
main()
"""
"""A node that acknowledges every tenth write of a register without storing it."""
LOSING = """
import sys
from ringlog.node.rows.disk_rows import DiskRows

real, calls = DiskRows.add, 0

def add(self, version):
    global calls
    calls += 1
    if calls % 10:
        real(self, version)

DiskRows.add = add
sys.argv[0] = "ringlog"
from ringlog.cli.main import main
main()
"""
"""A node that does not store every tenth row."""


def tables(world: RegistersCluster) -> None:
    """Create a table on the token ring, one in tablets and one in a zone."""
    world.submit(CreateKeyspace("ring", Replication("simple", 3)))
    made = str(uuid.uuid4())
    world.submit(CreateTable("ring", "load", made, COLUMNS, ("key",), (), CdcOptions()))
    keyspace, _, name = TABLE.partition(".")
    world.submit(CreateKeyspace(keyspace, Replication("tablets", 3)))
    options = TabletOptions(TABLETS)
    world.submit(CreateTable(keyspace, name, TABLE_ID, COLUMNS, ("key",), (), CdcOptions(), tablets=options))
    world.submit(CreateZone("stock", tuple(map(world.id_of, ("n1", "n2", "n3"))), TABLETS, 3))
    keyspace, _, name = ZONE_TABLE.partition(".")
    world.submit(CreateKeyspace(keyspace, in_zone("stock")))
    world.submit(CreateTable(keyspace, name, str(uuid.uuid4()), COLUMNS, ("key",), (), CdcOptions()))


def is_split(state: ClusterState, table: str) -> bool | None:
    return state.tablets[table].count > TABLETS or None


class LoadProcess:
    """A process of ``ringlog load run`` without an end."""

    def __init__(self, world: RegistersCluster, folder: Path, table: str, *options: str) -> None:
        self.history = folder / f"{table}.jsonl"
        place = ["--bootstrap", world.agents.stack.bootstrap_servers, "--cluster", world.agents.cluster]
        command = ["load", "run", "--table", table, "--seconds", "600", "--history", str(self.history), "--json"]
        words = [sys.executable, "-m", "ringlog.cli", *command, *place, *options]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def events(self) -> int:
        """Return the number of answered operations so far."""
        return self.history.read_bytes().count(b'"type":"ok"') if self.history.exists() else 0

    def more(self, what: str) -> None:
        """Wait for further answered operations."""
        goal = self.events() + EVENTS
        until(lambda: self.events() >= goal or self._process.poll() is not None, f"the load to continue {what}", 120)
        assert self._process.poll() is None, self._process.communicate()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Return the exit status and the printed result."""
        try:
            shown, said = self._process.communicate(timeout=180)
        finally:
            self._process.kill()
        assert shown, said
        return self._process.returncode, json.loads(shown)


def checked_again(history: Path, *options: str) -> tuple[int, str]:
    """Return the exit status and the output of ``load check``."""
    words = [sys.executable, "-m", "ringlog.cli", "load", "check", str(history), *options]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, ended.stdout


def test_killed_nodes_leave_unknown_outcomes_but_no_violation(registers: RegistersCluster, tmp_path: Path) -> None:
    """Meanwhile the traffic splits the tablets."""
    registers.begin_all("n1", "n2", "n3")
    registers.agents.start(BALANCER)
    registers.submit(ChangeSettings((("balance_tablet_writes", 1),)))
    tables(registers)
    targets = RING_TABLE, TABLE, ZONE_TABLE
    loads = [LoadProcess(registers, tmp_path, table, "--rate", "80", "--timeout", "2") for table in targets]
    for load in loads:
        load.more("at the start")
    for name in ("n2", "n3"):
        registers.nodes[name].kill()
    for load in loads:  # a majority is away: registers time out
        until(lambda load=load: b'"type":"info"' in load.history.read_bytes(), "an unknown outcome", 120)
    for name in ("n2", "n3"):
        registers.start_again(name)
    for load in loads:
        load.more("after the restart")
    # A node reports its traffic after a minute.
    registers.agents.client.replica.wait_for(
        lambda state: is_split(state, TABLE), 180, "the traffic to split the table"
    )
    for load in loads:
        load.more("after the split")
        load.interrupt()
    for load in loads:
        status, found = load.ended()
        assert (status, found["verdict"], found["linearizable"]) == (0, "no_violation", "linearizable")
        assert found["unknown"] > 0
        assert found["checked"] > 2 * EVENTS
        assert {row["kind"] for row in found["operations"]} == {"registers", "rows"}
        assert found["unread_keys"] == 0
        assert found["longest_silence_s"] > 0
        code, shown = checked_again(load.history, "--json")
        again = json.loads(shown)
        assert code == 0
        assert (again["verdict"], again["checked"]) == ("no_violation", found["checked"])


@pytest.mark.parametrize(
    ("program", "buggy", "only", "kinds"),
    [
        (FORGETFUL, ("n1", "n2", "n3"), "registers", {"lost write", "stale read"}),
        (LOSING, ("n1",), "rows", {"lost rows"}),
    ],
)
def test_a_planted_bug_is_found_with_its_witness(
    registers: RegistersCluster, tmp_path: Path, program: str, buggy: tuple[str, ...], only: str, kinds: set[str]
) -> None:
    registers.begin_all("n1", "n2", "n3")
    tables(registers)
    for name in buggy:
        registers.nodes[name].kill()
        registers.nodes[name].restart(["-c", program])
    registers.await_normal(*buggy)
    load = LoadProcess(registers, tmp_path, RING_TABLE, "--only", only)
    status, found = load.ended()
    assert (status, found["verdict"]) == (1, "violation")
    assert found["kind"] in kinds
    assert 2 <= len(found["witness"]) <= 4
    assert all("epoch" in event["note"] for event in found["witness"] if event["op"] == "read" and event["note"])
    if only == "rows":
        assert found["witness"][-1]["note"].startswith("rows lost on n1;")
        assert found["linearizable"] == "linearizable"  # the other replicas have the rows
    code, shown = checked_again(load.history)
    assert code == 1
    assert f"{found['kind']} of {found['key']}" in shown

"""The broker is down for longer than all timeouts, and its disk is full."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .broker import Broker
from .cost_tables import Figures
from .waiting import until
from .world import RECOVERY_S, World

pytestmark = [pytest.mark.slow]

DISK = "96m"
LEFT_BYTES = 2 * 1024 * 1024
ALARMS_MAX = 60
"""The maximum number of the agents' log lines per outage with one restart; the client library logs thousands."""


@pytest.mark.spark
def test_an_outage_longer_than_the_validators_timeout(world: World) -> None:
    """The validator ends with status 1 and receives its requests again.

    Nodes wait and keep their processes: one that joins, one that starts when the broker stops, and one that starts
    while the broker is down.
    """
    with world.under_load("broker away, validator gave up", join=True) as joining:
        started = [world.begin_node()]
        lines = {name: len(each.text().splitlines()) for name, each in world.supervisors.items()}
        gave_up, crashed = world.gave_up("validator"), world.said("validator crashed")
        world.broker.kill("broker")
        started.append(world.begin_node())
        runs = world.nodes[started[-1]]
        until(
            "the test", f"{runs.name} to wait for the broker", lambda: "broker_away" in runs.text(), why_not=runs.tail
        )
        pids = {name: node.pid for name, node in world.nodes.items()}
        why = lambda: "\n".join(each.tail() for each in world.supervisors.values())  # noqa: E731
        until("the test", "a validator to end", lambda: world.gave_up("validator") > gave_up, RECOVERY_S, why)
        world.broker.up()
        until(
            "its supervisor",
            "the supervisor to end with status 1",
            lambda: world.said("validator crashed") > crashed,
            60,
            why,
        )
        world.await_normal(joining, *started)
    assert {name: node.pid for name, node in world.nodes.items()} == pids
    for name, each in world.supervisors.items():
        told = each.text().splitlines()[lines[name] :]
        for event in ("broker_away", "broker_answers_again"):
            assert any(event in line for line in told), each.tail(40)
        alarms = [line for line in told if re.search(r"\[(warning|error) |ERROR", line)]
        assert len(alarms) <= ALARMS_MAX, "\n".join(alarms)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of a fixed size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_brokers_disk_is_full(small_disk: Path, tmp_path: Path, figures: Figures) -> None:
    broker = Broker(small_disk / "stack", {"log.segment.bytes": str(4 * 1024 * 1024)})
    world = World(tmp_path / "world", broker, figures)
    try:
        world.start(spark=False)
        with world.under_load("broker's disk full"):
            ballast = small_disk / "ballast"
            fill(ballast)
            until(
                "the test",
                "the broker to end without disk space",
                lambda: not broker.runs("broker"),
                RECOVERY_S,
                lambda: broker.log()[-2_000:],
            )
            assert "No space left on device" in broker.log() or "log dirs" in broker.log()
            supervisor, redis = broker.info.supervisor_pid, broker.info.redis_pid
            ballast.unlink()
            broker.up()
            assert (broker.info.supervisor_pid, broker.info.redis_pid) == (supervisor, redis)
    finally:
        world.close()
        broker.close()


def fill(ballast: Path) -> None:
    """Fill the disk except a small part; the load fills that part."""
    with ballast.open("wb") as out:
        while free_bytes(ballast.parent) > LEFT_BYTES:
            out.write(bytes(256 * 1024))
            out.flush()


def free_bytes(folder: Path) -> int:
    found = subprocess.run(
        ["stat", "-f", "-c", "%a %S", str(folder)], capture_output=True, text=True, check=True
    ).stdout.split()
    return int(found[0]) * int(found[1])

"""The driver of the CDC job dies in the middle of a batch, and is asked to stop in the middle of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.system.cdc_world import World, founded, now_us, until, write

from ringlog.stack import StackInfo
from ringlog.stack.artifacts import jars
from ringlog.wire.records import decode_cdc_row

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
HOUR_US = 3_600_000_000
BATCH = 500


@contextmanager
def driver(world: World, checkpoint: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The job as its own process. At the end its JVM is gone, too: that of a killed one works on for a moment."""
    command = [sys.executable, "-m", "ringlog_cdc", "run", "--bootstrap", world.bootstrap, "--cluster", world.cluster]
    command += [
        "--checkpoint",
        str(checkpoint),
        "--jars",
        ",".join(map(str, (*jars("spark"), *jars("lake")))),
        "--direct",
    ]
    command += ["--max-offsets-per-trigger", str(BATCH), "--trigger-seconds", "0"]
    command += ["--java-options", "-XX:TieredStopAtLevel=1", *options]
    paths = os.pathsep.join(str(ROOT / name) for name in ("services", "streaming", "schemas"))
    checkpoint.mkdir(exist_ok=True)
    with (checkpoint / "output").open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": paths},
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        until(lambda: not of_session(process.pid), "the end of all that the driver had started")


def of_session(leader: int) -> list[str]:
    """Names of the processes that belong to the session of a process that may be gone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, _, session, *_ = rest.split()
        if int(session) == leader and state != "Z":
            found.append(name)
    return found


def alive(process: subprocess.Popen[bytes], checkpoint: Path) -> None:
    """Raise with what the driver said if it is gone."""
    assert process.poll() is None, (checkpoint / "output").read_text()[-3000:]


def in_hand(checkpoint: Path) -> str:
    """The plan that is stored and not carried out yet, from the third on; empty if there is none now."""
    plans = {path.stem for path in (checkpoint / "plans").glob("*.json")}
    done = {path.stem for path in (checkpoint / "plans").glob("*.done")}
    open_ones = sorted(plans - done)
    return open_ones[0] if open_ones and int(open_ones[0]) >= 2 else ""


def test_a_driver_killed_in_the_middle_of_a_batch_leaves_no_hole_and_one_asked_to_stop_nothing_to_repeat(
    stack: StackInfo, cluster_name: str, tmp_path: Path
) -> None:
    with founded(stack.bootstrap_servers, cluster_name) as world:
        world.join("n1", (-5_000_000_000_000_000_000, 0, 7_000_000_000_000_000_000), now_us() - HOUR_US)
        world.schema()
        world.send(write(f"customer-{number % 97}", number) for number in range(5_000))
        with driver(world, tmp_path) as process:
            until(lambda: in_hand(tmp_path), "a batch in hand", lambda: alive(process, tmp_path))
            process.send_signal(signal.SIGKILL)
        killed_in = in_hand(tmp_path)
        with driver(world, tmp_path) as process:
            until(lambda: in_hand(tmp_path) > killed_in, "another batch in hand", lambda: alive(process, tmp_path))
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0, (tmp_path / "output").read_text()[-3000:]
        assert in_hand(tmp_path) == ""
        before = Counter((item.partition, item.key, item.value) for item in world.read("cdc"))
        world.send(write(f"customer-{number % 97}", number) for number in range(5_000, 6_000))
        with driver(world, tmp_path, "--stop-when-idle") as process:
            assert process.wait(240) == 0, (tmp_path / "output").read_text()[-3000:]

        found = world.read("cdc")
        copies = Counter((item.partition, item.key, item.value) for item in found)
        rows = [decode_cdc_row(value) for _, _, value in copies]
        mutations = {(item.partition, item.offset) for item in world.read("mutations")}
        # One distinct value for each write: whatever was written twice is the same, byte for byte.
        assert {(row.source_partition, row.source_offset) for row in rows} == mutations
        assert len(rows) == len(mutations) == 6_000
        assert len(found) - 6_000 <= BATCH
        # The clean stop repeats nothing: what was there then is as often there as it was, the rest once.
        assert copies == before + Counter(copies.keys() - before.keys())
        assert world.letters() == []

"""The driver of the CDC job is killed or asked to stop inside a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from tests.system.cdc_world import World, until, write
from tests.system.test_cdc_compound import carts, demanded, history, logged

from ringlog.stack.artifacts import spark_jars
from ringlog.wire.records import decode_cdc_row
from ringlog_cdc.plan.plan import FIRST
from ringlog_cdc.plan.store import PlanStore

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BATCH = 500
MARK = "RINGLOG_TEST_MARK"


@contextmanager
def driver(world: World, checkpoint: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job in its own process and wait at the end for its JVM, which survives a killed driver for a moment."""
    command = [sys.executable, "-m", "ringlog_cdc", "run", "--bootstrap", world.bootstrap, "--cluster", world.cluster]
    command += [
        "--checkpoint",
        str(checkpoint),
        "--jars",
        ",".join(map(str, spark_jars())),
        "--direct",
    ]
    command += ["--max-offsets-per-trigger", str(BATCH), "--trigger-seconds", "0"]
    command += ["--java-options", "-XX:TieredStopAtLevel=1", *options]
    paths = os.pathsep.join(str(ROOT / name) for name in ("services", "streaming", "schemas"))
    checkpoint.mkdir(exist_ok=True)
    mark = uuid.uuid4().hex
    with (checkpoint / "output").open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": paths, MARK: mark},
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
        until(lambda: not started_by(mark), "the end of all that the driver had started")


def started_by(mark: str) -> list[str]:
    """Return the names of the processes with this mark in their environment: a driver and its children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append((path.parent / "comm").read_text().strip())
        except OSError:
            continue
    return found


def alive(process: subprocess.Popen[bytes], checkpoint: Path) -> None:
    """Raise with the driver's output if it has ended."""
    assert process.poll() is None, (checkpoint / "output").read_text()[-3000:]


def unfinished_plan(checkpoint: Path) -> str:
    """Return the plan, from the third on, that is stored but not completed; empty without one."""
    plans = {path.stem for path in (checkpoint / "plans").glob("*.json")}
    done = {path.stem for path in (checkpoint / "plans").glob("*.done")}
    open_ones = sorted(plans - done)
    return open_ones[0] if open_ones and int(open_ones[0]) >= 2 else ""


def test_a_killed_driver_leaves_no_gap_and_a_stopped_one_no_repeats(shop: World, tmp_path: Path) -> None:
    carts(shop)
    # Every other write has a table with images, whose rows depend on all previous rows.
    writes = history(Random(1), 1_600)
    plain = [write(f"customer-{number % 97}", number) for number in range(1_400)]
    shop.send([*chain.from_iterable(zip(plain, writes, strict=False)), *writes[len(plain) :]])
    with driver(shop, tmp_path) as process:
        until(lambda: unfinished_plan(tmp_path), "a batch in hand", lambda: alive(process, tmp_path))
        process.send_signal(signal.SIGKILL)
    killed_in = unfinished_plan(tmp_path)
    with driver(shop, tmp_path) as process:
        until(lambda: unfinished_plan(tmp_path) > killed_in, "another batch in hand", lambda: alive(process, tmp_path))
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(240) == 0, (tmp_path / "output").read_text()[-3000:]
    assert unfinished_plan(tmp_path) == ""
    before = Counter((item.partition, item.key, item.value) for item in shop.read("cdc"))
    shop.send(write(f"customer-{number % 97}", number) for number in range(1_400, 1_700))
    with driver(shop, tmp_path, "--stop-when-idle") as process:
        assert process.wait(240) == 0, (tmp_path / "output").read_text()[-3000:]

    copies = Counter((item.partition, item.key, item.value) for item in shop.read("cdc"))
    rows = {place: decode_cdc_row(place[2]) for place in copies}
    mutations = {(item.partition, item.offset) for item in shop.read("mutations")}
    # There is one distinct value for each write: repeated copies are identical.
    assert {(row.source_partition, row.source_offset) for row in rows.values()} == mutations
    assert len(mutations) == 3_300
    assert sum(row.table == "orders" for row in rows.values()) == 1_700
    # A restart or a repeated batch does not change an image.
    assert logged([row for row in rows.values() if row.table == "carts"]) == demanded(shop)
    assert {row.operation for row in rows.values()} == {0, 1, 2, 3, 4, 5, 7, 9}
    again = [rows[place] for place, times in copies.items() if times > 1]
    assert max(copies.values()) <= 2
    assert len({(row.source_partition, row.source_offset) for row in again}) <= BATCH
    # The clean stop repeats no row: the copies of earlier rows stay as they are, later rows exist once.
    assert copies == before + Counter(copies.keys() - before.keys())
    assert shop.letters() == []


def has_done(checkpoint: Path, parts: int) -> bool:
    """Return True if this number of parts is completed."""
    return len(list((checkpoint / "plans").glob("*.done"))) >= parts


@pytest.mark.soak("the test before kills once; the simulator kills at every step")
def test_a_driver_killed_repeatedly_completes_its_batch(shop: World, tmp_path: Path) -> None:
    """Each run completes some parts of the batch and does not repeat completed parts."""
    count = 3 * FIRST
    shop.send(write(f"customer-{number % 97}", number) for number in range(count))
    options = ("--max-offsets-per-trigger", str(2 * count))
    for done in (1, 2):
        with driver(shop, tmp_path, *options) as process:
            until(partial(has_done, tmp_path, done), "a part to be done", lambda: alive(process, tmp_path))
            process.send_signal(signal.SIGKILL)
    with driver(shop, tmp_path, *options, "--stop-when-idle") as process:
        assert process.wait(240) == 0, (tmp_path / "output").read_text()[-3000:]
    store = PlanStore(tmp_path)
    parts = [entry for number in (0, 1) for entry in store.parts(number) if entry.ranges]
    assert len(store.parts(0)) > 1
    assert sum(item.end - item.start for item in parts[0].ranges) <= FIRST
    copies = Counter((item.key, item.value) for item in shop.read("cdc"))
    assert len(copies) == count
    first = {(item.partition, offset) for item in parts[0].ranges for offset in range(item.start, item.end)}
    rows = Counter((row.source_partition, row.source_offset) for row in shop.rows())
    assert {rows[place] for place in first} == {1}, "no completed part was repeated"

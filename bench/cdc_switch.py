"""The cost of a generation switch for the CDC job under load: the number of held batches, and their time.

    python bench/cdc_switch.py [SWITCHES [WRITES_S]]

Starts a broker, a Spark session and the CDC job with its defaults (a batch per second). A producer writes WRITES_S
(2,000) writes per second without a pause, and SWITCHES (5) nodes join one after the other. Each generation is committed
as by the coordinator: when the writer's lease is low enough, with a lead over the clock. Until then it is *prepared*. A
batch is *held* if some of its writes had to wait for the commit.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import threading
import time
import uuid
from itertools import count, pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plain_stack import plain_stack
from tests.system.cdc_world import World, founded, now_us, until, write

from ringlog.kernel.model.settings import setting
from ringlog.stack.artifacts import spark_jars
from ringlog_cdc.driver.job import CdcJob
from ringlog_cdc.driver.session import open_session
from ringlog_cdc.settings import JobSettings

SWITCHES, WRITES_S = 5, 2_000
STEP_S = 0.05
TOKENS = 16
BETWEEN = 4
"""Batches between two switches."""


def main() -> None:
    """Measure and print."""
    switches = int(sys.argv[1]) if len(sys.argv) > 1 else SWITCHES
    writes_s = int(sys.argv[2]) if len(sys.argv) > 2 else WRITES_S
    folder = Path(tempfile.mkdtemp(prefix="ringlog-bench-"))
    stack = plain_stack(folder / "stack")
    try:
        info = stack.up("quick")
        session = open_session("ringlog-bench", spark_jars(), "local[2]")
        try:
            with founded(info.bootstrap_servers, f"b{uuid.uuid4().hex[:10]}") as world:
                _switch(world, "n0")
                world.schema()
                settings = JobSettings(info.bootstrap_servers, world.cluster, folder / "checkpoint", direct=True)
                _measure(world, CdcJob(settings, session).start(), switches, writes_s)
        finally:
            session.stop()
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)


def _measure(world: World, job: CdcJob, switches: int, writes_s: int) -> None:
    stopping = threading.Event()
    load = threading.Thread(target=_write, args=(world, writes_s, stopping))
    load.start()
    marks: list[int] = []
    prepared: list[int] = []
    try:
        _pass(job, BETWEEN)
        for number in range(switches):
            marks.append(now_us())
            prepared.append(_switch(world, f"n{number + 1}"))
            _pass(job, BETWEEN)
    finally:
        stopping.set()
        load.join()
        job.stop()
    _show([*marks, now_us()], prepared, [json.loads(line) for line in _lines(job)])


def _show(marks: list[int], prepared: list[int], lines: list[dict[str, object]]) -> None:
    batches = [line for line in lines if line["event"] == "batch"]
    print(
        f"{'switch':>6} {'prepared, ms':>13} {'batches':>8} {'held':>5} {'held for, ms':>13} {'longest batch, ms':>18} "
        f"{'rows/s':>7}"
    )
    for number, (begin, end) in enumerate(pairwise(marks), start=1):
        here = [line for line in batches if begin <= int(str(line["at"])) < end]
        held = [int(str(line["held_ms"])) for line in here if line["held_ms"]]
        longest = max(int(str(line["duration_ms"])) for line in here)
        rows = sum(int(str(line["rows"])) for line in here) / ((end - begin) / 1e6)
        taken = prepared[number - 1]
        print(f"{number:6} {taken:13,} {len(here):8} {len(held):5} {sum(held):13,} {longest:18,} {rows:7,.0f}")


def _lines(job: CdcJob) -> list[str]:
    return (job.settings.checkpoint / "progress.jsonl").read_text().splitlines()


def _pass(job: CdcJob, batches: int) -> None:
    """Wait for this number of batches more."""
    target = job.runner.last_batch + batches
    until(lambda: job.runner.last_batch >= target, f"batch {target}", job.writer.check)


def _switch(world: World, name: str) -> int:
    """A node joins; its generation is committed as soon as the writers let it. Milliseconds that it was prepared."""
    rng = random.Random(name)
    operation = world.begin_join(name, [rng.randrange(-(2**63) + 1, 2**63) for _ in range(TOKENS)])
    began = time.monotonic()
    world.prepare_generation()
    lead = setting(world.state, "cdc_generation_lead_us")
    deadline = time.monotonic() + 60
    while (now := now_us()) + lead <= max((writer.horizon for writer in world.state.writers.values()), default=0):
        assert time.monotonic() < deadline, "the horizon is not lowered"
        threading.Event().wait(0.02)
    world.commit_generation(now + lead)
    taken = round((time.monotonic() - began) * 1000)
    world.finish(operation)
    return taken


def _write(world: World, writes_s: int, stopping: threading.Event) -> None:
    """Writes at a steady rate."""
    numbers = count()
    step = max(round(writes_s * STEP_S), 1)
    following = time.monotonic()
    while not stopping.is_set():
        world.send(write(f"customer-{next(numbers) % 10_000}", 1) for _ in range(step))
        following += STEP_S
        stopping.wait(max(following - time.monotonic(), 0))


if __name__ == "__main__":
    main()

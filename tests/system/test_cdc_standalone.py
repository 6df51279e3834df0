"""The CDC job on Spark standalone clusters: executors die, and Spark Connect clients share a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.system.cdc_log import CdcLog
from tests.system.cdc_world import World, until, write
from tests.system.spark_cluster import ROOT, SparkCluster, driver_environment, spark_cluster, submit, worker_python

from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.values import CdcOptions
from ringlog.stack.artifacts import spark_jars
from ringlog.stack.processes import choose
from ringlog.wire.records import Cell, Mutation, decode_cdc_row

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

COUNT = 6_000
BATCH = 1_500
KEPT = 7
PREIMAGE = 0


@pytest.fixture
def world(shop: World) -> World:
    shop.table("kept")
    shop.apply(AlterTable("shop", "kept", (), CdcOptions(True, preimage="full")))
    return shop


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path) as found:
        yield found


def printed(*arguments: str) -> str:
    """Return the output of a ``ringlog cdc`` command."""
    environment = driver_environment(Path(sys.executable))
    command = [sys.executable, "-m", "ringlog.cli", "cdc", *arguments]
    return subprocess.check_output(command, env=environment, text=True).strip()


@contextmanager
def job(command: list[str], python: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver in its own process."""
    with output.open("ab") as file:
        process = subprocess.Popen(
            command, env=driver_environment(python), cwd=output.parent, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def options(world: World, checkpoint: Path) -> list[str]:
    return [
        *("--bootstrap", world.bootstrap, "--cluster", world.cluster, "--checkpoint", str(checkpoint)),
        *("--direct", "--max-offsets-per-trigger", str(BATCH), "--trigger-seconds", "0"),
    ]


def open_plans(checkpoint: Path) -> set[str]:
    """Return the plans, from the second on, whose rows may not be durable."""
    names = [{path.stem for path in (checkpoint / "plans").glob(f"*.{end}")} for end in ("json", "done")]
    return {name for name in names[0] - names[1] if int(name) >= 1}


def kill_executor_in_batch(cluster: SparkCluster, checkpoint: Path, alive: Callable[[], None]) -> None:
    """Stop the executor, and kill it if a batch is unfinished."""
    (executor,) = cluster.executors()
    for _ in range(200):
        until(lambda: open_plans(checkpoint), "a batch in hand", alive)
        os.kill(executor, signal.SIGSTOP)
        if open_plans(checkpoint):
            os.kill(executor, signal.SIGKILL)
            return
        os.kill(executor, signal.SIGCONT)
    raise AssertionError("no batch was in hand")


def mutations() -> Iterator[Mutation]:
    """Return mutations; each tenth one changes one of ``KEPT`` in a table whose log has preimages."""
    for number in range(COUNT):
        if number % 10:
            yield write(f"customer-{number % 97}", number)
        else:
            amount = Cell("amount", number.to_bytes(4, "big"))
            yield write(f"customer-{number // 10 % KEPT}", 1, table="kept", cells=(amount,))


def check_rows(world: World) -> int:
    """Check one row per mutation and the correct preimages; return the number of copies."""
    found = world.read("cdc")
    distinct = dict.fromkeys((item.partition, item.key, item.value) for item in found)
    rows = [decode_cdc_row(value) for _, _, value in distinct]
    sources = [(row.source_partition, row.source_offset) for row in rows if row.operation != PREIMAGE]
    assert len(sources) == len(set(sources))
    assert set(sources) == {(item.partition, item.offset) for item in world.read("mutations")}
    before: dict[bytes, tuple[Cell, ...]] = {}
    images = 0
    for row in rows:
        if row.table == "kept" and row.operation == PREIMAGE:
            assert row.cells == before[row.partition_key[0]]
            images += 1
        elif row.table == "kept":
            before[row.partition_key[0]] = row.cells
    assert images == COUNT // 10 - KEPT
    return len(found) - len(distinct)


@pytest.mark.soak("test_cdc_kill.py kills the driver in a batch, test_cdc_job.py has the same rows")
def test_a_job_survives_its_executor_without_gaps(world: World, cluster: SparkCluster, tmp_path: Path) -> None:
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    python = worker_python(tmp_path)
    launcher = Path(printed("launcher"))
    connectors = printed("launcher", "--jars")
    world.send(mutations())

    def failed() -> str:
        return output.read_text()[-3000:]

    wheel = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run([sys.executable, *wheel], check=True)
    archive = next(tmp_path.glob("ringlog-*.whl")).rename(tmp_path / "ringlog.zip")
    arguments = [*options(world, checkpoint), "--stop-when-idle"]
    command = submit(cluster.url, launcher, *arguments, jars=connectors, py_files=str(archive))
    with job(command, python, output) as driver:

        def alive() -> None:
            assert driver.poll() is None, failed()

        until(lambda: open_plans(checkpoint), "a batch in hand", alive)
        kill_executor_in_batch(cluster, checkpoint, alive)
        assert driver.wait(240) == 0, failed()
    assert check_rows(world) <= 2 * BATCH

    # The same without spark-submit, and with workers that have the project installed.
    world.send(write(f"customer-{number % 97}", number) for number in range(COUNT, COUNT + 500))
    command = [sys.executable, "-m", "ringlog_cdc", "run", *arguments, "--master", cluster.url, "--jars", connectors]
    with job(command, Path(sys.executable), output) as driver:
        assert driver.wait(240) == 0, failed()
    check_rows(world)
    assert world.letters() == []


CONNECTED = 300


@pytest.mark.soak("test_cdc_source.py reads the same by a session of its own")
def test_connect_clients_read_the_rows_of_a_job(shop: World, tmp_path: Path) -> None:
    (port,) = choose(1)
    output, launcher = tmp_path / "output", ROOT / "streaming/ringlog_cdc/launcher/ringlog_cdc_run.py"
    CdcLog(shop).publish()
    shop.send(write(f"customer-{number % 97}", number) for number in range(CONNECTED))
    job = ["--bootstrap", shop.bootstrap, "--cluster", shop.cluster, "--checkpoint", str(tmp_path / "job")]
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    connectors = ",".join(str(jar) for jar in spark_jars())
    command = submit("local[2]", launcher, *job, "--direct", settings=settings, jars=connectors)
    environment = driver_environment(Path(sys.executable))
    with output.open("wb") as file:
        server = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=file, stderr=file)
    try:

        def alive() -> None:
            assert server.poll() is None, output.read_text()[-3000:]

        until(lambda: len(shop.read("cdc")) == CONNECTED, "the rows of the job", alive)
        client = [sys.executable, "-m", "tests.system.connect_client", f"sc://127.0.0.1:{port}"]
        client += [shop.bootstrap, shop.cluster, str(CONNECTED), str(tmp_path)]
        paths = f"{ROOT}:{environment['PYTHONPATH']}"
        said = subprocess.run(client, env={**environment, "PYTHONPATH": paths}, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr[-3000:] + output.read_text()[-3000:]
        refused, found = said.stdout.splitlines()
        assert refused == "connect_unsupported"
        assert json.loads(found) == {"batch": list(range(CONNECTED)), "stream": list(range(CONNECTED))}
        server.terminate()
        assert server.wait(120) == 0, output.read_text()[-3000:]
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()

"""Spark Connect: the job's own Spark serves Connect clients, which read the log; none of them runs a job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.cdc_log import CdcLog
from tests.system.cdc_world import World, until, write
from tests.system.spark_cluster import ROOT, driver_environment, submit

from ringlog.stack.artifacts import jars
from ringlog.stack.processes import choose

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

COUNT = 300


@pytest.mark.soak("test_cdc_source.py reads the same by a session of its own")
def test_connect_clients_read_what_a_submitted_job_writes(shop: World, tmp_path: Path) -> None:
    (port,) = choose(1)
    output, launcher = tmp_path / "output", ROOT / "streaming/ringlog_cdc/launcher/ringlog_cdc_run.py"
    CdcLog(shop).publish()
    shop.send(write(f"customer-{number % 97}", number) for number in range(COUNT))
    job = ["--bootstrap", shop.bootstrap, "--cluster", shop.cluster, "--checkpoint", str(tmp_path / "job")]
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    connectors = ",".join(str(jar) for jar in jars("spark"))
    command = submit("local[2]", launcher, *job, "--direct", settings=settings, jars=connectors)
    environment = driver_environment(Path(sys.executable))
    with output.open("wb") as file:
        server = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=file, stderr=file)
    try:

        def alive() -> None:
            assert server.poll() is None, output.read_text()[-3000:]

        until(lambda: len(shop.read("cdc")) == COUNT, "the rows of the job", alive)
        client = [sys.executable, "-m", "tests.system.connect_client", f"sc://127.0.0.1:{port}"]
        client += [shop.bootstrap, shop.cluster, str(COUNT), str(tmp_path)]
        paths = f"{ROOT}:{environment['PYTHONPATH']}"
        said = subprocess.run(client, env={**environment, "PYTHONPATH": paths}, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr[-3000:] + output.read_text()[-3000:]
        refused, found = said.stdout.splitlines()
        assert refused == "connect_unsupported"
        assert json.loads(found) == {"batch": list(range(COUNT)), "stream": list(range(COUNT))}
        server.terminate()
        assert server.wait(120) == 0, output.read_text()[-3000:]
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()

"""A Spark standalone master and worker from PySpark's jars, each in its own JVM, on free loopback ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from tests.system.cdc_world import until

from ringlog.kernel.values import Value

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
MASTER = re.compile(r"Starting Spark master at (spark://[\d.]+:\d+)")
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def bare_environment() -> dict[str, str]:
    """Return this process's environment without any reference to this checkout."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "RINGLOG_"))
    }
    kept.pop("PYTHONPATH", None)
    return kept | {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}


class SparkCluster(Value):
    """``url`` of the master, and the process of the only worker."""

    url: str
    worker: subprocess.Popen[bytes]

    def executors(self) -> list[int]:
        """Return the process ids of the worker's live executors."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                command = (path.parent / "cmdline").read_text()
            except (OSError, ValueError):
                continue
            if parent == self.worker.pid and "CoarseGrainedExecutorBackend" in command:
                found.append(int(path.parent.name))
        return found


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Run a cluster of one worker with two cores; end both processes and the executors at the end."""
    with ExitStack() as running:

        def start(name: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
            log = folder / f"{name}.log"
            output = running.enter_context(log.open("wb"))
            environment = bare_environment() | {"SPARK_DAEMON_JAVA_OPTS": QUICK, "SPARK_DAEMON_MEMORY": "256m"}
            process = subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), *command],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
            )
            running.callback(end, process)
            return process, log

        def has(process: subprocess.Popen[bytes], log: Path, wanted: str) -> re.Match[str]:
            def alive() -> None:
                assert process.poll() is None, log.read_text()[-3000:]

            return until(lambda: re.search(wanted, log.read_text()), f"{wanted!r} in {log.name}", alive)

        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master, log = start("master", "org.apache.spark.deploy.master.Master", *where)
        url = has(master, log, MASTER.pattern).group(1)
        sizes = ("--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"))
        worker, log = start("worker", "org.apache.spark.deploy.worker.Worker", *where, *sizes, url)
        has(worker, log, "Successfully registered with master")
        yield SparkCluster(url, worker)


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process, or kill it."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def submit(
    master: str, program: Path, *arguments: str, settings: Mapping[str, str] | None = None, **options: str
) -> list[str]:
    """Return a command line of ``spark-submit``; ``options`` by its names, with ``_`` for ``-``."""
    found = [str(SPARK / "bin" / "spark-submit"), "--master", master]
    for name, value in options.items():
        found += [f"--{name.replace('_', '-')}", value]
    sizes = {"spark.executor.memory": "600m", "spark.executor.extraJavaOptions": QUICK}
    for name, value in (sizes | {"spark.driver.extraJavaOptions": QUICK} | dict(settings or {})).items():
        found += ["--conf", f"{name}={value}"]
    return [*found, str(program), *arguments]


def worker_python(folder: Path) -> Path:
    """Return the Python of a worker: it has the project's dependencies but not the project."""
    path = folder / "worker-python"
    libraries = Path(pyspark.__file__).parents[1]
    # Without the site module, editable installations are not on the path.
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{libraries}" exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


def driver_environment(python: Path) -> Mapping[str, str]:
    """Return the environment of ``spark-submit``: this interpreter for the driver, ``python`` for the workers."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("services", "streaming", "schemas"))
    return bare_environment() | {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": paths,
    }

"""The effect of class archives on the start of a broker and on the first query of a Spark session.

    make archives && python bench/class_archives.py [ROUNDS]

Prints, with and without archives in turn, the seconds until a broker answers, and the processor time of the JVM until a
local session has answered a query.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from confluent_kafka.admin import AdminClient
from tests.plain_stack import plain_stack

from ringlog.stack import broker
from ringlog.stack.java import BROKER, SPARK, path_of
from ringlog.stack.layout import StackLayout, StackSettings
from ringlog.stack.processes import choose

USES = "-XX:SharedArchiveFile"
CLUSTER_ID = "bench-class-archives--"
QUERY = """
import os
from pathlib import Path
from pyspark import SparkContext
from ringlog.stack import java as class_archives
if {without}:
    class_archives.options = lambda name: ()
from ringlog_cdc.driver.session import open_session
session = open_session("bench", (), "local[2]", memory="1g", java_options="-XX:TieredStopAtLevel=1")
session.range(1000).selectExpr("id % 7 AS k").groupBy("k").count().collect()
stat = Path(f"/proc/{{SparkContext._gateway.proc.pid}}/stat").read_text().rsplit(")", 1)[1].split()
print("seconds", (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"))
session.stop()
"""


def of_broker(*, without: bool) -> float:
    """Seconds until a fresh broker answers, formatting of its storage included."""
    with tempfile.TemporaryDirectory(prefix="ringlog-bench-") as name:
        plain_stack(Path(name))
        layout = StackLayout(Path(name))
        settings = StackSettings(CLUSTER_ID, *choose(2), "dev", 1)
        broker.write_files(layout, settings)
        silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        began = time.perf_counter()
        subprocess.run(_options(broker.format_command(layout, settings), without), check=True, **silent)
        process = subprocess.Popen(_options(broker.run_command(layout), without), **silent)
        try:
            admin = AdminClient({"bootstrap.servers": f"{broker.HOST}:{settings.broker_port}", "log_level": 0})
            admin.list_topics(timeout=60)
            return time.perf_counter() - began
        finally:
            process.terminate()
            process.wait()


def of_session(*, without: bool) -> float:
    """Seconds of processor time."""
    ran = subprocess.run([sys.executable, "-c", QUERY.format(without=without)], capture_output=True, check=True)
    return float(ran.stdout.decode().rpartition("seconds ")[2])


def _options(command: list[str], without: bool) -> list[str]:
    return [part for part in command if not (without and part.startswith(USES))]


def main() -> None:
    """Measure in turns and print."""
    missing = [name for name in (BROKER, SPARK) if not path_of(name).is_file()]
    if missing:
        sys.exit(f"no archive of {', '.join(missing)}: make archives")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for text, measure in (("broker answers after, s", of_broker), ("session's first query, s of JVM", of_session)):
        found: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            for without in found:
                found[without].append(measure(without=without))
        before, after = statistics.median(found[True]), statistics.median(found[False])
        print(f"{text:34} without {before:5.2f}  with {after:5.2f}  ratio {after / before:.2f}")


if __name__ == "__main__":
    main()

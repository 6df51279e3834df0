"""The job gets a stop signal while its Spark starts: it ends successfully, and no JVM remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.cdc_world import until
from tests.system.spark_cluster import driver_environment

pytestmark = [pytest.mark.system, pytest.mark.spark]


def jvms(parent: int) -> list[Path]:
    """Return the child processes that run Java."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            is_child = int(path.read_text().rpartition(")")[2].split()[1]) == parent
            if is_child and "java" in (path.parent / "cmdline").read_text():
                found.append(path.parent)
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_early_signal_to_the_group_leaves_no_jvm(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "ringlog_cdc", "run", "--bootstrap", "127.0.0.1:1", "--cluster", "none"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--java-options", "-XX:TieredStopAtLevel=1"]
    process = subprocess.Popen(
        command,
        env=driver_environment(Path(sys.executable)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    (jvm,) = until(lambda: jvms(process.pid), "a JVM")
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    until(lambda: not jvm.exists(), "the end of the JVM")
    assert not (tmp_path / "checkpoint").exists()

"""Which Spark the job takes, and what it says of one that it cannot run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.connect.session import SparkSession as ConnectSession

from ringlog_cdc.errors import CdcError
from ringlog_cdc.session import check_session, import_probe, open_session

LIBRARIES = Path(pyspark.__file__).parents[1]
LOAD = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(0))"


def asked(path: Path) -> str:
    """What the probe says in a Python that has only ``path`` beside its own library."""
    probe = cloudpickle.dumps(import_probe())
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.append({str(path)!r}); {LOAD}"]
    return subprocess.run(command, input=probe, stdout=subprocess.PIPE, check=True, env={}).stdout.decode().strip()


def test_a_worker_says_what_it_lacks() -> None:
    # Without the site module what is installed as editable is not there, and everything else is.
    assert asked(LIBRARIES) == "ModuleNotFoundError: No module named 'ringlog_cdc'"


def test_a_worker_that_has_all_lacks_nothing() -> None:
    assert import_probe()(0) == ""


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_the_job_refuses_spark_connect_by_its_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "sc://127.0.0.1:1")
    with pytest.raises(CdcError) as caught:
        open_session("test", (), None)
    assert caught.value.code == "connect_unsupported"


def test_the_job_refuses_spark_connect_by_its_master_and_by_its_session() -> None:
    with pytest.raises(CdcError) as caught:
        open_session("test", (), "sc://127.0.0.1:1")
    assert caught.value.code == "connect_unsupported"
    with pytest.raises(CdcError) as caught:
        check_session(ConnectSession.__new__(ConnectSession))  # type: ignore[arg-type]
    assert caught.value.code == "connect_unsupported"


def test_a_spark_that_does_not_start_is_one_line_and_not_a_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringlog_cdc", "run", "--bootstrap", "127.0.0.1:1", "--cluster", "none"]
    command += ["--checkpoint", str(tmp_path / "checkpoint")]
    said = subprocess.run(command, env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("ringlog cdc: spark_not_started: ")
    assert "Traceback" not in said.stderr
    assert not (tmp_path / "checkpoint").exists()

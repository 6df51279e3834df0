"""Supported Spark sessions of the job, and its errors for unsupported ones."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import zipfile
import zipimport
from pathlib import Path

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.connect.session import SparkSession as ConnectSession

from ringlog_cdc.bulk import workers
from ringlog_cdc.bulk.workers import settle
from ringlog_cdc.driver.session import check_session, import_probe, open_session
from ringlog_cdc.errors import CdcError
from tests.refusals import raises_code

LIBRARIES = Path(pyspark.__file__).parents[1]
LOAD = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(0))"


def run_probe(path: Path) -> str:
    """Return the probe's output in a Python with only ``path`` and its own library."""
    probe = cloudpickle.dumps(import_probe())
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.append({str(path)!r}); {LOAD}"]
    return subprocess.run(command, input=probe, stdout=subprocess.PIPE, check=True, env={}).stdout.decode().strip()


def test_a_worker_reports_missing_packages() -> None:
    # Without the site module, editable installs are missing and all other packages are present.
    assert run_probe(LIBRARIES) == "ModuleNotFoundError: No module named 'ringlog_cdc'"


def test_a_complete_worker_reports_nothing() -> None:
    assert import_probe()(0) == ""


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_the_job_refuses_spark_connect_by_its_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "sc://127.0.0.1:1")
    with raises_code(CdcError, "connect_unsupported"):
        open_session("test", (), None)


def test_the_job_refuses_spark_connect_by_its_master_and_by_its_session() -> None:
    with raises_code(CdcError, "connect_unsupported"):
        open_session("test", (), "sc://127.0.0.1:1")
    with raises_code(CdcError, "connect_unsupported"):
        check_session(ConnectSession.__new__(ConnectSession))  # type: ignore[arg-type]


def test_a_failed_spark_start_is_reported_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringlog_cdc", "run", "--bootstrap", "127.0.0.1:1", "--cluster", "none"]
    command += ["--checkpoint", str(tmp_path / "checkpoint")]
    said = subprocess.run(command, env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("ringlog cdc: spark_not_started: ")
    assert "Traceback" not in said.stderr
    assert not (tmp_path / "checkpoint").exists()


# Work that a worker skips between tasks; modules in zip files stay importable.


def test_zip_importers_are_removed_until_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_left", [2])  # other tests of this process may have been its first tasks
    path = tmp_path / "modules.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("in_a_zip_file.py", "VALUE = 1\n")
        file.writestr("in_a_zip_file_too.py", "VALUE = 2\n")
    monkeypatch.syspath_prepend(path)
    assert importlib.import_module("in_a_zip_file").VALUE == 1
    assert isinstance(sys.path_importer_cache[str(path)], zipimport.zipimporter)
    settle()
    assert str(path) not in sys.path_importer_cache
    assert importlib.import_module("in_a_zip_file_too").VALUE == 2
    before = gc.get_freeze_count()
    settle()
    assert str(path) not in sys.path_importer_cache
    assert gc.get_freeze_count() > before


FAULTS = """
import resource
import numpy as np
from ringlog_cdc.bulk.workers import _keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        columns = [np.ones(size) for size in (250_000, 30_000, 300_000)]
        del columns
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
kept = _keep_memory()
faults()
print(int(kept), first, faults())
"""


def test_freed_memory_stays_with_the_worker() -> None:
    """This applies if the C library has the setting: the worker requests no new pages."""
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, before, after = map(int, found.stdout.split())
    assert not kept or after < before / 10

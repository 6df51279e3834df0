"""What a worker is spared between tasks: modules in zip files can be imported all the same."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from ringlog_cdc.workers import settle


def test_importers_of_zip_files_are_forgotten_until_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    settle()
    assert str(path) not in sys.path_importer_cache
    assert gc.get_freeze_count() > 0


FAULTS = """
import resource
import numpy as np
from ringlog_cdc.workers import _keep_memory

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


def test_memory_that_was_freed_stays_with_the_worker() -> None:
    """Where the C library can be told so: no page is asked for anew."""
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, before, after = map(int, found.stdout.split())
    assert not kept or after < before / 10

"""What a worker is spared between tasks: modules in zip files can be imported all the same."""

from __future__ import annotations

import gc
import importlib
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

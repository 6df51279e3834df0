"""A keeper whose Redis or archive cannot be named ends before it takes the role from one that works; it asks nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringlog.agents.exits import CRASHED, HALTED

SECRET = "the-secret"


@pytest.mark.parametrize(
    ("variable", "value", "status", "code"),
    [
        ("RINGLOG_REDIS_URL", f"redis+sentinel://:{SECRET}@127.0.0.1", HALTED, "bad_redis_url"),
        ("RINGLOG_ARCHIVE", f"nothing-like-it://me:{SECRET}@h/a", HALTED, "archive_place_unknown"),
        ("RINGLOG_ARCHIVE", f"ftp://me:{SECRET}@127.0.0.1:1/a", CRASHED, "archive_unavailable"),
    ],
)
def test_what_is_wrong_is_the_end_of_the_keeper(
    tmp_path: Path, variable: str, value: str, status: int, code: str
) -> None:
    places = {"RINGLOG_DATA_DIR": str(tmp_path), "RINGLOG_BOOTSTRAP_SERVERS": "127.0.0.1:1", variable: value}
    kept = {name: given for name, given in os.environ.items() if not name.startswith("RINGLOG_")}
    kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "ringlog.agents", "keeper"]
    ended = subprocess.run(command, env=kept | places, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert (ended.returncode, f"not started: {code}: " in said) == (status, True), said
    assert SECRET not in said
    assert list(tmp_path.iterdir()) == []

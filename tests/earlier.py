"""The package of release 0.1.0, taken from the history of this repository, for processes of it beside those of now."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.tidy.files import ROOT

RELEASE, COMMIT = "0.1.0", "91c3b09"
PACKAGES = "services", "schemas", "streaming"


def environment_of(folder: Path) -> dict[str, str]:
    """In which Python finds that release, below ``folder``; the test is skipped where this checkout has no history."""
    asked = ["git", "archive", "--format=tar", "-o", str(folder / "it.tar"), COMMIT, *PACKAGES]
    try:
        subprocess.run(asked, cwd=ROOT, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"this checkout does not have the history of {RELEASE}")
    subprocess.run(["tar", "-xf", "it.tar"], cwd=folder, check=True)
    return {"PYTHONPATH": os.pathsep.join(str(folder / package) for package in PACKAGES)}

"""The image and a namespace of containers, for root with podman only."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.containers.podman import build


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of the image, built as ``make image`` does."""
    if os.geteuid() != 0 or not shutil.which("podman"):
        pytest.skip("needs root and podman: `make containers` installs it")
    build(tmp_path_factory.mktemp("image") / "build.log")
    return "ringlog:local"

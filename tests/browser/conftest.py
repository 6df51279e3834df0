"""Chromium, driven by Playwright, for machines that have both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Start the browser of the distribution."""
    program = shutil.which("chromium")
    if program is None or find_spec("playwright") is None:
        pytest.skip("needs chromium and Playwright: `make browser` installs them")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root has no sandbox. The pages come from this process.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()

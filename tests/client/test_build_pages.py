"""Run the samples of ``docs/build`` that need no broker."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.tidy.files import ROOT


def samples(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    text = (ROOT / "docs" / "build" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_sample_test_passes() -> None:
    names: dict[str, Any] = {}
    exec(samples("testing.md")[0], names)
    names["test_my_program_waits_for_an_entry_that_is_held"]()


@pytest.mark.parametrize(("page", "number"), [("own-node.md", 1), ("change-topics.md", 1)])
def test_the_sample_runs(page: str, number: int) -> None:
    exec(samples(page)[number], {})

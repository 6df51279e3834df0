"""Run the Python samples of ``docs/build`` that need no broker. ``tests/stack`` checks the types of all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ringlog_schemas import catalog
from tests.tidy.files import ROOT

PAGES = sorted((ROOT / "docs" / "build").glob("*.md"))


def samples(page: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_sample_tests_pass() -> None:
    names: dict[str, Any] = {}
    first, second = samples(ROOT / "docs/build/testing.md")[:2]
    exec(first, names)
    assert first.count("\n") <= 10
    names["test_my_first_keyspace"](names["FakeCluster"]())
    exec(second, names)
    names["test_my_program_waits_for_an_entry_that_is_held"]()


@pytest.mark.parametrize("page", ["own-node.md", "change-topics.md"])
def test_the_second_sample_runs(page: str) -> None:
    exec(samples(ROOT / "docs" / "build" / page)[1], {})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in set(re.findall(r"`(ringlog(?:_[a-z]+)?(?:\.\w+)+)", text)) - {*catalog()}:
        *parts, last = name.split(".")
        roots = [ROOT / top / Path(*parts) for top in ("services", "streaming", "schemas")]
        inside = [root / name for root in roots for name in (last, f"{last}.py", "__init__.py")]
        places = [*inside, *(root.with_suffix(".py") for root in roots)]
        found = [path for path in places if path.exists() and (path.stem == last or last in path.read_text())]
        assert found or name in NO_MODULES, name


NO_MODULES = {"ringlog.commands", "ringlog.version", "ringlog.cdc", "ringlog.mutations", "ringlog.range_delete"}
"""Names of the wire format."""

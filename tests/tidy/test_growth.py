"""Each bound in the guide about growth names the test that shows it, and the test is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.files import ROOT

GUIDE = ROOT / "docs" / "guide" / "growth.md"
SECTIONS = "Topics", "The state", "Memory and files of processes"
YOURS = {("Topics", "`dead-letters`"), ("Memory and files of processes", "node: registers")}
"""What is the user's own to bound."""


def rows() -> Iterator[tuple[str, str, str]]:
    """(section, what grows, what shows the bound) of each row."""
    text = GUIDE.read_text(encoding="utf-8")
    for section in SECTIONS:
        lines = text.split(f"## {section}\n")[1].split("\n## ")[0].splitlines()
        head, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:2] == "| "]
        assert head[-1] == "shown by", section
        assert {len(row) for row in body} == {len(head)}, section
        yield from ((section, row[0], row[-1]) for row in body)


def fault(named: str) -> str:
    """What is wrong with the name of a test, empty: it is there."""
    path, _, name = named.partition("::")
    file = ROOT / "tests" / path
    if not file.is_file():
        return f"no file tests/{path}"
    found = {node.name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if hasattr(node, "name")}
    return "" if name.startswith("test_") and name in found else f"no {name} in tests/{path}"


def test_each_bound_has_the_test_that_shows_it() -> None:
    found = list(rows())
    assert len(found) >= 50
    assert {(section, what) for section, what, shown in found if shown == "yours"} == YOURS
    assert [(what, why) for _, what, shown in found if shown != "yours" and (why := fault(shown.strip("`")))] == []


def test_a_test_that_is_gone_would_be_missed() -> None:
    here = "tidy/test_growth.py"
    assert fault(f"{here}::test_each_bound_has_the_test_that_shows_it") == ""
    assert fault(f"{here}::test_each_bound") == f"no test_each_bound in tests/{here}"
    assert fault(f"{here}::fault") == f"no fault in tests/{here}"
    assert fault("tidy/test_gone.py::test_gone") == "no file tests/tidy/test_gone.py"

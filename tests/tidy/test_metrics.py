"""Figures are declared once: what the sources show is in the table, and what the table has is shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from ringlog.runtime.figures import FIGURES, JOB
from tests.tidy.files import python_files


@cache
def shown_names() -> frozenset[str]:
    """First arguments of ``Sample`` in the sources."""

    def found() -> Iterator[str]:
        for path in python_files("services", "streaming"):
            content = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(content)) if "Sample(" in content else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Sample":
                    name = node.args[0]
                    assert isinstance(name, ast.Constant), f"{path}: names are written where they are shown"
                    yield str(name.value)

    return frozenset(found())


def test_what_is_shown_is_in_the_table() -> None:
    assert shown_names() - FIGURES.keys() == set()


def test_what_the_table_has_is_shown() -> None:
    assert {name for name, figure in FIGURES.items() if figure.by != JOB} - shown_names() == set()


def test_the_job_shows_what_the_table_has_of_it() -> None:
    source = next(path for path in python_files("streaming") if path.name == "metrics.py")
    names = re.findall(r'(?:_counter|_gauge)\("([a-z_]+)"\)|\("([a-z_]+_seconds)", [a-z_]+\)', source.read_text())
    assert {f"ringlog_cdc_{one or other}" for one, other in names} == {
        name for name, figure in FIGURES.items() if figure.by == JOB
    }

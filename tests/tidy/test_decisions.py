"""Each decision record has its fields and its row in the table, and every cited record exists."""

from __future__ import annotations

import re

from tests.tidy.files import ROOT, files, shown, text

FOLDER = ROOT / "docs/decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
CITED = re.compile(r"\bdecisions?\s+((?:\d+(?:, rule \d+)?(?:,? and |, )?)+)", re.IGNORECASE)


def numbers() -> set[int]:
    return {int(path.name[:4]) for path in RECORDS}


def test_each_record_begins_with_title_status_date_and_supersedes() -> None:
    for path in RECORDS:
        title, *rest = path.read_text(encoding="utf-8").split("\n", 5)
        number, words = re.fullmatch(r"# (\d+)\. (.+)", title).groups()  # type: ignore[union-attr]
        assert path.name.startswith(f"{int(number):04d}-"), path.name
        assert len(words.split()) <= 10, title
        assert [line.split(":")[0] for line in rest[1:4]] == ["- Status", "- Date", "- Supersedes"], path.name


def test_the_table_has_each_record() -> None:
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| \[(\d+)\]\(([^)]+)\) \| ([^|]+) \|", table, re.MULTILINE)
    there = [(path.name, path.read_text(encoding="utf-8").split("\n", 1)[0]) for path in RECORDS]
    assert [(name, f"# {number}. {title}") for number, name, title in found] == there


def cited(content: str) -> set[int]:
    """Return the numbers of records that a text cites in words, such as ``decisions 31 and 89``."""
    runs = (re.sub(r"rule \d+", "", run) for run in CITED.findall(content))
    return {int(number) for run in runs for number in re.findall(r"\d+", run)}


def test_each_cited_record_exists() -> None:
    wrong = {
        shown(path): gone
        for path in files()
        if path.suffix in (".py", ".md", ".avsc")
        and path.parent != FOLDER
        and shown(path) != "tests/tidy/test_decisions.py"
        if (gone := cited(text(path) or "") - numbers())
    }
    assert wrong == {}


def test_citations_are_found() -> None:
    assert cited("Source: decisions 54, rule 7, and 152; RFC 2104.") == {54, 152}
    assert cited("see [decision\n33](x)") == {33}

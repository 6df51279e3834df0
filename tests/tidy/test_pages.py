"""Pages have valid links and anchors, an index in each folder, and a language for each block."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import markdown
from tests.tidy.files import ROOT, files, shown

PAGES = tuple(path for path in files() if path.suffix == ".md")
DOCS = ROOT / "docs"
FOLDERS = tuple(sorted({path.parent for path in PAGES if path.is_relative_to(DOCS)}))
LANGUAGES = frozenset(
    {
        "avro", "c", "console", "cql", "diff", "dockerfile", "go", "ini", "java", "javascript", "json", "jsonl",
        "makefile", "mermaid", "properties", "promql", "proto", "python", "scala", "sh", "sql", "text", "toml", "yaml",
    }
)  # fmt: skip
NOT_INDEXED = frozenset({"README.md"})


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(markdown.broken_links(page)) == []


def missing_from_index(folder: Path) -> set[str]:
    """Return the pages and folders that the index of a folder does not link to; the index itself if there is none."""
    index = folder / "README.md"
    if not index.exists():
        return {"README.md"}
    linked = {(folder / path).resolve() for path, _ in markdown.links(index.read_text(encoding="utf-8")) if path}
    pages = {path for path in folder.glob("*.md") if path.name != "README.md"}
    inner = {path.parent for path in folder.glob("*/README.md")}
    missing = {page for page in pages if page not in linked}
    missing |= {one for one in inner if one not in linked and one / "README.md" not in linked}
    return {path.name for path in missing}


@pytest.mark.parametrize("folder", FOLDERS, ids=shown)
def test_each_folder_has_an_index_of_its_pages(folder: Path) -> None:
    assert missing_from_index(folder) == set()


def faults_of_blocks(text: str) -> list[str]:
    """Return the blocks of a page that break a rule: no language, an unknown one, a prompt before a command."""
    found = [f"line {line}: code without a fence" for line in markdown.indented_code(text)]
    for block in markdown.blocks(text):
        if block.language not in LANGUAGES:
            found.append(f"line {block.line}: {block.language or 'no language'}")
        elif block.language == "sh" and any(line.startswith(("$ ", "> ")) for line in block.text.splitlines()):
            found.append(f"line {block.line}: a prompt in a block to type")
    return found


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_each_block_is_fenced_and_names_its_language(page: Path) -> None:
    assert faults_of_blocks(page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# Title\n\n## A `b` c, d\n\n## Title\n\n```sh\n# no heading\n```\n")
    page.write_text(
        "[a](other.md) [b](other.md#a-b-c-d) [c](#here) [d](other.md#title-1) [e](https://example.org)\n\n# Here\n\n"
        "`[no](link.md)`\n\n[x](gone.md) [y](other.md#no-heading) [z](#gone) ![i](gone.svg)\n\n[r]: gone.txt\n"
    )
    lost = {"gone.md", "gone.svg", "gone.txt"}
    assert {one.split(":")[0] for one in markdown.broken_links(page)} == lost | {"other.md#no-heading", "#gone"}


def test_a_page_missing_in_the_index_is_found() -> None:
    folder = DOCS / "decisions"
    pages = {path.name for path in folder.glob("[0-9]*.md")}
    assert len(pages) > 40
    assert missing_from_index(ROOT / "tests" / "testdata") == {"README.md"}


def test_a_block_without_a_language_is_found() -> None:
    page = "Text\n\n    indented\n\n- item\n\n    more\n\n```\nbare\n```\n\n"
    page += "```sh\n$ ls\n```\n\n```sh\nls\n```\n\n```html\n```\n"
    assert faults_of_blocks(page) == [
        "line 3: code without a fence",
        "line 9: no language",
        "line 13: a prompt in a block to type",
        "line 21: html",
    ]

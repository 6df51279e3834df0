"""Texts avoid the words that the glossary rules out.

A text is a comment, a docstring, a message or a help text of a Python file, the ``doc`` of a schema, or a page. The
second table of ``docs/glossary.md`` has the words; this module does not repeat them. Names in code are not text: words
in backquotes, in braces of a format, or alone in a string are skipped.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.files import ROOT, files, python_files, shown, text

GLOSSARY = "docs/glossary.md"
SOURCES = ("services", "streaming", "schemas", "bench")
NOT_IN_WORDS = re.compile(r"``.*?``|`[^`\n]*`|\{[^{}]*\}")
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


@cache
def ruled_out() -> re.Pattern[str]:
    """Return the words in the first column of the glossary's table ``Not used``."""
    table = (ROOT / GLOSSARY).read_text().partition("## Not used")[2]
    found = re.findall(r"^\| \*([a-z ]+)\* \|", table, re.MULTILINE)
    return re.compile(r"\b(?:" + "|".join(found) + r")\b", re.IGNORECASE)


def texts_of_python(content: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the comments and strings of a Python file; adjacent ones are one text."""
    run: list[str] = []
    begun = 0
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            begun = begun if run else token.start[0]
            run.append(token.string.strip("#fFrRbBuU\"'"))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT) and run:
            yield begun, " ".join(run)
            run = []


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the prose in a file."""
    content = text(path) or ""
    if path.suffix == ".py":
        yield from texts_of_python(content)
    elif path.suffix == ".avsc":
        yield from (
            (1, doc) for doc in re.findall(r'"doc": ("(?:[^"\\]|\\.)*")', content) for doc in (json.loads(doc),)
        )
    else:
        yield 1, FENCED.sub("", content)


def offences(path: Path) -> list[str]:
    """Return the words that the glossary rules out, with their context."""
    found = []
    for line, words in texts(path):
        plain = " ".join(NOT_IN_WORDS.sub("", words).split())
        if " " not in plain:
            continue
        for hit in ruled_out().finditer(plain):
            found.append(f"{line}: {plain[max(hit.start() - 40, 0) : hit.end() + 30]}")
    return found


def checked() -> tuple[Path, ...]:
    """Return the files whose texts are for readers of the product."""
    pages = (
        path for path in files() if path.suffix == ".md" and shown(path).startswith(("docs/", "README", "CHANGELOG"))
    )
    pages = (path for path in pages if shown(path) != GLOSSARY)
    schemas = (path for path in files() if path.suffix == ".avsc")
    return (*python_files(*SOURCES), *schemas, *pages)


def test_no_text_has_a_word_that_the_glossary_rules_out() -> None:
    assert {shown(path): found for path in checked() if (found := offences(path))} == {}


def test_a_ruled_out_word_is_found(tmp_path: Path) -> None:
    assert ruled_out().pattern.count("|") >= 4
    room = tmp_path / "room.py"
    room.write_text('"""Who is\ntold."""\ntold = f"{told} ``told``"  # Whoever asks.\nother = "told"\n')
    assert len(offences(room)) == 2


TERM_ROW = re.compile(r"^\| ([^|*]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
WORDS_MAX = 18
"""The maximum number of words of a cell: each explanation is one line."""


def test_each_word_of_the_glossary_is_explained_once_by_one_line_and_an_example() -> None:
    page = (ROOT / GLOSSARY).read_text().partition("## Node states")[0]
    rows = [row for row in TERM_ROW.findall(page) if row[0] not in ("word", "---")]
    words = [word.strip() for word, _, _ in rows]
    assert len(words) == len(set(words)) >= 90
    assert [cells for cells in rows if max(len(cell.split()) for cell in cells) > WORDS_MAX] == []


def test_another_page_uses_each_word_of_the_glossary() -> None:
    page = (ROOT / GLOSSARY).read_text().partition("## Node states")[0]
    pages = (path for path in files() if path.suffix == ".md" and shown(path).startswith("docs/"))
    used = " ".join(" ".join((text(path) or "").lower().split()) for path in pages if shown(path) != GLOSSARY)
    words = {word for cell, _, _ in TERM_ROW.findall(page) for word in cell.split(", ")} - {"word", "---"}
    assert sorted(word for word in words if word.lower() not in used) == []


def test_the_sections_follow_the_pages_of_the_concepts() -> None:
    page = (ROOT / GLOSSARY).read_text()
    linked = re.findall(r"^Explained in \[[^]]+\]\(concepts/([a-z-]+\.md)\)\.$", page, re.MULTILINE)
    listed = re.findall(r"\]\(([a-z-]+\.md)\)", (ROOT / "docs/concepts/README.md").read_text())
    assert linked == listed

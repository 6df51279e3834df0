"""Pages, docstrings and help keep the rules of ``docs/internals/style.md``: few flagged sentences, short pages.

Four projects with good documentation (etcd, TigerBeetle, Temporal, Datasette) have 2 to 4 % flagged sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.files import ROOT, files, python_files, shown
from tests.tidy.prose import RULES, WORDS_MAX, Sentence, of_markdown, of_python
from tests.tidy.test_size import package_of

SHARE_MAX = 0.05
SHORT_PAGE = 20
"""A page with fewer sentences may have one flagged sentence."""
PAGE_BYTES_MAX = 15_000
README_LINES_MAX = 150
NOT_FOR_USERS = ("docs/internals/", "docs/decisions/", "docs/reference/")
"""Pages for developers of the project, and generated pages, may be long."""

PAGES = tuple(path for path in files() if path.suffix == ".md")
PACKAGES = sorted({package_of(path) for path in python_files()})


def faults(where: str, sentences: Sequence[Sentence]) -> list[str]:
    """Return each sentence that is too long, and the flagged ones if there are too many of them."""
    flagged = [sentence for sentence in sentences if sentence.broken]
    is_short = len(sentences) < SHORT_PAGE
    shown_ones = [one for one in sentences if one.words > WORDS_MAX]
    if len(flagged) > (1 if is_short else SHARE_MAX * len(sentences)):
        shown_ones += flagged
    return [f"{where}:{one.line}: {', '.join(one.broken)}: {one.text}" for one in shown_ones]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_page_is_plain_english(page: Path) -> None:
    assert faults(shown(page), [*of_markdown(page.read_text(encoding="utf-8"))]) == []


@cache
def sentences_of(path: Path) -> tuple[Sentence, ...]:
    return tuple(of_python(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_help_of_a_package_are_plain_english(package: str) -> None:
    paths = [path for path in python_files() if package_of(path) == package]
    sentences = [sentence for path in paths for sentence in sentences_of(path)]
    flagged = [f"{shown(path)}:{one.line}: {one.text}" for path in paths for one in sentences_of(path) if one.broken]
    long = [f"{shown(path)}:{one.line}: {one.text}" for path in paths for one in sentences_of(path) if is_long(one)]
    assert long == []
    assert len(flagged) <= max(1, SHARE_MAX * len(sentences)), flagged


def is_long(sentence: Sentence) -> bool:
    """Return whether a sentence has more words than any sentence may have."""
    return sentence.words > WORDS_MAX


def too_long(name: str, text: str) -> str | None:
    """Return the fault in the length of a page for users, or None."""
    if name == "README.md" and (lines := text.count("\n")) > README_LINES_MAX:
        return f"{lines} lines"
    is_for_users = name == "README.md" or (name.startswith("docs/") and not name.startswith(NOT_FOR_USERS))
    size = len(text.encode())
    return f"{size} bytes" if is_for_users and size > PAGE_BYTES_MAX else None


def test_no_page_for_users_is_long() -> None:
    found = {shown(page): too_long(shown(page), page.read_text(encoding="utf-8")) for page in PAGES}
    assert {name: fault for name, fault in found.items() if fault} == {}


BAD = {
    "clause as subject": "What cannot begin waits.",
    "where for if": "Where the port is in use, the node chooses another.",
    "fronted of-phrase": "Of the nodes two are down.",
    "nobody, somebody": "A node that nobody asked.",
    "preposition + which": "The node to which it sends.",
    "what-clause": "It shows what is there.",
    "household verb": "The node goes on with it.",
    "is no": "The node is no member.",
    "long sentence": " ".join(["Nodes", *["and"] * 40, "nodes."]),
}
"""One sentence for each rule that breaks this rule alone."""


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_its_sentence(rule: str) -> None:
    (found,) = of_markdown(BAD[rule])
    assert found.broken == (rule,)


def test_a_page_with_many_flagged_sentences_is_refused() -> None:
    good = "The node stores the row.\n\n"
    bad = BAD["is no"] + "\n\n"
    assert faults("page", [*of_markdown(good * 5 + bad)]) == []
    assert len(faults("page", [*of_markdown(good * 5 + bad * 2)])) == 2
    assert faults("page", [*of_markdown(good * 38 + bad * 2)]) == []
    assert len(faults("page", [*of_markdown(good * 37 + bad * 3)])) == 3
    assert len(faults("page", [*of_markdown(good * 50 + BAD["long sentence"])])) == 1


def test_a_long_page_is_refused() -> None:
    assert too_long("docs/page.md", "x" * (PAGE_BYTES_MAX + 1)) == "15001 bytes"
    assert too_long("docs/reference/page.md", "x" * (PAGE_BYTES_MAX + 1)) is None
    assert too_long("README.md", "\n" * (README_LINES_MAX + 1)) == "151 lines"
    assert too_long("README.md", "\n" * README_LINES_MAX) is None


def texts(page: str) -> list[str]:
    return [sentence.text for sentence in of_markdown(page)]


def test_code_tables_and_headings_are_not_sentences() -> None:
    page = "# What is no title\n\nOne `what is` two\nthree. Four five six.\n\n```sh\nwhat is this\n```\n"
    assert texts(page) == ["One CODE two three.", "Four five six."]
    assert texts("| head one two | b |\n|---|---|\n| cell one two | c |\n") == ["head one two", "cell one two"]
    assert texts("- item one two\n  and three\n- item [four](five.md) six\n") == [
        "item one two and three",
        "item four six",
    ]


def test_docstrings_and_help_are_read_without_tables_and_examples() -> None:
    module = (
        '"""Sum up the rows::\n\n    what is this\n\nOne two three.\n\n===  ===\na    b\n===  ===\nwhat is this here\n'
        '===  ===\n\nSeven eight nine.\n"""\nX = 1\n"""The number of rows."""\noption(help="Name of a node")\n'
        'f("what is this")\n'
    )
    assert [(one.line, one.text) for one in of_python(module)] == [
        (1, "Sum up the rows::"),
        (5, "One two three."),
        (13, "Seven eight nine."),
        (16, "The number of rows."),
        (17, "Name of a node"),
    ]


def test_the_checked_texts_are_not_empty() -> None:
    assert len(PAGES) > 50
    assert len(PACKAGES) > 15
    assert ROOT / "docs/decisions/README.md" in PAGES

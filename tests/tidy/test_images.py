"""Diagrams of the pages have a description, are readable on any background, and appear on a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tidy.files import ROOT, files, shown

IMAGES = ROOT / "docs" / "images"
DIAGRAMS = tuple(path for path in files() if path.suffix == ".svg" and path.parent == IMAGES)
SVG = "{http://www.w3.org/2000/svg}"
WIDTH_MAX = 900
TEXT_MIN_PX = 13
ELSEWHERE = re.compile(r"(?:href|src)=\"(?!#)|url\((?!#)|<script|<foreignObject")


def faults(text: str) -> list[str]:
    """Return the rules that a diagram breaks."""
    root = ElementTree.fromstring(text)
    found = [f"no <{name}>" for name in ("title", "desc") if not (root.findtext(f"{SVG}{name}") or "").strip()]
    if not 0 < float(root.get("width", "0")) <= WIDTH_MAX:
        found.append(f"width: {root.get('width')}")
    if all(one.get("fill") in (None, "none") for one in root.findall(f"{SVG}rect")[:1]):
        found.append("no background")
    sizes = [float(size) for size in re.findall(r"font-size=\"([0-9.]+)", text)]
    found += [f"text of {size} px" for size in sizes if size < TEXT_MIN_PX]
    return found + [f"loads {one}" for one in ELSEWHERE.findall(text)]


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=shown)
def test_each_diagram_can_be_read(diagram: Path) -> None:
    assert faults(diagram.read_text(encoding="utf-8")) == []


def test_a_page_shows_each_diagram() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    used = {name for page in pages for name in re.findall(r"images/([\w-]+\.svg)", page.read_text(encoding="utf-8"))}
    assert sorted(path.name for path in DIAGRAMS if path.name not in used) == []


def test_each_concept_has_a_diagram() -> None:
    pages = sorted((ROOT / "docs" / "concepts").glob("*.md"))
    assert len(pages) >= 7
    assert [shown(page) for page in pages if "](../images/" not in page.read_text(encoding="utf-8")] == []


def test_an_unreadable_diagram_is_found() -> None:
    text = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="1200"><text font-size="9">a</text><image href="a.png"/></svg>'
    )
    assert faults(text) == ["no <title>", "no <desc>", "width: 1200", "no background", "text of 9.0 px", 'loads href="']

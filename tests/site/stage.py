"""The input of the static site: ``python -m tests.site.stage FOLDER`` copies ``docs`` and adds the API reference.

Links that leave ``docs`` (to the README, to tests, to source files) become plain text, because the site has no such
pages. In a list, the generator needs four columns of indentation for each level, and a code host two or three: the
copy has four. Only files that belong to the repository are copied.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tests.site import api
from tests.tidy.files import ROOT, files
from tests.tidy.markdown import FENCE

DOCS = ROOT / "docs"
API = "reference/api"
ITEM = re.compile(r"( *)((?:[-*+]|\d+\.) +)(?=\S)")
LEVEL = 4
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def without_links_out(page: Path, text: str, docs: Path = DOCS) -> str:
    """Return the page with the text of each link that leads out of ``docs`` instead of the link."""

    def kept(found: re.Match[str]) -> str:
        return found[0] if (page.parent / found[2]).resolve().is_relative_to(docs) else found[1]

    return LINK.sub(kept, text)


def with_wide_lists(text: str) -> str:
    """Return the page with four columns of indentation for each level of a list."""
    made: list[str] = []
    columns: list[int] = []  # the text column of each open item
    fence: re.Match[str] | None = None
    for line in text.splitlines():
        found = FENCE.match(line)
        indent = len(line) - len(line.lstrip(" "))
        if fence is None and line.strip():
            is_lazy = bool(made) and bool(made[-1].strip()) and not found
            item = ITEM.match(line)
            while columns and indent < columns[-1] and (item or not is_lazy):
                columns.pop()
        width = columns[-1] if columns else 0
        made.append(" " * LEVEL * len(columns) + line[min(indent, width) :] if line.strip() else "")
        if fence is not None:
            is_end = found is not None and found[2].startswith(fence[2]) and not found[3].strip()
            fence = None if is_end else fence
        elif found:
            fence = found
        elif item := ITEM.match(line):
            columns.append(item.end())
    return "\n".join(made) + "\n"


def stage(folder: Path) -> None:
    """Write the input of the site into a folder, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in files():
        if not path.is_relative_to(DOCS):
            continue
        copy = folder / path.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = without_links_out(path, path.read_text(encoding="utf-8"))
            copy.write_text(with_wide_lists(text), encoding="utf-8")
        else:
            shutil.copy(path, copy)
    api.write(folder / API)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))

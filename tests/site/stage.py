"""The input of the static site: ``python -m tests.site.stage FOLDER`` copies ``docs`` and adds the API reference.

Links that leave ``docs`` (to the README, to tests, to source files) become plain text, because the site has no such
pages. Only files that belong to the repository are copied.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tests.site import api
from tests.tidy.files import ROOT, files

DOCS = ROOT / "docs"
API = "reference/api"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def without_links_out(page: Path, text: str, docs: Path = DOCS) -> str:
    """Return the page with the text of each link that leads out of ``docs`` instead of the link."""

    def kept(found: re.Match[str]) -> str:
        return found[0] if (page.parent / found[2]).resolve().is_relative_to(docs) else found[1]

    return LINK.sub(kept, text)


def stage(folder: Path) -> None:
    """Write the input of the site into a folder, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in files():
        if not path.is_relative_to(DOCS):
            continue
        copy = folder / path.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(without_links_out(path, path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copy(path, copy)
    api.write(folder / API)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))

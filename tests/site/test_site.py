"""The static site: its navigation names each page, it builds without warnings, the API reference is complete."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

from tests.site import api
from tests.site.stage import API, stage, with_wide_lists, without_links_out
from tests.tidy.files import ROOT, files
from tests.tidy.markdown import blocks

CONFIG = ROOT / "zensical.toml"
DOCS = ROOT / "docs"


def in_navigation(entries: list[Any]) -> Iterator[str]:
    """Yield the pages of the navigation, at any depth."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from in_navigation(value) if isinstance(value, list) else [value]


def navigation() -> list[str]:
    return list(in_navigation(tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]))


def test_the_navigation_has_each_page_once() -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in files() if path.suffix == ".md"}
    pages = {name for name in pages if name.startswith("docs/") and not re.match(r"docs/decisions/\d", name)}
    shown = [f"docs/{name}" for name in navigation() if not name.startswith(f"{API}/")]
    assert len(shown) == len(set(shown))
    assert pages - set(shown) == set()
    assert set(shown) - pages == set()


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """A warning is a link to a page or heading that the site does not have; the build then fails."""
    if any(not (DOCS / name).exists() for name in navigation() if not name.startswith(f"{API}/")):
        return
    stage(tmp_path / "build" / "docs")
    (tmp_path / CONFIG.name).write_text(CONFIG.read_text(encoding="utf-8"), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout
    assert (tmp_path / "build" / "site" / "reference" / "api" / "ringlog.client.client" / "index.html").is_file()


def test_links_out_of_the_site_become_text() -> None:
    page = "[a](../README.md) [b](limits.md#x) [c](#here) [d](https://example.org) ![e](../x.svg) [f](../tests/x.py)\n"
    assert without_links_out(DOCS / "page.md", page) == (
        "a [b](limits.md#x) [c](#here) [d](https://example.org) ![e](../x.svg) f\n"
    )


def test_lists_get_the_indentation_of_the_generator() -> None:
    page = """Text

1. One
   goes further.

   ```sh
   ls
     -l
   ```

   | a |
   |---|
2. Two
   - inner
     text
   - other

- last
lazy

```text
  - code
```
 end
"""
    assert (
        with_wide_lists(page)
        == """Text

1. One
    goes further.

    ```sh
    ls
      -l
    ```

    | a |
    |---|
2. Two
    - inner
        text
    - other

- last
    lazy

```text
  - code
```
 end
"""
    )


def test_the_api_reference_has_the_client_and_all_imported_names() -> None:
    made = api.pages()
    assert "## Client\n" in made["ringlog.client.client.md"]
    assert "### Client.submit\n" in made["ringlog.client.client.md"]
    assert made.keys() - {"README.md"} == set(re.findall(r"\]\(([\w.]+\.md)\)", made["README.md"]))
    for module, names in api.public_names().items():
        for name in names:
            assert f"## {name}\n" in made[f"{module}.md"], f"{module}.{name}"
    for name, text in made.items():
        assert [block for block in blocks(text) if not block.language] == [], name


def test_names_are_taken_from_python_blocks() -> None:
    page = "```python\nfrom ringlog.wire.records import Mutation, Cell\nfrom json import loads\n```\n```sh\nls\n```\n"
    assert list(api.imported(page)) == [("ringlog.wire.records", "Mutation"), ("ringlog.wire.records", "Cell")]


def test_docstrings_become_markdown(tmp_path: Path) -> None:
    source = '''"""A module.

===  ===
a    b
===  ===
1    2
===  ===

Use ``f``::

    f(1)
"""


def f(first: int, *, second: str = "a long default value", third: str = "another one", fourth: int = 0) -> str:
    """Return a text.

    Args:
        first: A number.

    Raises:
        ValueError: The number is negative.
    """
    return ""
'''
    (tmp_path / "sample.py").write_text(source, encoding="utf-8")
    module = griffe.load("sample", search_paths=[tmp_path])
    assert isinstance(module, griffe.Module)
    page = api.page(module, set()) or ""
    assert "```text\n===  ===\na    b\n" in page
    assert "Use `f`:\n\n```text\nf(1)\n```\n" in page
    assert "f(\n    first: int,\n    *,\n    second: str = 'a long default value',\n" in page
    assert "| `first` | A number. |" in page
    assert "| `ValueError` | The number is negative. |" in page

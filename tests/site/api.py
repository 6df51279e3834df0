"""The API reference as Markdown pages, generated from docstrings by griffe.

The public API is the package ``ringlog.client`` plus each name that a page in ``docs/build`` imports, so every name on
a page is in the reference.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import griffe

from tests.tidy.files import ROOT, python_files
from tests.tidy.markdown import blocks

SOURCES = ("services", "streaming", "schemas")
CLIENT = "ringlog.client"
SHOWN_BY = "docs/build"
BEHIND = ("ringlog_testing",)
"""Packages whose names public modules export."""
PROGRAM = "ringlog"
INTERNAL = frozenset({f"{CLIENT}.engine", f"{CLIENT}.outbox", f"{CLIENT}.together"})
"""Modules of the client that its other modules use."""
RULER = re.compile(r"=+(?: +=+)*\s*")
SIGNATURE_MAX = 90


def imported(page: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each name of this project that the Python blocks of a page import."""
    for block in blocks(page):
        if block.language == "python":
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PROGRAM):
                    yield from ((str(node.module), alias.name) for alias in node.names)


def public_names() -> dict[str, set[str]]:
    """Return each public module with its documented names; an empty set means all public names."""
    found: dict[str, set[str]] = {}
    for page in sorted((ROOT / SHOWN_BY).glob("*.md")):
        for module, name in imported(page.read_text(encoding="utf-8")):
            found.setdefault(module, set()).add(name)
    for path in python_files("services"):
        module = ".".join(path.relative_to(ROOT / "services").with_suffix("").parts)
        if module.startswith(f"{CLIENT}.") and path.name != "__init__.py" and module not in INTERNAL:
            found[module] = set()
    return dict(sorted(found.items()))


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown: literals in single backquotes, tables and examples as blocks of text."""
    made: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.replace("``", "`")):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines) or any(RULER.fullmatch(line) for line in lines):
            made.append("\n".join(["```text", *inspect.cleandoc(paragraph).splitlines(), "```"]))
        elif paragraph.strip() != "::":
            made.append(re.sub(r"::$", ":", paragraph))
    return "\n\n".join(made)


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _section(section: griffe.DocstringSection) -> Iterator[str]:
    """Yield the lines of one section of a docstring: text, or a table of arguments, results or errors."""
    if isinstance(section, griffe.DocstringSectionText):
        yield from (as_markdown(section.value), "")
    elif isinstance(section, griffe.DocstringSectionAdmonition):
        yield from (as_markdown(f"{section.title}: {section.value.description}"), "")
    elif isinstance(section.value, list):
        yield from (f"| {section.kind.value} | meaning |", "|---|---|")
        for one in section.value:
            name = getattr(one, "name", "") or str(getattr(one, "annotation", "") or "")
            yield f"| `{name}` | {_cell(one.description)} |" if name else f"| | {_cell(one.description)} |"
        yield ""


def _docstring(item: griffe.Object) -> Iterator[str]:
    if item.docstring is not None:
        for section in item.docstring.parse("google", warnings=False):
            yield from _section(section)


def _code(text: str) -> Iterator[str]:
    yield from ("```python", text, "```", "")


def _parameter(parameter: griffe.Parameter) -> str:
    """Return a parameter as a source shows it."""
    kind = griffe.ParameterKind
    stars = {kind.var_positional: "*", kind.var_keyword: "**"}.get(parameter.kind or kind.positional_or_keyword, "")
    annotation = f": {parameter.annotation}" if parameter.annotation is not None else ""
    default = f" = {parameter.default}" if parameter.default is not None and not stars else ""
    return f"{stars}{parameter.name}{annotation}{default}"


def _signature(function: griffe.Function) -> str:
    """Return the signature on one line, or with a line for each parameter if it is long."""
    text = str(function.signature())
    if len(text) <= SIGNATURE_MAX:
        return text
    lines: list[str] = []
    for one in function.parameters:
        if one.kind is griffe.ParameterKind.keyword_only and not any(line.startswith("*") for line in lines):
            lines.append("*")
        if one.name not in ("self", "cls"):
            lines.append(_parameter(one))
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return "\n".join([f"{function.name}(", *(f"    {line}," for line in lines), f"){returns}"])


def _members(item: griffe.Class) -> Iterator[str]:
    for name, member in item.members.items():
        if name.startswith("_") or member.is_alias or member.docstring is None:
            continue
        yield from (f"### {item.name}.{name}", "")
        if isinstance(member, griffe.Function):
            yield from _code(_signature(member))
        if isinstance(member, griffe.Function | griffe.Attribute):
            yield from _docstring(member)


def _item(item: griffe.Object) -> Iterator[str]:
    yield from (f"## {item.name}", "")
    if isinstance(item, griffe.Function):
        yield from _code(_signature(item))
    elif isinstance(item, griffe.Attribute) and item.value is not None and len(str(item.value)) <= SIGNATURE_MAX:
        yield from _code(f"{item.name} = {item.value}")
    yield from _docstring(item)
    if isinstance(item, griffe.Class):
        yield from _members(item)


def _documented(module: griffe.Module, names: set[str]) -> Iterator[griffe.Object]:
    """Yield the items of a module in their order: these names, or all public ones with a docstring."""
    for name, item in module.members.items():
        target = item.final_target if isinstance(item, griffe.Alias) and name in names else item
        is_own = not names and not name.startswith("_") and not target.is_alias and target.docstring is not None
        if (name in names or is_own) and isinstance(target, griffe.Object):
            yield target


def page(module: griffe.Module, names: set[str]) -> str | None:
    """Return the page of a module, or None if it has no public item."""
    items = [line for item in _documented(module, names) for line in _item(item)]
    for name in sorted(names - module.members.keys()):  # assigned together with other names: griffe does not list it
        items += [f"## {name}", "", *_code(f"from {module.path} import {name}")]
    if not items:
        return None
    lines = [f"# {module.path}", "", *_docstring(module), *items]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


def pages() -> dict[str, str]:
    """Return the text of each page by file name, with an index."""
    loader = griffe.GriffeLoader(search_paths=[ROOT / name for name in SOURCES])
    wanted = public_names()
    for top in sorted({*(module.partition(".")[0] for module in wanted), *BEHIND}):
        loader.load(top)
    loader.resolve_aliases()
    made: dict[str, str] = {}
    index = [
        "# Python API",
        "",
        "Made from the docstrings of the public modules.",
        "",
        "| module | content |",
        "|---|---|",
    ]
    for name, names in wanted.items():
        module = loader.modules_collection[name]
        text = page(module, names) if isinstance(module, griffe.Module) else None
        if text is not None:
            made[f"{name}.md"] = text
            summary = module.docstring.value.split("\n\n")[0] if module.docstring is not None else ""
            index.append(f"| [{name}]({name}.md) | {_cell(summary)} |")
    return {"README.md": "\n".join(index) + "\n", **made}


def write(folder: Path) -> None:
    """Write the pages into a new folder."""
    folder.mkdir(parents=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")

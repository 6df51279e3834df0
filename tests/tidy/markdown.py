"""Markdown pages as the self-checks read them: fenced blocks, links, anchors, command lines.

A page is plain Markdown that a code host and a static site generator show alike. Commands to type are in blocks with
the language ``sh``, their output is in blocks with ``text``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from ringlog.kernel.values import Value

FENCE = re.compile(r"^( *)(`{3,}|~{3,})(.*)$")
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\]\(<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE_LINK = re.compile(r"^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HTML_LINK = re.compile(r"<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=\"([^\"]+)\"")
HTML_ANCHOR = re.compile(r"<a\b[^>]*?\b(?:id|name)=\"([^\"]+)\"|\{#([\w-]+)\}")
SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
REDIRECTION = re.compile(r"[0-9]?[<>]+(?:&[0-9]?)?|&>")


class Block(Value):
    """A fenced block: the line of its fence, from 1; its language, empty if it names none; its text."""

    line: int
    language: str
    text: str


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page. A block without an end reaches to the end of the page."""
    opened: re.Match[str] | None = None
    begin, inner = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, begin, inner = fence, number, []
        elif opened is not None:
            is_end = fence is not None and fence[2].startswith(opened[2]) and not fence[3].strip()
            if is_end or number == len(text.splitlines()) + 1:
                language = opened[3].strip().partition(" ")[0]
                yield Block(begin, language, "".join(f"{one}\n" for one in inner))
                opened = None
            else:
                inner.append(line.removeprefix(opened[1]))


def without_blocks(text: str) -> str:
    """Return the page with an empty line for each line of a fenced block."""
    lines = text.splitlines()
    for block in blocks(text):
        for number in range(block.line - 1, min(block.line + block.text.count("\n") + 1, len(lines))):
            lines[number] = ""
    return "\n".join(lines)


def indented_code(text: str) -> Iterator[int]:
    """Yield the line numbers of the beginnings of code blocks that only indentation marks."""
    before, is_in_list = "", False
    for number, line in enumerate(without_blocks(text).splitlines(), start=1):
        if line.strip():
            if not line.startswith(" "):
                is_in_list = bool(re.match(r"(?:[-*+]|\d+\.)\s", line))
            elif re.match(r" {4}|\t", line) and not before.strip() and not is_in_list:
                yield number
        before = line


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: those of its headings, and those that it sets itself."""
    plain = without_blocks(text)
    found = {one or other for one, other in HTML_ANCHOR.findall(plain)}
    for title in re.findall(r"^#+ +(.*?)(?: +\{#[\w-]+\})?$", plain, re.MULTILINE):
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        repeats = sum(1 for other in found if re.fullmatch(re.escape(anchor) + r"(?:-\d+)?", other))
        found.add(f"{anchor}-{repeats}" if anchor in found else anchor)
    return found


def links(text: str) -> Iterator[tuple[str, str]]:
    """Yield (path, anchor) of each link of a page that stays in the repository; either may be empty."""
    plain = SPAN.sub("", COMMENT.sub("", without_blocks(text)))
    inner = re.findall(r"\[!\[[^\]]*\]\(([^)\s]*)[^)]*\)\]", plain)
    for target in (*LINK.findall(plain), *inner, *REFERENCE_LINK.findall(plain), *HTML_LINK.findall(plain)):
        if not ELSEWHERE.match(target) and not target.startswith("//"):
            path, _, anchor = target.partition("#")
            yield path, anchor


def broken_links(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    for target, anchor in links(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            yield f"{target}: no such file"
        elif target.startswith("/"):
            yield f"{target}: not relative"
        elif anchor and (path.is_dir() or path.suffix != ".md" or anchor not in anchors(path.read_text("utf-8"))):
            yield f"{target}#{anchor}: no such heading"


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line, without redirections; operators separate commands."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    is_target = False
    for word in lexer:
        if is_target:
            is_target = False
        elif REDIRECTION.fullmatch(word):
            is_target = not word.endswith(("&1", "&2"))
            if words and words[-1] in ("1", "2"):
                words.pop()
        elif set(word) <= set(";&|()"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def shell_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a block of shell text, those inside ``$(...)`` included."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        inner = SUBSTITUTION.findall(line)
        for one in (SUBSTITUTION.sub("SUBSTITUTED", line), *inner):
            yield from filter(None, _simple_commands(one))


def program_arguments(words: list[str], program: str) -> list[str] | None:
    """Return the arguments if the words run the program, at any path and after assignments or a wrapper."""
    for number, word in enumerate(words):
        is_user = number > 0 and words[number - 1] == "-u"
        if not is_user and (word == program or word.endswith(f"/bin/{program}")):
            wrappers = [one for one in words[:number] if not ASSIGNMENT.match(one)]
            is_run = not wrappers or wrappers[0] in (
                "sudo",
                "env",
                "exec",
                "nohup",
                "time",
                "watch",
                "if",
                "while",
                "!",
            )
            return words[number + 1 :] if is_run else None
    return None

"""Rules for plain technical English, as patterns that a sentence must not match.

A rule names a wording that readers stumble over. ``docs/internals/style.md`` explains the rules with examples. The
module reads two kinds of text: Markdown pages, and Python docstrings with the help texts of commands. Code, addresses
of links, headings and rulers of tables are not part of a sentence.

Invariant: a sentence never spans two paragraphs, list items or table cells.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from ringlog.kernel.values import Value

WORDS_MAX = 40
"""The most words of a sentence. A sentence of more than 32 words is flagged, one of more than 40 is refused."""
RULES: dict[str, re.Pattern[str]] = {
    "clause as subject": re.compile(r"^(Who|What|Whatever|Whoever|Whose|Which|Whom|Whichever)\b(?!.*\?$)"),
    "where for if": re.compile(r"^Where\b(?!.*\?$)|[,;:] where (nobody|nothing|no|there|it|they|a|an|the|one|none)\b"),
    "fronted of-phrase": re.compile(
        r"^(Of (a|an|the|what|each|all|which|this|these|those|every)|Beside|Such (a|an))\b"
    ),
    "nobody, somebody": re.compile(r"\b(nobody|somebody|anybody|everybody|whoever|whatever|whosoever)\b", re.I),
    "preposition + which": re.compile(
        r"\b(of|by|with|for|from|beside|behind|below|above|beyond|under|to|on|in|at) (which|whose|whom|what)\b", re.I
    ),
    "what-clause": re.compile(
        r"(?<!^)\b(what|whom) "
        r"(is|are|was|were|has|have|had|it|they|he|this|that|no|nobody|stands|lies|comes|goes|a|an|the)\b"
    ),
    "household verb": re.compile(
        r"\b(mend(s|ed|ing)?|told|tells|telling|anew|in vain|for good|for ever|but for|likewise|any more|beside"
        r"|goes on|go on|going on|went on|stands (still|for|in|at|there|where)|holds? up|held up"
        r"|(calls?|called) (\w+ )?off|turn(s|ed)? back|tak(es|en|e) for|is taken|at rest|on (its|their) way"
        r"|by (itself|themselves)|of (its|their|one's) own|hears?|heard of|believes?|believed|whose turn|is due|are due"
        r"|had its turn|made of it|makes of|lies? (in|under|at|below|above))\b",
        re.I,
    ),
    "is no": re.compile(r"\b(is|are|was|were|be) no\b(?! (longer|more|less|need|way|such))", re.I),
    "long sentence": re.compile(r"^(?:\S+\s+){32,}"),
}
"""Name to pattern. A pattern is tried on one sentence without code."""

HELP_ARGUMENTS = frozenset({"help", "short_help", "epilog"})
BREAK = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z\"'(*_\[])")
CODE = re.compile(r"``?[^`\n]+``?")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
EMPHASIS = re.compile(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}")
FENCE = re.compile(r"\s*(?:```|~~~)")
ITEM = re.compile(r"\s*(?:[-*+]|\d+\.|>)\s+|\s{4,}(?=\w+: )")
SIMPLE_RULER = re.compile(r"=+(?: +=+)*")
NO_PROSE = re.compile(r"^ *(?:>>> |[├└│])|\S {2,}\S")
TABLE_RULER = re.compile(r"[\s|:-]+")
ASIDE = re.compile(r"(?:<!--|-->|<[a-z/]|!!! |:::|---$|\+\+\+$|\[[^\]]+\]: )")


class Sentence(Value):
    """A sentence and the line number (from 1) of the beginning of its paragraph."""

    line: int
    text: str

    @property
    def words(self) -> int:
        """Return the number of words; a piece of code counts as one."""
        return len(self.text.split())

    @property
    def broken(self) -> tuple[str, ...]:
        """Return the names of the rules that the sentence breaks."""
        return tuple(name for name, pattern in RULES.items() if pattern.search(self.text))


def without_code(text: str) -> str:
    """Replace each piece of code by one word, and each link by its text."""
    return EMPHASIS.sub("", LINK.sub(r"\1", CODE.sub("CODE", text)))


def split(line: int, text: str) -> Iterator[Sentence]:
    """Yield the sentences of one paragraph. Pieces of fewer than three words are labels, not sentences."""
    for part in BREAK.split(without_code(" ".join(text.split()))):
        if len(part.split()) >= 3:
            yield Sentence(line, part)


def _blocks(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, list item and table cell of Markdown with the number of its first line."""
    block: list[str] = []
    begin = fenced = 0
    for number, line in enumerate([*lines, ""], start=1):
        is_fence = bool(FENCE.match(line))
        fenced ^= is_fence
        plain = line.strip()
        is_apart = is_fence or fenced or not plain or plain[0] in "#|" or ASIDE.match(plain)
        if block and (is_apart or ITEM.match(line)):
            yield begin, "\n".join(block)
            block = []
        if plain.startswith("|") and not fenced and not TABLE_RULER.fullmatch(plain):
            yield from ((number, cell) for cell in plain.strip("|").split("|"))
        elif not is_apart:
            begin = begin if block else number
            block.append(ITEM.sub("", line))


def of_markdown(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown page."""
    for line, block in _blocks(text.splitlines()):
        yield from split(line, block)


def _prose_of_docstring(text: str) -> list[str]:
    """Return the lines of a docstring, empty instead of those of tables, trees, aligned columns and examples."""
    lines = inspect.cleandoc(text).splitlines()
    is_in_table = is_in_example = False
    for number, line in enumerate(lines):
        is_ruler = bool(SIMPLE_RULER.fullmatch(line.strip()))
        is_in_example = is_in_example and (not line or line.startswith(" "))
        if is_in_table or is_in_example or is_ruler or NO_PROSE.search(line):
            lines[number] = ""
        is_in_example |= line.endswith("::")
        if is_ruler:  # the last ruler of a table is the one before an empty line
            is_in_table = number + 1 < len(lines) and bool(lines[number + 1].strip())
    return lines


def of_python(text: str) -> Iterator[Sentence]:
    """Yield the sentences of the docstrings, also those of constants, and of the help texts of a Python module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr):
            found: ast.expr = node.value
        elif isinstance(node, ast.keyword) and node.arg in HELP_ARGUMENTS:
            found = node.value
        else:
            continue
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            for line, block in _blocks(_prose_of_docstring(found.value)):
                yield from split(found.lineno + line - 1, block)

"""Planted bugs as they are written down.

A file ``PART.diff`` has a block for each, blocks are apart by an empty line; a block of lines with ``#`` is a comment:

    quorum_off_by_one: half of an even group counts as a quorum
    ringlog.kernel.operations.gates:quorum, 100
    - return count // 2 + 1
    + return (count + 1) // 2

That is its name and what it means; the function, by module and qualified name, the number of seeds within which it must
be found, and the profile of these, if that is not ``small``; then the code that is in the function once, and what takes
its place: an expression each, or statements each (``plant`` says how they are looked for). Code begins behind the sign
and a space.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ringlog.sim.mutants.plant import Mutant

FOLDER = Path(__file__).parent


@cache
def bugs_of(part: str) -> tuple[Mutant, ...]:
    """The planted bugs of a part, in their order."""
    return read_bugs((FOLDER / f"{part}.diff").read_text(encoding="utf-8"))


def read_bugs(text: str) -> tuple[Mutant, ...]:
    """The planted bugs of a file. Raises ValueError for what is none."""
    blocks = (block.split("\n") for block in text.strip("\n").split("\n\n"))
    return tuple(_bug(block) for block in blocks if not all(line.startswith("#") for line in block))


def _bug(block: list[str]) -> Mutant:
    name, colon, bug = block[0].partition(": ")
    target, *numbers = block[1].split(", ") if len(block) > 1 else [""]
    count = sum(line.startswith("-") for line in block[2:])
    old, new = block[2 : 2 + count], block[2 + count :]
    is_whole = colon and ":" in target and 1 <= len(numbers) <= 2 and numbers[0].isdecimal() and old and new
    if not is_whole or any(line[:1] != "-" for line in old) or any(line[:1] != "+" for line in new):
        raise ValueError(f"no planted bug: {block}")
    return Mutant(name, target, _text(old), _text(new), bug, int(numbers[0]), *numbers[1:])


def _text(lines: list[str]) -> str:
    return "\n".join(line[2:] for line in lines)

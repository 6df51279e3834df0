"""Pages of the documentation, typed into a shell: command blocks, and whether a block answers as its page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

from tests import fork_server
from tests.system.page_walks import Walk
from tests.tidy.markdown import blocks as fenced
from tests.waiting import until

from ringlog.kernel.values import Value, replace
from ringlog.stack.artifacts import cache_root

REPEAT = "Repeat this command until"
BLOCK_S = 300
"""After this time, the shell is ended. Every later block then fails, too."""

PROGRAM_S = 240
"""After this time, a program is ended. The shell continues."""

VARIABLE = re.compile(
    r"(?P<id>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{8}\b)"
    r"|(?P<number>(?<![A-Za-z_])\d+(?:\.\d+)?)|(?P<rest>…)|(?P<space>\s+)"
)
"""The parts of a shown line that differ from run to run, and white space."""

AS = {"id": "[0-9a-f-]{8,36}", "number": r"\d+(?:\.\d+)?", "rest": ".*", "space": r"\s+"}


class Block(Value):
    """Commands that the reader types, with the output that the page shows."""

    commands: str
    output: str | None
    is_repeated: bool


def blocks(page: str) -> list[Block]:
    """Return the command blocks of a page in their order. A block of text directly below is the output of a block."""
    found: list[Block] = []
    lines, begin, commands_end = page.splitlines(), 0, None
    for block in fenced(page):
        end = block.line + block.text.count("\n") + 1
        if block.language == "sh":
            before = " ".join(" ".join(lines[begin : block.line - 1]).split())
            found.append(Block(block.text, None, REPEAT in before))
            commands_end = end
        elif block.language == "text" and block.line - 2 == commands_end:
            found[-1] = replace(found[-1], output=block.text)
        begin = end
    return found


def line_pattern(shown: str) -> str:
    """Return a regular expression for one shown line. A line of JSON is compared exactly."""
    if shown.startswith("{"):
        return re.escape(shown)
    pattern, end = "", 0
    for part in VARIABLE.finditer(shown.rstrip()):
        pattern += re.escape(shown[end : part.start()]) + AS[part.lastgroup or ""]
        end = part.end()
    return pattern + re.escape(shown.rstrip()[end:])


def matches(shown: str, printed: str) -> bool:
    """Return whether the output is as shown. A line ``…`` matches any number of lines."""
    lines = [r"(?:.*\n)*" if line.strip() == "…" else line_pattern(line) + r"\s*\n" for line in shown.splitlines()]
    return re.fullmatch("".join(lines), printed) is not None


class Shell:
    """A bash with an empty home."""

    def __init__(self, home: Path, programs: Path, is_installed: bool = False) -> None:
        """``is_installed``: the reader installs Ringlog, so the shell does not find the packages of the tests."""
        self._home = home
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGLOG_", "XDG_"))}
        path = [name for name in os.environ["PATH"].split(os.pathsep) if not is_installed or ".venv" not in name]
        self._process = subprocess.Popen(
            ["bash"],
            cwd=home,
            env=kept
            | {
                "COLUMNS": "100",
                "HOME": str(home),
                "PATH": os.pathsep.join([str(programs), *path]),
                "PYTHONPATH": "" if is_installed else os.pathsep.join(path for path in sys.path if path),
                "XDG_CACHE_HOME": str(cache_root().parent),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, commands: str) -> tuple[int, str]:
        """Return exit status and output, with ``~`` in place of the home."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{\n{commands}\n}} </dev/null\necho end-of-block $?\n")
        self._process.stdin.flush()
        printed: list[str] = []
        limit = Timer(BLOCK_S, self.end)
        limit.start()
        try:
            for line in self._process.stdout:
                if line.startswith("end-of-block "):
                    return int(line.split()[1]), "".join(printed)
                printed.append(line.replace(str(self._home), "~"))
        finally:
            limit.cancel()
        raise AssertionError(f"the shell ended, or was ended after {BLOCK_S} s, in: {commands}\n{''.join(printed)}")

    def end(self) -> None:
        """End the shell and its background jobs."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)

    def close(self) -> None:
        """Close the pipes of a shell that has ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def shell(home: Path, programs: Path, is_installed: bool = False) -> Iterator[Shell]:
    opened = Shell(home, programs, is_installed)
    try:
        yield opened
    finally:
        opened.end()
        opened.close()


def follow(block: Block, reader: Shell, *, expected: int = 0, is_compared: bool = True) -> None:
    """Type a block, again until it answers as shown if the page says so. Raise AssertionError if it does not."""
    answer = 0, ""

    def is_as_shown() -> bool:
        nonlocal answer
        answer = reader.run(block.commands)
        return answer[0] == expected and (not is_compared or block.output is None or matches(block.output, answer[1]))

    try:
        assert until(is_as_shown, "the output of the page") if block.is_repeated else is_as_shown()
    except AssertionError as error:
        texts = f"shown:\n{block.output}\nprinted, status {answer[0]}:\n{answer[1]}"
        raise AssertionError(f"{error}\n{block.commands}\n{texts}") from None


def program_folder(folder: Path) -> Path:
    """Put the programs ``ringlog`` and ``run-file`` (for Python programs) into a folder for the search path of a shell,
    and return the folder.
    """
    for name, words in (("ringlog", ("-m", "ringlog.cli")), ("run-file", ())):
        (folder / name).write_text(fork_server.shell_program(*words))
        (folder / name).chmod(0o755)
    return folder


def type_page(walk: Walk, page: Sequence[Block], reader: Shell) -> None:
    """Type the blocks of a page that are not left out, in their order."""
    left, statuses = dict(walk.left_out), dict(walk.statuses)
    for block in page:
        reasons = [begin for begin in left if block.commands.startswith(begin)]
        if reasons:
            del left[reasons[0]]
            continue
        ends = [statuses.pop(begin) for begin in tuple(statuses) if block.commands.startswith(begin)]
        follow(block, reader, expected=ends[0] if ends else 0, is_compared=walk.is_compared)
    assert (left, statuses) == ({}, {}), "no block of the page begins so"

"""Transcripts: typed input and expected output in one readable file.

A line that begins with ``# `` is a comment for the reader. ``> `` begins a line of input; the following lines up to the
next input are its expected answer. The last line names the exit status::

    # A second join must wait.
    > {"command": "Join", "node": "X", "tokens": [150]}
    {"outcome": "rejected", ...}
    = exit 0

With ``RINGLOG_REWRITE=1`` in the environment, a run rewrites the files from the real answers; review the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

from ringlog.kernel.values import Value

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "rehearsals"
REWRITE = os.environ.get("RINGLOG_REWRITE") == "1"
REMARK, INPUT, STATUS = "# ", "> ", "= exit "


class Transcript(Value):
    """``inputs`` are the typed lines; ``parts`` has the comments and empty lines before each of them."""

    inputs: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]
    text: str

    def with_answers(self, answers: list[str], status: int) -> str:
        """Return the file with these answers (one per non-empty input line)."""
        lines: list[str] = []
        left = iter(answers)
        for before, typed in zip(self.parts, self.inputs, strict=True):
            lines += [*before, f"{INPUT}{typed}".rstrip(" ") if not typed else f"{INPUT}{typed}"]
            if typed.strip():
                lines.append(next(left))
        rest = list(left)
        assert rest == [], f"more answers than lines: {rest}"
        return "\n".join([*lines, f"{STATUS}{status}"]) + "\n"


def read(path: Path) -> Transcript:
    """Return a transcript; its answers are kept in ``text`` and not parsed."""
    text = path.read_text(encoding="utf-8")
    inputs: list[str] = []
    parts: list[tuple[str, ...]] = []
    before: list[str] = []
    for line in text.splitlines():
        if line.startswith(INPUT.rstrip()):
            inputs.append(line[len(INPUT) :])
            parts.append(tuple(before))
            before = []
        elif line.startswith(REMARK) or not line:
            before.append(line)
    assert inputs, f"{path} types nothing"
    return Transcript(tuple(inputs), tuple(parts), text)


def transcripts() -> list[Path]:
    """Return every transcript, sorted by name."""
    return sorted(FOLDER.glob("*.txt"))

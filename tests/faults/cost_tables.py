"""The costs of each fault, as tables at the end of the run and in docs/internals/faults.md."""

from __future__ import annotations

import re
from pathlib import Path

HEADS = {
    "faults": (
        *("fault", "answers", "sent again", "silence", "again", "at rest", "mutations", "driver", "agents", "joined"),
    ),
    "tablets": ("tablet", "killed", "stages", "transitions", "time", "answers", "timed out"),
    "zones": ("zone", "killed", "entries", "moves", "time", "answers", "timed out"),
}
"""The column heads of each table; a page has one block per table."""


class Figures:
    """The lines of a run, in order, by table."""

    def __init__(self) -> None:
        self._lines: dict[str, list[tuple[str, ...]]] = {name: [] for name in HEADS}

    def add(
        self, fault: str, counts: dict[str, int], *, silence_s: float, again_s: float, rest_s: float, joined: str
    ) -> None:
        """Add the measurements of one fault.

        They are: answered requests, retries of the caller, the longest time without an answer, seconds from the repair
        until new answers and until rest, mutations, starts of the driver, ends of agents.
        """
        cells = (fault, str(counts["answers"]), str(counts["retries"]), *(f"{s:.1f} s" for s in (silence_s, again_s)))
        rest = (f"{rest_s:.1f} s", f"{counts['mutations']:,}", str(counts["driver_starts"]))
        self._lines["faults"].append((*cells, *rest, str(counts["ended_agents"]), joined or "-"))

    def add_way(
        self,
        way: str,
        role: str,
        *,
        stages: int,
        tries: int,
        time_s: float,
        counts: tuple[int, int],
        table: str = "tablets",
    ) -> None:
        """Add the kills during one transition of a tablet or a zone (``table``).

        A line names the victim, the number of stages or kinds of entries with a kill, and the number of tries.
        ``counts``: requests that were answered, and requests that timed out.
        """
        cells = (way, role, str(stages), str(tries), f"{time_s:.0f} s", *(f"{count:,}" for count in counts))
        self._lines[table].append(cells)

    def tables(self) -> dict[str, list[str]]:
        """Return the aligned lines of each table that is not empty, head first."""
        return {name: _aligned([HEADS[name], *lines]) for name, lines in self._lines.items() if lines}

    def write_into(self, page: Path, how: str) -> None:
        """Replace the table blocks of a documentation page; ``how`` describes the run."""
        text = page.read_text(encoding="utf-8")
        for name, table in self.tables().items():
            block = "\n".join((f"<!-- {name} figures: begin ({how}) -->", "```text", *table, "```"))
            found = f"<!-- {name} figures: begin.*?(?=\n<!-- {name} figures: end -->)"
            text, count = re.subn(found, lambda _, block=block: block, text, flags=re.S)
            assert count == 1, f"{page} has no table block {name}"
        page.write_text(text, encoding="utf-8")


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

"""What each fault cost, as a table that ends the run: the figures of the guide on faults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEAD = ("fault", "answers", "sent again", "silence", "again", "at rest", "mutations", "driver", "agents", "joined")


@dataclass(frozen=True, slots=True)
class Line:
    """One fault: requests answered, retries of the caller, the longest time without an answer, seconds from the mending
    until new requests were answered and until everything was at rest, mutations, starts of the driver, ends of agents.
    """

    cells: tuple[str, ...]


class Figures:
    """The lines of a run, in order."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def add(
        self, fault: str, counts: dict[str, int], *, silence_s: float, again_s: float, rest_s: float, joined: str
    ) -> None:
        """Keep the figures of one fault."""
        cells = (fault, str(counts["answers"]), str(counts["retries"]), *(f"{s:.1f} s" for s in (silence_s, again_s)))
        rest = (f"{rest_s:.1f} s", f"{counts['mutations']:,}", str(counts["driver_starts"]))
        self.lines.append(Line((*cells, *rest, str(counts["ended_agents"]), joined or "-")))

    def table(self) -> list[str]:
        """Aligned lines, the head first; nothing if there were no faults."""
        if not self.lines:
            return []
        rows = [HEAD, *(line.cells for line in self.lines)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def write_into(self, page: Path, how: str) -> None:
        """Replace the block of figures in a page of the guide; ``how``: of what run they are."""
        text = page.read_text(encoding="utf-8")
        block = "\n".join((f"<!-- faults figures: begin ({how}) -->", "```", *self.table(), "```"))
        found = re.subn(
            r"<!-- faults figures: begin.*?(?=\n<!-- faults figures: end -->)", lambda _: block, text, flags=re.S
        )
        assert found[1] == 1, f"{page} has no block of figures"
        page.write_text(found[0], encoding="utf-8")

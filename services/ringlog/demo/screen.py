"""What the demo shows while rows flow and the fourth node joins: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ringlog.kernel.operations.node_states import node_statuses
from ringlog.kernel.operations.stages import JOIN_STAGES, is_ended
from ringlog.kernel.state import ClusterState, Operation

REFRESH_PER_SECOND = 4


@dataclass(slots=True)
class ScreenPicture:
    """All that is on the screen at one moment."""

    total: int = 0
    """Flights; ``mutations``: what is sent of them to all tables."""
    mutations: int = 0
    sent: int = 0
    phase: str = ""
    written: int = 0
    rejected: int = 0
    batches: int = 0
    held: str = ""
    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Node name to (epoch acknowledged, rows held)."""
    state: ClusterState = field(default_factory=ClusterState)
    operation: str = ""


class Screen:
    """Prints events as they happen and keeps the live table below them where there is a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._begun = time.monotonic()

    def step(self, title: str) -> None:
        """A heading."""
        self.console.print(f"\n[bold]{title}[/bold]")

    def say(self, text: str) -> None:
        """One line, with the seconds since the start."""
        self.console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/dim]  {text}")

    @contextmanager
    def live(self, picture: ScreenPicture) -> Iterator[Callable[[], None]]:
        """Show ``picture``; the caller changes it and calls what this gives."""
        if not self.console.is_terminal:
            yield lambda: None
            return
        with Live(draw(picture), console=self.console, refresh_per_second=REFRESH_PER_SECOND, transient=True) as live:
            yield lambda: live.update(draw(picture))


def draw(picture: ScreenPicture) -> Group:
    """The picture as something rich can print."""
    return Group(_flow(picture), _nodes(picture), _operation(picture))


def _flow(picture: ScreenPicture) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    done = picture.written + picture.rejected
    table.add_row(
        "flights sent", _bar(picture.sent, picture.total), f"{picture.sent:,} of {picture.total:,}", picture.phase
    )
    note = f"batch {picture.batches}" + (f", waits for {picture.held}" if picture.held else "")
    table.add_row("through Spark", _bar(done, picture.mutations), f"{done:,}", note)
    generations = picture.state.generations
    if generations:
        now = time.time_ns() // 1000
        starts = [f"{(g.timestamp - now) / 1e6:+.1f} s" for g in generations[-2:]]
        table.add_row("CDC generations", "", f"{len(generations)}", "last began " + ", ".join(starts))
    return table


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=done, width=36)


def _nodes(picture: ScreenPicture) -> Table:
    table = Table(title=None, box=None, padding=(0, 2))
    for heading in ("node", "state", "tokens", "acknowledged", "rows"):
        table.add_column(heading, justify="left" if heading in ("node", "state") else "right")
    statuses = node_statuses(picture.state)
    for node in sorted(picture.state.nodes.values(), key=lambda n: n.name):
        epoch, rows = picture.nodes.get(node.name, (0, 0))
        table.add_row(node.name, statuses[node.id].state, str(len(node.tokens)), f"epoch {epoch}", f"{rows:,}")
    return table


def _operation(picture: ScreenPicture) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    operation = picture.state.operations.get(picture.operation)
    if operation is None:
        return table
    reached = {mark.stage: mark.epoch for mark in operation.marks}
    for stage in JOIN_STAGES:
        style = "green" if stage in reached else "dim"
        if stage == operation.stage and not is_ended(operation):
            style = "bold yellow"
        epoch = f"epoch {reached[stage]}" if stage in reached else ""
        name = operation.id if stage == JOIN_STAGES[0] else ""
        table.add_row(name, f"[{style}]{stage}[/{style}]", epoch)
    return table


def stage_lines(operation: Operation, already: int) -> Iterator[str]:
    """A line for each stage entered since the first ``already`` ones."""
    marks = operation.marks
    for index in range(already, len(marks)):
        mark = marks[index]
        after = f", {(mark.at - marks[index - 1].at) / 1e6:.2f} s after the one before" if index else ""
        yield f"{operation.id}: [bold]{mark.stage}[/bold] at epoch {mark.epoch}{after}"

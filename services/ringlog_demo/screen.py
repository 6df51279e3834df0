"""The demo's display: a live table on a terminal, plain lines elsewhere, and the measurements of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import structs
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.node_states import node_statuses
from ringlog.kernel.operations.stages import JOIN_STAGES, is_ended
from ringlog.kernel.values import Value
from ringlog_demo.bench import Latency

REFRESH_PER_SECOND = 4


@dataclass(slots=True)
class ScreenView:
    """The content of the screen at one moment."""

    total: int = 0
    """Number of flights. ``mutations`` is the number of mutations sent to all tables."""
    mutations: int = 0
    sent: int = 0
    phase: str = ""
    written: int = 0
    rejected: int = 0
    batches: int = 0
    held: str = ""
    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Node name to (acknowledged epoch, number of rows)."""
    state: ClusterState = field(default_factory=ClusterState)
    operation: str = ""


class Screen:
    """Printer of events. On a terminal, it keeps the live table below them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._begun = time.monotonic()

    def step(self, title: str) -> None:
        """Print a heading."""
        self.console.print(f"\n[bold]{title}[/bold]")

    def say(self, text: str) -> None:
        """Print one line that begins with the seconds since the start."""
        self.console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/dim]  {text}")

    @contextmanager
    def live(self, view: ScreenView) -> Iterator[Callable[[], None]]:
        """Show ``view``. Yield a function that redraws it after the caller has changed it."""
        if not self.console.is_terminal:
            yield lambda: None
            return
        with Live(draw(view), console=self.console, refresh_per_second=REFRESH_PER_SECOND, transient=True) as live:
            yield lambda: live.update(draw(view))


def draw(view: ScreenView) -> Group:
    """Return the view as a renderable of rich."""
    return Group(_flow(view), _nodes(view), _operation(view))


def _flow(view: ScreenView) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    done = view.written + view.rejected
    table.add_row("flights sent", _bar(view.sent, view.total), f"{view.sent:,} of {view.total:,}", view.phase)
    status_line = f"batch {view.batches}" + (f", waits for {view.held}" if view.held else "")
    table.add_row("through Spark", _bar(done, view.mutations), f"{done:,}", status_line)
    generations = view.state.generations
    if generations:
        now = time.time_ns() // 1000
        starts = [f"{(g.timestamp - now) / 1e6:+.1f} s" for g in generations[-2:]]
        table.add_row("CDC generations", "", f"{len(generations)}", "last began " + ", ".join(starts))
    return table


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=done, width=36)


def _nodes(view: ScreenView) -> Table:
    table = Table(title=None, box=None, padding=(0, 2))
    for heading in ("node", "state", "tokens", "acknowledged", "rows"):
        table.add_column(heading, justify="left" if heading in ("node", "state") else "right")
    statuses = node_statuses(view.state)
    for node in sorted(view.state.nodes.values(), key=lambda n: n.name):
        epoch, rows = view.nodes.get(node.name, (0, 0))
        table.add_row(node.name, statuses[node.id].state, str(len(node.tokens)), f"epoch {epoch}", f"{rows:,}")
    return table


def _operation(view: ScreenView) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    operation = view.state.operations.get(view.operation)
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
    """Yield a line for each stage that the operation entered after the first ``already`` ones."""
    marks = operation.marks
    for index in range(already, len(marks)):
        mark = marks[index]
        after = f", {(mark.at - marks[index - 1].at) / 1e6:.2f} s after the one before" if index else ""
        yield f"{operation.id}: [bold]{mark.stage}[/bold] at epoch {mark.epoch}{after}"


@dataclass(slots=True)
class DemoFigures:
    """The measurements of one run, in seconds and rows."""

    data: str
    noops: Latency | None = None
    commits: Latency | None = None
    rows: int = 0
    rejected: int = 0
    batches: int = 0
    batches_by_generation: dict[int, int] = field(default_factory=dict)
    rows_on_nodes: dict[str, int] = field(default_factory=dict)
    tablets_on_nodes: dict[str, int] = field(default_factory=dict)
    rows_per_second: float = 0.0
    held_s: float = 0.0
    switch_s: float = 0.0
    join_s: float = 0.0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the measurements for ``--json`` and for the file of measurements."""
        shown = asdict(self)
        return {name: structs.asdict(item) if isinstance(item, Value) else item for name, item in shown.items()}


def show_summary(console: Console, figures: DemoFigures, commands: list[tuple[str, str]]) -> None:
    """Print the measurements, the location of the data, and commands to try next."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, latency in (("500 Noop commits", figures.noops), ("the demo's own commits", figures.commits)):
        if latency is not None:
            table.add_row(name, f"p50 {latency.p50_ms} ms, p99 {latency.p99_ms} ms ({latency.count})")
    table.add_row("through Spark", f"{figures.rows_per_second:,.0f} rows/s over {figures.batches} batches")
    table.add_row(
        "generation switch",
        f"{figures.switch_s:.1f} s from its preparation to its first moment; batches waited {figures.held_s:.1f} s",
    )
    table.add_row("join of the fourth node", f"{figures.join_s:.1f} s")
    table.add_row("whole run", f"{figures.seconds:.0f} s")
    table.add_row("data", figures.data)
    console.print(table)
    if not commands:
        return
    console.print("\n[bold]Try next[/bold] (the broker and Redis still run)")
    for command, meaning in commands:
        console.print(f"  {command}", style="cyan", end="")
        console.print(f"   {meaning}", style="dim")

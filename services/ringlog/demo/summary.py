"""The figures of a run and how they are shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringlog.audit.report import AuditReport
from ringlog.demo.bench import Latency


@dataclass(slots=True)
class DemoFigures:
    """What a run measured; seconds and rows are of this machine and this run."""

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
        """For ``--json`` and the figures file."""
        return asdict(self)


def show_audit(console: Console, report: AuditReport) -> None:
    """The audit's lines."""
    for check in report.checks:
        mark = ("✓", "green") if check.ok else ("✗", "red")
        console.print(Text.assemble("  ", mark, f" {check.statement}"))
        for example in check.examples:
            console.print(f"      {example}", markup=False)
    for generation in report.generations:
        console.print(f"    generation of {generation['timestamp']}: {generation['rows']:,} rows")


def show_summary(console: Console, figures: DemoFigures, commands: list[tuple[str, str]]) -> None:
    """Figures, the data's place, and what to try next."""
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

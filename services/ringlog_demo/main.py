"""The demo command: it sets up folders and processes, runs the demo and the audit, and prints the summary."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ringlog.files import private_folder, private_process
from ringlog.log.errors import LogError
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.kafka.config import use_none
from ringlog.runtime.trust import TRUST_VARIABLE
from ringlog.stack.commands import Stack
from ringlog.stack.errors import StackError
from ringlog_audit.cli import show_audit
from ringlog_audit.sources.topics import AuditError, KafkaTopics
from ringlog_audit.verify import Expected, audit
from ringlog_demo.processes import processes
from ringlog_demo.run import Demo, DemoFailed, DemoOptions, write_figures
from ringlog_demo.screen import show_summary

MARKER = "ringlog-demo"
COMPARED = 100
"""Number of partitions of each table that the audit compares between the nodes and the CDC log."""


def run_demo(flights: int | None, data: Path, keep: bool, console: Console) -> int:
    """Run the demo and the audit. Return the exit status, 0 only if the audit finds no failure."""
    private_process()
    use_none()  # the demo starts its own broker
    os.environ.pop(TRUST_VARIABLE, None)  # the demo's nodes use no TLS trust either
    stack = Stack(data / "stack")
    try:
        _empty(data)
        with processes(data / "logs") as group:
            run = Demo(DemoOptions(flights, data), console, group)
            context = run.run()
            passed = _audit(run, context, console)
            run.stop_clock()
        write_figures(run.figures, data / "figures.json")
        console.print("\n[bold]9. Summary[/bold]")
        show_summary(console, run.figures, _next(data) if keep else [])
        return 0 if passed else 1
    except (DemoFailed, StackError, LogError, AuditError) as failed:
        console.print(Text.assemble(("\ndemo failed", "red"), f": {failed}"), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("\ninterrupted; the demo has stopped all of its processes")
        keep = False
        return 130
    finally:
        if not keep:
            stack.down()


def _empty(data: Path) -> None:
    """Empty the folder. Raise DemoFailed if it contains anything other than an earlier demo."""
    if data.exists() and any(data.iterdir()) and not (data / MARKER).exists():
        raise DemoFailed(f"{data} is not empty and is not a folder of an earlier demo; pass another folder with --data")
    Stack(data / "stack").down()
    for name in ("checkpoint", "logs", "nodes", "stack", "state"):
        shutil.rmtree(data / name, ignore_errors=True)
    private_folder(data, MARKER)
    (data / MARKER).touch()


def _audit(run: Demo, context: ClusterContext, console: Console) -> bool:
    run.screen.step("8. Audit: mutations against CDC rows and nodes, with the Cassandra driver's hash and a plain loop")
    counts = run.counts
    expected = Expected(written=counts.written, rejected=counts.rejected, generations=2, base=COMPARED)
    report = audit(KafkaTopics(context.bootstrap, context.cluster), expected, run.screen.say)
    show_audit(console, report)
    return report.ok


def _next(data: Path) -> list[tuple[str, str]]:
    command = Path(sys.executable).parent / "ringlog"
    shown = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    return [
        (f"{shown} status", "the cluster, its nodes and agents"),
        (f"{shown} log --last 20", "the metadata log, entry by entry"),
        (f"{shown} keyspace placements flights", "who reads and writes each range"),
        (f"{shown} stack down --data {data / 'stack'}", "to stop broker and Redis"),
    ]

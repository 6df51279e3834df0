"""``ringlog load``: a checked read and write load on a live cluster, and the verdict on its history.

The exit status is 0 without a violation, and 1 with a violation or if an error ended the load. It is 2 for bad input or
without an answered operation, and 3 if the checkers disagree.
"""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ringlog.cli.data.rows import mutation_ends
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, errors, fail, out, resolve, seconds_of
from ringlog.cli.shared.tables import show_table

if TYPE_CHECKING:
    from ringlog.runtime.context import ClusterContext
    from ringlog_testing.histories.events import Event
    from ringlog_testing.load.driver import CheckedLoad, LoadFigures
    from ringlog_testing.load.judge import LoadVerdict
    from ringlog_testing.load.stores import LoadStore

app = typer.Typer(no_args_is_help=True)

DISAGREE = 3


class Only(StrEnum):
    """The data of a load."""

    ROWS = "rows"
    REGISTERS = "registers"


@app.command("run")
def run(
    table: Annotated[str, typer.Option(help="Table for rows and registers. In tablets: required.")] = "",
    keyspace: Annotated[str, typer.Option(help="Keyspace for registers only, if no table is given.")] = "",
    only: Annotated[Only | None, typer.Option(help="Kind of data. Default: rows and registers.")] = None,
    seconds: Annotated[float, typer.Option(parser=seconds_of, help="Duration. Ctrl-C ends the load early.")] = 60,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Operations per second. Default: no limit.")] = None,
    clients: Annotated[int, typer.Option(min=1, max=256, help="Number of concurrent clients.")] = 8,
    coordinators: Annotated[int, typer.Option(min=1, max=16, help="Number of coordinators with their own logs.")] = 3,
    keys: Annotated[int, typer.Option(min=1, max=100_000, help="Number of rows, and of registers.")] = 20,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the order of operations.")] = 0,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for each answer.")] = 10.0,
    history: Annotated[Path | None, typer.Option(help="New file for the history. Default: load-RUN.jsonl.")] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Run a checked read and write load.

    Reads and writes use QUORUM. An operation without an answer counts as unknown. The exit status is 1 if a read
    misses an acknowledged write, goes back, or returns a value that was not written. The load then stops and prints the
    smallest witness. 2: no operation was answered.
    """
    from ringlog_testing.histories.recorder import FileSink
    from ringlog_testing.load.driver import CheckedLoad, LoadOptions
    from ringlog_testing.load.judge import judge

    name = uuid.uuid4().hex[:8]
    file = history or Path(f"load-{name}.jsonl")
    if file.exists():
        fail("bad_file", f"{file} exists: the history of a load is a new file", 2)
    target = _Target(resolve(bootstrap, cluster), keyspace or table.partition(".")[0], table, only)
    with ExitStack() as opened:
        stores = [target.stores(opened) for _ in range(min(coordinators, clients))]
        sink = opened.enter_context(FileSink(file))
        load = CheckedLoad(stores, sink, LoadOptions(name, clients, keys, seed, rate, timeout))
        targets = ", ".join(store.name for store in stores[0])
        errors.print(f"load on {targets}; seed {seed}; history {file}", markup=False)
        with _stops(load):
            load.run(seconds, _report)
    verdict = judge(file)
    if as_json:
        typer.echo(json.dumps(_figures_json(load.figures) | _verdict_json(verdict) | {"history": str(file)}))
    else:
        _print_figures(load.figures)
        _print_verdict(verdict, file)
    if load.failure is not None:
        code = getattr(load.failure, "code", "")
        if not code:
            raise load.failure
        fail(code, f"the load ended early: {load.failure}")
    _end(verdict)


@app.command("check")
def check(
    history: Annotated[Path, typer.Argument(help="History of `ringlog load run`.")],
    as_json: Json = False,
) -> None:
    """Check the history of a load again.

    Exit status 1: a violation. 2: bad file, or no answered operation. 3: the checkers disagree.
    """
    from ringlog_testing.histories.events import HistoryError
    from ringlog_testing.load.judge import judge

    try:
        verdict = judge(history)
    except OSError as error:
        fail("bad_file", f"{history}: {error.strerror}", 2)
    except HistoryError as error:
        fail(error.code, f"{history}: {error}", 2)
    if as_json:
        typer.echo(json.dumps(_verdict_json(verdict)))
    else:
        _print_verdict(verdict, history)
    _end(verdict)


def _end(verdict: LoadVerdict) -> None:
    """End with the exit status of a verdict."""
    if verdict.disagrees:
        fail("checkers_disagree", "the history is not linearizable, but no read shows it: report the file", DISAGREE)
    if not verdict.done and not verdict.count:
        fail("nothing_checked", "no operation was answered", 2)
    raise typer.Exit(1 if verdict.count else 0)


class _Target:
    """The keyspace, table and kind of data of the options."""

    def __init__(self, context: ClusterContext, keyspace: str, table: str, only: Only | None) -> None:
        from ringlog_testing.load.stores import AckedPositions

        self._context, self._keyspace, self._table, self._only = context, keyspace, table, only
        self._acked = AckedPositions()
        if not keyspace or (table and not table.startswith(f"{keyspace}.")):
            fail("bad_usage", "pass --table KEYSPACE.TABLE, or --keyspace for registers only", 2)
        if only is Only.ROWS and not table:
            fail("bad_usage", "rows need --table", 2)

    def stores(self, opened: ExitStack) -> Sequence[LoadStore]:
        """Connect to the cluster. Return the stores of one coordinator, which stay open until ``opened`` is closed."""
        from ringlog.client.data.coordinator import Coordinator
        from ringlog.client.data.row_writer import RowWriter
        from ringlog_testing.load.stores import LoadRegisters, LoadRows, NoTarget, register_space, row_target

        client = opened.enter_context(connect(self._context, "load"))
        state, place = client.read_barrier(), (self._context.bootstrap, self._context.cluster)
        coordinator = opened.enter_context(Coordinator(client.replica, ends=partial(mutation_ends, *place)))
        stores: list[LoadStore] = []
        try:
            if self._only is not Only.ROWS:
                space = register_space(state, self._keyspace, self._table)
                stores.append(LoadRegisters(coordinator, space, lambda: client.state))
            if self._table and self._only is not Only.REGISTERS:
                table, column = row_target(state, self._table)
                writer = opened.enter_context(RowWriter(client.replica, *place))
                stores.append(LoadRows(coordinator, writer, table, column, self._acked, lambda: client.state))
        except NoTarget as error:
            fail(error.code, str(error), ways_out=error.ways_out)
        return stores


@contextmanager
def _stops(load: CheckedLoad) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the load early: its history is checked nevertheless."""
    before = {one: signal.signal(one, lambda *_: load.stop()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(figures: LoadFigures, seconds: float) -> None:
    from ringlog_testing.histories.events import Type

    done, unknown = figures.total(Type.OK), figures.total(Type.INFO)
    errors.print(f"{seconds:6.0f} s  {done:,} operations, {unknown:,} unknown", style="dim", markup=False)


# ------------------------------------------------------------------------------------------------------ output


def _figures_json(figures: LoadFigures) -> dict[str, Any]:
    from ringlog_testing.histories.events import Type

    operations = [
        {
            "kind": kind,
            "operation": op,
            "done": figures.outcomes[kind, op, Type.OK],
            "unknown": figures.outcomes[kind, op, Type.INFO],
            "rejected": figures.outcomes[kind, op, Type.FAIL],
            "p50_ms": _milliseconds(figures, (kind, op), 50),
            "p99_ms": _milliseconds(figures, (kind, op), 99),
        }
        for kind, op in sorted({(kind, op) for kind, op, _ in figures.outcomes})
    ]
    codes = [
        {"kind": kind, "operation": op, "code": code, "count": count}
        for (kind, op, code), count in sorted(figures.codes.items())
    ]
    return {
        "seconds": round(figures.seconds, 3),
        "operations_per_second": round(figures.total(Type.OK) / figures.seconds, 1) if figures.seconds else 0.0,
        "longest_silence_s": round(figures.silence_s, 3),
        "operations": operations,
        "codes": codes,
        "unread_keys": figures.unread,
    }


def _milliseconds(figures: LoadFigures, key: tuple[str, str], percent: float) -> float | None:
    found = figures.latencies[key].percentile(percent) if key in figures.latencies else None
    return None if found is None else round(found * 1e3, 2)


def _verdict_json(verdict: LoadVerdict) -> dict[str, Any]:
    from ringlog_testing.load.judge import EVENTS_MAX

    shown: dict[str, Any] = {
        "verdict": "violation" if verdict.count else "no_violation",
        "checked": verdict.done,
        "unknown": verdict.unknown,
        "keys": verdict.keys,
        "violations": verdict.count,
        "linearizable": verdict.linearizable or f"not checked: more than {EVENTS_MAX} events",
        "is_torn": verdict.is_torn,
    }
    if verdict.violations:
        first = verdict.violations[0]
        shown |= {"kind": first.kind, "key": first.key, "why": first.why}
        shown["witness"] = [event._asdict() for event in verdict.witness]
    return shown


def _print_figures(figures: LoadFigures) -> None:
    shown = _figures_json(figures)
    rows = [["" if value is None else str(value) for value in row.values()] for row in shown["operations"]]
    show_table(("kind", "operation", "done", "unknown", "rejected", "p50 ms", "p99 ms"), rows)
    rate, silence = shown["operations_per_second"], shown["longest_silence_s"]
    out.print(f"{rate} operations/s over {shown['seconds']:.0f} s; longest time without an answer {silence:.1f} s")
    for row in shown["codes"]:
        out.print(f"{row['kind']} {row['operation']}: {row['count']} times {row['code']}", markup=False)
    if figures.unread:
        out.print(
            Text(f"{figures.unread} keys could not be read at the end: their last writes were not checked", "yellow")
        )


def _print_verdict(verdict: LoadVerdict, file: Path) -> None:
    from ringlog_testing.load.judge import EVENTS_MAX

    if verdict.is_torn:
        errors.print("the last line is incomplete and was ignored", markup=False)
    word, colour = (f"{verdict.count} violations", "red") if verdict.count else ("no violation", "green")
    counts = f"{verdict.done:,} operations and {verdict.unknown:,} of unknown outcome on {verdict.keys:,} keys"
    out.print(Text.assemble((word, colour), f": {counts}"))
    decided = verdict.linearizable
    exact = f"not checked, more than {EVENTS_MAX:,} events" if decided is None else decided.replace("_", " ")
    out.print(f"linearizable, checked without the order of values: {exact}")
    if verdict.violations:
        first = verdict.violations[0]
        out.print(f"\n{first.kind} of {first.key}: {first.why}.\nSmallest witness in {file}:", markup=False)
        _print_witness(verdict.witness)


def _print_witness(events: Sequence[Event]) -> None:
    rows = []
    for event in events:
        at = "" if event.time is None else f"{datetime.fromtimestamp(event.time / 1e6, UTC):%H:%M:%S.%f}"
        value = "" if event.value is None else str(event.value)
        rows.append((str(event.line), at, event.process, f"{event.op} {event.type}", value, event.note or ""))
    show_table(("line", "time (UTC)", "client", "event", "value", "epoch and nodes"), rows)

"""Submit an operation and watch it to its end: its stages, its waits, and the commands that end a wait.

The log contains the operation. So Ctrl-C or a time-out stops only the watch. The exit status is 0 if the operation
finished, 1 if it was cancelled or did not end in time (``still_in_flight``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Annotated, Any

import typer

from ringlog.cli.shared.connection import connect, errors, fail, out, resolve, seconds_of
from ringlog.cli.shared.options import ASKING, Options, newer, with_options
from ringlog.cli.shared.submitting import CONFIRMED, DryRun, applied_text, confirm, show_answer, show_effect, submitted
from ringlog.client.client import Client
from ringlog.client.node_reports import AcksReader
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import CANCELLED, FINISHED
from ringlog.log.errors import WaitTimedOut
from ringlog.operator.answers import answer_json, ways_after
from ringlog.operator.balancing import LastHeardReader, last_heard
from ringlog.operator.intents.intents import Intent
from ringlog.operator.views import views
from ringlog.operator.views.ways_out import replaced_source
from ringlog.operator.views.words import printable, wait_lines
from ringlog.protocol.submission.results import AppliedResult
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext

Json = dict[str, Any]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Watch the operation to its end.")]
Timeout = Annotated[
    float | None, typer.Option(parser=seconds_of, help="Seconds until the watch stops. The operation continues.")
]

POLL_S = 1.0
"""Seconds between two reads of the acknowledgements while the log has no new epoch."""

SILENT_S = 5.0
"""Seconds that a stage lasts before its wait is printed."""
PROGRESS_S = 10.0
"""Seconds until a wait of the same stage that has changed, such as a number of tablets, is printed again."""


BEGINNING: Options = {"dry_run": (DryRun, False), "wait": (Wait, True), "timeout": (Timeout, None), **ASKING}


def operation_command(verb: Callable[..., Intent]) -> Callable[..., None]:
    """Decorate a function that returns the intent of an operation: submit the intent and watch the operation."""
    return with_options(verb, BEGINNING, _begin)


def destructive_operation(verb: Callable[..., Intent]) -> Callable[..., None]:
    """Decorate as ``operation_command``, for an operation that cannot be reverted: also ask for a confirmation."""
    return with_options(verb, CONFIRMED | BEGINNING, _begin)


def _begin(
    verb: Callable[[], Intent],
    bootstrap: str | None,
    cluster: str | None,
    as_json: bool,
    dry_run: bool,
    yes: bool = True,
    **watching: Any,
) -> None:
    intent, context = verb(), resolve(bootstrap, cluster)
    if dry_run:
        show_effect(context, intent, as_json)
    else:
        confirm(context, verb, intent, yes)
        ask(context, intent, as_json, **watching)


def ask(
    context: ClusterContext, intent: Intent, as_json: bool, *, wait: bool = True, timeout: float | None = None
) -> None:
    """Submit a command, and watch the operation that it starts."""
    with connect(context) as client:
        answer, began = submitted(client, intent)
        if began is not None:
            _warn_of_silent_source(context, client.replica.state, began)
        if began is None or not wait or not isinstance(answer, AppliedResult):
            show_answer(answer, began, as_json, ways_after(client.replica.state, intent, answer))
            return
        if not as_json:
            out.print(applied_text(answer.epoch, began))
        place = context.bootstrap, context.cluster
        with closing(AcksReader(*place)) as acks, closing(LastHeardReader(*place)) as loads:
            view = watch(client, acks, loads, began, timeout, _print_nothing if as_json else StagePrinter().report)
    if as_json:
        typer.echo(json.dumps(answer_json(answer, began) | {"stage": view["stage"], "ended": view}))
    _conclude(view, as_json)


def _warn_of_silent_source(context: ClusterContext, state: ClusterState, name: str) -> None:
    """Print a warning to standard error if a replacement streams from a node that is probably dead."""
    found = state.operations[name]
    if replaced_source(state, found):
        for line in views.silent_source_lines(state, found, last_heard(context.bootstrap, context.cluster)):
            errors.print(printable(line), markup=False)


def watch(
    client: Client,
    acks: AcksReader,
    loads: LastHeardReader,
    name: str,
    timeout_s: float | None,
    report: Callable[[Json, float], None],
) -> Json:
    """Return the view of the operation at its end, or after ``timeout_s``.

    ``report`` is called after every read, with the view and the seconds since its stage began.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    stage, since = "", time.monotonic()
    with errors.status("") as status:  # Shown only on a terminal.
        while True:
            acks_now = acks.refresh()
            seconds = time.monotonic() - since
            lasts = seconds >= SILENT_S or (deadline is not None and time.monotonic() >= deadline)
            last_reports = loads.refresh() if lasts else views.NO_REPORTS
            state = client.replica.state
            now = SystemClock().now_us()
            view = views.operation(
                state, state.operations[name], acks_now, now, last_reports=last_reports, advises=lasts
            )
            if view["stage"] != stage:
                stage, since, seconds = view["stage"], time.monotonic(), 0.0
            report(view, seconds)
            status.update(printable(_headline(view)))
            left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if stage in (FINISHED, CANCELLED) or (left <= 0 and lasts):
                return view
            if left <= 0:
                continue
            try:
                client.replica.wait_for(partial(newer, state.epoch), left, "a new epoch")
            except WaitTimedOut:
                continue
            except KeyboardInterrupt:
                errors.print(
                    f"{name} continues. To watch it again: ringlog operation list {name} --watch", markup=False
                )
                raise


class StagePrinter:
    """Prints a line for each stage, the wait of a stage that lasts, and the changed wait again from time to time."""

    def __init__(self) -> None:
        self._reported = 0
        self._printed: tuple[str, str, float] = ("", "", 0.0)

    def report(self, view: Json, seconds: float) -> None:
        """Print the news of ``view``. ``seconds``: since its stage began."""
        for mark in view["stages"][self._reported :]:
            out.print(f"  {mark['stage']}, epoch {mark['epoch']}", markup=False)
        self._reported = len(view["stages"])
        waits = view.get("waits_for")
        if not waits or seconds < SILENT_S:
            return
        stage, text, at = self._printed
        if view["stage"] != stage:
            lines = wait_lines(view)
        elif waits != text and seconds >= at + PROGRESS_S:
            lines = wait_lines(view)[:1]  # the ways to end it were printed
        else:
            return
        self._printed = (view["stage"], waits, seconds)
        for line in lines:
            out.print(f"    {printable(line)}", markup=False)


def _headline(view: Json) -> str:
    return f"{view['id']}: {view['stage']}" + (f", waits for {view['waits_for']}" if "waits_for" in view else "")


def _conclude(view: Json, as_json: bool) -> None:
    """Print the end of an operation and set the exit status."""
    if view["stage"] == FINISHED:
        if not as_json and view["reason"]:
            out.print(view["reason"], markup=False)
        return
    if as_json:
        raise typer.Exit(1)
    if view["stage"] == CANCELLED:
        fail("operation_cancelled", f"{view['id']}: {view['reason'] or 'no reason given'}")
    fail("still_in_flight", "\n".join([f"{view['id']} is in {view['stage']}", *wait_lines(view)]))


def _print_nothing(_view: Json, _seconds: float) -> None:
    """Ignore a report: with ``--json`` the final view is the only output."""

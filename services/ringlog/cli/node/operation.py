"""``ringlog operation``: list, watch, cancel and retry operations such as joins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Group
from rich.live import Live

from ringlog.agents.status import read_refused
from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, errors, fail, out, resolve
from ringlog.cli.shared.following import SILENT_S
from ringlog.cli.shared.options import Format, Output, form_of, newer, print_value, view_command
from ringlog.cli.shared.submitting import Reason, change_command
from ringlog.cli.shared.tables import draw_table
from ringlog.client.node_reports import AcksReader
from ringlog.kernel.commands.topology.operations import CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.generations.requests import OUTCOMES
from ringlog.kernel.operations.stages import CANCELLED, FINISHED
from ringlog.kernel.values import asdict
from ringlog.log.errors import LogError
from ringlog.operator.balancing import LastHeardReader, last_heard
from ringlog.operator.intents.intents import Intent, InvalidCommand, of_operation, operation_id
from ringlog.operator.views import views
from ringlog.operator.views.words import OPERATION_COLUMNS, described, operation_rows, printable
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.wire.acks import ACK_REJECTED
from ringlog.wire.records import RefusedProposal

app = typer.Typer(no_args_is_help=True)
WATCH_S = 86_400.0
ENDED = (FINISHED, CANCELLED, *OUTCOMES[1:])
OperationId = Annotated[str, typer.Argument(help="Id of the operation, or the beginning of it. Example: join-12.")]


@app.command("list")
def list_operations(
    operation: Annotated[str | None, typer.Argument(help="Id of the operation to list. Default: all.")] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show every change until nothing is in flight. Waits for a first operation."),
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show ended operations. JSON and YAML always contain them.")
    ] = False,
    as_json: Json = False,
    output: Output = "table",
) -> None:
    """List operations and the nodes they wait for.

    Cluster-wide requests are included. `--watch` redraws the table on a terminal, and appends a new one in a pipe.
    """
    context, form = resolve(bootstrap, cluster), form_of(as_json, output)
    place = context.bootstrap, context.cluster
    is_for_people = form in ("table", "wide")
    is_redrawn = watch and out.is_terminal and is_for_people
    with (
        connect(context) as client,
        closing(AcksReader(*place)) as acks,
        closing(LastHeardReader(*place)) as loads,
        Live(console=out, auto_refresh=False) if is_redrawn else nullcontext() as live,
    ):
        progress = ListProgress(
            awaits_start=operation is None, shows_ended=show_all or not is_for_people or operation is not None
        )
        while True:
            acks_now = acks.refresh()  # Read before the log, so that the state contains every acknowledged epoch.
            state = client.read_barrier()
            rejected_nodes = [one.subject for one in _agent_reports(context) if one.code == ACK_REJECTED]
            found = views.operations(state, acks_now, SystemClock().now_us(), rejected_nodes, loads.refresh())
            if operation is not None:
                found = [view for view in found if view["id"] == operation] or _unknown(operation)
            shown = progress.shown(found)
            if progress.has_changed(shown):
                none = f"no operation is in flight; {len(found)} have ended, see --all" if found else "no operations"
                _print(shown, none, form, live)
            if not watch or progress.has_ended(shown):
                return
            if progress.awaits_first_operation():
                text = "no operation is in flight: waiting for one to start (Ctrl-C stops)"
                (errors if live is None else out).print(text)
            client.replica.wait_for(partial(newer, state.epoch), WATCH_S, "a new epoch")


def _agent_reports(context: ClusterContext) -> tuple[RefusedProposal, ...]:
    """Return the agents' rejected proposals; none if they cannot be read, because operations are shown without them."""
    with suppress(LogError):
        return read_refused(context.bootstrap, context.cluster)
    return ()


class ListProgress:
    """The state of a watched list. ``awaits_start``: wait for an operation that has not started yet."""

    def __init__(self, awaits_start: bool, *, shows_ended: bool = True) -> None:
        self._hidden: frozenset[str] | None = frozenset() if shows_ended else None
        self._stages: list[tuple[str, str]] | None = None
        self._may_begin = awaits_start
        self._reported = False

    def shown(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the operations without those that had ended when the watch began.

        An operation that ends during the watch stays in the list.
        """
        if self._hidden is None:
            self._hidden = frozenset(view["id"] for view in found if view["stage"] in ENDED)
        return [view for view in found if view["id"] not in self._hidden]

    def has_changed(self, found: list[dict[str, Any]]) -> bool:
        """Return True if the list differs from the previous one."""
        stages = [(view["id"], view["stage"]) for view in found]
        last, self._stages = self._stages, stages
        if last not in (None, stages) or any(stage not in ENDED for _, stage in stages):
            self._may_begin = False
        return stages != last

    def has_ended(self, found: list[dict[str, Any]]) -> bool:
        """Return True if all operations have ended and no further one is awaited."""
        return not self._may_begin and all(view["stage"] in ENDED for view in found)

    def awaits_first_operation(self) -> bool:
        """Return True once, if no operation has started yet."""
        first, self._reported = self._may_begin and not self._reported, True
        return first


def _unknown(operation: str) -> NoReturn:
    fail("unknown_operation", f"{operation} is not known. The log keeps ended operations only for some time")


def _print(found: list[dict[str, Any]], none: str, form: Format, live: Live | None) -> None:
    if print_value(found, form):
        return
    table = draw_table(OPERATION_COLUMNS, list(operation_rows(found, SystemClock().now_us())), none)
    lasting = [view for view in found if time.time() - view["stages"][-1]["at"] / 1e6 >= SILENT_S]
    ways = (f"{view['id']}: {printable(way)}" for view in lasting for way in view.get("ways_out", ()))
    drawn = Group(table, *ways)
    if live is None:
        out.print(drawn, markup=False)
    else:
        live.update(drawn, refresh=True)


@app.command("show")
@view_command
def show(context: ClusterContext, operation: OperationId) -> Iterator[Any]:
    """Show one operation.

    Includes its stages, its wait, the commands that end the wait, and its failures.
    """
    with connect(context) as client, closing(AcksReader(context.bootstrap, context.cluster)) as acks:
        acks_now = acks.refresh()
        state = client.read_barrier()
        if isinstance(meant := operation_id(state, operation), InvalidCommand):
            fail(meant.code, meant.detail, 2)
        found, asked = state.operations.get(meant), state.requests.get(meant)
        agent_reports = _agent_reports(context)
        rejected_nodes = [one.subject for one in agent_reports if one.code == ACK_REJECTED]
        last_reports = last_heard(context.bootstrap, context.cluster)
        view = (
            None
            if found is None
            else views.operation(state, found, acks_now, SystemClock().now_us(), rejected_nodes, last_reports)
        )
        view = view if asked is None else views.request(asked)
    if view is not None:
        refused = [asdict(one) for one in agent_reports if one.subject == meant]
        view |= {"refused": refused} if refused else {}
    if view is None:
        _unknown(operation)
    yield view
    for line in described(view):
        out.print(printable(line), markup=False)


@app.command("cancel")
@change_command
def cancel(operation: OperationId, reason: Reason) -> Intent:
    """Cancel an operation.

    Possible before the stage write_both_read_new. Placements are then as if it had not begun.
    """
    return of_operation(CancelOperation(operation, reason))


@app.command("fail")
@change_command
def fail_command(
    operation: OperationId,
    reason: Reason,
    node: Annotated[str, typer.Option(help="Name or id of the failed node.")] = "",
) -> Intent:
    """Report an error that a retry cannot fix.

    Before the stage write_both_read_new the operation is rolled back. Later it stops until an operator decides.
    """
    return of_operation(FailOperation(operation, reason, node))


@app.command("retry")
@change_command
def retry(
    operation: OperationId,
    reason: Reason,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="NODE",
            help="Node that was declared down, to continue without. May be repeated.",
        ),
    ] = None,
    admit_loss: Annotated[bool, typer.Option("--admit-loss", help=help_texts.ADMIT_LOSS)] = False,
) -> Intent:
    """Retry an operation that waits for an operator or a node.

    With --ignore, it continues without a node that is lost. This is possible from the stage write_both_read_new on.
    --admit-loss permits that if too few nodes remain for correct reads.
    """
    command = RetryOperation(operation, reason, tuple(ignore or ()), admit_loss)
    return of_operation(command)

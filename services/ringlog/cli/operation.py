"""``ringlog operation``: what is moving, who it waits for, what can be done, and calling it off."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from ringlog.agents.status import read_refused
from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, errors, fail, out, resolve
from ringlog.cli.following import PATIENCE_S, newer
from ringlog.cli.submitting import Reason, asks
from ringlog.cli.verbs import looks, show_table
from ringlog.client.acks import AcksReader
from ringlog.kernel.commands.operations import CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.generations.requests import OUTCOMES
from ringlog.kernel.operations.stages import CANCELLED, FINISHED
from ringlog.log.errors import LogError
from ringlog.operator import views
from ringlog.operator.intents import Intent, named
from ringlog.operator.shown import printable
from ringlog.operator.words import described, subject
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.wire.ack_codes import ACK_NOT_BELIEVED
from ringlog.wire.records import RefusedProposal

app = typer.Typer(no_args_is_help=True)
WATCH_S = 86_400.0
ENDED = (FINISHED, CANCELLED, *OUTCOMES[1:])
OperationId = Annotated[str, typer.Argument(help="Id of the operation, e.g. join-12.")]


@app.command("list")
def list_operations(
    operation: Annotated[str | None, typer.Argument(help="Id of the only one to list.")] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Print every change until nothing is in flight; if nothing is yet, wait for it to begin."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Operations and requests to the whole cluster: in flight, with whom they wait for, and the last ended ones."""
    context = resolve(bootstrap, cluster)
    with connect(context) as client, closing(AcksReader(context.bootstrap, context.cluster)) as acks:
        looks = Looks(may_begin=operation is None)
        while True:
            said = acks.refresh()  # before the log: what is said of an epoch counts once the log has it
            state = client.read_barrier()
            doubted = [one.subject for one in _told(context) if one.code == ACK_NOT_BELIEVED]
            found = views.operations(state, said, SystemClock().now_us(), doubted)
            if operation is not None:
                found = [view for view in found if view["id"] == operation] or _unknown(operation)
            if looks.is_news(found):
                _print(found, as_json)
            if not watch or looks.is_over(found):
                return
            if looks.waits_for_the_first():
                errors.print("nothing is in flight: waiting for an operation to begin, until Ctrl-C")
            client.replica.wait_for(partial(newer, state.epoch), WATCH_S, "a new epoch")


def _told(context: ClusterContext) -> tuple[RefusedProposal, ...]:
    """What agents say; agents that say nothing hide no operation."""
    with suppress(LogError):
        return read_refused(context.bootstrap, context.cluster)
    return ()


class Looks:
    """What has been seen of a list of operations. ``may_begin``: one that has not begun yet is waited for."""

    def __init__(self, may_begin: bool) -> None:
        self._stages: list[tuple[str, str]] | None = None
        self._may_begin = may_begin
        self._said = False

    def is_news(self, found: list[dict[str, Any]]) -> bool:
        """True if the list was not like this at the last look."""
        stages = [(view["id"], view["stage"]) for view in found]
        last, self._stages = self._stages, stages
        if last not in (None, stages) or any(stage not in ENDED for _, stage in stages):
            self._may_begin = False
        return stages != last

    def is_over(self, found: list[dict[str, Any]]) -> bool:
        """True if nothing is in flight, and nothing to begin is waited for."""
        return not self._may_begin and all(view["stage"] in ENDED for view in found)

    def waits_for_the_first(self) -> bool:
        """True once, when nothing has begun yet."""
        first, self._said = self._may_begin and not self._said, True
        return first


def _unknown(operation: str) -> NoReturn:
    fail("unknown_operation", f"{operation} is not known; ended ones are remembered for a while only")


def _print(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    rows: list[tuple[str | Text, ...]] = []
    for view in found:
        since = view["stages"][-1]
        seconds = max(0.0, time.time() - since["at"] / 1e6)
        waits = view.get("waits_for", view["reason"])
        ago = f"epoch {since['epoch']}, {seconds:.0f} s ago"
        rows.append((view["id"], subject(view), view["stage"], ago, Text(printable(waits))))
    show_table(("operation", "of", "stage", "since", "waits for"), rows, "no operations")
    for view in found:
        lasts = time.time() - view["stages"][-1]["at"] / 1e6 >= PATIENCE_S
        for way in view.get("ways_out", ()) if lasts else ():
            out.print(f"{view['id']}: {printable(way)}", markup=False)


@app.command("show")
@looks
def show(context: ClusterContext, operation: OperationId) -> Iterator[Any]:
    """One operation: its stages so far, whom it waits for since when, what can be done, and what it has failed of."""
    with connect(context) as client, closing(AcksReader(context.bootstrap, context.cluster)) as acks:
        said = acks.refresh()
        state = client.read_barrier()
        found, asked = state.operations.get(operation), state.requests.get(operation)
        told = _told(context)
        doubted = [one.subject for one in told if one.code == ACK_NOT_BELIEVED]
        view = None if found is None else views.operation(state, found, said, SystemClock().now_us(), doubted)
        view = view if asked is None else views.request(asked)
    if view is not None:
        refused = [asdict(one) for one in told if one.subject == operation]
        view |= {"refused": refused} if refused else {}
    if view is None:
        _unknown(operation)
    yield view
    for line in described(view):
        out.print(printable(line), markup=False)


@app.command("cancel")
@asks
def cancel(operation: OperationId, reason: Reason) -> Intent:
    """Call an operation off; possible before write_both_read_new. Placements are then as if it had never begun."""
    return named(CancelOperation(operation, reason))


@app.command("fail")
@asks
def fail_command(
    operation: OperationId,
    reason: Reason,
    node: Annotated[str, typer.Option(help="Name or id of the node whose error it is.")] = "",
) -> Intent:
    """Report for a node an error that no retry can mend. Rolled back before write_both_read_new; later it stops."""
    return named(FailOperation(operation, reason, node))


@app.command("retry")
@asks
def retry(
    operation: OperationId,
    reason: Reason,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="NODE",
            help="Do not wait any more for this node, which was declared down; from write_both_read_new on.",
        ),
    ] = None,
    admit_loss: Annotated[
        bool, typer.Option("--admit-loss", help="Also if too few others are left to be sure of every read.")
    ] = False,
) -> Intent:
    """Have an operation tried again that waits for an operator's decision, or that waits for a node that is gone."""
    command = RetryOperation(operation, reason, tuple(ignore or ()), admit_loss)
    return named(command)

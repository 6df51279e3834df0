"""Submit a command and print its outcome, for all subcommands that change the cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import connect, errors, fail, out, resolve, used_cluster
from ringlog.cli.shared.options import ASKING, Options, newest, with_options
from ringlog.client.client import Client
from ringlog.kernel.values import SECOND_US, Micros
from ringlog.operator import answers, plans
from ringlog.operator.answers import TIMEOUT_S, InvalidIntent, answer_json
from ringlog.operator.intents.intents import Intent
from ringlog.operator.views.words import printable, when
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext

NO_COUNTS: Final[Mapping[str, Micros]] = {}
CLOCK_MARGIN_S: Final = 0.5
"""Difference of this clock and that of a broker that a wait tolerates."""
WaitCounted = Annotated[bool, typer.Option("--wait", help="Return when a change of tables counts for new writes.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help=help_texts.DRY_RUN)]
EFFECT_LINES: Final = 40
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]
CONFIRMED: Options = {"yes": (Yes, False)}
"""The option of commands that cannot be reverted."""
SUBJECTS: Final = ("node", "name", "full_name", "zone", "generation")
"""Parameters of commands with the name of the changed object."""
Reason = Annotated[str, typer.Option(help="Reason, recorded in the log.")]


def change_command(verb: Callable[..., Intent]) -> Callable[..., None]:
    """Decorate a function that returns an intent: add the connection options and submit the intent."""
    return with_options(verb, {"dry_run": (DryRun, False), **ASKING}, _ask)


def destructive_command(verb: Callable[..., Intent]) -> Callable[..., None]:
    """Decorate as ``change_command``, for a change that cannot be reverted: also ask for a confirmation."""
    return with_options(verb, {**CONFIRMED, "dry_run": (DryRun, False), **ASKING}, _ask)


def _ask(
    verb: Callable[[], Intent],
    bootstrap: str | None,
    cluster: str | None,
    as_json: bool,
    dry_run: bool,
    yes: bool = True,
) -> None:
    intent, context = verb(), resolve(bootstrap, cluster)
    if dry_run:
        show_effect(context, intent, as_json)
    else:
        confirm(context, verb, intent, yes)
        submit(context, intent, as_json)


def confirm(context: ClusterContext, verb: Callable[[], Intent], intent: Intent, yes: bool) -> None:
    """Show the effect of a command and have the user type the name of its subject; exit status 1 for another name.

    Only a terminal is asked: scripts have decided. A command without a name asks for the name of the cluster. A command
    that would be rejected is not confirmed, because its answer says more.
    """
    if yes or not is_interactive():
        return
    try:
        view = plans.rehearsed(newest(context), intent)
    except InvalidIntent:
        return
    if view["rejected"] is None:
        given = getattr(verb, "keywords", {})
        name = next((str(given[one]) for one in SUBJECTS if one in given), context.cluster)
        # Watermarks and table versions are not part of an effect, which is then empty.
        confirm_name(name, _effect_lines(view) if view["effect"] else ())


def is_interactive() -> bool:
    """Return True if a user can answer a question."""
    return sys.stdin.isatty()


def confirm_name(name: str, lines: Iterable[str]) -> None:
    """Print the consequences and have the user type a name; exit status 1 for another one."""
    for line in lines:
        errors.print(printable(line), markup=False)
    if typer.prompt(printable(f"This cannot be undone. Type {name} to continue"), err=True).strip() != name:
        fail("not_confirmed", "nothing was changed")


def show_effect(context: ClusterContext, intent: Intent, as_json: bool) -> None:
    """Print the effect of a command on the newest state; exit status 1 for a rejection, 2 for an invalid command."""
    try:
        view = plans.rehearsed(newest(context), intent)
    except InvalidIntent as refused:
        fail(refused.code, str(refused), 2)
    if as_json:
        typer.echo(json.dumps(view))
    else:
        for line in _effect_lines(view):
            out.print(printable(line), markup=False)
    raise typer.Exit(int(view["rejected"] is not None))


def _effect_lines(view: Mapping[str, Any]) -> Iterator[str]:
    effect, refused_by = view["effect"], view["rejected"]
    if refused_by:
        yield f"would be rejected: {refused_by['code']}: {refused_by['detail']}"
        return
    yield f"would change {len(effect)} {'item' if len(effect) == 1 else 'items'} of cluster {used_cluster()}:"
    yield from (f"  {line}" for line in effect[:EFFECT_LINES])
    if len(effect) > EFFECT_LINES:
        yield f"  and {len(effect) - EFFECT_LINES} more, see --json"


def submit(
    context: ClusterContext,
    intent: Intent,
    as_json: bool,
    *,
    timeout_s: float = TIMEOUT_S,
    request_id: str | None = None,
    since_epoch: int | None = None,
    waits: bool = False,
) -> None:
    """Submit an intent and print the outcome; exit status 1 if it is not applied, 2 if it is not a command.

    ``waits``: return when a change of tables counts for new writes.
    """
    with connect(context) as client:
        answer, began = submitted(client, intent, timeout_s, request_id, since_epoch)
        ways_out = answers.ways_after(client.replica.state, intent, answer)
        counts = answers.counts_from(client.replica.state, answer)
    show_answer(answer, began, as_json, ways_out, counts)
    if waits:
        wait_until_counted(counts, timeout_s)


def submitted(
    client: Client,
    intent: Intent,
    timeout_s: float = TIMEOUT_S,
    request_id: str | None = None,
    since_epoch: int | None = None,
) -> tuple[Submitted, str | None]:
    """Return (answer, id of the operation that it started, or None); exit status 2 for an invalid intent."""
    try:
        return answers.submitted(client, intent, timeout_s=timeout_s, request_id=request_id, since_epoch=since_epoch)
    except InvalidIntent as refused:
        fail(refused.code, str(refused), 2)


def applied_text(epoch: int, began: str | None) -> str:
    """Return the text for an applied command, with the epoch and the operation that it started."""
    return f"applied at epoch {epoch} of cluster {used_cluster()}" + (f", operation {began}" if began else "")


def show_answer(
    answer: Submitted,
    began: str | None,
    as_json: bool,
    ways_out: Sequence[str] = (),
    counts: Mapping[str, Micros] = NO_COUNTS,
) -> None:
    """Print the outcome of a command; exit status 1 unless it was applied. ``counts``: as of ``counts_from``."""
    if as_json:
        typer.echo(json.dumps(answer_json(answer, began, ways_out) | counts_json(counts)))
    elif isinstance(answer, AppliedResult):
        out.print(applied_text(answer.epoch, began))
        print_counts(counts)
    elif isinstance(answer, RejectedResult):
        fail(answer.code, answer.detail, ways_out=ways_out)
    else:
        fail("request_expired", f"unknown, and final now: see ringlog log --from-epoch {answer.since_epoch}")
    if not isinstance(answer, AppliedResult):
        raise typer.Exit(1)


def counts_json(counts: Mapping[str, Micros]) -> dict[str, Any]:
    """Return the field ``counts_from`` of an answer, or nothing."""
    return {"counts_from": dict(counts)} if counts else {}


def print_counts(counts: Mapping[str, Micros]) -> None:
    """Print from when the changes of tables count for writes."""
    now = SystemClock().now_us()
    for name, since in counts.items():
        ahead = f", in {(since - now) / SECOND_US:.1f} s" if since > now else ""
        out.print(printable(f"{name}: counts for writes appended from {when(since)}{ahead}"))


def wait_until_counted(counts: Mapping[str, Micros], timeout_s: float) -> None:
    """Wait until the changes count for writes; exit status 1 if that takes longer than ``timeout_s``.

    The clocks of the brokers decide. The wait uses this machine's clock, plus a margin for a difference.
    """
    until = max(counts.values(), default=0)
    left = (until - SystemClock().now_us()) / SECOND_US
    if left > timeout_s:
        fail("counts_later", f"the change is applied, and counts for writes appended from {when(until)}")
    if left > -CLOCK_MARGIN_S:
        time.sleep(left + CLOCK_MARGIN_S)

"""``ringlog tablet repair``: repair tablets in rounds of as many as the limits on streaming admit.

Each round is one entry of the log, so Ctrl-C or a time-out stops only further rounds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import typer

from ringlog.cli.shared.connection import connect, errors, fail, out, resolve
from ringlog.cli.shared.following import POLL_S, PROGRESS_S
from ringlog.cli.shared.options import newer
from ringlog.cli.shared.submitting import applied_text, show_answer, submitted
from ringlog.client.client import Client
from ringlog.log.errors import WaitTimedOut
from ringlog.operator.answers import answer_json
from ringlog.operator.intents.tablets import repair_tablets
from ringlog.operator.tablet_repairs import TEMPORARY, TabletRepairs, repairs_of
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted


def repair(
    verb: Callable[[], tuple[str, tuple[int, ...]]],
    bootstrap: str | None,
    cluster: str | None,
    as_json: bool,
    wait: bool = True,
    timeout: float | None = None,
) -> None:
    """Repair the tablets that ``verb`` returns; exit status 1 if one is not repaired."""
    table, numbers = verb()
    with connect(resolve(bootstrap, cluster)) as client:
        state = client.read_barrier()
        tablets = state.tablets.get(table)
        if tablets is None or any(not 0 <= number < tablets.count for number in numbers):
            show_answer(*submitted(client, repair_tablets(table, numbers)), as_json)
            return
        work = repairs_of(state, tablets, numbers)
        if not wait:
            _one_round(client, work, as_json)
            return
        subscription = client.replica.subscribe(work.folded)
        try:
            answer = _all_rounds(client, work, as_json, timeout)
        except KeyboardInterrupt:
            errors.print("\n".join(_unfinished(work)), markup=False)
            raise
        finally:
            subscription.close()
    _conclude(work, answer, as_json)


def _one_round(client: Client, work: TabletRepairs, as_json: bool) -> None:
    """Start the repairs that fit now, and print the command for the others."""
    chosen, _ = work.next_round(client.state)
    answer, _ = submitted(client, repair_tablets(work.table, chosen or work.wanted))
    if not isinstance(answer, AppliedResult):
        show_answer(answer, None, as_json)
        return
    others = [number for number in work.wanted if number not in chosen]
    if as_json:
        typer.echo(json.dumps(answer_json(answer) | {"started": list(chosen), "remaining": others}))
        return
    out.print(f"{applied_text(answer.epoch, None)}, {len(chosen)} of {len(work.wanted)} tablets", markup=False)
    if others:
        out.print(f"{len(others)} tablets remain. To continue: {work.command(others)}", markup=False)


def _all_rounds(client: Client, work: TabletRepairs, as_json: bool, timeout: float | None) -> Submitted | None:
    """Submit rounds until every repair has ended; return the last answer."""
    deadline = None if timeout is None else time.monotonic() + timeout
    last: Submitted | None = None
    printed = float("-inf")
    with errors.status("") as status:  # Shown only on a terminal.
        while True:
            state = client.catch_up()
            if work.resized:
                text = f"{work.table} was split, merged or dropped, so the tablets have other numbers"
                fail("tablets_changed", text, ways_out=(f"ringlog tablet repair {work.table}",))
            if not work.left():
                return last
            chosen, refused = work.next_round(state)
            if refused is not None:
                fail(refused.code, refused.detail, ways_out=_unfinished(work))
            if chosen:
                answer, _ = submitted(client, repair_tablets(work.table, chosen))
                if isinstance(answer, AppliedResult):
                    last = answer
                elif not isinstance(answer, RejectedResult) or answer.code not in TEMPORARY:
                    show_answer(answer, None, as_json, _unfinished(work))
            progress = f"{len(work.repaired)} of {len(work.wanted)} tablets are repaired"
            status.update(progress)
            if not as_json and time.monotonic() >= printed + PROGRESS_S:
                printed = time.monotonic()
                waits = f", the next wait: {work.waits}" if work.waits else ""
                out.print(f"epoch {client.state.epoch}: {progress}{waits}", markup=False)
            left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if left <= 0:
                fail("still_in_flight", progress, ways_out=_unfinished(work))
            with suppress(WaitTimedOut):
                client.replica.wait_for(partial(newer, state.epoch), left, "a new epoch")


def _unfinished(work: TabletRepairs) -> tuple[str, ...]:
    """Return the progress and the command that continues."""
    rest = (*work.left(), *work.failed)
    done = f"{len(work.repaired)} of {len(work.wanted)} tablets are repaired, and repairs in progress continue"
    return (done, f"to continue: {work.command(rest)}") if rest else (done,)


def _conclude(work: TabletRepairs, answer: Submitted | None, as_json: bool) -> None:
    if as_json:
        shown = {} if answer is None else answer_json(answer)
        failed = {str(number): reason for number, reason in sorted(work.failed.items())}
        typer.echo(json.dumps(shown | {"repaired": sorted(work.repaired), "failed": failed}))
    if work.failed and not as_json:
        number, reason = min(work.failed.items())
        text = f"{len(work.failed)} of {len(work.wanted)} tablets, the first is {work.table}/{number}: {reason}"
        fail("repair_failed", text, ways_out=(f"try again: {work.command(work.failed)}",))
    if work.failed:
        raise typer.Exit(1)
    if not as_json:
        out.print(f"{len(work.repaired)} tablets of {work.table} are repaired", markup=False)

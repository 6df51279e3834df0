"""Changes through the console: rehearse a command, show the difference, submit the rehearsed command.

The console signs requests with its own key, and names the user as the person that it acts for. The log checks only the
principal of the console. So this module checks the rights of the user with the same rule.

Invariants:

- A user has at most the rights of the principal with the user's name.

- A plan that needs a second principal is not approved here: the log could not tell two users of the console apart.

- The submitted command is the rehearsed one, with the same drawn values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.console.access import problem
from ringlog.console.views.log import difference
from ringlog.kernel.authorization import authorize
from ringlog.kernel.commands.control.plans import ApprovePlan
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch
from ringlog.log.errors import LogError
from ringlog.operator import answers
from ringlog.operator.intents.intents import InvalidCommand, resolved
from ringlog.operator.intents.json_commands import intent_of_json, to_json
from ringlog.operator.plans import summary
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.runtime.draw import SystemDraw

Json = dict[str, Any]
COMMANDS_MAX: Final = 100
TIMEOUT_S: Final = 20.0
REJECTED: Final = 409


def resolve(state: ClusterState, value: Any) -> Command | InvalidCommand:
    """Return the command of a JSON value, with names resolved and random values drawn."""
    return resolved(intent_of_json(value), state, SystemDraw())


def rehearse(state: ClusterState, values: Sequence[Any], *, to_end: bool = False) -> Json:
    """Run commands on a state. Return their answers, the resolved commands and the difference that they make.

    ``to_end``: also run the operations that they begin, with every node acknowledging.
    """
    if not values or len(values) > COMMANDS_MAX:
        return problem("bad_field", f"commands: 1 to {COMMANDS_MAX} commands")
    rehearsal, commands, results = Rehearsal(state), [], []
    for value in values:
        command = resolve(rehearsal.state, value)
        if isinstance(command, InvalidCommand):
            return problem(command.code, command.detail, status=400)
        commands.append(to_json(rehearsal.state, command))
        result = rehearsal.line(json.dumps(commands[-1]), len(commands))
        if "detail" in result:
            result["detail"] = answers.explained(state, result["code"], result["detail"])
        results.append(result)
    if to_end:
        rehearsal.line('{"do": "finish"}', 0)
    accepted = all(result.get("outcome") == "applied" for result in results)
    made = difference(state, rehearsal.state) if rehearsal.state is not state else None
    return {
        "epoch": state.epoch,
        "accepted": accepted,
        "commands": commands,
        "results": results,
        "difference": made,
    }


def unauthorized(state: ClusterState, user: str, command: Command) -> Json | None:
    """Return why a user may not send a command through the console; None if it may."""
    if state.principals and (refused := authorize(state, user, command)) is not None:
        # A user without a principal is known, so this is not 401: another token would not help.
        code = "not_authorized" if refused.code == "not_authenticated" else refused.code
        return problem(code, answers.explained(state, refused.code, refused.detail))
    plan = state.plans.get(command.plan) if isinstance(command, ApprovePlan) else None
    if plan is not None and summary(state, plan)["needs_approval"]:
        detail = f"{plan.name} needs the approval of a second principal, who signs it with an own key"
        return problem("approval_needed", detail, (f"ringlog plan approve {plan.name}",))
    return None


def submit(
    open_client: Callable[[str], AbstractContextManager[Client]],
    state: ClusterState,
    user: str,
    value: Any,
    request_id: str | None = None,
    since_epoch: Epoch | None = None,
) -> Json:
    """Submit a JSON command for a user and return the answer.

    Args:
        open_client: Returns a client that acts for the user.
        request_id: Id that makes a repetition of the request harmless. Requires ``since_epoch``.
        since_epoch: Epoch of the rehearsal or of the first attempt.
    """
    command = resolve(state, value)
    if isinstance(command, InvalidCommand):
        return problem(command.code, command.detail, status=400)
    if refused := unauthorized(state, user, command):
        return refused
    try:
        with open_client(user) as client:
            answer = client.submit(command, timeout_s=TIMEOUT_S, request_id=request_id, since_epoch=since_epoch)
            began = answers.operation_begun(client.state, answer)
            ways = answers.ways_after(client.state, intent_of_json(value), answer)
            after = client.state
    except SubmissionTimedOut as error:
        again: Json = {"request_id": error.request_id, "since_epoch": error.since_epoch}
        return problem(error.code, str(error), **again)
    except LogError as error:
        status = 400 if error.code == "invalid_submission" else 503
        return problem(error.code, error.message, [*filter(None, [error.hint])], status)
    shown = answers.answer_json(answer, began)
    if isinstance(answer, AppliedResult):
        return shown
    if isinstance(answer, RejectedResult):
        detail = answers.explained(after, answer.code, answer.detail)
        more = {"epoch": answer.epoch, "request_id": answer.request_id}
        return problem(answer.code, detail, ways, REJECTED, **more)
    return problem("request_expired", "the outcome is unknown, and final", **shown)

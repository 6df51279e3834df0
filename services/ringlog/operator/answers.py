"""Submit a command and explain the answer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ringlog.client.client import Client
from ringlog.kernel.commands.control.plans import ApprovePlan
from ringlog.kernel.commands.topology.movements import Remove, Replace
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.tablets.groups import is_forfeited
from ringlog.kernel.tablets.mutual_exclusion import knows_every_row
from ringlog.kernel.tablets.stages import nodes_of
from ringlog.kernel.values import Command, Micros, replace
from ringlog.operator.errors import Refused
from ringlog.operator.intents.intents import Intent, InvalidCommand, resolved
from ringlog.operator.views import ways_out as advice
from ringlog.operator.views.words import with_keyspaces, with_names
from ringlog.protocol.effects import Draw
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, WithdrawnResult
from ringlog.runtime.draw import SeededDraw, SystemDraw

TIMEOUT_S = 30.0


class InvalidIntent(Refused):
    """An intent that cannot become a command, in any state of the cluster."""


def submitted(
    client: Client,
    intent: Intent,
    *,
    timeout_s: float = TIMEOUT_S,
    request_id: str | None = None,
    since_epoch: int | None = None,
) -> tuple[Submitted, str | None]:
    """Resolve an intent on the newest state and submit it.

    Returns (answer, id of the operation that the command started, or None). Raises InvalidIntent.
    """
    command = command_of(intent, client.read_barrier(), SystemDraw())
    answer = client.submit(command, timeout_s=timeout_s, request_id=request_id, since_epoch=since_epoch)
    if isinstance(answer, RejectedResult):
        answer = replace(answer, detail=explained(client.replica.state, answer.code, answer.detail))
    return answer, operation_begun(client.replica.state, answer)


def explained(state: ClusterState, code: str, detail: str) -> str:
    """Return the detail of a rejection with names of nodes, tables and keyspaces in place of ids."""
    named = with_names(state, detail)
    if code == "unknown_setting":
        return named + setting_hint(named.removeprefix("settings: ").split()[0])
    return with_keyspaces(state, named) if code == "replication_impossible" else named


def setting_hint(wrong: str) -> str:
    """Return the nearest setting for an unknown one, or the command that lists all of them."""
    close = get_close_matches(wrong, SETTINGS, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else "; see ringlog cluster settings"


def ways_after(state: ClusterState, intent: Intent, answer: Submitted) -> tuple[str, ...]:
    """Return commands that the state accepts in place of a rejected one, a line each."""
    if isinstance(answer, RejectedResult) and answer.code == "approval_needed":
        return _staged(state, resolved(intent, state, SeededDraw(b"advice")))
    if not isinstance(answer, RejectedResult) or answer.code != "too_few_replicas":
        return ()
    command = resolved(intent, state, SeededDraw(b"advice"))
    dead = command.node if isinstance(command, Remove) else command.replaced if isinstance(command, Replace) else ""
    if dead not in state.nodes:
        return ()
    node = state.nodes[dead]
    text = f"no other node has all rows of {node.name}"
    return tuple(advice.last_resort(state, node, *advice.down(node), text=text))


def _staged(state: ClusterState, command: Command | InvalidCommand) -> tuple[str, ...]:
    """Return the command line that stages a command as a plan. The parser is imported late, as it is slow to load."""
    from ringlog.operator.intents.json_commands import to_json

    if isinstance(command, InvalidCommand | ApprovePlan):
        return ()
    return (f"stage it: ringlog plan stage NAME <<<{shlex.quote(json.dumps(to_json(state, command)))}",)


def command_of(intent: Intent, state: ClusterState, draw: Draw) -> Command:
    """Return the command of an intent on this state. Raises InvalidIntent."""
    command = resolved(intent, state, draw)
    if isinstance(command, InvalidCommand):
        raise InvalidIntent(command.code, command.detail)
    return command


def operation_begun(state: ClusterState, answer: Submitted) -> str | None:
    """Return the id of the operation that an applied command started, or None."""
    if not isinstance(answer, AppliedResult):
        return None
    begun = (operation.id for operation in state.operations.values() if operation.marks[0].epoch == answer.epoch)
    return next(begun, None)


def counts_from(state: ClusterState, answer: Submitted) -> dict[str, Micros]:
    """Return a time for each table that an applied change altered: it counts for writes appended from then on.

    Tables without a CDC log are left out, and tables whose change counts for all writes.
    """
    if not isinstance(answer, AppliedResult):
        return {}
    return {
        name: lifetimes[-1].versions[-1].since
        for name, lifetimes in in_order(state.table_lives)
        if (table := lifetimes[-1].versions[-1].table).changed == answer.epoch
        and table.cdc.enabled
        and lifetimes[-1].until is None
    }


def dry_run(state: ClusterState, intent: Intent, draw: Draw) -> str:
    """Return the expected result of the operation that a command would start, and the tablets that may lose rows.

    Raises Refused if the command would be rejected.
    """
    decided = decide(state, command_of(intent, state, draw), EntryContext(state.epoch + 1, state.state_id, state.time))
    if not isinstance(decided, Accepted):
        raise Refused(decided.code, explained(state, decided.code, decided.detail))
    prediction = max(decided.state.operations.values(), key=lambda operation: operation.marks[0].epoch).reason
    bare = _without_rows(decided.state) - _without_rows(state)
    return f"{prediction}; tablets that may lose rows: {len(bare)}, the first is {min(bare)}" if bare else prediction


def _without_rows(state: ClusterState) -> set[str]:
    """Return the tablets that may lose rows: no remaining replica set has every row, and the nodes that have more are
    gone.
    """
    left = {name for name, node in state.nodes.items() if node.state == "left"}
    return {
        f"{name}/{tablet.index}"
        for name, tablets in (state.tablets.items() if left else ())
        for tablet in (tablets if left.intersection(tablets.nodes) else ())
        if is_forfeited(nodes_of(tablet.replicas), state.nodes)
        and not knows_every_row(state, name, nodes_of(tablet.replicas))
    }


def answer_json(answer: Submitted, began: str | None = None, ways_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return an answer as JSON: outcome, epoch and operation, and for a rejection its code, detail and alternatives."""
    match answer:
        case AppliedResult():
            shown: dict[str, Any] = {"outcome": "applied", "epoch": answer.epoch, "request_id": answer.request_id}
        case RejectedResult():
            shown = {"outcome": "rejected", "epoch": answer.epoch}
            shown |= {"code": answer.code, "detail": answer.detail, "request_id": answer.request_id}
            shown |= {"ways_out": list(ways_out)}
        case _:
            shown = {"outcome": "expired", "request_id": answer.request_id, "since_epoch": answer.since_epoch}
    return shown | ({"operation": began} if began else {})


def ended_json(ended: AppliedResult | WithdrawnResult | ExpiredResult) -> dict[str, Any]:
    """Return the result of a withdrawal as JSON."""
    outcome = {AppliedResult: "applied", WithdrawnResult: "withdrawn", ExpiredResult: "expired"}[type(ended)]
    epoch = {} if isinstance(ended, ExpiredResult) else {"epoch": ended.epoch}
    return {"outcome": outcome, **epoch, "request_id": ended.request_id}

"""``ringlog plan``: stage commands as a plan, review it, and approve or reject it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli.shared.connection import fail, out
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.submitting import Reason, change_command
from ringlog.cli.shared.tables import show_table
from ringlog.files import STDIN, read_input, read_lines
from ringlog.kernel.commands.control.plans import ApprovePlan, RejectPlan, RequireApprovals
from ringlog.kernel.model.plans import DANGEROUS
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch
from ringlog.operator import plans as views
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_past import past_of, state_at
from ringlog.operator.intents.intents import Intent, InvalidCommand, named
from ringlog.operator.views.words import printable
from ringlog.protocol.effects import Draw
from ringlog.runtime.context import ClusterContext

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the plan.")]
Staged = Annotated[
    int | None,
    typer.Option("--staged", metavar="EPOCH", help="Epoch that staged the reviewed plan. Default: the present plan."),
]


@app.command("stage")
@change_command
def stage(
    name: Name,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File with one JSON command per line. Default: standard input."),
    ] = None,
    expires: Annotated[int, typer.Option("--expires", metavar="SECONDS", help="Time until the plan expires.")] = 86_400,
    part: Annotated[
        int | None, typer.Option("--part", metavar="N", help="Part of a file with several parts, from 1.", min=1)
    ] = None,
) -> Intent:
    """Stage commands as a plan.

    The plan is rehearsed and stored. Its commands apply together when it is approved. In the file of a rehearsal, each
    `{"do": "finish"}` ends a part: stage the next one when the operations of the part have ended. Other lines with do
    or show are for rehearsals only.
    """
    return views.staging(name, _part_of(_lines(file), part), expires)


@app.command("list")
@view_command
def list_plans(context: ClusterContext) -> Iterator[Any]:
    """List the staged plans.

    Also shows the commands that need the approval of a second principal.
    """
    view = views.plans(newest(context))
    yield view
    rows = [
        (plan["name"], plan["author"], str(plan["staged"]), plan["expires"], ", ".join(plan["commands"]))
        for plan in view["plans"]
    ]
    show_table(("plan", "author", "staged", "expires", "commands"), rows, "no plan is staged")
    if view["approvals"]:
        out.print(f"commands that need an approval: {', '.join(view['approvals'])}")


@app.command("show")
@view_command
def show(context: ClusterContext, name: Name) -> Iterator[Any]:
    """Show the commands of a plan and their effect.

    If the effect changed since the plan was staged, shows both. An approval of that plan is refused.
    """
    state = newest(context)
    plan = state.plans.get(name)
    if plan is None:
        fail("unknown_plan", f"there is no {name}. See: ringlog plan list")
    view = views.details(state, plan, lambda epoch: _past(context, epoch))
    yield view
    lines = [f"{name}, staged with epoch {plan.staged} by {plan.author}, expires at {view['expires']}"]
    if view["needs_approval"]:
        lines.append(f"needs the approval of a second principal: {', '.join(view['needs_approval'])}")
    lines += ["commands:", *(f"  {json.dumps(one)}" for one in view["commands"])]
    if view["unchanged"]:
        lines += ["effect:", *_indented(view["effect"])]
    else:
        lines += ["effect when it was staged:", *_indented(view["effect_then"], "  the log no longer has that state")]
        refused = view["rejected"] or {"code": "", "detail": ""}
        lines += ["effect now:", *_indented(view["effect"], f"  {refused['code']}: {refused['detail']}")]
    for line in lines:
        typer.echo(printable(line))


@app.command("approve")
@change_command
def approve(name: Name, staged: Staged = None) -> Intent:
    """Approve a plan and apply its commands.

    Applies all commands in one entry, or none. If a command needs an approval, the author cannot approve the plan.
    """
    return _of_plan(name, staged, lambda epoch: ApprovePlan(name, epoch))


@app.command("reject")
@change_command
def reject(name: Name, staged: Staged = None, reason: Reason = "") -> Intent:
    """Reject a plan.

    The plan is removed. The log keeps the reason.
    """
    return _of_plan(name, staged, lambda epoch: RejectPlan(name, epoch, reason))


@app.command("require")
@change_command
def require(
    commands: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help=f"Some of: {', '.join(DANGEROUS)}.")
    ] = None,
    nothing: Annotated[bool, typer.Option("--none", help="End the demand.")] = False,
) -> Intent:
    """Set the commands that need a second principal's approval.

    The cluster needs two admins. ForceState, GrantRole and RequireApprovals then need an approval, too.
    """
    if nothing == bool(commands):
        raise typer.BadParameter("name commands, or pass --none")
    return named(RequireApprovals(tuple(sorted({*(commands or ())}))))


def _of_plan(name: str, staged: Epoch | None, command: Any) -> Intent:
    """Return the intent of a command about the plan of this epoch, or about the present one."""

    def intent(state: ClusterState, _: Draw) -> Command | InvalidCommand:
        known = state.plans.get(name)
        made: Command = command(staged if staged is not None else 0 if known is None else known.staged)
        return made

    return intent


def _lines(file: Path | None) -> list[tuple[int, Any]]:
    """Return the numbers and values of the lines with JSON; exit status 2 for another line."""
    found = []
    try:
        lines = list(read_lines(STDIN)) if file is None or file == STDIN else read_input(file).split(b"\n")
        for number, line in enumerate(lines, start=1):
            if line.strip():
                found.append((number, json.loads(line)))
    except OSError as error:
        fail("bad_file", f"{file}: {error.strerror}", 2)
    except (ValueError, RecursionError) as error:
        fail("bad_json", f"line {number}: {error}", 2)
    return found


def _part_of(lines: list[tuple[int, Any]], part: int | None) -> list[tuple[int, Any]]:
    """Return the commands of a part; exit status 2 without that part, or if the file has several and none is chosen."""
    parts: list[list[tuple[int, Any]]] = [[]]
    for number, value in lines:
        if not isinstance(value, dict) or not {"do", "show"} & value.keys():
            parts[-1].append((number, value))
        elif value.get("do") == "finish":
            parts.append([])
    parts = [one for one in parts if one] or [[]]
    if part is None and len(parts) > 1:
        fail("bad_usage", f"the file has {len(parts)} parts. Stage each of them: --part 1, then --part 2", 2)
    if (part or 1) > len(parts):
        fail("bad_usage", f"the file has no part {part or 1}, but {len(parts)}", 2)
    return parts[(part or 1) - 1]


def _past(context: ClusterContext, epoch: Epoch) -> ClusterState | None:
    """Return the state at an epoch, or None if the log does not begin before it."""
    try:
        with past_of(context, near=epoch) as past:
            return state_at(past, epoch)
    except Refused:
        return None


def _indented(lines: list[str] | None, none: str = "") -> list[str]:
    return [none] if lines is None else [f"  {line}" for line in lines] or ["  none"]

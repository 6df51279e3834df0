"""``ringlog sim hold|delay|drop|release|rules``: steer what a live stack commits, and who hears of it when.

Every process that was started with ``RINGLOG_DELAYS=FOLDER`` obeys the rules in that folder; these commands write them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ringlog.cli.connection import Json, fail, out
from ringlog.log.delays import COMMIT, DELAY, DROP, HOLD, PROPAGATION, HeldEntry, Match, Rule, rule_to_json
from ringlog.log.delays_control import FolderDelays
from ringlog.log.errors import BadRule
from ringlog.operator.shown import printable, time_of_day

Folder = Annotated[
    Path | None, typer.Option("--delays", envvar="RINGLOG_DELAYS", help="The folder of rules that the stack obeys.")
]
To = Annotated[
    list[str] | None, typer.Option("--to", help="For whom: node-n4, validator, 'coordinator*'; none: everybody.")
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the rule; none: hold-1, hold-2, …")]
Commits = Annotated[bool, typer.Option("--commit", help="Keep the entry out of the log, not only from readers.")]
Kind = Annotated[str, typer.Option("--kind", help="Entries of this command, as AdvanceOperation.")]
Epoch = Annotated[int, typer.Option("--epoch", help="The entry that makes this epoch.", min=0)]
Request = Annotated[str, typer.Option("--request", help="The entry of this request id.")]
Operation = Annotated[str, typer.Option("--operation", help="Entries that name this operation.")]
Stage = Annotated[str, typer.Option("--stage", help="Entries by which an operation enters this stage.")]
Submitter = Annotated[str, typer.Option("--submitter", help="Entries of this submitter; a pattern.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (hold, delay, drop, release):
        app.command()(command)
    app.command("rules")(show_rules)


def hold(
    delays: Folder = None,
    to: To = None,
    commit: Commits = False,
    kind: Kind = "",
    epoch: Epoch = 0,
    request: Request = "",
    operation: Operation = "",
    stage: Stage = "",
    submitter: Submitter = "",
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Hold entries back until the rule is released: from readers, or with --commit from the log."""
    fields = _fields(kind, epoch, request, operation, stage, submitter)
    _put(delays, name, as_json, HOLD, COMMIT if commit else PROPAGATION, to, fields)


def delay(
    seconds: Annotated[float, typer.Argument(help="How long.", min=0.001)],
    delays: Folder = None,
    to: To = None,
    commit: Commits = False,
    kind: Kind = "",
    epoch: Epoch = 0,
    request: Request = "",
    operation: Operation = "",
    stage: Stage = "",
    submitter: Submitter = "",
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Let entries come this number of seconds late: to readers, or with --commit to the log."""
    fields = _fields(kind, epoch, request, operation, stage, submitter)
    _put(delays, name, as_json, DELAY, COMMIT if commit else PROPAGATION, to, fields, seconds=seconds)


def drop(
    delays: Folder = None,
    to: To = None,
    answer_only: Annotated[
        bool, typer.Option("--answer-only", help="The entry arrives; only its author hears nothing.")
    ] = False,
    times: Annotated[int, typer.Option("--times", help="Number of entries in each process; 0: all.", min=0)] = 0,
    kind: Kind = "",
    epoch: Epoch = 0,
    request: Request = "",
    operation: Operation = "",
    stage: Stage = "",
    submitter: Submitter = "",
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Lose the commits of entries: --to names who commits them, which is the validator for all requests."""
    fields = _fields(kind, epoch, request, operation, stage, submitter)
    _put(delays, name, as_json, DROP, COMMIT, to, fields, times=times, answer_only=answer_only)


def release(
    names: Annotated[list[str] | None, typer.Argument(metavar="RULE...", help="Names of rules.")] = None,
    delays: Folder = None,
    every: Annotated[bool, typer.Option("--all", help="All rules.")] = False,
    as_json: Json = False,
) -> None:
    """Remove rules: what they hold goes on."""
    control = _control(delays)
    if bool(names) == every:
        fail("no_rule", "name the rules to release, or give --all", 2)
    chosen = [rule.name for rule in control.rules()] if every else list(dict.fromkeys(names or ()))
    for name in chosen:
        control.release(name)
    if as_json:
        typer.echo(json.dumps({"released": chosen}))
    else:
        out.print(printable(f"released: {', '.join(chosen)}" if chosen else "there are no rules"))


def show_rules(delays: Folder = None, as_json: Json = False) -> None:
    """Show the rules, and which entries wait because of them, at whom, since when."""
    control = _control(delays)
    rules, held, problems = control.rules(), control.held(), control.problems()
    if as_json:
        shown = {"rules": [json.loads(rule_to_json(rule)) for rule in rules], "held": [asdict(each) for each in held]}
        typer.echo(json.dumps(shown | {"problems": list(problems)}))
        return
    table = Table("rule", "does", "for", "to entries with", "holds now", box=None, padding=(0, 2))
    for rule in rules:
        waiting = "\n".join(_waiting(each) for each in held if each.rule == rule.name)
        match = ", ".join(f"{key} {value}" for key, value in asdict(rule.match).items() if value)
        cells = (rule.name, _does(rule), ", ".join(rule.participants) or "everybody", match or "anything", waiting)
        table.add_row(*(printable_lines(cell) for cell in cells))
    out.print(table if rules else "no rules")
    for problem in problems:
        out.print(printable(f"no rule, obeyed by nobody: {problem}"), markup=False)


def printable_lines(text: str) -> str:
    """Lines of text of others as a table's cell may show them."""
    return "\n".join(printable(line) for line in text.split("\n")).replace("[", "\\[")


def _fields(kind: str, epoch: int, request: str, operation: str, stage: str, submitter: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "epoch": epoch,
        "request_id": request,
        "operation": operation,
        "stage": stage,
        "submitter": submitter,
    }


def _put(
    delays: Path | None,
    name: str | None,
    as_json: bool,
    action: str,
    where: str,
    to: list[str] | None,
    fields: dict[str, Any],
    **more: Any,
) -> None:
    control = _control(delays)
    try:
        rule = Rule(name or action, action, where, tuple(to or ()), Match(**fields), **more)
        made = control.put(rule) if name else control.add(rule)
    except BadRule as error:
        fail(error.code, str(error), 2)
    except OSError as error:
        fail("bad_folder", f"{control.folder}: {error.strerror}")
    if as_json:
        typer.echo(rule_to_json(made))
    else:
        out.print(printable(f"{made.name}: in force; end it with: ringlog sim release {made.name}"))


def _control(delays: Path | None) -> FolderDelays:
    if delays is None:
        fail("no_delays", "give --delays FOLDER, or set RINGLOG_DELAYS as for the stack's processes", 2)
    return FolderDelays(delays)


def _does(rule: Rule) -> str:
    what = f"{rule.action} {rule.where}"
    if rule.seconds:
        what += f" {rule.seconds:g} s"
    if rule.answer_only:
        what += ", answer only"
    return what + (f", {rule.times} times" if rule.times else "")


def _waiting(held: HeldEntry) -> str:
    place = "" if held.offset is None else f" at offset {held.offset}"
    behind = f", {held.behind} behind it" if held.behind else ""
    return f"{held.participant}: {held.kind or 'unreadable'}{place}{behind}, since {time_of_day(held.since)} UTC"

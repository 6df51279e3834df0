"""``ringlog sim hold|delay|drop|release|rules``: control the commits of a live stack and their delivery.

Every process started with ``RINGLOG_DELAYS=FOLDER`` follows the rules in that folder. These commands write them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ringlog.cli.shared.connection import Json, fail, out, seconds_of
from ringlog.cli.shared.options import Options, with_options
from ringlog.kernel.values import asdict, replace
from ringlog.log.delays.control import FolderDelays
from ringlog.log.delays.rules import COMMIT, DELAY, DROP, HOLD, PROPAGATION, HeldEntry, Match, Rule, rule_to_json
from ringlog.log.errors import BadRule
from ringlog.operator.views.words import printable, time_of_day

Folder = Annotated[Path | None, typer.Option("--delays", envvar="RINGLOG_DELAYS", help="Folder of the rules.")]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--participant", "--to", help="Process that the rule concerns: node-n4, 'coordinator*'. Default: all."
    ),
]
Commits = Annotated[bool, typer.Option("--commit", help="Hold the entry out of the log, not only from readers.")]

MATCHED: Options = {
    "kind": (Annotated[str, typer.Option("--kind", help="Entries of this command. Example: AdvanceOperation.")], ""),
    "epoch": (Annotated[int, typer.Option("--epoch", help="Entry of this epoch.", min=0)], 0),
    "request_id": (Annotated[str, typer.Option("--request-id", "--request", help="Entry with this request id.")], ""),
    "operation": (Annotated[str, typer.Option("--operation", help="Entries that name this operation.")], ""),
    "stage": (Annotated[str, typer.Option("--stage", help="Entries that move an operation to this stage.")], ""),
    "submitter": (
        Annotated[str, typer.Option("--submitter", help="Entries of submitters that match this pattern.")],
        "",
    ),
}
"""The entries that a rule applies to: the fields of ``Match``."""

OPTIONS: Options = {
    "delays": (Folder, None),
    "to": (To, None),
    **MATCHED,
    "name": (Annotated[str | None, typer.Option("--name", help="Name of the rule. Default: hold-1 and so on.")], None),
    "as_json": (Json, False),
}
"""The options of every command that adds a rule."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for verb in (hold, delay, drop):
        app.command()(with_options(verb, OPTIONS, _put))
    app.command()(release)
    app.command("rules")(show_rules)


def hold(commit: Commits = False) -> Rule:
    """Hold entries back until the rule is released.

    The rule applies to readers, or with --commit to the log.
    """
    return Rule(HOLD, HOLD, COMMIT if commit else PROPAGATION)


def delay(
    seconds: Annotated[float, typer.Argument(parser=seconds_of, help="Seconds of delay.")],
    commit: Commits = False,
) -> Rule:
    """Delay entries by this number of seconds.

    The rule applies to readers, or with --commit to the log.
    """
    return Rule(DELAY, DELAY, COMMIT if commit else PROPAGATION, seconds=seconds)


def drop(
    answer_only: Annotated[
        bool, typer.Option("--answer-only", help="Commit the entry, but drop the answer to its author.")
    ] = False,
    times: Annotated[
        int, typer.Option("--times", help="Number of entries to drop in each process. 0: all.", min=0)
    ] = 0,
) -> Rule:
    """Drop the commits of entries.

    --participant names the committing process, which is the validator for all requests.
    """
    return Rule(DROP, DROP, COMMIT, times=times, answer_only=answer_only)


def release(
    names: Annotated[list[str] | None, typer.Argument(metavar="RULE", help="Names of rules.")] = None,
    delays: Folder = None,
    every: Annotated[bool, typer.Option("--all", help="Release all rules.")] = False,
    as_json: Json = False,
) -> None:
    """Remove rules and continue the entries that they hold."""
    control = _control(delays)
    if bool(names) == every:
        fail("no_rule", "name the rules to release, or pass --all", 2)
    chosen = [rule.name for rule in control.rules()] if every else list(dict.fromkeys(names or ()))
    for name in chosen:
        control.release(name)
    if as_json:
        typer.echo(json.dumps({"released": chosen}))
    else:
        out.print(printable(f"released: {', '.join(chosen)}" if chosen else "there are no rules"))


def show_rules(delays: Folder = None, as_json: Json = False) -> None:
    """Show the rules and the entries that they hold.

    Each entry has the waiting participant and the time.
    """
    control = _control(delays)
    rules, held, problems = control.rules(), control.held(), control.problems()
    if as_json:
        shown = {"rules": [json.loads(rule_to_json(rule)) for rule in rules], "held": [asdict(each) for each in held]}
        typer.echo(json.dumps(shown | {"problems": list(problems)}))
        return
    table = Table("rule", "does", "for", "to entries with", "currently held", box=None, padding=(0, 2))
    for rule in rules:
        # Several readers of one participant (a node's replica, its copy of the log) share one line.
        waiting = "\n".join(dict.fromkeys(_waiting(each) for each in held if each.rule == rule.name))
        match = ", ".join(f"{key} {value}" for key, value in asdict(rule.match).items() if value)
        cells = (rule.name, _does(rule), ", ".join(rule.participants) or "all", match or "all", waiting)
        table.add_row(*(printable_lines(cell) for cell in cells))
    out.print(table if rules else "no rules")
    for problem in problems:
        out.print(printable(f"ignored rule: {problem}"), markup=False)


def printable_lines(text: str) -> str:
    """Return lines of external text in a form that a table's cell can show."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _put(
    make_rule: Callable[[], Rule],
    delays: Path | None,
    to: list[str] | None,
    name: str | None,
    as_json: bool,
    **matched: Any,
) -> None:
    control = _control(delays)
    try:
        does = make_rule()
        rule = replace(does, name=name or does.name, participants=tuple(to or ()), match=Match(**matched))
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
        fail("no_delays", "pass --delays FOLDER, or set RINGLOG_DELAYS as for the stack's processes", 2)
    return FolderDelays(delays)


def _does(rule: Rule) -> str:
    text = f"{rule.action} {rule.where}"
    if rule.seconds:
        text += f" {rule.seconds:g} s"
    if rule.answer_only:
        text += ", answer only"
    return text + (f", {rule.times} times" if rule.times else "")


def _waiting(held: HeldEntry) -> str:
    place = "" if held.offset is None else f" at offset {held.offset}"
    behind = f", {held.behind} behind it" if held.behind else ""
    return f"{held.participant}: {held.kind or 'unreadable'}{place}{behind}, since {time_of_day(held.since)} UTC"

"""``ringlog sim quorums``: do read and write quorums meet, in every plan that this cluster could be asked for?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlog.cli.connection import Json, errors, fail, out
from ringlog.runtime.inputs import read_input

if TYPE_CHECKING:
    from ringlog.sim.quorums.case import CaseOptions
    from ringlog.sim.quorums.explore import Explorer, Findings
    from ringlog.sim.quorums.model import QuorumRules

LEAST_WIDTH = 160
"""Columns where the terminal is narrower or nobody looks: a table of views must stay one."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quorums")(quorums)


def quorums(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A cluster, or histories drawn by hand, as JSON.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="A cluster's state: a file of `ringlog log --dump`, or live[:CLUSTER]."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes of a regular cluster (4).")] = None,
    racks: Annotated[int | None, typer.Option(help="Racks in each datacenter (1).")] = None,
    datacenters: Annotated[int | None, typer.Option(help="Datacenters (1).")] = None,
    factor: Annotated[int | None, typer.Option(help="Replicas of a range (3).")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of each node (1).")] = None,
    new_tokens: Annotated[int, typer.Option(help="Tokens that a joining node asks for.", min=1, max=64)] = 1,
    operations: Annotated[
        str | None,
        typer.Option(metavar="KIND,…", help="Only these kinds of operation; all that there are if not given."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CHOICE",
            help="Weaken a rule: R1=majority|off, R3=off, R4=off, R5=union|off, step=off, gate:STAGE=off. Repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Go through every plan of a cluster, every pair of views, every quorum. Exit status 1: a counterexample."""
    from ringlog.sim.quorums import report
    from ringlog.sim.quorums.case import CaseOptions
    from ringlog.sim.quorums.description import BadDescription
    from ringlog.sim.quorums.explore import Explorer, NotQuiet, TooMuch
    from ringlog.sim.quorums.plans import unknown_here

    rules = rules_of(rule or [])
    numbers = {"nodes": nodes, "racks": racks, "datacenters": datacenters, "factor": factor, "tokens": tokens}
    given = {name: value for name, value in numbers.items() if value is not None}
    kinds = _kinds(operations)
    try:
        found = _explored(Explorer(rules), (file, source, given), kinds, CaseOptions(new_tokens))
    except (BadDescription, NotQuiet, TooMuch) as error:
        fail(error.code, str(error), 2)
    left_out = unknown_here() if operations is None else ()
    if as_json:
        typer.echo(json.dumps(report.as_json(found, rules, left_out)))
    else:
        out.width = max(out.width, LEAST_WIDTH)
        for item in report.printed(found, rules, left_out):
            out.print(item)
    raise typer.Exit(0 if report.is_sound(found) else 1)


def rules_of(given: list[str]) -> QuorumRules:
    """The rules with the choices of ``NAME=CHOICE`` options."""
    from ringlog.kernel.operations.gates import GATED_STAGES
    from ringlog.sim.quorums.model import CHOICES, RULE_FIELDS, QuorumRules

    chosen: dict[str, Any] = {}
    gates_off: list[str] = []
    for text in given:
        name, _, choice = text.partition("=")
        stage = name.removeprefix("gate:")
        if stage != name and choice == "off" and stage in GATED_STAGES:
            gates_off.append(stage)
        elif choice in CHOICES.get(name, ()):
            chosen[RULE_FIELDS[name]] = choice
        else:
            known = [f"{rule}={'|'.join(choices)}" for rule, choices in CHOICES.items()]
            known += [f"gate:{gated}=off" for gated in GATED_STAGES]
            fail("bad_rule", f"{text}: there are {', '.join(known)}", 2)
    return QuorumRules(**chosen, gates_off=tuple(dict.fromkeys(gates_off)))


def _kinds(operations: str | None) -> tuple[str, ...]:
    from ringlog.sim.quorums.plans import KINDS

    names = tuple(KINDS) if operations is None else tuple(dict.fromkeys(operations.split(",")))
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        fail("unknown_operation", f"{unknown[0]!r}: plans are made of {', '.join(KINDS)}", 2)
    return names


def _explored(
    explorer: Explorer,
    given: tuple[Path | None, str | None, dict[str, int]],
    kinds: tuple[str, ...],
    options: CaseOptions,
) -> list[Findings]:
    """What there is to find in the one thing that was given: a file, a log, or numbers (none: the defaults)."""
    from ringlog.cli.rehearse import state_from
    from ringlog.sim.quorums.description import Numbers, described, drawn, state_of

    file, source, numbers = given
    if sum((file is not None, source is not None, bool(numbers))) > 1:
        fail("bad_usage", "give a FILE, or --from, or numbers like --nodes: each describes a whole cluster", 2)
    if source is not None:
        state = state_from(source)
    elif file is None:
        state = state_of(described(Numbers(**numbers)))
    else:
        description = _read(file)
        if "histories" in description:
            return [explorer.drawn(drawn(description))]
        state = state_of(description)
    with errors.status("") as status:  # nothing is shown unless somebody watches

        def tell(kind: str, done: int, count: int) -> None:
            status.update(f"{kind}: {done} of {count} plans")

        return [explorer.plans(state, kind, options, tell) for kind in kinds]


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_input(file))
    except OSError as error:
        fail("bad_file", f"{file}: {error.strerror}", 2)
    except (ValueError, RecursionError) as error:
        fail("bad_json", f"{file}: {error}", 2)
    if not isinstance(value, dict):
        fail("bad_json", f"{file}: expected a JSON object", 2)
    return value

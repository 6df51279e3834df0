"""``ringlog sim quorums``: check quorum intersection in every plan that could be requested of a cluster."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Json, errors, fail, out
from ringlog.files import read_input
from ringlog_testing.quorums.description import PlacementKind

if TYPE_CHECKING:
    from ringlog_testing.quorums.case import CaseOptions
    from ringlog_testing.quorums.explore import Explorer, Findings
    from ringlog_testing.quorums.model import QuorumRules

LEAST_WIDTH = 160
"""Minimum width, also for narrow terminals and files, so that a table of views keeps its lines."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quorums")(quorums)


def quorums(
    file: Annotated[Path | None, typer.Argument(help="JSON file with a cluster or with histories.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help=help_texts.FROM),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes. Default: 4.")] = None,
    racks: Annotated[int | None, typer.Option(help="Number of racks in each datacenter (1).")] = None,
    datacenters: Annotated[int | None, typer.Option(help="Number of datacenters (1).")] = None,
    factor: Annotated[int | None, typer.Option(help=help_texts.FACTOR)] = None,
    tokens: Annotated[int | None, typer.Option("--num-tokens", "--tokens", help=help_texts.NUM_TOKENS)] = None,
    new_tokens: Annotated[int, typer.Option(help="Number of tokens of a joining node.", min=1, max=64)] = 1,
    placement: Annotated[
        PlacementKind | None, typer.Option(help="Placement of the keyspaces (ring). all: one keyspace of each kind.")
    ] = None,
    operations: Annotated[
        str | None,
        typer.Option(metavar="KIND,...", help="Kinds of operations. Default: all."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CHOICE",
            help="Rule to weaken: R1=majority|off, R3=off, R4=off, R5=union|off, step=off, gate:STAGE=off.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every quorum of every plan of a cluster.

    Exit status 1: a counterexample, or a plan that breaks an invariant. 2: bad input. 3: a defect of this tool.
    """
    from ringlog_testing.quorums import report
    from ringlog_testing.quorums.case import CaseOptions
    from ringlog_testing.quorums.description import BadDescription
    from ringlog_testing.quorums.explore import DRAWN, Explorer, NotQuiet, TooMuch
    from ringlog_testing.quorums.plans import unknown_here

    rules = rules_of(rule or [])
    numbers: dict[str, Any] = {
        "nodes": nodes,
        "racks": racks,
        "datacenters": datacenters,
        "factor": factor,
        "tokens": tokens,
    }
    numbers["placement"] = placement
    given = {name: value for name, value in numbers.items() if value is not None}
    kinds = _kinds(operations)
    with _refusals((BadDescription, NotQuiet, TooMuch)):
        found, not_covered = _explored(Explorer(rules), (file, source, given), kinds, CaseOptions(new_tokens))
    is_cluster = all(findings.kind != DRAWN for findings in found)
    left_out = (*unknown_here(), *not_covered) if operations is None and is_cluster else ()
    if as_json:
        typer.echo(json.dumps(report.as_json(found, rules, left_out)))
    else:
        out.width = max(out.width, LEAST_WIDTH)
        for item in report.printed(found, rules, left_out):
            out.print(item)
    raise typer.Exit(0 if report.has_no_conflict(found) else 1)


@contextmanager
def _refusals(bad_input: tuple[type[Any], ...]) -> Iterator[None]:
    """End with status 2 for bad input, and with 3 for a defect of this tool. Status 1 is for a counterexample."""
    try:
        yield
    except typer.Exit:
        raise
    except bad_input as error:
        fail(error.code, str(error), 2)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno}). Report it, with the cluster"
        fail("not_explored", text, 3)


def rules_of(given: list[str]) -> QuorumRules:
    """Return the rules with the choices of ``NAME=CHOICE`` options."""
    from ringlog.kernel.operations.gates import GATED_STAGES
    from ringlog_testing.quorums.model import CHOICES, RULE_FIELDS, QuorumRules

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
            known_kinds = [f"{rule}={'|'.join(choices)}" for rule, choices in CHOICES.items()]
            known_kinds += [f"gate:{gated}=off" for gated in GATED_STAGES]
            fail("bad_rule", f"{text}: use one of {', '.join(known_kinds)}", 2)
    return QuorumRules(**chosen, gates_off=tuple(dict.fromkeys(gates_off)))


def _kinds(operations: str | None) -> tuple[str, ...]:
    """Return the requested kinds, or nothing for the kinds that the cluster has."""
    from ringlog_testing.quorums.plans import KINDS
    from ringlog_testing.quorums.tablet_plans import KINDS as TABLET_KINDS

    known_kinds = (*KINDS, *TABLET_KINDS)
    names = () if operations is None else tuple(dict.fromkeys(operations.split(",")))
    unknown = [name for name in names if name not in known_kinds]
    if unknown:
        fail("unknown_operation", f"{unknown[0]!r}: use one of {', '.join(known_kinds)}", 2)
    return names


def _explored(
    explorer: Explorer,
    given: tuple[Path | None, str | None, dict[str, Any]],
    kinds: tuple[str, ...],
    options: CaseOptions,
) -> tuple[list[Findings], tuple[str, ...]]:
    """Return the findings of the given file, log or numbers (default: a regular cluster), and the changes without
    plans.
    """
    from ringlog.cli.json_commands import state_from
    from ringlog_testing.quorums.description import Numbers, described, drawn, state_of
    from ringlog_testing.quorums.tablet_plans import kinds_in, not_covered

    file, source, numbers = given
    if sum((file is not None, source is not None, bool(numbers))) > 1:
        fail("bad_usage", "pass only one of FILE, --from, and numbers like --nodes: each describes a cluster", 2)
    if source is not None:
        state = state_from(source)
    elif file is None:
        state = state_of(described(Numbers(**numbers)))
    else:
        description = _read(file)
        if "histories" in description:
            return [explorer.drawn(drawn(description))], ()
        state = state_of(description)
    with errors.status("") as status:  # the terminal shows progress; other outputs show none

        def report_progress(kind: str, done: int, count: int) -> None:
            status.update(f"{kind}: {done} of {count} plans")

        found = [explorer.plans(state, kind, options, report_progress) for kind in kinds or kinds_in(state)]
    return found, not_covered(state)


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

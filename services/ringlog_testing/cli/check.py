"""``ringlog sim check``: check a recorded history with this checker, porcupine, or both.

Exit status: 0 linearizable; 1 not linearizable; 2 a bad file, or undecided; 3 the checkers disagree, which is a defect
of one of them.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.text import Text

from ringlog.cli.shared.connection import Json, errors, fail, out
from ringlog.operator.views.words import picked

if TYPE_CHECKING:
    from ringlog_testing.histories.operations import ClientOperation, OperationHistory
    from ringlog_testing.histories.porcupine import Opinion
    from ringlog_testing.histories.verdict import HistoryReport, Linearizability, ShortestCounterexample

ROWS_MAX = 40
DISAGREE = 3


class Checker(StrEnum):
    """The checker to use."""

    OURS = "ours"
    PORCUPINE = "porcupine"
    BOTH = "both"


Asked: TypeAlias = "tuple[HistoryReport | None, Opinion | None]"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    file: Annotated[Path, typer.Argument(help="History: JSON lines of invoke, ok, fail, info.")],
    checker: Annotated[Checker, typer.Option(help="Checker to use. both: they must agree.")] = Checker.OURS,
    limit: Annotated[
        int | None,
        typer.Option(
            "--max-configurations", "--limit", min=1, help="Most configurations that `ours` visits for a key (2000000)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a history for linearizability.

    Exit status 1: it is not linearizable. 2: bad file or undecided. 3: the checkers disagree.
    """
    from ringlog_testing.histories.check import CONFIGURATIONS_MAX
    from ringlog_testing.histories.check import check as decide
    from ringlog_testing.histories.events import HistoryError
    from ringlog_testing.histories.operations import read

    try:
        history = read(file)
    except OSError as error:
        fail("bad_file", f"{file}: {error.strerror}", 2)
    except HistoryError as error:
        fail(error.code, f"{file}: {error}", 2)
    opinion, missing = (None, "") if checker is Checker.OURS else _porcupine(file)
    report = None
    if checker is not Checker.PORCUPINE or opinion is None:
        report = decide(history, limit or CONFIGURATIONS_MAX)
    apart = _disagreements(report, opinion)
    if as_json:
        typer.echo(json.dumps(_as_json(history, (report, opinion), missing, apart)))
    else:
        _print(history, (report, opinion), missing)
    if apart:
        fail("checkers_disagree", f"on {', '.join(apart)}: one of the checkers is wrong; report the file", DISAGREE)
    raise typer.Exit(_status(_verdict(report, opinion)))


def _porcupine(file: Path) -> tuple[Opinion | None, str]:
    """Return porcupine's opinion, or None and the reason."""
    from ringlog.stack.artifacts import cache_root
    from ringlog_testing.histories.porcupine import Unavailable, ask, build

    try:
        return ask(build(cache_root()), file), ""
    except Unavailable as error:
        return None, f"{error.code}: {error}"


def _verdict(report: HistoryReport | None, opinion: Opinion | None) -> Linearizability:
    """Return the combined verdict. A decided verdict has priority over an undecided one."""
    from ringlog_testing.histories.verdict import Linearizability

    found = [one.verdict for one in (report, opinion) if one is not None]
    return next((one for one in found if one is not Linearizability.UNDECIDED), Linearizability.UNDECIDED)


def _status(verdict: Linearizability) -> int:
    return {"linearizable": 0, "not_linearizable": 1, "undecided": 2}[verdict]


def _disagreements(report: HistoryReport | None, opinion: Opinion | None) -> list[str]:
    """Return keys for which both checkers decided differently."""
    from ringlog_testing.histories.verdict import Linearizability

    if report is None or opinion is None:
        return []
    apart = []
    for one in report.keys:
        other = opinion.keys.get(one.key)
        if other != one.decision.verdict and Linearizability.UNDECIDED not in (other, one.decision.verdict):
            apart.append(one.key)
    return apart


def _as_json(history: OperationHistory, asked: Asked, missing: str, apart: list[str]) -> dict[str, Any]:
    report, opinion = asked
    shown: dict[str, Any] = {
        "verdict": None if apart else _verdict(report, opinion),
        "operations": history.operations,
        "events": history.events,
        "is_torn": history.is_torn,
    }
    if report is not None:
        shown["ours"] = {"verdict": report.verdict, "keys": [_key(one) for one in report.keys]}
        if report.counterexample is not None:
            shown["counterexample"] = _counterexample(report.counterexample)
    if opinion is not None:
        shown["porcupine"] = {"verdict": opinion.verdict, "seconds": opinion.seconds, "keys": dict(opinion.keys)}
    if missing:
        shown["porcupine"] = {"verdict": None, "why": missing}
    if apart:
        shown["disagree"] = apart
    return shown


def _key(one: Any) -> dict[str, Any]:
    shown = {"key": one.key, "verdict": one.decision.verdict, "method": one.method, "operations": one.operations}
    if one.decision.configurations:
        shown["configurations"] = one.decision.configurations
    return shown


def _counterexample(found: ShortestCounterexample) -> dict[str, Any]:
    names = ("invoked", "returned", "process", "op", "asked", "type", "answer")
    return picked(found, "key", "line", "why", "is_least") | {
        "operations": [picked(one, *names) for one in found.operations]
    }


def _print(history: OperationHistory, asked: Asked, missing: str) -> None:
    report, opinion = asked
    if missing:
        errors.print(f"porcupine did not run: {missing}; the result is from the checker `ours`", markup=False)
    if history.is_torn:
        errors.print("the last line is incomplete and was ignored", markup=False)
    verdict = _verdict(report, opinion)
    colour = {0: "green", 1: "red", 2: "yellow"}[_status(verdict)]
    shown = f"{history.operations} operations on {len(history.keys)} keys"
    out.print(Text.assemble((verdict.replace("_", " "), colour), f": {shown}"))
    if report is not None:
        methods = sorted({one.method for one in report.keys})
        out.print(f"ours: {report.verdict.replace('_', ' ')} ({', '.join(methods) or 'nothing to check'})")
    if opinion is not None:
        out.print(f"porcupine: {opinion.verdict.replace('_', ' ')} ({opinion.seconds:.3f} s)")
    if report is not None and report.counterexample is not None:
        _print_counterexample(report.counterexample)


def _print_counterexample(found: ShortestCounterexample) -> None:
    from rich.table import Table

    out.print(f"\nUp to line {found.line}, key {found.key!r} cannot be explained: {found.why}.", markup=False)
    out.print(
        "Smallest counterexample:" if found.is_least else "Counterexample, perhaps not the smallest:", markup=False
    )
    table = Table("lines", "process", "asked", "answered")
    if len(found.operations) > ROWS_MAX:
        table.add_row("…", "", f"{len(found.operations) - ROWS_MAX} before", "")
    for one in found.operations[-ROWS_MAX:]:
        table.add_row(f"{one.invoked}-{one.returned or ''}", one.process, _asked(one), _answer(one))
    out.print(table)


def _asked(one: ClientOperation) -> str:
    return one.op if one.asked is None and one.op != "write" else f"{one.op} {json.dumps(one.asked)}"


def _answer(one: ClientOperation) -> str:
    if one.type == "info":
        return "unknown"
    return one.type if one.answer is None and one.op != "read" else f"{one.type} {json.dumps(one.answer)[:200]}"

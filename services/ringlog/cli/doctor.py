"""``ringlog doctor``: examine a cluster, its brokers and this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import typer
from rich.text import Text

from ringlog.cli.shared.connection import out
from ringlog.cli.shared.options import VIEWING, newest, show_view, with_options
from ringlog.cli.shared.tables import show_table
from ringlog.operator.doctor import FAIL, OK, SKIPPED, WARN, Finding, examine, worst
from ringlog.operator.views.words import printable
from ringlog.runtime.context import ClusterContext

STYLES = {OK: "green", SKIPPED: "dim", WARN: "yellow", FAIL: "red"}


def _judged(verb: Callable[[ClusterContext, list[Finding]], Iterator[Any]], **options: Any) -> None:
    findings: list[Finding] = []
    show_view(lambda context: verb(context, findings), **options)
    raise typer.Exit(int(worst(findings) == FAIL))


def _shown(context: ClusterContext, findings: list[Finding]) -> Iterator[Any]:
    findings[:] = examine(context, newest)
    yield {"verdict": worst(findings), "findings": [asdict(one) for one in findings]}
    rows = [(one.check, Text(one.verdict, STYLES[one.verdict]), printable(one.text)) for one in findings]
    show_table(("check", "verdict", "finding"), rows)
    for one in findings:
        for fix in one.fixes:
            out.print(printable(f"{one.check}: {fix}"), markup=False)


def _doctor() -> None:
    """Examine brokers, topics, agents, nodes, clocks and this machine.

    Each finding has a verdict (`ok`, `warn`, `fail`, or `skipped` without a broker) and a remedy. The exit status is 1
    if a check fails.
    """


doctor = with_options(_doctor, VIEWING, lambda _verb, **options: _judged(_shown, **options))

"""``ringlog sim mutants``: planted bugs, and the number of seeds until the simulator finds each."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Json, fail, out
from ringlog.extras import require
from ringlog.kernel.values import replace
from ringlog.operator.views.words import picked

if TYPE_CHECKING:
    from ringlog_sim.mutants.plant import Mutant, MutantMeasure


ROW = re.compile(r"^(\| ([a-z]\w*) \| .* \|)$", re.MULTILINE)
FOUND_COLUMNS = 6


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("mutants")(mutants)


def mutants(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="MUTANT", help="Planted bugs to measure. Default: all.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", help="Measure at most this number, chosen by --day.")
    ] = None,
    day: Annotated[str, typer.Option("--day", help="Word that chooses the sample. Example: a date.")] = "",
    most: Annotated[int | None, typer.Option("--max-seeds", "--most", min=1, help="Most seeds for each bug.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help=help_texts.JOBS)] = (os.cpu_count() or 1),
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            help="Page of the docs to write. Rows of bugs that are not measured stay.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plant each bug, and count the seeds until it is found.

    Exit status 1: a bug was not found within its bound.
    """
    require("spark")
    from ringlog_sim.mutants import MUTANTS

    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        fail("unknown_mutant", f"{', '.join(unknown)}: use one of {', '.join(known)}", status=2)
    chosen: list[Mutant] = [known[name] for name in names] if names else list(MUTANTS)
    if most is not None:
        chosen = [replace(mutant, seeds=min(mutant.seeds, most)) for mutant in chosen]
    if sample is not None:
        chosen = sorted(chosen, key=lambda mutant: zlib.crc32(f"{day}/{mutant.name}".encode()))[:sample]
    if page is not None:
        _can_be_written(page)
    results = sorted(_measured(chosen, jobs, quiet=as_json), key=lambda result: chosen.index(result.mutant))
    missed = [result for result in results if result.found is None]
    if page is not None:
        page.write_text(_page(_rows(results, page, known), list(known), most), encoding="utf-8")
    if as_json:
        out.print_json(data=[_json(result) for result in results])
    else:
        out.print(_table(results))
        out.print(f"{len(results)} planted, {len(results) - len(missed)} found")
    if missed:
        raise typer.Exit(1)


def _can_be_written(page: Path) -> None:
    """Fail now if the page cannot be written, because the measurement may take hours."""
    try:
        page.open("a", encoding="utf-8").close()
    except OSError as error:
        fail("bad_file", f"--page {page}: {error.strerror}", status=2)


def _measured(chosen: list[Mutant], jobs: int, quiet: bool) -> Iterator[MutantMeasure]:
    from ringlog_sim.mutants.plant import measure_all

    columns = (TextColumn("planted bugs"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=out, transient=True, disable=quiet or not out.is_terminal) as progress:
        task = progress.add_task("", total=len(chosen))
        for result in measure_all(chosen, jobs):
            progress.update(task, advance=1, description=f"last: {result.mutant.name}")
            yield result


def _page(rows: Mapping[str, str], known: Sequence[str], most: int | None) -> str:
    """Return the table of found and missed bugs in Markdown. ``rows``: by bug, in order. ``known``: all bugs."""
    unmeasured = [name for name in known if name not in rows]
    found = [row for row in rows.values() if row.count("|") == FOUND_COLUMNS + 1]
    missed = [row for row in rows.values() if row not in found]
    cap = "" if most is None else f" --most {most}"
    lines = [
        "# Planted bugs",
        "",
        f"Made by `ringlog sim mutants{cap} --page docs/reference/mutants.md`. Each bug replaces a part of a function.",
        "The command plants one bug at a time. *Found after* is the number of seeds, from 1 on, until a check fails",
        "that passes without the bug. The command fails above the *bound*. Each change measures some of the bugs.",
        "",
        f"{len(known)} planted, {len(found)} found.",
        "",
        "| bug | what it does | profile | found after | bound | broken promise |",
        "|---|---|---|---|---|---|",
        *found,
    ]
    if missed:
        lines += [
            "",
            "## Not found",
            "",
            "Not found within these seeds. A bug may be rare, or a second guard may prevent its effect.",
            "",
            "| bug | what it does | profile | not within |",
            "|---|---|---|---|",
            *missed,
        ]
    if unmeasured:
        lines += ["", "## Not measured", "", ", ".join(f"`{name}`" for name in unmeasured)]
    return "\n".join([*lines, ""])


def _rows(results: list[MutantMeasure], page: Path, known: Iterable[str]) -> dict[str, str]:
    """Return the rows of the page by bug: new rows for measured bugs, existing rows for the others."""
    stands = page.read_text(encoding="utf-8") if page.exists() else ""
    rows = {name: row for row, name in ROW.findall(stands)} | {one.mutant.name: _row(one) for one in results}
    return {name: rows[name] for name in known if name in rows}


def _row(result: MutantMeasure) -> str:
    mutant = result.mutant
    about = f"| {mutant.name} | {mutant.bug} | {mutant.profile} |"
    if result.found is None:
        return f"{about} {mutant.seeds} |"
    return f"{about} {result.found} | {mutant.seeds} | {result.rule} |"


def _table(results: list[MutantMeasure]) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for column in ("mutant", "bug", "profile", "found after", "bound", "by"):
        shown.add_column(column)
    for result in results:
        found = Text("not found", "red") if result.found is None else Text(f"{result.found} seeds")
        mutant = result.mutant
        shown.add_row(mutant.name, mutant.bug, mutant.profile, found, str(mutant.seeds), result.rule)
    return shown


def _json(result: MutantMeasure) -> dict[str, object]:
    mutant = result.mutant
    return {
        "mutant": mutant.name,
        **picked(mutant, "bug", "module", "profile"),
        "found": result.found,
        "bound": mutant.seeds,
        **picked(result, "rule", "detail"),
    }

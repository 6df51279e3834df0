"""``ringlog sim run`` and ``ringlog sim replay``: whole clusters on virtual time, one for each seed."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from ringlog.cli import help as help_texts
from ringlog.cli.placement.balance import draw
from ringlog.cli.shared.connection import Json, fail, out, seconds_of
from ringlog.extras import require

if TYPE_CHECKING:
    from ringlog_sim.runner.coverage import CoverageTable
    from ringlog_sim.runner.run import RunReport
    from ringlog_sim.runner.search import SearchResult

FAILURES = Path("ringlog-sim-failures")
SHRUNK_MAX = 5

Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        help="Size of a run (small, medium, large), a story (tablets, images, …), or all.",
    ),
]
CORES = os.cpu_count() or 1
JOBS_MAX, SEEDS_MAX = 1_024, 10**12
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, max=JOBS_MAX, help=help_texts.JOBS)]
Trace = Annotated[bool, typer.Option("--trace", help="Print the events of each run.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("run")(run)
    app.command("replay")(replay)


def run(
    seeds: Annotated[str, typer.Option("--seed", "--seeds", help="Seed, or the seeds A to B.")] = "1..200",
    fresh: Annotated[
        int | None,
        typer.Option("--fresh", min=1, max=SEEDS_MAX, help="Number of new seeds, derived from the clock."),
    ] = None,
    jobs: Jobs = CORES,
    profile: Profile = "small",
    seconds: Annotated[
        float | None, typer.Option("--seconds", parser=seconds_of, help="Stop after this time, even if seeds are left.")
    ] = None,
    trace: Trace = False,
    shrunk: Annotated[bool, typer.Option("--shrink/--no-shrink", help="Reduce failing scripts.")] = True,
    save: Annotated[Path, typer.Option("--save", help="Folder for failing scripts, to replay.")] = FAILURES,
    histories: Annotated[
        Path | None, typer.Option("--histories", help="Folder for the history of each run, for `sim check`.")
    ] = None,
    picture: Annotated[Path | None, typer.Option("--chart", "--picture", help=help_texts.CHART)] = None,
    coverage: Annotated[
        bool | None,
        typer.Option(
            "--coverage/--no-coverage",
            help="Print the coverage of the runs. Default: with several seeds and no --trace.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one simulated cluster for each seed.

    Exit status 1: an invariant was broken. A seed gives the same run, with the same digest, on every machine.
    """
    wanted = seeds_of(seeds) if fresh is None else range(first := time.time_ns() // 1_000_000, first + fresh)
    _check_profile(profile)
    if picture is not None and len(wanted) > 1:
        fail("bad_seeds", "--chart shows one seed: pass it with --seed", status=2)
    if histories is not None:
        try:
            histories.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail("bad_folder", f"--histories {histories}: {error.strerror}", status=2)
    found, elapsed = _search(wanted, profile, 1 if trace else jobs, seconds, trace, as_json, histories)
    saved = [_keep(report, shrunk, save) for report in found.failures[:SHRUNK_MAX]]
    if picture is not None:
        _draw(picture, wanted[0], profile)
    if as_json:
        out.print_json(data=_json(found, elapsed, saved))
    else:
        shows = len(wanted) > 1 and not trace if coverage is None else coverage
        _show(wanted, found, elapsed, shows, saved)
    if found.failures:
        raise typer.Exit(1)


def replay(
    file: Annotated[Path, typer.Argument(help="Script that `sim run` saved.")],
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Run a saved script again.

    Exit status 1: an invariant is still broken.
    """
    require("spark")
    from ringlog_sim.runner.run import run_script
    from ringlog_sim.runner.shrink import NoScript, load

    try:
        rule, script = load(file)
    except (NoScript, OSError) as error:
        fail("no_script", str(error), status=2)
    report = run_script(script, trace)
    _story(report)
    if as_json:
        out.print_json(data={"found": rule, **_report_json(report)})
    else:
        verdict = (report.rule, "red") if report.rule else ("no promise is broken", "green")
        why = f": {report.detail}" if report.rule else ""
        about = f" (found as {rule}; {len(script.actions)} actions, digest {report.digest[:16]})"
        out.print(Text.assemble(verdict, why, about))
    if report.rule:
        raise typer.Exit(1)


def seeds_of(text: str) -> range:
    """Return the seeds in ``A..B`` or ``A``. End the command with usage status for other text."""
    match = re.fullmatch(r"([0-9]{1,15})(?:\.\.([0-9]{1,15}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        fail("bad_seeds", f"--seed {text[:60]}: pass one seed, or A..B with A at most B", status=2)
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _check_profile(profile: str) -> None:
    require("spark")
    from ringlog_sim.runner.script import ALL, PROFILES

    if profile not in (*PROFILES, ALL):
        fail("unknown_profile", f"--profile {profile}: use one of {', '.join(PROFILES)}, {ALL}", status=2)


def _search(
    wanted: range,
    profile: str,
    jobs: int,
    seconds: float | None,
    trace: bool,
    quiet: bool,
    histories: Path | None,
) -> tuple[SearchResult, float]:
    from ringlog_sim.runner.search import SearchResult, reports, run_seed

    found, began = SearchResult(), time.monotonic()
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    runs = (
        (run_seed(seed, profile, True, histories) for seed in wanted)
        if trace
        else reports(wanted, profile, jobs, histories)
    )
    with Progress(*columns, console=out, transient=True, disable=quiet or trace or not out.is_terminal) as progress:
        task = progress.add_task("", total=len(wanted))
        for report in runs:
            found.add(report)
            _story(report)
            progress.update(task, advance=1, description=f"{len(found.failures)} failed")
            if seconds is not None and time.monotonic() - began >= seconds:
                break
    return found, time.monotonic() - began


def _story(report: RunReport) -> None:
    for line in report.story:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _draw(path: Path, seed: int, profile: str) -> None:
    """Run the same seed again, with the same digest, and record a chart."""
    from ringlog_sim.runner.run import run_script
    from ringlog_sim.runner.script import ALL, PROFILES, draw_script, profile_of

    chosen = PROFILES[profile_of(seed) if profile == ALL else profile]
    chart = run_script(draw_script(seed, chosen), filming=True).chart
    assert chart is not None, "the chart was requested"
    draw(path, chart)


def _keep(report: RunReport, shrunk: bool, folder: Path) -> tuple[RunReport, Path, int]:
    """Save the shortened script of a failed run. Return (report, file, actions left)."""
    from ringlog_sim.runner.script import PROFILES, draw_script
    from ringlog_sim.runner.shrink import save, shrink

    script = draw_script(report.seed, PROFILES[report.profile])
    if shrunk:
        script = shrink(script, report.rule)
    return report, save(folder, report, script), len(script.actions)


def _show(
    wanted: range, found: SearchResult, elapsed: float, coverage: bool, saved: list[tuple[RunReport, Path, int]]
) -> None:
    if coverage:
        from ringlog_sim.runner.coverage import tables

        for table in tables(found.did):
            out.print(_rich(table))
    verdict = (f"{len(found.failures)} failed", "red") if found.failures else ("none failed", "green")
    begin = Text.assemble(f"{found.runs} runs of {wanted.start}..{wanted.stop - 1}, ", verdict)
    out.print(
        begin + "; "
        f"{found.runs / elapsed:.1f} seeds/s, {found.events / elapsed:,.0f} events/s; "
        f"a run costs {1000 * found.cpu_s / max(found.runs, 1):.0f} ms of one core "
        f"({found.runs / max(found.cpu_s, 1e-9):.1f}/s); "
        f"{found.entries:,} entries, {found.virtual / 3.6e9:.1f} h of virtual time",
        soft_wrap=True,
    )
    for report, path, actions in saved:
        where = f"seed {report.seed} of {report.profile}"
        out.print(Text.assemble((where, "red"), f": {report.rule}: {report.detail}"), soft_wrap=True)
        out.print(f"  {actions} actions left; replay: ringlog sim replay {path} --trace", soft_wrap=True)
        again = f"ringlog sim run --seed {report.seed} --profile {report.profile} --trace"
        out.print(f"  without that file: {again}", soft_wrap=True)


def _rich(table: CoverageTable) -> RichTable:
    """Return the table for rich. An empty cell is a red dot."""
    shown = RichTable(title=f"{table.title} ({table.empty()} empty)", title_justify="left", box=None, padding=(0, 1))
    shown.add_column("")
    for column in table.columns:
        shown.add_column(column, justify="right")
    for row, counts in table.cells:
        shown.add_row(row, *(Text(f"{count:,}") if count else Text("·", "red") for count in counts))
    return shown


def _report_json(report: RunReport) -> dict[str, object]:
    return {
        "seed": report.seed,
        "profile": report.profile,
        "rule": report.rule,
        "detail": report.detail,
        "digest": report.digest,
        "events": report.events,
        "entries": report.entries,
    }


def _json(found: SearchResult, elapsed: float, saved: list[tuple[RunReport, Path, int]]) -> dict[str, object]:
    from ringlog_sim.runner.coverage import tables

    return {
        "runs": found.runs,
        "failed": len(found.failures),
        "seconds": round(elapsed, 3),
        "runs_per_core_second": round(found.runs / max(found.cpu_s, 1e-9), 1),
        "events": found.events,
        "entries": found.entries,
        "failures": [_report_json(report) for report in found.failures],
        "saved": [str(path) for _, path, _ in saved],
        "coverage": {
            table.title: {row: dict(zip(table.columns, counts, strict=True)) for row, counts in table.cells}
            for table in tables(found.did)
        },
    }

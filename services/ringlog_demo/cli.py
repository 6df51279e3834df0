"""``ringlog demo``: one run of the whole system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli.shared.connection import WIDE, SafeConsole, out
from ringlog.extras import require
from ringlog.files import default_data_dir


def demo(
    flights: Annotated[int | None, typer.Option(help="Most flights to send.", min=2_000)] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Data folder of the demo. Its content is deleted at the start.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Leave broker and Redis running at the end.")] = True,
) -> None:
    """Run the whole system once on real data, then audit it.

    Uses real components. A node joins in the middle of the load.
    """
    require("agents", "node", "spark", "audit", "demo")
    from ringlog_demo.main import run_demo

    screen = SafeConsole(highlight=False, soft_wrap=True, width=None if out.is_terminal else WIDE)
    raise typer.Exit(run_demo(flights, data or default_data_dir() / "demo", keep, screen))

"""The commands of the simulator in ``ringlog sim``."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    from ringlog_sim.cli import mutants, run

    for part in (run, mutants):
        part.register(app)

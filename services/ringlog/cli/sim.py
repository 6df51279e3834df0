"""``ringlog sim``: prove it yourself. The simulator, its mutants, quorums, histories, and delays on a live log."""

from __future__ import annotations

import typer

from ringlog.cli import sim_check, sim_delays, sim_mutants, sim_quorums, sim_run

app = typer.Typer(add_completion=False, no_args_is_help=True)

for _part in (sim_run, sim_mutants, sim_quorums, sim_delays, sim_check):
    _part.register(app)

"""``ringlog sim``: the simulator, its mutants, quorums, histories, and delays on a live log."""

from __future__ import annotations

import typer

from ringlog_sim.cli import check as sim_check
from ringlog_sim.cli import delays as sim_delays
from ringlog_sim.cli import mutants as sim_mutants
from ringlog_sim.cli import quorums as sim_quorums
from ringlog_sim.cli import run as sim_run

app = typer.Typer(add_completion=False, no_args_is_help=True)

for _part in (sim_run, sim_mutants, sim_quorums, sim_delays, sim_check):
    _part.register(app)

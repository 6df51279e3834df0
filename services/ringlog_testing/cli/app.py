"""``ringlog sim``: quorums, placements, histories, and delays on a live log; in a clone also the simulator and mutants.

The simulator tests Ringlog itself, so the wheel does not contain it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

from ringlog_testing.cli import check, delays, placement, quorums

app = typer.Typer(add_completion=False, no_args_is_help=True)

if find_spec("ringlog_sim") is not None:
    import_module("ringlog_sim.cli").register(app)
for _part in (quorums, placement, delays, check):
    _part.register(app)

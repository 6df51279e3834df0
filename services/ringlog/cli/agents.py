"""``ringlog agents`` and ``ringlog agent ROLE``: run the agents, and see that each is caught up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ringlog.agents.status import read_status
from ringlog.agents.supervise import supervise
from ringlog.agents.worker import run
from ringlog.cli.connection import Bootstrap, Cluster, fail, out, process_settings, resolve, tell_replay
from ringlog.cli.verbs import looks, show_table
from ringlog.operator import views
from ringlog.operator.shown import printable
from ringlog.private import private_process
from ringlog.protocol.roles import ROLES
from ringlog.runtime.context import ClusterContext

app = typer.Typer(invoke_without_command=True)


@app.callback(invoke_without_command=True)
def all_agents(
    context: typer.Context,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """Run one agent of each role until stopped, each in a process of its own."""
    if context.invoked_subcommand is None:
        private_process()
        raise typer.Exit(supervise(process_settings(resolve(bootstrap, cluster))))


def one(
    role: Annotated[str, typer.Argument(help=f"One of: {', '.join(ROLES)}.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """Run one agent until stopped. A second one of a role stands by and takes over when the first is gone."""
    if role not in ROLES:
        fail("unknown_role", f"{role}; roles: {', '.join(ROLES)}", 2)
    process_settings(resolve(bootstrap, cluster))
    sys.argv = [sys.argv[0]]
    run(role)


@app.command("status")
@looks
def status(context: ClusterContext) -> Iterator[Any]:
    """Who acts in each role, and how far it is behind the log."""
    found = read_status(context.bootstrap, context.cluster, tell_replay)
    yield [views.agent_at_work(a) for a in found]
    columns = ("agent", "term", "epoch", "state", "behind", "last heard")
    rows = []
    for a in found:
        behind = "caught up" if a.caught_up else f"{a.lag} epochs"
        rows.append((a.role, str(a.term), str(a.epoch), a.shown_state, behind, f"{a.age_s:.1f} s ago"))
    show_table(columns, rows, "no agent has reported yet; start them: ringlog agents")
    for a in found:
        if a.why:
            out.print(f"{a.role}{' ended' if a.state == 'halted' else ''}: {printable(a.why)}", markup=False)

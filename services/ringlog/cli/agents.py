"""``ringlog agents`` and ``ringlog agent ROLE``: run agents and show their status.

This module also describes the last report of the validator, for commands that got no answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Annotated, Any

import typer

from ringlog.agents.exits import accept_recovery
from ringlog.agents.status import read_status, read_statuses
from ringlog.agents.supervise import supervise
from ringlog.agents.worker import run
from ringlog.cli.shared.connection import (
    Bootstrap,
    Cluster,
    Json,
    fail,
    out,
    process_settings,
    report_replay,
    resolve,
    used_broker,
    used_cluster,
)
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.tables import show_table
from ringlog.extras import require
from ringlog.files import private_process, process_data_dir
from ringlog.log.errors import LogError
from ringlog.log.opening import open_metadata
from ringlog.operator.views import views
from ringlog.operator.views.words import printable, span
from ringlog.protocol.roles import ROLES
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.monitoring.open_connections import raise_file_limit
from ringlog.wire.records import AgentStatus

app = typer.Typer(invoke_without_command=True)


@app.callback(invoke_without_command=True)
def all_agents(
    context: typer.Context,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """Run one agent of each role until stopped.

    Each agent is a separate process.
    """
    if context.invoked_subcommand is None:
        require("agents")
        private_process()
        raise_file_limit()
        raise typer.Exit(supervise(process_settings(resolve(bootstrap, cluster))))


def one(
    role: Annotated[str, typer.Argument(help=f"One of: {', '.join(ROLES)}.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """Run one agent until it is stopped.

    A second agent of the same role is a standby. It takes over when the first one stops.
    """
    if role not in ROLES:
        fail("unknown_role", f"{role}; roles: {', '.join(ROLES)}", 2)
    require("agents")
    process_settings(resolve(bootstrap, cluster))
    sys.argv = [sys.argv[0]]
    run(role)


@app.command("accept-recovery")
def accept(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Let the agents of this machine follow a rebuilt log.

    Removes their record of the lost topic. `ringlog recover` does this on its own machine.
    """
    context = resolve(bootstrap, cluster)
    state = newest(context)
    if not state.recoveries:
        fail("not_recovered", f"the log of {state.name} was never rebuilt. To rebuild it: ringlog recover")
    with closing(open_metadata(context.bootstrap, context.cluster, "cli")) as log:
        topic_id = log.identity()
    gone = list(map(str, accept_recovery(process_data_dir(), context.cluster, state.cluster_id, topic_id)))
    if as_json:
        typer.echo(json.dumps({"removed": gone}))
    for path in () if as_json else gone or ["nothing to remove: the agents of this machine follow this log"]:
        out.print(f"removed {path}" if gone else path, markup=False)


@app.command("status")
@view_command
def status(context: ClusterContext) -> Iterator[Any]:
    """Show the active agent of each role, its lag and its release."""
    found = read_status(context.bootstrap, context.cluster, report_replay)
    yield [views.agent_at_work(a) for a in found]
    columns = ("agent", "term", "epoch", "state", "behind", "last heard", "release")
    rows = []
    for a in found:
        behind = "caught up" if a.caught_up else f"{a.lag} epochs"
        rows.append(
            (a.role, str(a.term), str(a.epoch), a.shown_state, behind, f"{a.age_s:.1f} s ago", printable(a.release))
        )
    show_table(columns, rows, "no agent has reported yet; start them: ringlog agents")
    for a in found:
        if a.why:
            out.print(f"{a.role}{' ended' if a.state == 'halted' else ''}: {printable(a.why)}", markup=False)


VALIDATOR = "validator"
SEE_STATUS = "see: ringlog agents status"


def ways_out() -> tuple[str, ...]:
    """Return the next steps after a request without an answer, with the last report of the validator."""
    broker, cluster = used_broker(), used_cluster()
    found = None
    with suppress(LogError):
        if broker is not None and cluster is not None:
            found = read_statuses(broker.bootstrap, cluster).get(VALIDATOR)
    withdraw = "on the command line: ringlog withdraw REQUEST_ID EPOCH, with both values from above"
    return format_validator(found, SystemClock().now_us()), withdraw


def format_validator(found: AgentStatus | None, now: int) -> str:
    """Return the age and state of the validator's last report in words."""
    if found is None:
        return f"no validator has reported; start the agents: ringlog agents; {SEE_STATUS}"
    subject = f"validator {found.instance[:8]} of term {found.term}"
    state = "stopped" if found.state == "halted" and not found.why else found.state
    return f"the {subject} was last heard {span(now - found.at)} ago as {state}; {SEE_STATUS}"

"""``ringlog cdc repair``: check the CDC streams, and create a new generation if the ring needs other streams.

The state records the request (``kernel.generations.requests``). It continues without a watcher, and ``ringlog operation
list`` shows its outcome.
"""

from __future__ import annotations

import getpass
import json
import re
from typing import Annotated

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.shared.following import Timeout, Wait
from ringlog.cli.shared.submitting import show_answer, submitted
from ringlog.kernel.commands.cdc.generations import RequestCdcGeneration
from ringlog.kernel.generations.requests import DROPPED, IN_PROGRESS
from ringlog.kernel.model.state import ClusterState, GlobalRequest
from ringlog.log.errors import WaitTimedOut
from ringlog.operator.answers import answer_json
from ringlog.operator.intents.intents import seed_of
from ringlog.operator.views import views
from ringlog.protocol.submission.results import AppliedResult

DAY_S = 86_400.0
UNKNOWN_USER = "somebody"


def repair_command(
    by: Annotated[str | None, typer.Option("--operator", "--by", help=help_texts.OPERATOR)] = None,
    wait: Wait = True,
    timeout: Timeout = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Check the CDC streams, and replace them if necessary.

    Each range needs a stream for each shard of its owner. If one is missing, a new generation is created. The exit
    status is 0 if the streams are complete, 1 if the generation was dropped or is still in progress.
    """
    requester, context = by or _user(), resolve(bootstrap, cluster)
    with connect(context) as client:
        answer, _ = submitted(client, lambda _, draw: RequestCdcGeneration(seed_of(draw), requester))
        if not isinstance(answer, AppliedResult):
            show_answer(answer, None, as_json)
            return
        name = f"repair-{answer.epoch}"
        found = client.replica.state.requests.get(name)
        if wait:
            if found is not None and found.outcome == IN_PROGRESS and not as_json:
                out.print(f"{name} waits for {found.generation}", markup=False)
            try:
                found = client.replica.wait_for(
                    lambda state: _ended(state, name), DAY_S if timeout is None else timeout, f"the end of {name}"
                )
            except WaitTimedOut:
                found = client.replica.state.requests[name]
    assert found is not None, "the state contains each applied request"
    if as_json:
        typer.echo(json.dumps(answer_json(answer) | {"request": views.request(found)}))
    else:
        out.print(f"{name} of cluster {context.cluster}: {found.outcome.replace('_', ' ')}", markup=False)
    if found.outcome == DROPPED or (wait and found.outcome == IN_PROGRESS):
        fail("not_repaired", f"{name} is {found.outcome}. For details: ringlog operation show {name}")


def _ended(state: ClusterState, name: str) -> GlobalRequest | None:
    """Return the request if it has ended, else None."""
    found = state.requests[name]
    return None if found.outcome == IN_PROGRESS else found


def _user() -> str:
    """Return the user's name with only the characters that the log accepts."""
    try:
        return re.sub("[^A-Za-z0-9_.-]|^[_.-]+", "", getpass.getuser())[:100] or UNKNOWN_USER
    except (OSError, KeyError):
        return UNKNOWN_USER

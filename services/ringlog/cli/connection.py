"""Which cluster a command talks to: options first, then ``RINGLOG_*`` variables, then what was used last.

``ringlog demo`` and ``ringlog cluster found`` remember the cluster they made in ``context.json`` of the data
folder, so that the next command needs no options. A command that finds none of the three says what to type.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from ringlog.client.client import Client
from ringlog.runtime.context import Context, recall
from ringlog.runtime.settings import Settings
from ringlog.stack.commands import Stack

WIDE = 240
"""Columns where nobody looks at the width: in a pipe or a file a table must not lose what it says."""

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", envvar="RINGLOG_BOOTSTRAP_SERVERS", help="Kafka brokers, host:port,…")
]
Cluster = Annotated[str | None, typer.Option("--cluster", envvar="RINGLOG_CLUSTER", help="Name of the cluster.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fail(code: str, text: str, status: int = 1) -> NoReturn:
    """Print an error as ``code: text`` and end with ``status``."""
    errors.print(f"[red]{code}[/red]:", end=" ")
    errors.print(text, markup=False)
    raise typer.Exit(status)


def broker_of(bootstrap: str | None) -> tuple[str, str]:
    """(brokers, Redis address): given, remembered, or those of the local stack if it runs."""
    last = recall()
    redis = os.environ.get("RINGLOG_REDIS_URL", last.redis if last else "")
    if bootstrap is not None:
        return bootstrap, redis
    if last is not None:
        return last.bootstrap, redis
    status = Stack().status()
    if not status.running or status.broker is None or status.redis is None:
        fail("no_broker", "give --bootstrap, or start one on this machine: ringlog stack up")
    return status.broker.address, redis or f"redis://{status.redis.address}/0"


def resolve(bootstrap: str | None, cluster: str | None) -> Context:
    """The cluster that a command's options mean."""
    brokers, redis = broker_of(bootstrap)
    last = recall()
    name = cluster or (last.cluster if last else None)
    if name is None:
        fail("no_cluster", "give --cluster, or found one: ringlog cluster found NAME")
    return Context(brokers, name, redis)


def connect(context: Context, submitter: str = "cli") -> Client:
    """A client of the cluster; use it as a context manager."""
    return Client(context.bootstrap, context.cluster, submitter)


def process_settings(context: Context) -> Settings:
    """Settings of a long-running process of this cluster, for it and for the processes that it starts."""
    os.environ["RINGLOG_BOOTSTRAP_SERVERS"] = context.bootstrap
    os.environ["RINGLOG_CLUSTER"] = context.cluster
    if context.redis:
        os.environ["RINGLOG_REDIS_URL"] = context.redis
    return Settings()

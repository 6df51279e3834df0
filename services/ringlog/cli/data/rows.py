"""``ringlog data rows`` and ``ringlog data put``: read rows from the nodes, and write rows to the mutations topic."""

from __future__ import annotations

import json
import re
import shlex
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve, seconds_of
from ringlog.client.client import Client
from ringlog.client.data.coordinator import TIMEOUT_S, Coordinator
from ringlog.client.data.plans import Level
from ringlog.client.data.row_reads import Positions
from ringlog.client.data.row_writer import RowWriter
from ringlog.kernel.cql.types import TypeMismatch
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.ring.murmur3 import compose
from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.kafka.topic_state import ends_of
from ringlog.log.kafka.topics import admin_client, topic_name
from ringlog.operator.errors import Refused
from ringlog.operator.views import row_text
from ringlog.runtime.clock import SystemClock
from ringlog.wire.records import INSERT, ROW_DELETE, Mutation

TableName = Annotated[str, typer.Argument(metavar="KEYSPACE.TABLE", help="Name of the table.")]
Timeout = Annotated[float, typer.Option("--timeout", parser=seconds_of, help="Seconds to wait for the answer.")]
Datacenter = Annotated[str, typer.Option("--datacenter", help="The caller's datacenter, for LOCAL_QUORUM.")]
NUMBER = re.compile("[0-9]{1,18}")
Timestamp = Annotated[
    int | None, typer.Option("--timestamp", help="Microseconds since 1970. The greatest one wins. Default: now.")
]


def rows(
    table: TableName,
    key: Annotated[list[str], typer.Argument(help="Values of the partition key. Example of bytes: 0x0aff.")],
    at: Annotated[
        list[str] | None,
        typer.Option("--at", help="Position that each answer must include, as `data put` prints it."),
    ] = None,
    level: Annotated[
        Level | None,
        typer.Option("--level", case_sensitive=False, help="Consistency level."),
    ] = None,
    timeout: Timeout = TIMEOUT_S,
    datacenter: Datacenter = "",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Read the rows of a partition from the nodes.

    The exit status is 1 if there are none. With --at, one replica answers (level ONE), and the result contains every
    accepted write below the position. Without it, a quorum answers, and later reads return at least the same writes.
    `--json` also prints the plan and the positions.
    """
    wanted = _positions(at or [])
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        found = _table(client.read_barrier(), table)
        composed = compose(_key(found, key, len(found.partition_key)))
        ends = partial(mutation_ends, context.bootstrap, context.cluster)
        with Coordinator(client.replica, datacenter, ends=ends) as coordinator:
            partition = coordinator.read_rows(table, composed, at=wanted, level=level, timeout_s=timeout)
        shown = row_text.found_json(client.state, partition, SystemClock().now_us())
    if as_json:
        typer.echo(json.dumps(shown))
    else:
        for row in shown["rows"] or ([shown["static"]] if shown["static"] else []):
            typer.echo(json.dumps(shown["static"] | row))
    if not shown["rows"] and not shown["static"]:
        if not as_json:
            fail("nothing_there", f"{table} has no rows under {' '.join(key)}")
        raise typer.Exit(1)


def put(
    table: TableName,
    key: Annotated[list[str], typer.Argument(help="Values of the whole key, as for `data rows`.")],
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=VALUE", help="Value of a column: JSON, or text without quotes."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the row instead.")] = False,
    timestamp: Timestamp = None,
    timeout: Timeout = TIMEOUT_S,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Write a row and wait until it is accepted or rejected.

    The exit status is 1 if a rule rejects it. `--json` also prints the position of the write, for `data rows --at`.
    """
    if delete and values:
        fail("bad_value", "a deleted row has no values: omit --set", 2)
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        state = client.read_barrier()
        found = _table(state, table)
        whole = _key(found, key, len(found.partition_key) + len(found.clustering_key))
        with _refusals():
            cells = row_text.cells_of(found, dict(map(_assignment, values or [])))
        at = SystemClock().now_us() if timestamp is None else timestamp
        mutation = Mutation(
            mutation_id=str(uuid.uuid4()),
            cluster_id=state.cluster_id,
            keyspace=found.keyspace,
            table=found.name,
            timestamp=at,
            ttl=None,
            operation=ROW_DELETE if delete else INSERT,
            partition_key=whole[: len(found.partition_key)],
            clustering_key=whole[len(found.partition_key) :],
            cells=cells,
        )
        code, place = _written(client, context.bootstrap, context.cluster, mutation, timeout)
    if as_json:
        typer.echo(json.dumps({"accepted": not code, "code": code, "position": place, "timestamp": at}))
        raise typer.Exit(1 if code else 0)
    if code:
        fail(code, f"the write is at {place}, and every reader rejects it")
    out.print(f"accepted; it is in: {rows_command(table, key[: len(found.partition_key)], place)}")


def rows_command(table: str, key: Sequence[str], position: str) -> str:
    """Return the command that reads a partition at a position."""
    ends = ["--"] if any(value.startswith("-") for value in key) else []  # Else a negative number is read as an option.
    return f"ringlog data rows --at {position} {shlex.join([table, *ends, *key])}"


def _written(client: Client, bootstrap: str, cluster: str, mutation: Mutation, timeout: float) -> tuple[str, str]:
    """Return (code of the rejection or an empty text, position after the write)."""
    with RowWriter(client.replica, bootstrap, cluster) as writer:
        written = writer.write(mutation, timeout)
        code = writer.verdict(written, timeout).code
    ((partition, offset),) = written.at.items()
    return code, f"{partition}:{offset}"


def _table(state: ClusterState, name: str) -> Table:
    found = state.tables.get(name)
    if found is None:
        fail("unknown_table", f"the table {name} does not exist at epoch {state.epoch}")
    return found


def _key(table: Table, typed: list[str], wanted: int) -> tuple[bytes, ...]:
    if len(typed) != wanted:
        names = ", ".join((*table.partition_key, *table.clustering_key)[:wanted])
        fail("bad_key", f"the key has the columns {names}: {wanted} values, {len(typed)} given", 2)
    with _refusals():
        return row_text.key_of(table, typed)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (Refused, TypeMismatch) as error:
        fail(error.code, str(error), 2)


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        fail("bad_value", f"{text}: expected COLUMN=VALUE", 2)
    return name, value


def _positions(texts: list[str]) -> Positions:
    found = {}
    for text in texts:
        partition, _, offset = text.partition(":")
        if not (NUMBER.fullmatch(partition) and NUMBER.fullmatch(offset)):
            fail("bad_position", f"{text[:60]}: expected PARTITION:OFFSET", 2)
        found[int(partition)] = int(offset)
    return found


def mutation_ends(bootstrap: str, cluster: str, wait_s: float) -> Positions | None:
    """Return the end offsets of the mutations topic; None if no broker answers."""
    try:
        return ends_of(admin_client(bootstrap), topic_name(cluster, "mutations"), wait_s)
    except (LogUnavailable, TopicMissing):
        return None

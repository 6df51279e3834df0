"""``ringlog data``: read and write registers on the reference nodes; ``--json`` also prints the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from ringlog.cli.data import rows as data_rows
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.shared.options import ASKING, Options, with_options
from ringlog.client.data.coordinator import TIMEOUT_S, Coordinator
from ringlog.client.data.plans import Level
from ringlog.kernel.model.state import ClusterState
from ringlog.operator.views import row_text
from ringlog.runtime.clock import SystemClock

app = typer.Typer(no_args_is_help=True)
app.command("rows")(data_rows.rows)
app.command("put")(data_rows.put)

Keyspace = Annotated[str, typer.Argument(help="Name of the keyspace. In tablets: keyspace.table.")]
Key = Annotated[str, typer.Argument(help="Key: text, or hex digits with --hex.")]
LevelOption = Annotated[Level, typer.Option("--level", case_sensitive=False, help="Consistency level.")]
Hex = Annotated[bool, typer.Option("--hex", help="Key and value are hex digits.")]
Write = tuple[str, str, str | None]
"""(keyspace, key, value) of a write; None writes a tombstone."""


@app.command("read")
def read(
    keyspace: Keyspace,
    key: Key,
    level: LevelOption = Level.QUORUM,
    timeout: data_rows.Timeout = TIMEOUT_S,
    datacenter: data_rows.Datacenter = "",
    as_hex: Hex = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Read a register.

    The exit status is 1 if it has no value, or if too few replicas answered. `--json` also prints the plan, the epochs
    and the nodes that answered.
    """
    with _coordinator(bootstrap, cluster, datacenter) as (coordinator, state):
        result = coordinator.read(keyspace, _bytes(key, as_hex), level=level, timeout_s=timeout)
    is_there = result.cell is not None and not result.cell.deleted
    if as_json:
        typer.echo(json.dumps(row_text.register_view(state, result, as_hex)))
    elif result.cell is not None and is_there:
        typer.echo(row_text.text_of(result.cell.value, as_hex))
    else:
        fail("nothing_there", f"{keyspace} has no value under {key}")
    raise typer.Exit(0 if is_there else 1)


def _performed(
    verb: Callable[[], Write],
    level: Level,
    timestamp: int | None,
    timeout: float,
    datacenter: str,
    as_hex: bool,
    bootstrap: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    keyspace, key, text = verb()
    value = None if text is None else _bytes(text, as_hex)
    at = SystemClock().now_us() if timestamp is None else timestamp
    with _coordinator(bootstrap, cluster, datacenter) as (coordinator, state):
        result = coordinator.write(keyspace, _bytes(key, as_hex), value, timestamp=at, level=level, timeout_s=timeout)
    if as_json:
        typer.echo(json.dumps(row_text.register_view(state, result, as_hex)))
    else:
        names = ", ".join(state.nodes[answer.node].name for answer in result.answers)
        out.print(f"done at epoch {result.epoch}, on {names}")


_OPTIONS: Options = {
    "level": (LevelOption, Level.QUORUM),
    "timestamp": (data_rows.Timestamp, None),
    "timeout": (data_rows.Timeout, TIMEOUT_S),
    "datacenter": (data_rows.Datacenter, ""),
    "as_hex": (Hex, False),
    **ASKING,
}
_writes = partial(with_options, options=_OPTIONS, perform=_performed)


@app.command("write")
@_writes
def write(
    keyspace: Keyspace,
    key: Key,
    value: Annotated[str, typer.Argument(help="Value: text, or hex digits with --hex.")],
) -> Write:
    """Write a register.

    Done when enough replicas have the value on disk.
    """
    return keyspace, key, value


@app.command("delete")
@_writes
def delete(keyspace: Keyspace, key: Key) -> Write:
    """Delete a register's value.

    The delete writes a tombstone.
    """
    return keyspace, key, None


@contextmanager
def _coordinator(
    bootstrap: str | None, cluster: str | None, datacenter: str
) -> Iterator[tuple[Coordinator, ClusterState]]:
    with connect(resolve(bootstrap, cluster)) as client:
        state = client.read_barrier()
        with Coordinator(client.replica, datacenter) as coordinator:
            yield coordinator, state


def _bytes(text: str, as_hex: bool) -> bytes:
    if not as_hex:
        return text.encode()
    try:
        return bytes.fromhex(text)
    except ValueError:
        fail("bad_hex", f"{text}: not hex digits", 2)

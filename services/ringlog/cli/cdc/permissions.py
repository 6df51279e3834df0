"""``ringlog cdc grant`` and ``ringlog cdc fence``: grant and revoke a CDC writer's permissions at the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.shared.submitting import show_answer
from ringlog.files import FileUnusable, private_draft
from ringlog.log.errors import LogError
from ringlog.log.kafka.permissions import grant
from ringlog.log.kafka.topics import admin_client
from ringlog.operator.fencing import fence

LISTENER = "The brokers' SASL listener for writers, host:port."

Writer = Annotated[str, typer.Option("--writer", help=help_texts.WRITER)]
Listener = Annotated[
    str,
    typer.Option("--listener", envvar="RINGLOG_CDC_LISTENER", help=LISTENER),
]
Protocol = Annotated[
    str,
    typer.Option(
        "--protocol", envvar="RINGLOG_CDC_PROTOCOL", help="Protocol of that listener: SASL_SSL or SASL_PLAINTEXT."
    ),
]


def grant_command(
    writer: Writer,
    to: Annotated[
        Path, typer.Option("--to", "--output", help="File for the credentials, as options of a Kafka client.")
    ],
    listener: Listener,
    protocol: Protocol = "SASL_SSL",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """Create credentials for a CDC writer.

    A fence can revoke them. Pass the file to `ringlog cdc run --producer FILE`.
    """
    context = resolve(bootstrap, cluster)
    # The file comes first: a password that cannot be stored would be lost.
    try:
        with private_draft(to) as file:
            made = grant(admin_client(context.bootstrap), context.cluster, writer)
            options = {"bootstrap.servers": listener, **made.java_properties(protocol)}
            file.writelines(f"{name}={value}\n" for name, value in options.items())
    except FileUnusable as error:
        fail("bad_option", f"{to} cannot be written: {error.strerror}")
    except LogError as error:
        fail(error.code, str(error))
    out.print(f"{made.principal} may write; its credentials are in {to}")


def fence_command(
    writer: Writer,
    reason: Annotated[str, typer.Option("--reason", help=help_texts.REASON)],
    listener: Annotated[str | None, typer.Option("--listener", envvar="RINGLOG_CDC_LISTENER", help=LISTENER)] = None,
    protocol: Protocol = "SASL_SSL",
    how_stopped: Annotated[
        str | None,
        typer.Option(
            "--writer-stopped", "--i-made-sure", help="How you stopped the writer. Permissions at the broker stay."
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Fence a CDC writer that stopped permanently.

    Revokes its permissions at the broker, checks that they are gone, and records the fence in the log. Its generation
    can then close. Rows that it had not written stay missing until a writer with its name starts again: it begins with
    the oldest generation that is not closed.
    """
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        try:
            found = client.read_barrier().writers.get(writer)
            if found is None:
                fail(
                    "unknown_writer", f"the CDC writer {writer} does not exist; `ringlog cdc status` lists the writers"
                )
            command = fence(context, found, reason, listener, protocol, how_stopped)
        except LogError as error:
            fail(error.code, str(error))
        answer = client.submit(command)
    if not as_json:
        ends = {position.partition: position.offset for position in command.positions}
        out.print(f"{writer} ({found.incarnation}): {command.reason}")
        out.print(f"the CDC topic ended at {json.dumps(ends)} after that")
    show_answer(answer, None, as_json)

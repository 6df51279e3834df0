"""``ringlog cdc grant`` and ``ringlog cdc fence``: a CDC writer's rights at the broker, given and taken for ever.

A fence is four things in this order, none of which may be left out: the rights go, at the broker; every leader is seen
to refuse; only then is it read where the CDC topic ends; and only then does the log say that the incarnation is fenced,
with those positions. Whatever stops in between is repeated from the beginning: each step may be done twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import Consumer, TopicPartition

from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.submitting import show_answer
from ringlog.kernel.commands.model import FenceCdcWriter, Position
from ringlog.kernel.state import CdcWriter
from ringlog.log.errors import LogError
from ringlog.log.rights import NoAuthorizer, NoListener, NoRights, await_gone, deny, grant, principals
from ringlog.log.topics import CDC, admin_client, topic_name
from ringlog.runtime.context import Context
from ringlog.runtime.kafka_config import connection

TIMEOUT_S = 15.0
OWNER_ONLY = 0o600

LISTENER = "The brokers' SASL listener for writers, host:port."

Writer = Annotated[str, typer.Option("--writer", help="Name of the CDC writer in the metadata log.")]
Listener = Annotated[
    str,
    typer.Option("--listener", envvar="RINGLOG_CDC_LISTENER", help=LISTENER),
]
Protocol = Annotated[
    str, typer.Option("--protocol", envvar="RINGLOG_CDC_PROTOCOL", help="Of that listener: SASL_SSL or SASL_PLAINTEXT.")
]


def grant_command(
    writer: Writer,
    to: Annotated[Path, typer.Option("--to", help="File for the credentials: options of a Kafka client.")],
    listener: Listener,
    protocol: Protocol = "SASL_SSL",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """Give a CDC writer credentials of its own, that a fence can take away; `ringlog cdc run --producer FILE`."""
    context = resolve(bootstrap, cluster)
    # The file first: a password that could not be written down would be nobody's.
    fresh = to.with_name(f"{to.name}.new")
    if to.is_dir():
        fail("bad_option", f"{to} is a folder")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
    except OSError as error:
        fail("bad_option", f"{to} cannot be written: {error.strerror}")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            made = grant(admin_client(context.bootstrap), context.cluster, writer)
            options = {"bootstrap.servers": listener, **made.java_properties(protocol)}
            file.writelines(f"{name}={value}\n" for name, value in options.items())
        fresh.replace(to)
    except OSError as error:
        fail("bad_option", f"{to} cannot be written: {error.strerror}; grant again, under another name")
    except LogError as error:
        fail(error.code, str(error))
    finally:
        fresh.unlink(missing_ok=True)
    out.print(f"{made.principal} may write; its credentials are in {to}")


def fence_command(
    writer: Writer,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the log.")],
    listener: Annotated[str | None, typer.Option("--listener", envvar="RINGLOG_CDC_LISTENER", help=LISTENER)] = None,
    protocol: Protocol = "SASL_SSL",
    i_made_sure: Annotated[
        str | None,
        typer.Option("--i-made-sure", help="How it is known that it can never write again; nothing is done about it."),
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """End a CDC writer that is gone for good: take its rights at the broker, see that they are gone, say so in the log.

    Its generation then closes without it. What it had not written yet is written by nobody, unless its name is started
    again: it begins with the oldest generation that is not closed.
    """
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        try:
            found = client.read_barrier().writers.get(writer)
            if found is None:
                fail("unknown_writer", f"there is no CDC writer {writer}; known are those of: ringlog cdc status")
            command = fence(context, found, reason, listener, protocol, i_made_sure)
        except LogError as error:
            fail(error.code, str(error))
        answer = client.submit(command)
    if not as_json:
        ends = {position.partition: position.offset for position in command.positions}
        out.print(f"{writer} ({found.incarnation}): {command.reason}")
        out.print(f"the CDC topic ended at {json.dumps(ends)} after that")
    show_answer(answer, None, as_json)


def fence(
    context: Context,
    writer: CdcWriter,
    reason: str,
    listener: str | None,
    protocol: str,
    i_made_sure: str | None = None,
) -> FenceCdcWriter:
    """Everything but the log's part, and the command that is it. Raises LogError."""
    if i_made_sure is None:
        words = f"{reason}; rights taken from {', '.join(_take_rights(context, writer, listener, protocol))}"
    else:
        words = f"{reason}; without the broker: {i_made_sure}"
    return FenceCdcWriter(writer.name, writer.incarnation, _ends(context), words)


def _take_rights(context: Context, writer: CdcWriter, listener: str | None, protocol: str) -> tuple[str, ...]:
    """Deny every principal that the writer ever had, and see each of them refused by every leader."""
    admin = admin_client(context.bootstrap)
    try:
        names = principals(admin, context.cluster, writer.name)
    except NoAuthorizer as error:
        raise NoAuthorizer(error.message, "stop it for good by other means, then: --i-made-sure 'how'") from error
    if not names:
        raise NoRights(
            f"{writer.name} never got rights of its own (ringlog cdc grant), so none can be taken away",
            "stop it for good by other means, then: --i-made-sure 'how'",
        )
    if listener is None:
        raise NoListener("whether the rights are gone is tried where the writers come in", "give --listener")
    partitions = tuple(position.partition for position in _ends(context))
    for name in names:
        await_gone(listener, protocol, context.cluster, deny(admin, context.cluster, name), partitions)
    return names


def _ends(context: Context) -> tuple[Position, ...]:
    """Where each partition of the CDC topic ends now."""
    topic = topic_name(context.cluster, CDC.suffix)
    consumer = Consumer({**connection(context.bootstrap), "group.id": "ringlog-fence", "log_level": 2})
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
        marks = [consumer.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S) for number in partitions]
    finally:
        consumer.close()
    return tuple(Position(number, high) for number, (_, high) in zip(partitions, marks, strict=True))

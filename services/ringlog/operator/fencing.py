"""Fencing a CDC writer at a real broker: ``ringlog.protocol.fencing`` says in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from ringlog.kernel.commands.cdc_writers import FenceCdcWriter
from ringlog.kernel.state import CdcWriter
from ringlog.kernel.values import Position
from ringlog.log.rights import NoAuthorizer, NoListener, NoRights, await_gone, deny, principals
from ringlog.log.topics import CDC, admin_client, topic_name
from ringlog.protocol import fencing as steps
from ringlog.protocol.effects import carry_out
from ringlog.protocol.fencing import EndsOfRows, TakeRights
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.kafka_config import connection

TIMEOUT_S = 15.0


def fence(
    context: ClusterContext,
    writer: CdcWriter,
    reason: str,
    listener: str | None,
    protocol: str,
    i_made_sure: str | None = None,
) -> FenceCdcWriter:
    """Everything but the log's part, and the command that is it. Raises LogError."""

    def take_rights(effect: TakeRights) -> str:
        if i_made_sure is not None:
            return f"without the broker: {i_made_sure}"
        return f"rights taken from {', '.join(_take_rights(context, effect.writer, listener, protocol))}"

    handlers: dict[type, Callable[[Any], Any]] = {TakeRights: take_rights, EndsOfRows: lambda _: _ends(context)}
    return carry_out(steps.fence(writer, reason), lambda effect: handlers[type(effect)](effect))


def _take_rights(context: ClusterContext, writer: CdcWriter, listener: str | None, protocol: str) -> tuple[str, ...]:
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


def _ends(context: ClusterContext) -> tuple[Position, ...]:
    """Where each partition of the CDC topic ends now."""
    topic = topic_name(context.cluster, CDC.suffix)
    consumer = Consumer({**connection(context.bootstrap), "group.id": "ringlog-fence", "log_level": 2})
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
        marks = [consumer.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S) for number in partitions]
    finally:
        consumer.close()
    return tuple(Position(number, high) for number, (_, high) in zip(partitions, marks, strict=True))

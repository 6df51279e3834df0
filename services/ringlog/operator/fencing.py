"""Fence a CDC writer on a real broker. ``ringlog.protocol.fencing`` defines the order of the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringlog.kernel.commands.cdc.writers import FenceCdcWriter
from ringlog.kernel.model.state import CdcWriter
from ringlog.kernel.values import Position
from ringlog.log.kafka.permissions import NoAuthorizer, NoListener, NoRights, await_write_denied, deny, principals
from ringlog.log.kafka.topic_state import ends_of
from ringlog.log.kafka.topics import CDC, admin_client, topic_name
from ringlog.protocol import fencing as steps
from ringlog.protocol.effects import run_steps
from ringlog.protocol.fencing import CdcEndOffsets, RevokeWriteAccess
from ringlog.runtime.context import ClusterContext


def fence(
    context: ClusterContext,
    writer: CdcWriter,
    reason: str,
    listener: str | None,
    protocol: str,
    how_stopped: str | None = None,
) -> FenceCdcWriter:
    """Revoke the writer's permissions, read the ends of the CDC topic, and return the command that records the fence.

    ``how_stopped``: how the operator stopped the writer; the broker's permissions are not changed then. Raises
    LogError.
    """

    def revoke_write_access(effect: RevokeWriteAccess) -> str:
        if how_stopped is not None:
            return f"without the broker: {how_stopped}"
        return f"permissions revoked from {', '.join(_revoke_permissions(context, effect.writer, listener, protocol))}"

    handlers: dict[type, Callable[[Any], Any]] = {
        RevokeWriteAccess: revoke_write_access,
        CdcEndOffsets: lambda _: _ends(context),
    }
    return run_steps(steps.fence(writer, reason), lambda effect: handlers[type(effect)](effect))


def _revoke_permissions(
    context: ClusterContext, writer: CdcWriter, listener: str | None, protocol: str
) -> tuple[str, ...]:
    """Deny every principal that the writer ever had, and wait until every partition leader refuses each of them."""
    admin = admin_client(context.bootstrap)
    try:
        names = principals(admin, context.cluster, writer.name)
    except NoAuthorizer as error:
        raise NoAuthorizer(error.message, "stop the writer permanently, then pass --writer-stopped 'HOW'") from error
    if not names:
        raise NoRights(
            f"{writer.name} has no permissions of its own (ringlog cdc grant) to revoke",
            "stop the writer permanently, then pass --writer-stopped 'HOW'",
        )
    if listener is None:
        raise NoListener(
            "the fence must test the revoked permissions at the listener of the writers", "pass --listener"
        )
    partitions = tuple(position.partition for position in _ends(context))
    for name in names:
        await_write_denied(listener, protocol, context.cluster, deny(admin, context.cluster, name), partitions)
    return names


def _ends(context: ClusterContext) -> tuple[Position, ...]:
    """Return the current end offset of each partition of the CDC topic. Raises TopicMissing, LogUnavailable."""
    ends = ends_of(admin_client(context.bootstrap), topic_name(context.cluster, CDC.suffix))
    return tuple(Position(number, end) for number, end in sorted(ends.items()))

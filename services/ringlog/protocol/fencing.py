"""Taking a CDC writer's right to write away, for ever.

A fence is four things in this order, none of which may be left out: the rights go, at the broker; every leader is seen
to refuse; only then is it read where the CDC topic ends; and only then does the log say that the incarnation is fenced,
with those positions. Whatever stops in between is repeated from the beginning: each step may be done twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.commands.cdc.writers import FenceCdcWriter
from ringlog.kernel.model.state import CdcWriter
from ringlog.kernel.values import Position
from ringlog.protocol.effects import Steps


@dataclass(frozen=True, slots=True)
class TakeRights:
    """Have every leader refuse what this writer's processes send, now and for ever. Outcome: in words, how."""

    writer: CdcWriter


@dataclass(frozen=True, slots=True)
class EndsOfRows:
    """Outcome: where each partition of the CDC topic ends now."""


def fence(writer: CdcWriter, reason: str) -> Steps[FenceCdcWriter]:
    """All but the log's part, and the command that is it."""
    how: str = yield TakeRights(writer)
    ends: tuple[Position, ...] = yield EndsOfRows()
    return FenceCdcWriter(writer.name, writer.incarnation, ends, f"{reason}; {how}")

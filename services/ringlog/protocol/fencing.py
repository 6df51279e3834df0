"""Fencing of a CDC writer: the end of its right to write.

A fence is a sequence of four steps, and none may be left out:

1. Remove the writer's permissions at the broker.
2. Check that every partition leader rejects its records.
3. Read the end offsets of the CDC topic.
4. Record the fence in the log, with these offsets.

The offsets are final only because no leader accepts a record after step 2. Each step may be repeated, so a fence that
was interrupted starts again from the beginning.
"""

from __future__ import annotations

from ringlog.kernel.commands.cdc.writers import FenceCdcWriter
from ringlog.kernel.model.state import CdcWriter
from ringlog.kernel.values import Position, Value
from ringlog.protocol.effects import Effect


class RevokeWriteAccess(Effect[str], Value):
    """Make every leader reject the records of this writer's processes, permanently. Outcome: a text that says how."""

    writer: CdcWriter


class CdcEndOffsets(Effect[tuple[Position, ...]], Value):
    """Outcome: the present end offset of each partition of the CDC topic."""


async def fence(writer: CdcWriter, reason: str) -> FenceCdcWriter:
    """Perform steps 1 to 3, and return the command for step 4."""
    how = await RevokeWriteAccess(writer)
    ends = await CdcEndOffsets()
    return FenceCdcWriter(writer.name, writer.incarnation, ends, f"{reason}; {how}")

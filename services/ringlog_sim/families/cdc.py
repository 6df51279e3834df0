"""CDC: generations and the writers' promises."""

from __future__ import annotations

from ringlog.kernel.commands.cdc.clock import LowerCdcWriter, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    PutCdcGenerationData,
    RequestCdcGeneration,
)
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.generations.describe import ranges_digest
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.values import Position
from ringlog_sim.checks.base import Family
from ringlog_sim.checks.cdc.audited import AuditHolds
from ringlog_sim.checks.cdc.cdc import Cdc
from ringlog_sim.checks.cdc.images import ImageRows
from ringlog_sim.devices.world import SECOND, Chance

FAR = 20 * SECOND


def _request(_: ClusterState, chance: Chance) -> RequestCdcGeneration:
    return RequestCdcGeneration(chance.take(16))


def _put(state: ClusterState, chance: Chance) -> PutCdcGenerationData | None:
    """Data that somebody made on an older state, or for a generation that is not prepared."""
    if not state.generations:
        return None
    old = chance.pick([found for found in state.generations if found.ranges])
    name = state.prepared.id if state.prepared is not None and chance.happens(0.7) else old.id
    return PutCdcGenerationData(name, 0, 1, old.ranges)


def _commit(state: ClusterState, chance: Chance) -> CommitCdcGeneration | None:
    """A commit of what is prepared, with a timestamp at the edges of what is allowed, or below."""
    if state.prepared is None:
        return None
    highest = max((writer.horizon for _, writer in in_order(state.writers)), default=0)
    last = state.generations[-1].timestamp if state.generations else 0
    timestamp = chance.pick([highest - SECOND, highest, max(highest, last) + 1, last, last + 1])
    ranges = tuple(described for _, part in state.prepared.received for described in part)
    digest = ranges_digest(ranges) if chance.happens(0.9) else "00" * 32
    return CommitCdcGeneration(state.prepared.id, max(timestamp, 1), digest)


def _publish(state: ClusterState, chance: Chance) -> PublishCdcGeneration:
    """Only of what is published: nobody but the coordinator knows what the change topics hold."""
    names = [generation.id for generation in state.generations if generation.published is not None]
    return PublishCdcGeneration(chance.pick(names) if names else "none")


def _close(state: ClusterState, chance: Chance) -> CloseCdcGeneration:
    names = [generation.id for generation in state.generations]
    return CloseCdcGeneration(chance.pick(names) if names else "none")


def _expire(state: ClusterState, chance: Chance) -> ExpireCdcGeneration:
    """A moment too early as often as not."""
    names = [generation.id for generation in state.generations]
    return ExpireCdcGeneration(
        chance.pick(names) if names else "none", max(state.time + chance.between(-2, 2) * SECOND, 1)
    )


def _forget(state: ClusterState, chance: Chance) -> ForgetCdcGeneration:
    """Never what the change topics may not have yet: that is the coordinator's to know."""
    names = [found.id for found in state.generations if found.expired is None or found.forgotten is not None]
    return ForgetCdcGeneration(chance.pick(names) if names else "none")


def _register(state: ClusterState, chance: Chance) -> RegisterCdcWriter | None:
    """An incarnation that has ended wants to come back."""
    writers = [writer for _, writer in in_order(state.writers) if writer.ended]
    if not writers:
        return None
    writer = chance.pick(writers)
    return RegisterCdcWriter(writer.name, chance.pick([*writer.ended, writer.incarnation]))


def _advance(state: ClusterState, chance: Chance) -> AdvanceCdcWriter | None:
    """A zombie: an ended incarnation, promises that go back; or a horizon that rises, whatever is prepared."""
    writers = [writer for _, writer in in_order(state.writers)]
    if not writers:
        return None
    writer = chance.pick(writers)
    if writer.ended and chance.happens(0.5):
        return AdvanceCdcWriter(writer.name, chance.pick(writer.ended), writer.horizon + 1, writer.low_watermark, ())
    if state.prepared is not None and chance.happens(0.5):
        # So far up that it is no lowering either when it gets there late: nobody may lower for another.
        return AdvanceCdcWriter(writer.name, writer.incarnation, writer.horizon + FAR, writer.low_watermark, ())
    if writer.low_watermark == 0:
        return None  # no lower one exists: the log accepts the command, and the horizon is an old one by then
    low = max(writer.low_watermark - 1 - chance.below(5), 0)
    return AdvanceCdcWriter(writer.name, writer.incarnation, writer.horizon, low, (Position(0, 0),))


def _fence(state: ClusterState, chance: Chance) -> FenceCdcWriter | None:
    """Of an incarnation that is not the current one: nobody took its rights at the broker."""
    writers = [writer for _, writer in in_order(state.writers)]
    if not writers:
        return None
    writer = chance.pick(writers)
    return FenceCdcWriter(writer.name, chance.pick([*writer.ended, "none"]), (Position(0, 0),), "a mistake")


def _lower(state: ClusterState, chance: Chance) -> LowerCdcWriter | None:
    """For a writer that is alive, or an incarnation that has ended: nobody may do that."""
    writers = [writer for _, writer in in_order(state.writers) if writer.fenced is None]
    if not writers:
        return None
    writer = chance.pick(writers)
    incarnation = chance.pick([*writer.ended[-1:], writer.incarnation])
    return LowerCdcWriter(writer.name, incarnation, max(writer.horizon - 1, 0), "a mistake")


def _withdraw(state: ClusterState, chance: Chance) -> WithdrawCdcGeneration:
    """Of one that others have followed, or that nobody knows: whether the last one was used operators must look up."""
    names = [generation.id for generation in state.generations[:-1]]
    return WithdrawCdcGeneration(chance.pick([*names, "none"]), chance.take(16), "a mistake")


FAMILY = Family(
    name="cdc",
    commands={
        "RequestCdcGeneration": (3, _request),
        "PutCdcGenerationData": (1, _put),
        "CommitCdcGeneration": (1, _commit),
        "PublishCdcGeneration": (1, _publish),
        "CloseCdcGeneration": (1, _close),
        "ExpireCdcGeneration": (1, _expire),
        "ForgetCdcGeneration": (1, _forget),
        "RegisterCdcWriter": (1, _register),
        "AdvanceCdcWriter": (1, _advance),
        "FenceCdcWriter": (1, _fence),
        "LowerCdcWriter": (1, _lower),
        "WithdrawCdcGeneration": (1, _withdraw),
        # Nodes ask for it, as they need it.
        "SettleVerdicts": None,
        # Only where clocks were wrong for long, and with a look at the topic: ``tests/sim/test_families.py`` has that.
        "LowerSettledTime": None,
    },
    checks=(Cdc, ImageRows, AuditHolds),
)

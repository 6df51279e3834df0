"""CDC: generations and the writers' leases."""

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
    """Return data made on an older state, or for a generation that is not prepared."""
    if not state.generations:
        return None
    old = chance.pick([found for found in state.generations if found.ranges])
    name = state.prepared.id if state.prepared is not None and chance.happens(0.7) else old.id
    return PutCdcGenerationData(name, 0, 1, old.ranges)


def _commit(state: ClusterState, chance: Chance) -> CommitCdcGeneration | None:
    """Return a commit of the prepared generation, with a timestamp at or below the allowed limit."""
    if state.prepared is None:
        return None
    highest = max((writer.horizon for _, writer in in_order(state.writers)), default=0)
    last = state.generations[-1].timestamp if state.generations else 0
    timestamp = chance.pick([highest - SECOND, highest, max(highest, last) + 1, last, last + 1])
    ranges = tuple(described for _, part in state.prepared.received for described in part)
    digest = ranges_digest(ranges) if chance.happens(0.9) else "00" * 32
    return CommitCdcGeneration(state.prepared.id, max(timestamp, 1), digest)


def _publish(state: ClusterState, chance: Chance) -> PublishCdcGeneration:
    """Return a publication of a published generation. Only the coordinator knows the content of the change topics."""
    names = [generation.id for generation in state.generations if generation.published is not None]
    return PublishCdcGeneration(chance.pick(names) if names else "none")


def _close(state: ClusterState, chance: Chance) -> CloseCdcGeneration:
    names = [generation.id for generation in state.generations]
    return CloseCdcGeneration(chance.pick(names) if names else "none")


def _expire(state: ClusterState, chance: Chance) -> ExpireCdcGeneration:
    """Return an expiry, too early in about half of the cases."""
    names = [generation.id for generation in state.generations]
    return ExpireCdcGeneration(
        chance.pick(names) if names else "none", max(state.time + chance.between(-2, 2) * SECOND, 1)
    )


def _forget(state: ClusterState, chance: Chance) -> ForgetCdcGeneration:
    """Return a deletion of streams that the change topics already have. Only the coordinator knows of others."""
    names = [found.id for found in state.generations if found.expired is None or found.forgotten is not None]
    return ForgetCdcGeneration(chance.pick(names) if names else "none")


def _register(state: ClusterState, chance: Chance) -> RegisterCdcWriter | None:
    """Return a registration of an ended incarnation."""
    writers = [writer for _, writer in in_order(state.writers) if writer.ended]
    if not writers:
        return None
    writer = chance.pick(writers)
    return RegisterCdcWriter(writer.name, chance.pick([*writer.ended, writer.incarnation]))


def _advance(state: ClusterState, chance: Chance) -> AdvanceCdcWriter | None:
    """Return an ended incarnation's update, a decreasing lease, or a lease that rises during a preparation."""
    writers = [writer for _, writer in in_order(state.writers)]
    if not writers:
        return None
    writer = chance.pick(writers)
    if writer.ended and chance.happens(0.5):
        return AdvanceCdcWriter(writer.name, chance.pick(writer.ended), writer.horizon + 1, writer.low_watermark, ())
    if state.prepared is not None and chance.happens(0.5):
        # It is far above, so it is no decrease even if it arrives late: only its own writer may lower a horizon.
        return AdvanceCdcWriter(writer.name, writer.incarnation, writer.horizon + FAR, writer.low_watermark, ())
    if writer.low_watermark == 0:
        return None  # nothing is below 0: the log accepts the command, and the horizon is old by then
    low = max(writer.low_watermark - 1 - chance.below(5), 0)
    return AdvanceCdcWriter(writer.name, writer.incarnation, writer.horizon, low, (Position(0, 0),))


def _fence(state: ClusterState, chance: Chance) -> FenceCdcWriter | None:
    """Return a fence of an incarnation that is not the current one, whose broker permissions were not revoked."""
    writers = [writer for _, writer in in_order(state.writers)]
    if not writers:
        return None
    writer = chance.pick(writers)
    return FenceCdcWriter(writer.name, chance.pick([*writer.ended, "none"]), (Position(0, 0),), "a mistake")


def _lower(state: ClusterState, chance: Chance) -> LowerCdcWriter | None:
    """Return a lowering for a live writer or an ended incarnation, which is not allowed."""
    writers = [writer for _, writer in in_order(state.writers) if writer.fenced is None]
    if not writers:
        return None
    writer = chance.pick(writers)
    incarnation = chance.pick([*writer.ended[-1:], writer.incarnation])
    return LowerCdcWriter(writer.name, incarnation, max(writer.horizon - 1, 0), "a mistake")


def _withdraw(state: ClusterState, chance: Chance) -> WithdrawCdcGeneration:
    """Return a withdrawal of an earlier or unknown generation. Operators must check whether the last one was used."""
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
        # Nodes request it when they need it.
        "SettleVerdicts": None,
        # Only after long clock errors and with a look at the topic: ``tests/sim/test_families.py`` covers it.
        "LowerSettledTime": None,
    },
    checks=(Cdc, ImageRows, AuditHolds),
)

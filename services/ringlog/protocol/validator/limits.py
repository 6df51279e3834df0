"""Limits on timestamps, by the validator's clock.

They are answers of this agent and not rules of the fold. So they never cause a difference between two replicas.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.authorization import commands_of
from ringlog.kernel.commands.cdc.clock import LowerSettledTime, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration
from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration, CommitCdcGeneration
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter
from ringlog.kernel.commands.control.plans import ApprovePlan, StagePlan
from ringlog.kernel.generations.verdicts import widest_leeway
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import MICROS_MAX, Command, Micros, Value
from ringlog.protocol.coordinator.pruning import SLACK_US

ENDS_AHEAD_MAX_US: Micros = 86_400_000_000
"""The limit for times that end a generation.

An operator may raise the setting for timestamps after a clock was wrong. That must not remove the streams of rows that
are still kept.
"""
WITHDRAWN_AHEAD_MIN_US: Micros = 60_000_000
"""The least distance of a generation that may be withdrawn.

A nearer one may start before the withdrawal is in the log, and a wrong clock would have placed it further ahead.
"""
SETTLED_AHEAD_MIN_US: Micros = 30_000_000
"""The margin of a lowered validation watermark.

Writes that are appended before the lowering is in the log must be below it.
"""


class TimeLimit(Value):
    """A limit on the time ``field`` of a command: at most ``setting``, and at most ``most``, ahead of the clock.

    ``code``: of the rejection.
    """

    field: str
    setting: str
    code: str
    most: Micros = MICROS_MAX


_HORIZON: Final = ("cdc_horizon_ahead_max_us", "horizon_too_far_ahead")
_TIMESTAMP: Final = ("cdc_timestamp_ahead_max_us", "timestamp_too_far_ahead")
LIMITS: Final[dict[type[Command], TimeLimit]] = {
    AdvanceCdcWriter: TimeLimit("horizon", *_HORIZON),
    SettleVerdicts: TimeLimit("until", *_HORIZON),
    CommitCdcGeneration: TimeLimit("timestamp", *_TIMESTAMP),
    CloseCdcGeneration: TimeLimit("closed_at", *_TIMESTAMP, ENDS_AHEAD_MAX_US),
    ExpireCdcGeneration: TimeLimit("expired_at", *_TIMESTAMP, ENDS_AHEAD_MAX_US),
}


def too_far_ahead(state: ClusterState, command: Command, now: Micros) -> Rejected | None:
    """Return why the validator rejects a time in the command by its own clock ``now``, or None.

    A horizon or timestamp from a wrong clock would delay every later generation. An expiry ahead of the present would
    remove streams whose rows are kept. Pruning must not reach the last hour, because nodes may still validate its
    writes. The validation watermark must not be lowered to times that writes may use now. The commands of a plan have
    the same limits, when it is staged and when it is approved.
    """
    if isinstance(command, StagePlan | ApprovePlan):
        found = (too_far_ahead(state, one, now) for one in commands_of(state, command) if one is not command)
        return next((refused for refused in found if refused is not None), None)
    limit = LIMITS.get(type(command))
    if limit is not None:
        time, latest = getattr(command, limit.field), now + min(setting(state, limit.setting), limit.most)
        if time > latest:
            return Rejected(limit.code, f"{limit.field}: {time} is above {latest}")
    if isinstance(command, SettleVerdicts) and command.forget_below > now - SLACK_US:
        text = f"{command.forget_below} is above {now - SLACK_US}: nodes may still validate writes of the last hour"
        return Rejected("verdicts_needed", f"forget_below: {text}")
    if isinstance(command, WithdrawCdcGeneration):
        return _operates(state, command, now + WITHDRAWN_AHEAD_MIN_US)
    if isinstance(command, LowerSettledTime):
        least = now + widest_leeway(state) + SETTLED_AHEAD_MIN_US
        if command.until < least:
            text = f"{command.until} is below {least}: writes appended now may be validated there"
            return Rejected("settled_too_near", f"until: {text}")
    return None


def _operates(state: ClusterState, command: WithdrawCdcGeneration, soonest: Micros) -> Rejected | None:
    """Reject the withdrawal of a generation that is active or starts soon: its writes are validated by it."""
    found = next((one for one in state.generations if one.id == command.generation), None)
    if found is None or found.timestamp > soonest:
        return None
    return Rejected("generation_operates", f"generation: {found.id} starts at {found.timestamp}, not above {soonest}")

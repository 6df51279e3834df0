"""Timestamps that a wrong clock left in the log, and the commands that lower them.

Invariant: a timestamp is not lowered to or below one that a writer may have used or a node may have validated. The
state does not contain the append times of the broker, so this module reads them. All other rules are those of the
commands (``ringlog.kernel.commands.cdc.clock``).
"""

from __future__ import annotations

from contextlib import suppress

from ringlog.kernel.commands.cdc.clock import LowerCdcWriter, LowerSettledTime, WithdrawCdcGeneration
from ringlog.kernel.generations.describe import current
from ringlog.kernel.generations.verdicts import widest_leeway
from ringlog.kernel.model.settings import leeway_at, setting
from ringlog.kernel.model.state import CdcWriter, ClusterState, in_order
from ringlog.kernel.values import SECOND_US, Micros, Value
from ringlog.log.errors import LogError
from ringlog.log.kafka.topic_state import newest_append
from ringlog.log.kafka.topics import MUTATIONS, admin_client, topic_name
from ringlog.operator.errors import Refused
from ringlog.operator.intents.intents import seed_of
from ringlog.operator.views.words import when
from ringlog.protocol.coordinator.core import highest_horizon, start_of_next
from ringlog.protocol.effects import Draw

MINUTE_US: Micros = 60_000_000
"""A margin greater than the validator's (``protocol.validator.limits``), because its clock may be ahead of this one."""
SKEW_US: Micros = 10_000_000
"""The difference of two clocks that is reported."""
_CHANGE = "ringlog cluster set cdc_timestamp_ahead_max_us=…"


class LeftTime(Value):
    """A timestamp in the far future, and the commands that lower it.

    ``at``: the timestamp. ``text``: its owner. ``effect``: the blocked operations until then.
    """

    text: str
    at: Micros
    ways_out: tuple[str, ...]
    effect: str = "no generation can start"


def left_ahead(state: ClusterState, now: Micros) -> tuple[LeftTime, ...]:
    """Return the timestamps that block new generations, or that delay table changes, because a clock was ahead."""
    _, _, latest = start_of_next(state, now)
    found = []
    for name, writer in in_order(state.writers):
        if writer.horizon >= latest:
            fence = () if writer.fenced is not None else (f"ringlog cdc fence --writer {name} --reason …",)
            ways = (*fence, f"ringlog cdc lower --writer {name} --reason …")
            found.append(
                LeftTime(f"CDC writer {name} has a write lease until {when(writer.horizon)}", writer.horizon, ways)
            )
    last = current(state)
    if last is not None and last.timestamp >= latest:
        ways = (f"ringlog cdc withdraw {last.id} --reason …",)
        found.append(LeftTime(f"{last.id} starts at {when(last.timestamp)}", last.timestamp, ways))
    until, leads = state.settled.until, (setting(state, "cdc_horizon_lead_us"), setting(state, "verdicts_lead_us"))
    if until >= now + 2 * max(MINUTE_US, *leads):
        text = f"the validation watermark is {when(until)}"
        ways = ("ringlog cdc lower --reason …",)
        found.append(
            LeftTime(
                text,
                until,
                ways,
                "no generation can start, and no change of a table or of the allowed lateness takes effect",
            )
        )
    return tuple(found)


def ways_of(left: tuple[LeftTime, ...], now: Micros) -> tuple[str, ...]:
    """Return the remedies for these timestamps, a line each."""
    ahead = max((one.at for one in left), default=now) - now
    take_back = [f"lower it: {', then '.join(one.ways_out)}" for one in left]
    return (*take_back, f"or let the next generation start {ahead // SECOND_US} s ahead: {_CHANGE}") if left else ()


def skews(state: ClusterState, now: Micros, appended: Micros | None) -> list[str]:
    """Return a line for the log's authors and for the broker if their clock is more than ``SKEW_US`` ahead of this one.

    ``appended``: the broker's newest append time.
    """
    found = []
    if state.time - now > SKEW_US:
        ahead = (state.time - now) / SECOND_US
        found.append(f"an author of the log had a clock {ahead:.0f} s ahead of this one ({when(state.time)})")
    if appended is not None and appended - now > SKEW_US:
        ahead = (appended - now) / SECOND_US
        found.append(f"a broker has appended a write {ahead:.0f} s ahead of this clock ({when(appended)})")
    return found


def clock_lines(state: ClusterState, now: Micros, appended: Micros | None) -> list[str]:
    """Return the lines of ``ringlog status`` about wrong clocks and the timestamps that they left."""
    lines = [f"clock_skew: {text}; compare the machines' clocks" for text in skews(state, now, appended)]
    left = left_ahead(state, now)
    lines += [f"clock_was_ahead: {one.text}; until then {one.effect}" for one in left]
    return lines + [f"  {way}" for way in ways_of(left, now)]


def appended_until(bootstrap: str, cluster: str) -> Micros | None:
    """Return the greatest append time of all writes. Raises LogUnavailable."""
    return newest_append(admin_client(bootstrap), topic_name(cluster, MUTATIONS.suffix))


def seen_until(bootstrap: str, cluster: str) -> Micros | None:
    """Return the greatest append time for display; None if the topic or its times are not available."""
    with suppress(LogError):
        return appended_until(bootstrap, cluster)
    return None


def lowest_horizon(state: ClusterState, writer: CdcWriter, appended: Micros | None) -> Micros:
    """Return the lowest safe write lease of a writer: above every timestamp that it may have used.

    A write is valid if its timestamp is at most the allowed lateness ahead of its append. The widest lateness of all
    generations counts, because it may have been wider in the past.
    """
    leeway = max([widest_leeway(state), *(leeway_at(state, one) for one in state.generations)])
    used = 0 if appended is None else appended + leeway + 1
    return max(used, writer.low_watermark)


def lowering(
    state: ClusterState, name: str, appended: Micros | None, to: Micros | None, reason_text: str
) -> tuple[CdcWriter, LowerCdcWriter]:
    """Return (fenced writer, command that lowers its write lease).

    ``to``: the requested lease; None: the lowest safe one. ``appended``: the newest append time of the mutations topic.
    A writer cannot have used a timestamp above it plus the allowed lateness. Raises Refused.
    """
    found = state.writers.get(name)
    if found is None:
        raise Refused("unknown_writer", f"the CDC writer {name} does not exist; `ringlog cdc status` lists the writers")
    lowest = lowest_horizon(state, found, appended)
    if to is not None and to < lowest:
        text = f"{when(to)} is too low: writes may have timestamps up to {when(lowest)}"
        raise Refused("writes_appended", text)
    horizon = lowest if to is None else to
    if horizon >= found.horizon:
        text = f"{name} may have used its whole write lease, until {when(found.horizon)}: writes were appended"
        raise Refused(
            "writes_appended", f"{text} until {_last(appended)}; a generation can only start above: {_CHANGE}"
        )
    return found, LowerCdcWriter(name, found.incarnation, horizon, reason_text)


def settled_lowering(
    state: ClusterState, now: Micros, appended: Micros | None, to: Micros | None, reason_text: str
) -> LowerSettledTime:
    """Return the command that lowers the validation watermark to ``to``, or to the lowest safe time.

    ``now``: this machine's clock. ``appended``: the newest append time of the mutations topic. Nodes have not validated
    writes above ``appended``. The margin covers writes that are appended until the command is in the log. Raises
    Refused.
    """
    horizon = highest_horizon(state)
    used = max(now + MINUTE_US, appended or 0) + widest_leeway(state) + 1
    lowest = max(used, horizon, state.settled.forgotten + 1)
    if to is not None and to < lowest:
        raise Refused("writes_appended", f"{when(to)} is too low: writes may be validated up to {when(lowest)}")
    if to is None and horizon > used:
        ahead = ", ".join(name for name, writer in in_order(state.writers) if writer.horizon > used)
        raise Refused(
            "settled_too_low", f"{ahead} has a write lease until {when(horizon)}: lower that first with --writer"
        )
    until = lowest if to is None else to
    if until < state.settled.until:
        return LowerSettledTime(until, reason_text)
    text = f"the validation watermark is {when(state.settled.until)}"
    if now + MINUTE_US < (appended or 0):
        raise Refused(
            "writes_appended", f"{text}, and writes were appended until {_last(appended)}, which nodes have validated"
        )
    raise Refused("settled_not_lower", f"{text}, which is not far ahead")


def withdrawal(
    state: ClusterState, generation: str, appended: Micros | None, reason_text: str, draw: Draw
) -> WithdrawCdcGeneration:
    """Return the command that withdraws the last generation. Raises Refused if writes were already validated by it."""
    starts = start_of(state, generation)
    if starts is not None and appended is not None and appended >= starts:
        text = f"writes were appended until {_last(appended)}, after {generation} starts ({when(starts)})"
        raise Refused("writes_appended", f"{text}: nodes have validated them with it")
    return WithdrawCdcGeneration(generation, seed_of(draw), reason_text)


def start_of(state: ClusterState, generation: str) -> Micros | None:
    """Return the start of a committed generation, or None if the generation is unknown."""
    return next((one.timestamp for one in state.generations if one.id == generation), None)


def _last(appended: Micros | None) -> str:
    return "never" if appended is None else when(appended)

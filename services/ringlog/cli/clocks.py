"""Clocks that are or were wrong: what they left in the log, and ``ringlog cdc lower`` and ``withdraw``, which take it
back.

What was appended at the broker, and when, is looked at before anything is taken back: a write that a writer may have
routed, or a node judged, at or after the time in question stays as it is. That is all the fold cannot see; the rest are
its own rules (``ringlog.kernel.commands.cdc_clock``).
"""

from __future__ import annotations

import getpass
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.shown import when
from ringlog.cli.submitting import show_answer
from ringlog.kernel.commands.model import LowerCdcWriter, WithdrawCdcGeneration
from ringlog.kernel.generations.describe import current
from ringlog.kernel.settings import leeway_at, setting
from ringlog.kernel.state import CdcWriter, ClusterState, in_order
from ringlog.kernel.values import Micros
from ringlog.log.appended import newest_append
from ringlog.log.errors import LogError
from ringlog.log.topics import MUTATIONS, admin_client, topic_name
from ringlog.protocol.coordinator_core import start_of_next
from ringlog.wire.draw import SystemDraw

SKEW_US: Micros = 10_000_000
SEED_BYTES = 16
SECOND_US = 1_000_000
_CHANGE = 'ringlog submit \'{"command": "ChangeSettings", "settings": {"cdc_timestamp_ahead_max_us": …}}\''

Reason = Annotated[str, typer.Option("--reason", help="Why, and how it is known; kept in the log.")]
By = Annotated[str | None, typer.Option("--by", help="Who decides that; kept in the log. None: the user's name.")]


@dataclass(frozen=True, slots=True)
class Left:
    """A time of the far future in the log, ``at``: whose it is, and the commands that take it back."""

    text: str
    at: Micros
    ways_out: tuple[str, ...]


def left_ahead(state: ClusterState, now: Micros) -> tuple[Left, ...]:
    """What a clock that was ahead has left, because of which no generation can start for a while."""
    _, _, latest = start_of_next(state, now)
    found = []
    for name, writer in in_order(state.writers):
        if writer.horizon >= latest:
            fence = () if writer.fenced is not None else (f"ringlog cdc fence --writer {name} --reason …",)
            ways = (*fence, f"ringlog cdc lower --writer {name} --reason …")
            found.append(Left(f"CDC writer {name} has promised up to {when(writer.horizon)}", writer.horizon, ways))
    last = current(state)
    if last is not None and last.timestamp >= latest:
        ways = (f"ringlog cdc withdraw {last.id} --reason …",)
        found.append(Left(f"{last.id} starts at {when(last.timestamp)}", last.timestamp, ways))
    return tuple(found)


def ways_of(left: tuple[Left, ...], now: Micros) -> tuple[str, ...]:
    """What an operator can do about them, in words."""
    ahead = max((one.at for one in left), default=now) - now
    take_back = [f"take it back: {', then '.join(one.ways_out)}" for one in left]
    return (*take_back, f"or start it there, {ahead // SECOND_US} s ahead: {_CHANGE}") if left else ()


def skews(state: ClusterState, now: Micros, appended: Micros | None) -> list[str]:
    """Signs that two clocks differ by more than ten seconds. ``appended``: the broker's newest append time."""
    found = []
    if state.time - now > SKEW_US:
        ahead = (state.time - now) / SECOND_US
        found.append(f"an author of the log had a clock {ahead:.0f} s ahead of this one ({when(state.time)})")
    if appended is not None and appended - now > SKEW_US:
        ahead = (appended - now) / SECOND_US
        found.append(f"a broker has appended a write {ahead:.0f} s ahead of this clock ({when(appended)})")
    return found


def clock_lines(state: ClusterState, now: Micros, appended: Micros | None) -> list[str]:
    """What ``ringlog status`` says of clocks: nothing where they agree and nothing was left."""
    lines = [f"clock_skew: {text}; compare the machines' clocks" for text in skews(state, now, appended)]
    left = left_ahead(state, now)
    lines += [f"clock_was_ahead: {one.text}; until then no generation can start" for one in left]
    return lines + [f"  {way}" for way in ways_of(left, now)]


def appended_until(bootstrap: str, cluster: str) -> Micros | None:
    """The greatest append time of any write. Raises LogUnavailable."""
    return newest_append(admin_client(bootstrap), topic_name(cluster, MUTATIONS.suffix))


def seen_until(bootstrap: str, cluster: str) -> Micros | None:
    """The same for a look only: None also where the topic, or its times, cannot be looked at."""
    with suppress(LogError):
        return appended_until(bootstrap, cluster)
    return None


def lower_command(
    writer: Annotated[str, typer.Option("--writer", help="Name of the fenced CDC writer.")],
    reason: Reason,
    to: Annotated[int | None, typer.Option(help="Microseconds since 1970; none: as low as it is safe.", min=0)] = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Lower the horizon that a fenced CDC writer had promised by a clock that was ahead, down to what it may have used.

    That is told by the append times in the mutations topic: nobody has used more than the newest one and the leeway.
    """
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        state = client.read_barrier()
        found = state.writers.get(writer)
        if found is None:
            fail("unknown_writer", f"there is no CDC writer {writer}; known are those of: ringlog cdc status")
        appended = appended_until(context.bootstrap, context.cluster)
        lowest = lowest_horizon(state, found, appended)
        if to is not None and to < lowest:
            fail("writes_appended", f"{when(to)} is too low: writes were appended, or claimed, up to {when(lowest)}")
        horizon = lowest if to is None else to
        if horizon >= found.horizon:
            text = f"{writer} may have used all that it has promised, up to {when(found.horizon)}: writes were appended"
            fail("writes_appended", f"{text} until {_told(appended)}; a generation can only start above: {_CHANGE}")
        answer = client.submit(LowerCdcWriter(writer, found.incarnation, horizon, _words(reason, by)))
    if not as_json:
        out.print(f"{writer}: from {when(found.horizon)} down to {when(horizon)}")
    show_answer(answer, None, as_json)


def lowest_horizon(state: ClusterState, writer: CdcWriter, appended: Micros | None) -> Micros:
    """The least horizon above all that was used: a write counts if it lies at most a leeway ahead of its append."""
    leeway = max([setting(state, "cdc_leeway_us"), *(leeway_at(state, one) for one in state.generations)])
    used = 0 if appended is None else appended + leeway + 1
    return max(used, writer.low_watermark)


def withdraw_command(
    generation: Annotated[str, typer.Argument(help="Id of the last generation, as ringlog cdc status has it.")],
    reason: Reason,
    by: By = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Take back the last generation, if it starts far ahead (by a clock that was) and nobody has used it.

    One that the ring needs in its place is prepared at once.
    """
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        state = client.read_barrier()
        found = next((one for one in state.generations if one.id == generation), None)
        appended = appended_until(context.bootstrap, context.cluster)
        if found is not None and appended is not None and appended >= found.timestamp:
            text = f"writes were appended until {_told(appended)}, after {generation} starts ({when(found.timestamp)})"
            fail("writes_appended", f"{text}: nodes have judged them by it")
        seed = SystemDraw().take(SEED_BYTES)
        answer = client.submit(WithdrawCdcGeneration(generation, seed, _words(reason, by)))
    if not as_json and found is not None:
        out.print(f"{generation} would have started at {when(found.timestamp)}")
    show_answer(answer, None, as_json)


def _words(reason: str, by: str | None) -> str:
    return f"{reason}; by {by or _user()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"


def _told(appended: Micros | None) -> Any:
    return "never" if appended is None else when(appended)

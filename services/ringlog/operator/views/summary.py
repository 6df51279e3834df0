"""The status of a cluster, for ``ringlog status`` and the console: its parts, a level, and a reason for each condition
that needs attention.

The reasons come from the parts. The summary also offers a truncation of the log. It is
for display only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ringlog.agents.status import AgentView
from ringlog.kernel.history import ARCHIVED, allowed_begin, confirmed_snapshots
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import SECOND_US, Micros
from ringlog.log.kafka.lag import Lag
from ringlog.operator.views import views
from ringlog.operator.views.clocks import clock_lines
from ringlog.operator.views.words import format_last_heard, format_pause, is_in_flight, span
from ringlog.operator.views.writer_lag import writers_behind
from ringlog.operator.views.zones import standing_view, timers_view
from ringlog.protocol.balancer.load_book import LastReports
from ringlog.protocol.rebalancer.zone_groups import session_reports
from ringlog.protocol.roles import ROLES
from ringlog.wire.acks import ACK_REJECTED
from ringlog.wire.records import NodeAck

Json = dict[str, Any]

OK: Final = "OK"
WARN: Final = "WARN"
LONG_US: Final[Micros] = 600 * SECOND_US
"""The time in one stage after which an operation becomes a reason."""


def rejected_nodes(agents: Sequence[AgentView]) -> list[str]:
    """Return the names of nodes whose acknowledgements the coordinator rejects."""
    return [one.subject for agent in agents for one in agent.refused if one.code == ACK_REJECTED]


def status_view(
    state: ClusterState,
    acks: Mapping[str, NodeAck],
    reports: LastReports,
    agents: Sequence[AgentView],
    lags: Mapping[str, Lag | str],
    appended: Micros | None,
    now: Micros,
) -> Json:
    """Return the state, the reports of nodes and agents, and the summary.

    Args:
        lags: Lag of each CDC writer.
        appended: The newest append time of the mutations topic, if known.
    """
    found = views.operations(state, acks, now, rejected_nodes(agents), reports)
    whole = views.cluster(state) | {
        "agents": [views.agent(a) for a in agents],
        "directory": views.nodes(state, reports),
        "features": views.features(state),
        "operations": [view for view in found if is_in_flight(view)],
        "zones": standing_view(state, session_reports(state, acks)),
        "clocks": clock_lines(state, now, appended),
        "writers_behind": writers_behind(state, lags),
        "zone_timers": timers_view(state),
        "truncation": truncation_view(state),
    }
    return whole | {"summary": summary(whole, agents, now)}


def summary(view: Json, agents: Sequence[AgentView], now: Micros) -> Json:
    """Return ``level`` and ``reasons`` of a cluster. ``view``: the output of ``status --json``."""
    reasons = [*_recovery(view), *_nodes(view["directory"]), *_operations(view["operations"], now)]
    reasons += [*_zones(view["zones"]), *_agents(agents)]
    reasons += [format_pause(pause) for pause in view["pauses"]]
    reasons += _features(view["features"])
    reasons += [line for line in view["clocks"] if not line.startswith(" ")]
    reasons += view["writers_behind"]
    return {"level": WARN if reasons else OK, "reasons": reasons}


def _recovery(view: Json) -> Iterable[str]:
    if "recovery" in view:
        yield f"a recovery is open since epoch {view['recovery']['entered']}"


def _nodes(directory: Iterable[Json]) -> Iterable[str]:
    for row in directory:
        if row["state"] == "left":
            continue
        if row.get("down"):
            yield f"node {row['name']} is declared down"
        if row["silent"]:
            yield f"node {row['name']} is silent: last heard {format_last_heard(row)}"


def _operations(found: Iterable[Json], now: Micros) -> Iterable[str]:
    for view in found:
        absent = sorted({*view.get("down", ()), *(one["node"] for one in view.get("silent", ()))})
        lasts = now - view["stages"][-1]["at"]
        if view.get("awaits_decision"):
            yield f"{view['id']} needs a decision: ringlog operation show {view['id']}"
        elif absent and view.get("waits_for_nodes"):
            names = ", ".join(absent)
            yield f"{view['id']} waits for {names}, which {'is' if len(absent) == 1 else 'are'} down or silent"
        elif lasts >= LONG_US:
            yield f"{view['id']} has been in stage {view['stage']} for {span(lasts)}"


def _features(found: Iterable[Json]) -> Iterable[str]:
    """Yield features of an unfinished upgrade: required, and not enabled yet."""
    for one in found:
        if one["required"] is not None and one["enabled"] is None:
            lack = one["lacked_by"]
            names = ", ".join(lack[:5]) + (f" and {len(lack) - 5} more" if len(lack) > 5 else "")
            then = (
                f"upgrade {names}" if lack else f"all members support it: ringlog cluster enable-feature {one['name']}"
            )
            yield f"feature {one['name']} is required since epoch {one['required']} and not enabled: {then}"


def _zones(found: Iterable[Json]) -> Iterable[str]:
    for zone in found:
        for health, number in zone["states"].items():
            if health in ("read_only", "unavailable") and number:
                yield f"zone {zone['zone']}: {_partitions(number)} {health}"
        if zone["stuck"]:
            yield f"zone {zone['zone']}: {_partitions(len(zone['stuck']))} stuck: ringlog zone show {zone['zone']}"


def _partitions(number: int) -> str:
    return f"{number} partition{' is' if number == 1 else 's are'}"


def _agents(agents: Sequence[AgentView]) -> Iterable[str]:
    """Yield roles without a working agent. An agent that is a few epochs behind is working."""
    by_role = {one.role: one for one in agents}
    for role in ROLES:
        if (one := by_role.get(role)) is None:
            yield f"no {role} has reported"
        elif not one.is_at_work:
            yield f"the {role} is not working: {one.readiness}"
        elif one.why:
            yield f"{role}: {one.why}"


OFFERED_RECORDS: Final = 100_000
"""The fewest records that make a truncation worth a line of ``status``."""


def truncation_view(state: ClusterState) -> dict[str, Any] | None:
    """Return the records that precede the newest confirmed snapshot, and the command that truncates them; None if few.

    If the log has an archive, it must contain the records first.
    """
    confirmed, archive = confirmed_snapshots(state), state.log_bounds.get(ARCHIVED)
    covered = [one for one in confirmed if archive is None or one.position - 1 <= archive.position]
    if not covered:
        return None
    records = covered[-1].position - 1 - allowed_begin(state)
    if records < OFFERED_RECORDS:
        return None
    return {"records": records, "archived": archive is not None, "command": _command(covered[-1].epoch)}


def format_truncation(view: dict[str, Any]) -> str:
    """Return a truncation view as a sentence."""
    archive = (
        "the archive contains them" if view["archived"] else "without an archive, truncation deletes them permanently"
    )
    return f"log: no reader needs the oldest {view['records']:,} records ({archive}): {view['command']}"


def _command(epoch: int) -> str:
    return f"ringlog log truncate --below {epoch}"

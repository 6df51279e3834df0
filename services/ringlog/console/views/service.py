"""CDC, snapshots and recovery, clocks and releases, plans and principals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ringlog.client.cdc.dead_letters import LetterSummary
from ringlog.console.moments import ViewInput
from ringlog.console.views.levels import BAD, IDLE, LEVEL_OF, LIMIT, OK, WARN, certificate_level, worst
from ringlog.kernel.history import ARCHIVED, TRUNCATED, allowed_begin, confirmed_snapshots
from ringlog.kernel.model.state import NO_MEMBER, in_order
from ringlog.kernel.values import SECOND_US
from ringlog.log.kafka.lag import Lag
from ringlog.operator import plans as plan_views
from ringlog.operator.views import views
from ringlog.operator.views.clocks import clock_lines
from ringlog.operator.views.service import service_status
from ringlog.operator.views.summary import truncation_view
from ringlog.operator.views.words import picked
from ringlog.operator.views.writer_lag import LATE_S, format_lag, format_lease, lag_view
from ringlog.runtime.trust import BadTrustConfig
from ringlog.runtime.trust import current as current_trust

Json = dict[str, Any]


def cdc(moment: ViewInput) -> Json:
    """Return generations, the newest first, and writers with lease, watermark and lag."""
    state = moment.state
    found = views.cdc(state)
    for row in found["writers"]:
        lag = moment.live.lags.get(row["name"], "not measured yet")
        late = isinstance(lag, Lag) and lag.records and (lag.seconds is None or lag.seconds > LATE_S)
        row["level"] = IDLE if row["fenced"] is not None else WARN if late else OK
        row |= lag_view(lag) | {"lag": format_lag(lag), "lease_us": row["horizon"] - moment.now}
        row["lease"] = format_lease(state.writers[row["name"]], moment.now)
    found["generations"].reverse()
    found["dead_letters"] = None if moment.live.letters_end is None else _letters(moment.live.letters)
    return found | {"watermark": state.settled.until, "level": worst(row["level"] for row in found["writers"])}


def _letters(newest: Sequence[LetterSummary]) -> list[Json]:
    """Return the number of letters of each reason, the most frequent first, and the newest letter of each."""
    first: dict[str, LetterSummary] = {}
    for one in newest:
        first.setdefault(one.reason, one)
    counts = Counter(one.reason for one in newest)
    resent = Counter(one.reason for one in newest if one.is_resent)
    return [
        {"reason": reason, "letters": count, "resent": resent[reason], "level": OK if resent[reason] == count else WARN}
        | {
            "newest": {"id": first[reason].offset}
            | picked(first[reason], "time", "table", "detail", "position", "writer")
        }
        for reason, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    ]


def snapshots(moment: ViewInput) -> Json:
    """Return what would be lost with the broker: the copies outside the log, each with the epochs that it lacks."""
    state = moment.state
    bounds = state.log_bounds
    copies: list[Json] = [
        {"copy": f"snapshot of epoch {one.epoch}, confirmed by {', '.join(sorted(one.witnesses))}", "epoch": one.epoch}
        for one in confirmed_snapshots(state)
    ]
    if (archived := bounds.get(ARCHIVED)) is not None:
        copies.append({"copy": "archive", "epoch": archived.epoch})
    for node in state.service:
        ack = moment.live.acks.get(node)
        if ack is not None and ack.cluster_id == state.cluster_id:
            copies.append(
                {"copy": f"log of the member {views.name_of(state, node)}", "epoch": min(ack.applied, state.epoch)}
            )
    for row in copies:
        row |= {"lost": state.epoch - row["epoch"], "level": OK if row["epoch"] == state.epoch else WARN}
    best = max(copies, key=lambda row: row["epoch"], default=None)
    return {
        "lost": None if best is None else best["lost"],
        "level": BAD if best is None else OK if best["lost"] == 0 else WARN,
        "copies": sorted(copies, key=lambda row: -row["epoch"]),
        "stored": [
            picked(one.head, "epoch", "digest", "by", "at")
            | {"bytes": sum(part.size for part in one.head.parts), "confirmed_by": list(one.confirmed_by)}
            | {"code": one.code or None, "why": one.why or None}
            for one in moment.live.snapshots
        ],
        "log_begin": allowed_begin(state),
        "truncated": None if TRUNCATED not in bounds else bounds[TRUNCATED].epoch,
        "truncation": truncation_view(state),
        "service": service_status(state, moment.live.acks),
        "recoveries": views.recoveries(state),
    }


def clocks(moment: ViewInput) -> Json:
    """Return clock problems, releases, features, and the certificates of this process and of nodes: what breaks this
    week.
    """
    state = moment.state
    members = [node for node in state.nodes.values() if node.state not in NO_MEMBER]
    releases = Counter(node.release for node in members)
    of_agents = Counter(agent.release for agent in moment.agents if agent.is_at_work and agent.release)
    try:
        trust, problem = current_trust(), None
        expires = trust.expires * SECOND_US or None
    except BadTrustConfig as error:
        expires, problem = None, str(error)
    left = None if expires is None else expires - moment.now
    machines, now = moment.live.machines, moment.now
    ends = {node.name: machines[node.id].certificate_end for node in members if node.id in machines}
    of_nodes = sorted((end, name) for name, end in ends.items() if end is not None)
    ending: list[Json] = [
        {"node": name, "expires": end, "left_us": end - now, "level": level}
        for end, name in of_nodes[:LIMIT]
        if (level := certificate_level(end, now)) != OK
    ]
    return {
        "clocks": clock_lines(state, moment.now, moment.live.appended),
        "releases": [
            {"release": name, "nodes": releases[name], "agents": of_agents[name]}
            for name in sorted(releases.keys() | of_agents.keys())
        ],
        "releases_level": OK if len(releases.keys() | of_agents.keys()) < 2 else WARN,
        "features": views.features(state),
        "certificate": {
            "expires": expires,
            "left_us": left,
            "problem": problem,
            "level": BAD if problem else certificate_level(expires, moment.now),
        },
        "node_certificates": {
            "nodes": len(of_nodes),
            "first_left_us": of_nodes[0][0] - now if of_nodes else None,
            "ending": ending,
            "level": worst(row["level"] for row in ending),
        },
        "pauses": views.pauses(state),
    }


def checks(moment: ViewInput) -> Json:
    """Return the newest findings of ``ringlog doctor`` on the machine of the console, also for a past epoch."""
    found: list[Json] = [
        {"check": one.check, "level": LEVEL_OF[one.verdict], "text": one.text, "fixes": list(one.fixes)}
        for one in moment.live.findings
    ]
    return {
        "level": worst(row["level"] for row in found),
        "examined_at": moment.live.examined_at or None,
        "findings": found,
    }


def plans(moment: ViewInput) -> Json:
    """Return the staged plans, and the effects of the chosen one at staging and now."""
    state = moment.state
    chosen = state.plans.get(moment.query.get("plan", ""))
    found = plan_views.plans(state)
    for row in found["plans"]:
        row["level"] = WARN if row["needs_approval"] else OK
    details = None if chosen is None else plan_views.details(state, chosen, moment.state_at)
    return found | {"plan": details}


def principals(moment: ViewInput) -> Json:
    """Return the principals with their roles, and the last entries by author."""
    found = views.principals(moment.state)
    for row in found:
        row["level"] = OK if row["revoked"] is None else IDLE
    return {
        "principals": found,
        "authenticated": bool(moment.state.principals),
        "note": "" if moment.state.principals else views.NOT_AUTHENTICATED,
        "roles": {role: picked(term, "instance", "term", "since") for role, term in in_order(moment.state.terms)},
    }

"""Status of the metadata service and of recoveries: the next step, its cause of delay, and the remedies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlog.kernel.model.state import STAYS, ClusterState, in_order
from ringlog.kernel.service import GATED, explained, in_recovery, missing, next_step, read_group, wanted_size
from ringlog.operator.views import views
from ringlog.operator.views.ways_out import REASON, remedy_line, submit
from ringlog.operator.views.words import printable
from ringlog.protocol.coordinator.witnesses import witnesses_of
from ringlog.wire.records import NodeAck

Json = dict[str, Any]


def service_status(state: ClusterState, acks: Mapping[str, NodeAck]) -> Json:
    """Return ``views.service``, each member's stage, and the next step with the reason of its delay.

    ``next`` is null if no step is planned. ``waits_for`` is null unless the step waits.
    """
    step = next_step(state)
    witnesses = witnesses_of(state, acks)
    waits = "" if step is None else explained(state, step, witnesses)
    lacking = _lacking(state) if step is None else ""
    silent = missing(state, step, witnesses)[1] if step is not None and step.to in GATED else ()
    return (
        views.service(state)
        | {
            "members": [
                {"node": views.name_of(state, name), "stage": one.stage, "since": one.since}
                for name, one in in_order(state.service)
            ],
            "next": None if step is None else {"node": views.name_of(state, step.node), "to": step.to},
            "waits_for": waits or lacking or None,
            "ways_out": list(_ways_out(state, silent)) if waits else [],
        }
        | views.recovery(state)
    )


def _lacking(state: ClusterState) -> str:
    """Return why the number of members is not the wanted one, or why a leaving member stays; empty if neither."""
    members, wanted = read_group(state), wanted_size(state)
    if len(members) < wanted:
        return f"{wanted - len(members)} more nodes that are normal, up and not excluded"
    if any(state.nodes[name].state not in STAYS for name in members):
        return "another node that is normal, up and not excluded: the last member cannot leave"
    return ""


def _ways_out(state: ClusterState, silent: tuple[str, ...]) -> tuple[str, ...]:
    names = ", ".join(state.nodes[name].name for name in silent)
    if in_recovery(state) is not None:
        return (f"start {names}",)
    enter = submit({"command": "EnterRecovery", "operator": "NAME", "reason": REASON})
    return (
        f"start {names}",
        *remedy_line(state, "if a majority is permanently lost, a step needs no quorum after", enter),
    )


def recovery_lines(state: ClusterState) -> tuple[str, ...]:
    """Return the lines of every status during a recovery; else none."""
    running = in_recovery(state)
    if running is None:
        return ()
    forced = f", {len(running.forced)} forced changes" if running.forced else ""
    text = f"RECOVERY since epoch {running.entered}, by {running.operator}: {running.reason}{forced}"
    return (printable(text),)

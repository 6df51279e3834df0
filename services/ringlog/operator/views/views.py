"""Parts of the state as JSON, for ``show`` in a rehearsal and for ``--json`` on the command line.

Nodes have their names, not their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from ringlog.agents.status import AgentView
from ringlog.kernel.generations.describe import size_of
from ringlog.kernel.generations.requests import IN_PROGRESS
from ringlog.kernel.model.principals import Principal
from ringlog.kernel.model.settings import SETTINGS, setting
from ringlog.kernel.model.state import NO_MEMBER, ClusterState, GlobalRequest, Operation, Replica, in_order
from ringlog.kernel.operations.gates import stopped_by
from ringlog.kernel.operations.node_states import NodeStatus, node_statuses
from ringlog.kernel.operations.stages import in_flight, is_ended
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.kernel.service import in_recovery, read_group, wanted_size
from ringlog.kernel.values import SECOND_US, Micros, NodeId, asdict
from ringlog.log.kafka.retention import UNLIMITED, Retention
from ringlog.operator.intents.replication import replication_json
from ringlog.operator.views.waiting import tries, waiting
from ringlog.operator.views.ways_out import replace_again, replaced_source
from ringlog.operator.views.words import natural, picked, silent_lines
from ringlog.protocol.balancer.load_book import LastReports
from ringlog.wire.records import NodeAck

Json = dict[str, Any]
NO_REPORTS: Final = LastReports()
"""The value for callers without the times of reports."""


def name_of(state: ClusterState, node: str) -> str:
    """Return a node's name, or its id if it is unknown."""
    found = state.nodes.get(node)
    return found.name if found is not None else node


def placements(state: ClusterState, keyspace: str) -> Json | None:
    """Return the read and write groups of a keyspace; None if it does not exist."""
    placement = placement_of_keyspace(state, keyspace)
    if placement is None:
        return None

    def rows(pick: Callable[[Any], tuple[Replica, ...]]) -> list[Json]:
        return [
            {"start": g.start, "end": g.end, "replicas": [name_of(state, replica.node) for replica in pick(g)]}
            for g in placement.ranges
        ]

    return {"read": rows(lambda g: g.read), "write": rows(lambda g: g.write)}


def nodes(state: ClusterState, last_reports: LastReports | None = None) -> list[Json]:
    """Return the directory, sorted by name. States are those of ``kernel.operations.node_states``.

    ``num_tokens`` is present while a node requests another number of tokens than it owns. With ``last_reports``, each
    row has ``heard_at`` (microseconds, null: never), ``heard_age_s`` and ``silent``.
    """
    statuses = node_statuses(state)
    return [
        picked(node, "name", "id")
        | {"state": statuses[node.id].state}
        | picked(node, "address", "datacenter", "rack", "shards", "ignore_msb", "release", "features", "capacity")
        | picked(node, "tokens")
        | _movement_fields(state, statuses[node.id], len(node.tokens))
        | ({"down": node.down_reason or True} if node.down else {})
        | (
            {}
            if last_reports is None
            else last_heard_fields(last_reports, node.id) | {"silent": bool(last_reports.silent(state, (node.id,)))}
        )
        for node in sorted(state.nodes.values(), key=lambda one: natural(one.name))
    ]


def last_heard_fields(last_reports: LastReports, node: NodeId) -> Json:
    """Return the time of a node's last report (``heard_at``, microseconds, null: never) and ``heard_age_s``."""
    age = last_reports.age(node)
    return {"heard_at": last_reports.at.get(node), "heard_age_s": None if age is None else age / SECOND_US}


def silent_nodes(state: ClusterState, last_reports: LastReports, nodes: Iterable[NodeId]) -> list[Json]:
    """Return those of ``nodes`` whose report is overdue, sorted by name."""
    return [
        {"node": name_of(state, node)} | last_heard_fields(last_reports, node)
        for node in last_reports.silent(state, nodes)
    ]


def _movement_fields(state: ClusterState, status: NodeStatus, tokens: int) -> Json:
    """Return the fields that an operation in flight adds to its node."""
    reported = {
        "num_tokens": status.num_tokens if status.num_tokens != tokens else None,
        "replaced": name_of(state, status.replaced) or None,
        "rebuild_source": status.rebuild_source or None,
    }
    return {name: value for name, value in reported.items() if value is not None}


def features(state: ClusterState, more: Iterable[str] = ()) -> list[Json]:
    """Return features that are required, enabled or supported by a member, and ``more``, sorted by name.

    Epochs are null if the feature is not required or not enabled.
    """
    members = [node for node in state.nodes.values() if node.state not in NO_MEMBER]
    return [
        {
            "name": name,
            "required": found.required if (found := state.features.get(name)) is not None else None,
            "enabled": found.enabled if found is not None else None,
            "lacked_by": sorted(node.name for node in members if name not in node.features),
        }
        for name in sorted({*state.features, *more, *(name for node in members for name in node.features)})
    ]


def service(state: ClusterState) -> Json:
    """Return the groups of the metadata service by node name, and its goal."""
    goal = state.service_goal

    def names(ids: Iterable[str]) -> list[str]:
        return sorted(name_of(state, node) for node in ids)

    return {
        "read": names(read_group(state)),
        "write": names(state.service),
        "excluded": names(goal.excluded),
        "size": wanted_size(state),
        "automatic": goal.automatic,
    }


def recovery(state: ClusterState) -> Json:
    """Return ``{"recovery": …}`` during a recovery, else an empty object."""
    running = in_recovery(state)
    if running is None:
        return {}
    return {"recovery": picked(running, "entered", "operator", "reason", "forced")}


def recoveries(state: ClusterState) -> list[Json]:
    """Return all recoveries of the cluster, by epoch."""
    ordered = sorted(state.recoveries.values(), key=lambda one: one.entered)
    return [asdict(one) | {"forced": list(one.forced)} for one in ordered]


def operation(
    state: ClusterState,
    found: Operation,
    acks: Mapping[str, NodeAck] | None = None,
    now: Micros | None = None,
    rejected_nodes: Collection[str] = (),
    last_reports: LastReports = NO_REPORTS,
    *,
    advises: bool = True,
) -> Json:
    """Return an operation with its past stages and, if it is in flight, the wait of ``waiting``.

    ``advises``: False leaves out ``ways_out``, which is expensive to compute.
    """
    view: Json = picked(found, "id", "kind") | {
        "node": name_of(state, found.node) or None,
        **picked(found, "tokens", "stage", "stage_epoch", "generation", "reason"),
        "stages": [picked(mark, "stage", "epoch", "at") for mark in found.marks],
        "streamed": [{"node": name_of(state, r.node), "rows": r.rows, "checksum": r.checksum} for r in found.reports],
    }
    for field, value in (("gone", list(found.gone)), ("keyspace", found.keyspace)):
        if value:
            view[field] = value
    if found.replaced:
        view["replaced"] = name_of(state, found.replaced)
    if found.ignored:
        view["ignored"] = [name_of(state, node) for node in found.ignored]
    if found.replication is not None:
        view["replication"] = replication_json(found.replication)
    if found.relaxed:
        view["relaxed"] = list(found.relaxed)
    if found.failures:
        view["failures"] = [
            {"epoch": one.epoch, "node": name_of(state, one.node), "tries": one.tries, "reason": one.reason}
            for one in found.failures
        ]
    if found.retries:
        view["retries"] = [picked(one, "epoch", "reason") for one in found.retries]
    if not is_ended(found):
        view["locks"] = [picked(lock, "replication", "start", "end") for lock in found.locks]
        waits = waiting(state, found, acks or {}, now, rejected_nodes)
        view["waits_for"] = waits.text
        view["waits_for_nodes"] = [name_of(state, node) for node in waits.nodes]
        view["down"] = [state.nodes[node].name for node in waits.nodes if state.nodes[node].down]
        if last_reports is not NO_REPORTS:
            view["silent"] = silent_nodes(
                state, last_reports, (*waits.nodes, found.node, replaced_source(state, found))
            )
        view["ways_out"] = list(waits.ways_out) if advises else []
        view["awaits_decision"] = bool(stopped_by(found))
        view["tries"] = [
            {"node": name_of(state, node), "source": name_of(state, one.source)} | picked(one, "count", "at", "reason")
            for node, one in tries(state, found, acks or {})
        ]
    return view


def silent_source_lines(state: ClusterState, found: Operation, last_reports: LastReports) -> tuple[str, ...]:
    """Return a warning and the remedy if a replacement streams from a node that is silent; else nothing."""
    silent = silent_nodes(state, last_reports, (replaced_source(state, found),))
    if not silent:
        return ()
    (line,) = silent_lines(silent)
    return (f"{line}, and {name_of(state, found.node)} streams from it", *replace_again(state, found))


def request(found: GlobalRequest) -> Json:
    """Return a cluster-wide request in the shape of an operation, with its outcome as the stage."""
    asked = {"stage": IN_PROGRESS, "epoch": found.epoch, "at": found.at}
    ended = {"stage": found.outcome, "epoch": found.ended, "at": found.ended_at}
    view: Json = {
        "id": found.id,
        "kind": found.kind,
        "node": None,
        "requester": found.requester,
        "tokens": [],
        "stage": found.outcome,
        "stage_epoch": found.epoch if found.ended is None else found.ended,
        "generation": found.generation,
        "reason": "",
        "stages": [asked] if found.ended is None else [asked, ended],
        "streamed": [],
    }
    waits = {"waits_for": f"the publication of {found.generation}", "ways_out": []}
    return view | (waits if found.ended is None else {})


def operations(
    state: ClusterState,
    acks: Mapping[str, NodeAck] | None = None,
    now: Micros | None = None,
    rejected_nodes: Collection[str] = (),
    last_reports: LastReports = NO_REPORTS,
) -> list[Json]:
    """Return operations and cluster-wide requests, oldest first, in flight and recently ended."""
    found = [operation(state, op, acks, now, rejected_nodes, last_reports) for op in state.operations.values()]
    return sorted([*found, *map(request, state.requests.values())], key=lambda view: int(view["stages"][0]["epoch"]))


def locks(state: ClusterState) -> list[Json]:
    """Return the locked ranges with the operations that lock them."""
    return [
        picked(lock, "replication", "start", "end") | {"operation": op.id}
        for op in in_flight(state)
        for lock in op.locks
    ]


def schema(state: ClusterState) -> Json:
    """Return all parts of the schema with their versions."""
    tables = [
        picked(table, "keyspace", "name", "id")
        | {
            "columns": [
                picked(column, "name", "type") | ({"static": True} if column.static else {}) for column in table.columns
            ],
            **picked(table, "partition_key", "clustering_key"),
            "cdc": asdict(table.cdc),
            **picked(table, "version", "committed_by_log"),
        }
        for _, table in in_order(state.tables)
    ]
    keyspaces = [
        {
            "name": keyspace.name,
            "replication": replication_json(keyspace.replication),
            "version": keyspace.version,
        }
        for _, keyspace in in_order(state.keyspaces)
    ]
    types = [
        picked(found, "keyspace", "name")
        | {"fields": [picked(field, "name", "type") for field in found.fields]}
        | picked(found, "version")
        for _, found in in_order(state.types)
    ]
    return {
        "version": state.schema_version,
        "keyspaces": keyspaces,
        "types": types,
        "tables": tables,
        "views": _plain(state.views),
        "indexes": _plain(state.indexes),
        "functions": _plain(state.functions),
        "aggregates": _plain(state.aggregates),
    }


def _plain(part: Mapping[str, Any]) -> list[Json]:
    """Return the fields of a section's values as they are in the state, by name."""
    return [
        {name: value for name, value in asdict(one).items() if name != "changed"} for _, one in sorted(part.items())
    ]


def cdc(state: ClusterState) -> Json:
    """Return the generations in order, the prepared one, and the registered writers.

    ``tablets``: the number of tablets in a generation, by table id.
    """
    generations = [
        picked(generation, "id", "timestamp", "status")
        | picked(size_of(generation), "ranges", "streams")
        | picked(generation, "committed", "published", "closed", "expired")
        | {"positions": {str(p.partition): p.offset for p in generation.positions}}
        | ({"tablets": {one.table: len(one.ends) for one in generation.tables}} if generation.tables else {})
        for generation in state.generations
    ]
    prepared = state.prepared
    writers = [
        picked(writer, "name", "incarnation", "horizon", "low_watermark", "source", "fenced")
        | {"positions": {str(p.partition): p.offset for p in writer.positions}}
        for _, writer in in_order(state.writers)
    ]
    return {
        "generations": generations,
        "prepared": None
        if prepared is None
        else picked(prepared, "id", "operation", "parts") | {"received": len(prepared.received)},
        "writers": writers,
    }


def settings(state: ClusterState) -> dict[str, int]:
    """Return the effective value of every setting."""
    return {name: setting(state, name) for name in sorted(SETTINGS)}


def cluster(state: ClusterState) -> Json:
    """Return a summary of the cluster: identity, epoch, counts, roles and pauses."""
    return {
        "cluster": state.name,
        "cluster_id": state.cluster_id,
        "epoch": state.epoch,
        "state_id": state.state_id,
        "chain": state.chain.hex(),
        "nodes": len(state.nodes),
        "tables": len(state.tables),
        "operations_in_flight": [op.id for op in in_flight(state)],
        "generation": state.generations[-1].id if state.generations else None,
        "roles": {role: picked(term, "instance", "term", "since") for role, term in in_order(state.terms)},
        "pauses": pauses(state),
        "authenticated": bool(state.principals),
    } | recovery(state)


NOT_AUTHENTICATED: Final = "requests are not authenticated: create an admin with `ringlog principal create`"


def principals(state: ClusterState) -> list[Json]:
    """Return the principals by name, including revoked ones."""
    return [principal(one) for _, one in in_order(state.principals)]


def principal(one: Principal) -> Json:
    """Return a principal with its roles, key number and epochs."""
    return picked(one, "name", "key", "created", "revoked") | {"roles": [asdict(grant) for grant in one.roles]}


def pauses(state: ClusterState) -> list[Json]:
    """Return the changes that operators paused, with scope, epoch and reason."""
    return [asdict(pause) for _, pause in in_order(state.pauses)]


def agent(found: AgentView) -> Json:
    """Return the status of an agent in short form."""
    shown = picked(found, "role", "instance", "term", "epoch", "caught_up")
    shown |= {"refused": [asdict(one) for one in found.refused]} if found.refused else {}
    return shown | ({"why": found.why} if found.why else {})


def agent_at_work(found: AgentView) -> Json:
    """Return the status of an agent with state, lag and age."""
    return picked(found, "role", "instance", "term", "epoch", "state", "lag", "caught_up", "age_s", "why", "release")


def retention(kept: Retention, seconds: int | None) -> Json:
    """Return the retention of the CDC log; null: unlimited."""
    return {
        "promised_seconds": seconds,
        "kept_ms": None if kept.ms == UNLIMITED else kept.ms,
        "kept_bytes": None if kept.bytes == UNLIMITED else kept.bytes,
        "enough": kept.covers(seconds),
    }

"""Decisions about a batch without Spark: pure functions of chain, metadata and facts.

Invariants:

* Spark's own record of a batch and the chain agree on where it starts and ends (``check_place``).
* A plan part is decided with a *context*. Context and horizon belong to the same state (``decide``).
* A stored context gives the same routing table again, even if the log has changed since (``table_of``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.model.settings import leeway_at, setting
from ringlog.kernel.model.state import ClusterState, Generation, in_order
from ringlog.kernel.values import Value
from ringlog_cdc.definition.image_tables import earlier_images, image_tables, images_context
from ringlog_cdc.definition.routing_table import RoutingTable, routing_table
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.plan.earlier_writes import fields_of_shape, history_context, history_in, shape_of_fields
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry, route_entry


class Draft(Value):
    """A plan part before it is stored.

    Attributes:
        used: Largest time that its rows use, microseconds.
        starts: Source partition to the start of the part.
    """

    batch: int
    part: int
    last: bool
    ranges: tuple[OffsetRange, ...]
    horizon: int
    used: int
    starts: Mapping[int, int]


def check_place(
    batch: int, parts: Sequence[PlanEntry], head: PlanEntry, ends: Mapping[int, int], before: Mapping[int, int]
) -> None:
    """Check that Spark's checkpoint and the chain agree on where the batch starts and ends.

    If one of them was lost and the other kept, Spark would skip rows, or rows already written would be planned again.

    Args:
        batch: Spark's number of the batch.
        parts: Stored parts of the batch.
        head: Newest entry.
        ends: End of the batch in Spark's offset log.
        before: End of the previous batch there. Needed only for a batch without parts.

    Raises:
        ChainBroken: They disagree.
    """
    if parts:
        planned = dict(parts[-1].positions)
        if parts[-1].last and any(planned.get(partition) != end for partition, end in ends.items()):
            raise ChainBroken(
                f"batch {batch} ends at {dict(ends)} in Spark's offset log, and at {planned} in its plans: "
                "spark/ and plans/ of the checkpoint do not belong together"
            )
        return
    planned = dict(head.positions)
    if planned != dict(before):
        raise ChainBroken(
            f"plans end at {planned}, but batch {batch} has no plan and starts at {before or 'the beginning'}"
            " in Spark's offset log: spark/ and plans/ of the checkpoint do not belong together"
        )


def next_positions(starts: Mapping[int, int], ends: Mapping[int, int], head: PlanEntry) -> dict[int, int]:
    """Return the start of the next part in every source partition.

    Args:
        starts: First offsets of the topic.
        ends: End of the batch.
        head: Newest entry.
    """
    positions = {partition: starts.get(partition, 0) for partition in ends}
    return positions | dict(head.positions)


def decide(
    draft: Draft, head: PlanEntry, state: ClusterState, horizon: int, *, context: str, incarnation: str
) -> PlanEntry | None:
    """Return the entry for a part, or None if its rows may no longer be routed and the part must be planned again.

    ``state`` must be the newest state. After the rows were read, the horizon may have been lowered, a generation
    committed above it, and the horizon raised again. A decision on an older state would miss that.

    Args:
        draft: The part.
        head: Newest entry.
        state: Newest state.
        horizon: The writer's horizon in that state, microseconds.
        context: Name of the stored context.
        incarnation: Incarnation of the writer.
    """
    if draft.ranges and horizon <= draft.used:
        return None
    return route_entry(
        head,
        batch=draft.batch,
        part=draft.part,
        last=draft.last,
        ranges=draft.ranges,
        epoch=state.epoch,
        context=context,
        horizon=draft.horizon,
        used=draft.used,
        incarnation=incarnation,
        starts=draft.starts,
        closed=[generation.id for generation in state.generations if generation.closed is not None],
    )


def context_of(
    state: ClusterState, source_topic: str, partitions: int, row_bytes_max: int, image_ttl: int = 0
) -> dict[str, Any]:
    """Return the context of a part: everything besides its rows that a replay needs to decide the same.

    Args:
        state: Cluster state.
        source_topic: Name of the mutations topic.
        partitions: Number of partitions of the CDC topic.
        row_bytes_max: Most bytes of an encoded row.
        image_ttl: Time to live of images, microseconds. See ``ringlog_cdc.definition.image_tables``.

    Returns:
        JSON fields. ``in_tablets`` has the ids of tables in tablets, which identify their streams in generations.
    """
    changed = any(generation.leeway is not None for generation in state.generations)
    reaches = {"reaches_us": [leeway_at(state, generation) for generation in state.generations]} if changed else {}
    return (
        reaches
        | images_context(state, image_ttl)
        | {
            "cluster_id": state.cluster_id,
            "generations": [[generation.id, generation.timestamp] for generation in state.generations],
            "tables": {name: fields_of_shape(shape_of_table(table)) for name, table in in_order(state.tables)},
            "in_tablets": {name: table.id for name, table in in_order(state.tables) if table.tablets is not None},
            "leeway_us": setting(state, "cdc_leeway_us"),
            "row_bytes_max": row_bytes_max,
            "partitions": partitions,
            "source_topic": source_topic,
        }
        | history_context(state)
    )


def still_known(context: Mapping[str, Any], state: ClusterState, used: int) -> Mapping[str, Any]:
    """Remove generations from a context that were withdrawn since it was stored.

    A generation can be withdrawn only while no writer may have routed into it. A part that used less than its start
    (``used``) therefore has the same outcome without it. A part that used more and misses its generation belongs to
    another log.
    """
    known = {(found.id, found.timestamp) for found in state.generations}
    names = [tuple(item) for item in context["generations"]]
    kept = len(names)
    while kept and names[kept - 1] not in known and used < names[kept - 1][1]:
        kept -= 1
    if kept == len(names):
        return context
    reaches = {"reaches_us": context["reaches_us"][:kept]} if "reaches_us" in context else {}
    return {**context, **reaches, "generations": context["generations"][:kept]}


def table_of(context: Mapping[str, Any], closed: Sequence[str], state: ClusterState) -> RoutingTable:
    """Build the routing table of a stored context.

    Args:
        context: The context.
        closed: Closed generations, as the plan knew them and as the log has them now (``closed_for``). Their streams
            may be gone.
        state: State with the streams of the context's generations.

    Raises:
        ChainBroken: A generation of the context is not in the log.
    """
    known = {generation.id: generation for generation in state.generations}
    return routing_table(
        context["source_topic"],
        [_generation(known, name, timestamp) for name, timestamp in context["generations"]],
        {name: shape_of_fields(fields) for name, fields in context["tables"].items()},
        closed,
        context["leeway_us"],
        context["partitions"],
        context.get("reaches_us"),
        context["cluster_id"],
        image_tables(context),
        history_in(context),
        context["in_tablets"],
        earlier_images(context),
    )


def closed_for(entry: PlanEntry, state: ClusterState) -> tuple[str, ...]:
    """Return the ids of generations that must receive no more rows from an unfinished plan.

    The log closes a generation only after every part with possible rows in it is durable, unless this writer was fenced
    in between. Consumers have then left the generation, and missing rows written there now would be lost silently.
    """
    return tuple(sorted({*entry.closed, *(found.id for found in state.generations if found.closed is not None)}))


def _generation(known: Mapping[str, Generation], name: str, timestamp: int) -> Generation:
    """Return the generation, or raise ChainBroken if the log does not have it."""
    found = known.get(name)
    if found is None or found.timestamp != timestamp:
        raise ChainBroken(f"the metadata log does not contain generation {name} of {timestamp}")
    return found

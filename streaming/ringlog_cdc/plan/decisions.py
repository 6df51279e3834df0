"""What the driver decides about a batch, apart from Spark: pure functions of the chain, the metadata and the facts.

- Spark's own record of a batch and the chain must agree on where it begins and ends (``check_place``).
- A plan part is decided with a *context*; knowledge and horizon are those of one and the same state (``decide``).
- A stored context gives the same routing table again, whatever the log has learned since (``table_of``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.model.settings import leeway_at, setting
from ringlog.kernel.model.state import ClusterState, Generation, in_order
from ringlog_cdc.columnar.routing import RoutingTable, routing_table
from ringlog_cdc.definition.image_tables import earlier_images, image_tables, images_context
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.plan.earlier_writes import fields_of_shape, history_context, history_in, shape_of_fields
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry, route_entry


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan part before it is stored. ``used``: the greatest time its rows use; ``starts``: where it begins."""

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
    """Raise ChainBroken unless Spark's own folder and the chain agree on where the batch begins and ends.

    ``ends``: of this batch by Spark's offset log; ``before``: of the batch before it, looked at where the batch has
    no plans yet. If one of the two was lost and the other kept, Spark would hand over a batch that passes rows over,
    or plans would be made a second time for rows that have been written.
    """
    if parts:
        planned = dict(parts[-1].positions)
        if parts[-1].last and any(planned.get(partition) != end for partition, end in ends.items()):
            raise ChainBroken(
                f"batch {batch} ends at {dict(ends)} by Spark's offset log and at {planned} by its plans: "
                "spark/ and plans/ of the checkpoint do not belong together"
            )
        return
    planned = dict(head.positions)
    if planned != dict(before):
        raise ChainBroken(
            f"plans end at {planned}, but batch {batch} has none and begins at {before or 'the beginning'} by "
            "Spark's offset log: spark/ and plans/ of the checkpoint do not belong together"
        )


def next_positions(starts: Mapping[int, int], ends: Mapping[int, int], head: PlanEntry) -> dict[int, int]:
    """Where the next part begins, for every partition of a batch that ends at ``ends``.

    ``starts``: the first offsets of the topic.
    """
    positions = {partition: starts.get(partition, 0) for partition in ends}
    return positions | dict(head.positions)


def decide(
    draft: Draft, head: PlanEntry, state: ClusterState, horizon: int, *, context: str, incarnation: str
) -> PlanEntry | None:
    """The entry for a part, or None if its rows may not be routed any more, and it must be made anew.

    ``state``: the newest folded one, which must give the context that the part was made with; ``horizon``: what binds
    in that very state. After the rows were looked at the horizon may have been lowered, a generation committed above
    it, and the horizon raised again: a decision on a state that is not the newest would miss that.
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
    """What a part is decided with, beside its rows: all that a replay needs to decide the same.

    ``partitions``: how many the CDC topic has; ``image_ttl``: microseconds, see
    ``ringlog_cdc.definition.image_tables``. ``in_tablets``: ids of the tables in tablets, under which generations have
    their streams.
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
    """The context without generations that were withdrawn since it was stored. Raises ChainBroken.

    A generation is withdrawn only while no writer may have routed into it, so a part that used less than its start
    (``used``) comes out the same without it. What used more and lacks its generation is of another log.
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
    """The routing table of a stored context; ``state`` has the streams of its generations. Raises ChainBroken.

    ``closed``: what the plan knew of, and what the log says by now (``closed_for``): their streams may be gone.
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
    """Ids of generations into which rows of a plan that is not carried out yet must not go.

    The log closes a generation only after every part that may have rows of it is durable, unless this writer was fenced
    meanwhile: then consumers have left it, and what is still missing there must not be lost in silence behind them.
    """
    return tuple(sorted({*entry.closed, *(found.id for found in state.generations if found.closed is not None)}))


def _generation(known: Mapping[str, Generation], name: str, timestamp: int) -> Generation:
    found = known.get(name)
    if found is None or found.timestamp != timestamp:
        raise ChainBroken(f"generation {name} of {timestamp} is not in the metadata log")
    return found

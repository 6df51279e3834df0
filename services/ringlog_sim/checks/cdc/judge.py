"""A second, direct implementation of ScyllaDB's rules for the outcome of a write, for comparison in checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Micros
from ringlog.wire.records import Mutation

WINDOW_US: Micros = 5_000_000
OPERATIONS = ("INSERT", "UPDATE", "ROW_DELETE", "PARTITION_DELETE")


def window_of(state: ClusterState) -> Micros:
    """Return the maximum distance of a timestamp from the current time."""
    return state.settings.get("cdc_leeway_us", WINDOW_US)


class Reaches:
    """How far before its start each generation accepts writes: the window at the time of its commit."""

    def __init__(self) -> None:
        self._found: dict[Micros, Micros] = {}

    def observe(self, state: ClusterState) -> None:
        """Record a state. It must get every state in which a generation appears."""
        if len(state.generations) > len(self._found):
            for generation in state.generations:
                self._found.setdefault(generation.timestamp, window_of(state))

    def at(self, start: Micros) -> Micros:
        """Return the window of the generation that starts at this time."""
        return self._found[start]


class VerdictTimes:
    """The state whose tables and settings apply to writes of an append time.

    A change applies from the validation watermark that the log had before it, or from a lower one that an operator sets
    later. Without a watermark, the newest state applies to all writes.
    """

    def __init__(self) -> None:
        self._since: list[tuple[Micros, ClusterState]] = []

    def observe(self, before: ClusterState, after: ClusterState) -> None:
        """Record an entry. It must get every entry."""
        if not before.settled.until:
            self._since = [(0, after)]
        elif after.settled.lowered != before.settled.lowered:
            self._since = [(min(since, after.settled.until), state) for since, state in self._since]
        elif after.tables is not before.tables or after.settings is not before.settings:
            self._since.append((before.settled.until, after))

    def at(self, now: Micros) -> ClusterState:
        """Return the last state that already applies."""
        return [state for since, state in self._since if since <= now][-1]

    def since(self, table: Table) -> Micros:
        """Return the append time from which that version of a table applies."""
        states = ((since, state.tables.get(table.full_name)) for since, state in self._since)
        return next((since for since, found in states if found is not None and found.version == table.version), 0)

    def table_of(self, mutation: Mutation, now: Micros) -> Table | str:
        """Return the table as a write appended at ``now`` reads it, or the reason why there is none.

        It is the version that the write names, if that already applies, and else the last one. No run lasts the hour
        after which an earlier version may no longer be named.
        """
        name, states = f"{mutation.keyspace}.{mutation.table}", [one for since, one in self._since if since <= now]
        table = states[-1].tables.get(name)
        if table is None or mutation.table_id not in (None, table.id):
            return "unknown_table"
        if mutation.table_version is None:
            return table
        versions = [found for state in states if (found := state.tables.get(name)) is not None and found.id == table.id]
        return next((found for found in versions if found.version == mutation.table_version), "unknown_version")


def judged(
    mutation: Mutation | None,
    now: Micros,
    state: ClusterState,
    table: Table | str,
    generations: Sequence[Generation],
    reaches: Reaches,
    record_key: str,
) -> str:
    """Return the reason of a rejection, empty for a row, or ``skipped`` for a table without a CDC log.

    ``state``: the state of the decision. ``table``: the write's table, or the reason why it has none. ``generations``:
    those of the end.
    """
    if mutation is None:
        return "unreadable"
    if mutation.cluster_id is not None and mutation.cluster_id != state.cluster_id:
        return "foreign_cluster"
    if isinstance(table, str):
        return table
    if mutation.operation not in OPERATIONS:
        return "unknown_operation"
    if not mutation.partition_key or None in mutation.partition_key:
        return "null_partition_key"
    clustering = 0 if mutation.operation == "PARTITION_DELETE" else len(table.clustering_key)
    if (
        len(mutation.partition_key) != len(table.partition_key)
        or len(mutation.clustering_key) != clustering
        or None in mutation.clustering_key
    ):
        return "bad_key"
    first = mutation.partition_key[0]
    assert first is not None, "checked above"
    if record_key != f"{table.full_name}\0{first.decode()}":
        return "wrong_record_key"
    own = {column.name for column in table.columns} - {*table.partition_key, *table.clustering_key}
    if any(cell.column not in own for cell in mutation.cells):
        return "unknown_column"
    if not fits_columns(mutation, table):
        return "bad_value_type"
    if not table.cdc.enabled:
        return "skipped"
    starts = [generation.timestamp for generation in generations]
    return window(mutation.timestamp, now, window_of(state), starts, reaches.at)


def fits_columns(mutation: Mutation, table: Table) -> bool:
    """Return True if each value is of its column's type. Simulated columns are text or int.

    The values of the simulator are ASCII or no text, so this check needs no decoder.
    """
    kinds = {column.name: column.type for column in table.columns}
    return all(
        cell.value is None or (cell.value.isascii() if kinds[cell.column] == "text" else len(cell.value) in (0, 4))
        for cell in mutation.cells
    )


def window(
    timestamp: Micros, now: Micros, leeway: Micros, starts: Sequence[Micros], reach: Callable[[Micros], Micros]
) -> str:
    """Return the reason why the window rejects a timestamp, or empty text.

    A write of an ended generation passes only within the window of the switch that ended it.
    """
    if timestamp > now + leeway:
        return "timestamp_in_future"
    if not any(start <= timestamp for start in starts):
        return "no_generation"
    ended = min((start for start in starts if timestamp < start <= now), default=None)
    if ended is None or timestamp > now - reach(ended):
        return ""
    return "timestamp_too_old"


def stream_for(
    generations: Sequence[Generation], timestamp: Micros, token: int, table: str = ""
) -> tuple[Micros, bytes]:
    """Return (start of the generation, stream id) for a token and a time; (-1, empty) before the first generation.

    A table with the id ``table`` that the generation describes has one stream per tablet, derived from the id layout.
    """
    operating: Generation | None = None
    for generation in generations:
        if generation.timestamp <= timestamp:
            operating = generation
    if operating is None:
        return -1, b""
    for own in operating.tables:
        if own.table == table:
            number = next(number for number, end in enumerate(own.ends) if token <= end)
            return operating.timestamp, _tablet_stream(operating.timestamp, own.ends[number], number, table)
    found = operating.ranges[0]
    for described in operating.ranges:
        if token <= described.end:
            found = described
            break
    shards = len(found.streams)
    unsigned = token + 2**63
    slot = (unsigned * 2**found.ignore_msb % 2**64) * shards // 2**64
    return operating.timestamp, found.streams[slot]


def _tablet_stream(timestamp: Micros, end: int, number: int, table: str) -> bytes:
    """Return the id from token, 38 hash bits, number and version, as the guide specifies."""
    place = timestamp.to_bytes(8, "big") + end.to_bytes(8, "big", signed=True) + table.encode()
    chance = int.from_bytes(blake2b(place, digest_size=8).digest(), "big") >> 26
    return ((end % 2**64) << 64 | chance << 26 | number << 4 | 1).to_bytes(16, "big")

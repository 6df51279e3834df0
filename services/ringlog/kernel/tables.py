"""The schema as the state has it, and what of it counts for earlier writes: values of ``ringlog.kernel.state``.

Frozen dataclasses, of which the next state shares all but what changed. What holds of them in every state is told, and
checked, by ``kernel.invariants``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.values import CdcOptions, Column, Epoch, Micros, Replication, TabletOptions, TypeField


@dataclass(frozen=True, slots=True)
class Keyspace:
    """``version``: the state id of the entry that last changed it.

    ``placement``: the key of its ranges in ``ClusterState.placements`` while its replication changes; empty: that of
    ``replication``.
    """

    name: str
    replication: Replication
    version: str
    placement: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """``version`` as in Keyspace; ``committed_by_log`` tells that it came from the log, not from a digest.

    ``declared``: columns whose types were given with names of user types, and these types; ``columns`` have none.
    ``tablets``: how it is cut, if it is in tablets.
    """

    id: str
    keyspace: str
    name: str
    columns: tuple[Column, ...]
    partition_key: tuple[str, ...]
    clustering_key: tuple[str, ...]
    cdc: CdcOptions
    version: str
    changed: Epoch
    committed_by_log: bool = True
    declared: tuple[tuple[str, str], ...] = ()
    tablets: TabletOptions | None = None

    @property
    def full_name(self) -> str:
        """``keyspace.table``, the key of ``ClusterState.tables``."""
        return f"{self.keyspace}.{self.name}"


@dataclass(frozen=True, slots=True)
class UserType:
    """A user type; its fields' types may have names of others."""

    keyspace: str
    name: str
    fields: tuple[TypeField, ...]
    version: str
    changed: Epoch


# ------------------------------------------------------------------------------------------- verdicts on writes


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as it reads the writes appended from ``since`` on; until ``end`` a write may name it.

    Both in microseconds; ``end`` None: no version follows.
    """

    table: Table
    since: Micros
    end: Micros | None = None


@dataclass(frozen=True, slots=True)
class TableLife:
    """The versions of a table, one or more. It takes no writes appended from ``until`` on; None: it is not dropped."""

    versions: tuple[TableVersion, ...]
    until: Micros | None = None


@dataclass(frozen=True, slots=True)
class PastLeeway:
    """For writes appended before ``until``, and not before that of the one before it, the leeway was ``leeway``."""

    leeway: Micros
    until: Micros


@dataclass(frozen=True, slots=True)
class Settled:
    """Times that bind verdicts on writes (``generations.verdicts``), in microseconds.

    ``until``: no later entry changes a verdict on a write appended before; 0: nothing is promised, and the state judges
    as it is. ``forgotten``: what counted only for writes appended before is not kept.
    """

    until: Micros = 0
    forgotten: Micros = 0
    leeways: tuple[PastLeeway, ...] = ()

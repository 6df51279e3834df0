"""Which rule refuses a write, if any: what base nodes go by, and the measure of the pipeline's fast way.

``verdict`` is for good and the same for every reader (``verdicts``), or not given yet. The rules, in order of
precedence; the first that applies counts:

======================  ============================================================================
``foreign_cluster``     the write names another cluster
``verdict_forgotten``   it was appended before the log remembers what counted
``unknown_table``       the schema had no such table, or none of the id that the write names
``unknown_version``     the table had no such version, or none by the epoch that the write names
``unknown_operation``   the operation is none that this release knows
``null_partition_key``  a component of the partition key is null, or there is none
``bad_key``             another number of components than the table's (a delete of a whole partition
                        has no clustering key), a null clustering component, or one of the partition
                        key that is too long to be composed
``bad_key_type``        a component of the partition key is not of its column's type
``unknown_column``      a column that the write names is none of the table's outside its key
``bad_change``          a write of more than plain cells contradicts the table: see ``statements``
acceptance window       of tables with a CDC log only: see ``acceptance``
======================  ============================================================================

A write of several statements is taken or refused as a whole: the timestamp of each must be acceptable, in the order
in which they stand.

Nothing but the write's own content, its append time and the metadata decides; the key under which a record travels
does not. What only the pipeline can know stays with it: whether its row would be too large, and whether the
generation was closed before it came to the write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from ringlog.kernel.generations import statements
from ringlog.kernel.generations.acceptance import RefusedWrite, accept
from ringlog.kernel.generations.verdicts import (
    FORGOTTEN,
    CountedVersion,
    NamedVersion,
    SchemaHistory,
    history_of,
    is_settled,
    leeway_for,
    resettled,
    used_by,
    version_at,
)
from ringlog.kernel.model.settings import leeway_at, setting
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX
from ringlog.kernel.values import Micros


class JudgedWrite(statements.WriteLike, NamedVersion, Protocol):
    """What the rules look at; ids are canonical UUIDs, ``timestamp`` is in microseconds."""

    @property
    def cluster_id(self) -> str | None: ...
    @property
    def keyspace(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def partition_key(self) -> tuple[bytes | None, ...]: ...


_UNSETTLED: Final = ("cluster_id", "tables", "table_lives", "generations", "settings")
RULED_BY: Final = (*_UNSETTLED, "settled")
"""What of the state ``rules_of`` reads. Most epochs change none of it."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What the rules depend on beside the write: made once an epoch.

    ``tables``: as they are now. ``starts``: timestamps of the generations; ``reaches``: the leeway behind each.
    ``history``: what counts when; None: ``tables`` and ``leeway`` count for every write.
    """

    cluster_id: str = ""
    tables: Mapping[str, statements.TableShape] = field(default_factory=dict)
    starts: tuple[Micros, ...] = ()
    leeway: Micros = 0
    reaches: tuple[Micros, ...] = ()
    history: SchemaHistory | None = None


@dataclass(frozen=True, slots=True)
class WriteVerdict:
    """``code``: of the rule that refuses a write, or empty: ``version`` reads it then."""

    code: str
    version: CountedVersion | None = None


def rules_of(state: ClusterState, before: tuple[ClusterState, AdmissionRules] | None = None) -> AdmissionRules:
    """The rules as they are at the epoch of ``state``. ``before``: those of another state; what they say of tables that
    are the same objects is not worked out again, and nothing but the history where only what is settled differs.
    """
    other, known = before or (state, AdmissionRules())
    is_same = state.settled.lowered == other.settled.lowered
    if (
        known.history is not None
        and is_same
        and all(getattr(state, part) is getattr(other, part) for part in _UNSETTLED)
    ):
        return replace(known, history=resettled(known.history, state))
    return AdmissionRules(
        cluster_id=state.cluster_id,
        tables={
            name: known.tables[name]
            if name in known.tables and other.tables.get(name) is table
            else statements.shape_of_table(table)
            for name, table in in_order(state.tables)
        },
        starts=tuple(generation.timestamp for generation in state.generations),
        leeway=setting(state, "cdc_leeway_us"),
        reaches=tuple(leeway_at(state, generation) for generation in state.generations),
        history=history_of(state, None if known.history is None else (other, known.history)),
    )


def verdict(rules: AdmissionRules, write: JudgedWrite, now: Micros) -> WriteVerdict | None:
    """The verdict on a write appended at ``now`` (microseconds), the same for all at any time; None: it is too
    early to tell, until ``rules`` are of a state with a later settled time.
    """
    history = rules.history
    assert history is not None, "rules of a state"
    if not is_settled(history, used(rules, write, now)):
        return None
    found = _version(history, write, now)
    if isinstance(found, str):
        return WriteVerdict(_refusal(rules, write, now, found))
    code = _refusal(rules, write, now, found.shape)
    return WriteVerdict(code) if code else WriteVerdict("", found)


def used(rules: AdmissionRules, write: JudgedWrite, now: Micros) -> Micros:
    """The time above which the settled time must be for a verdict on a write appended at ``now``."""
    leeway = rules.leeway if rules.history is None else leeway_for(rules.history, rules.leeway, now)
    return used_by(_timestamps(write), now, leeway)


def refusal(rules: AdmissionRules, write: JudgedWrite, now: Micros) -> str:
    """Code of the rule that refuses a write appended at ``now`` (microseconds); empty if none does.

    It is the verdict where ``now`` and the write's timestamps are settled.
    """
    return _refusal(rules, write, now, shape_for(rules, write, now))


def _refusal(rules: AdmissionRules, write: JudgedWrite, now: Micros, shape: statements.TableShape | str) -> str:
    """``refusal``; ``shape``: what ``shape_for`` says."""
    if write.cluster_id is not None and write.cluster_id != rules.cluster_id:
        return "foreign_cluster"
    if isinstance(shape, str):
        return shape
    if write.operation not in statements.OPERATIONS:
        return "unknown_operation"
    if not write.partition_key or None in write.partition_key:
        return "null_partition_key"
    if _bad_partition_key(shape, write):
        return "bad_key"
    compound = statements.is_compound(write, shape)
    if not compound and _bad_clustering_key(shape, write):
        return "bad_key"
    if not statements.well_typed(shape, write.partition_key):
        return "bad_key_type"
    if statements.unknown_column(write, shape) is not None:
        return "unknown_column"
    if compound:
        for statement in statements.statements_of(write):
            if code := statements.bad_statement(statement, shape):
                return code
    return _outside(rules, _timestamps(write), now) if shape.cdc else ""


def shape_for(rules: AdmissionRules, write: JudgedWrite, now: Micros) -> statements.TableShape | str:
    """The shape of the table by which a write is read that was appended at ``now``, or why there is none."""
    if rules.history is None:
        return rules.tables.get(f"{write.keyspace}.{write.table}", "unknown_table")
    found = _version(rules.history, write, now)
    return found if isinstance(found, str) else found.shape


def _version(history: SchemaHistory, write: JudgedWrite, now: Micros) -> CountedVersion | str:
    return FORGOTTEN if now < history.forgotten else version_at(history, write, now)


def _timestamps(write: JudgedWrite) -> list[Micros]:
    every = statements.statements_of(write)
    return [write.timestamp if one.timestamp is None else one.timestamp for one in every]


def _outside(rules: AdmissionRules, timestamps: list[Micros], now: Micros) -> str:
    """The first verdict of the acceptance window that refuses one of the timestamps."""
    leeway = rules.leeway if rules.history is None else leeway_for(rules.history, rules.leeway, now)
    for timestamp in timestamps:
        found = accept(timestamp, now, rules.starts, leeway, rules.reaches)
        if isinstance(found, RefusedWrite):
            return found.code
    return ""


def _bad_partition_key(shape: statements.TableShape, write: JudgedWrite) -> bool:
    return len(write.partition_key) != shape.partition_key or any(
        part is not None and len(part) > COMPONENT_BYTES_MAX for part in write.partition_key
    )


def _bad_clustering_key(shape: statements.TableShape, write: JudgedWrite) -> bool:
    wanted = 0 if write.operation == "PARTITION_DELETE" else shape.clustering_key
    return len(write.clustering_key) != wanted or None in write.clustering_key

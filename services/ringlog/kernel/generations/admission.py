"""Validation of writes: the rule that rejects a write, if any. Base nodes use it, and the pipeline's fast path must
match it.

``verdict`` returns the final verdict, the same for every reader (``verdicts``), or None if it is not known yet. The
rules, in order of precedence; the first that applies counts:

======================  ============================================================================
``foreign_cluster``     the write names another cluster
``verdict_forgotten``   it was appended before the oldest remembered versions
``unknown_table``       the schema had no such table, or not with the id that the write names
``unknown_version``     the table had no such version, or none as of the epoch that the write names
``unknown_operation``   this release does not know the operation
``null_partition_key``  a component of the partition key is null, or there is none
``bad_key``             another number of components than the table's (a delete of a whole partition
                        has no clustering key), a null clustering component, or a component of the
                        partition key that is too long to be composed
``bad_key_type``        a component of the key, or of a bound, is not of its column's type
``wrong_record_key``    the record's key is not that of the write
``unknown_column``      a named column is not a non-key column of the table
``bad_value_type``      a value, or the key of a deleted element, is not of its column's type
``bad_change``          a compound write contradicts the table: see ``statements``
acceptance window       for tables with a CDC log only: see ``acceptance``
======================  ============================================================================

A write of several statements is accepted or rejected as a whole: the timestamp of each must be acceptable, in the order
of the statements.

Only the record's key, the write's content, its append time and the metadata decide. The record's key does not route a
write. It must be the write's own, because Kafka keeps order per key (decision 176). The pipeline adds two rules that
depend on its own state: the maximum size of a row, and whether the generation was closed before the write.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    used_by,
    version_at,
    with_watermark,
)
from ringlog.kernel.model.settings import leeway_at, setting
from ringlog.kernel.model.state import PARTS, ClusterState, in_order
from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX
from ringlog.kernel.values import Micros, Value, field, replace


class JudgedWrite(statements.WriteLike, NamedVersion, Protocol):
    """The fields of a write that the rules use; ids are canonical UUIDs, ``timestamp`` is in microseconds."""

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
"""The sections of the state that ``rules_of`` reads. Most epochs change none of them."""
assert {*RULED_BY} < {"cluster_id", *PARTS}, "each name is a section of the state"


class AdmissionRules(Value):
    """The metadata that the rules depend on, computed once per epoch.

    ``tables``: the current ones. ``starts``: timestamps of the generations; ``reaches``: the leeway behind each.
    ``history``: versions and leeways by time; None: ``tables`` and ``leeway`` apply to every write.
    """

    cluster_id: str = ""
    tables: Mapping[str, statements.TableShape] = field(default_factory=dict)
    starts: tuple[Micros, ...] = ()
    leeway: Micros = 0
    reaches: tuple[Micros, ...] = ()
    history: SchemaHistory | None = None


class WriteVerdict(Value):
    """A verdict. ``code``: the rule that rejects the write; if it is empty, ``version`` reads the write.

    ``column``: the column that breaks the rule, in the version that decided; empty for rules without a column.
    """

    code: str
    version: CountedVersion | None = None
    column: str = ""


def rules_of(state: ClusterState, before: tuple[ClusterState, AdmissionRules] | None = None) -> AdmissionRules:
    """Return the rules at the epoch of ``state``.

    ``before``: another state and its rules, whose results are reused for tables that are the same objects. If only the
    watermark differs, only the history changes.
    """
    other, known = before or (state, AdmissionRules())
    is_same = state.settled.lowered == other.settled.lowered
    if (
        known.history is not None
        and is_same
        and all(getattr(state, part) is getattr(other, part) for part in _UNSETTLED)
    ):
        return replace(known, history=with_watermark(known.history, state))
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


def verdict(rules: AdmissionRules, write: JudgedWrite, now: Micros, own_key: bool = True) -> WriteVerdict | None:
    """Return the final verdict on a write appended at ``now`` (microseconds).

    ``own_key``: whether the record's key is that of the write. None: the verdict is not known until ``rules`` come from
    a state with a later watermark.
    """
    history = rules.history
    assert history is not None, "the rules come from a state with history"
    if not is_settled(history, needed_watermark(rules, write, now)):
        return None
    found = _version(history, write, now)
    if isinstance(found, str):
        return WriteVerdict(_refusal(rules, write, now, found, own_key)[0])
    code, column = _refusal(rules, write, now, found.shape, own_key)
    return WriteVerdict(code, None, column) if code else WriteVerdict("", found)


def needed_watermark(rules: AdmissionRules, write: JudgedWrite, now: Micros) -> Micros:
    """Return the time that the watermark must exceed for a verdict on a write appended at ``now``."""
    leeway = rules.leeway if rules.history is None else leeway_for(rules.history, rules.leeway, now)
    return used_by(_timestamps(write), now, leeway)


def refused(rules: AdmissionRules, write: JudgedWrite, now: Micros, own_key: bool = True) -> tuple[str, str]:
    """Return the code of the rule that rejects a write appended at ``now`` (microseconds), empty if none does; and the
    column that breaks the rule, empty for rules without a column.

    It is final if ``now`` and the write's timestamps are below the watermark. ``own_key``: see ``verdict``.
    """
    return _refusal(rules, write, now, shape_for(rules, write, now), own_key)


def _refusal(
    rules: AdmissionRules, write: JudgedWrite, now: Micros, shape: statements.TableShape | str, own_key: bool
) -> tuple[str, str]:
    """Return the result of ``refused``; ``shape``: the result of ``shape_for``."""
    if write.cluster_id is not None and write.cluster_id != rules.cluster_id:
        return "foreign_cluster", ""
    if isinstance(shape, str):
        return shape, ""
    if write.operation not in statements.OPERATIONS:
        return "unknown_operation", ""
    if not write.partition_key or None in write.partition_key:
        return "null_partition_key", ""
    if _bad_partition_key(shape, write):
        return "bad_key", ""
    compound = statements.is_compound(write, shape)
    if not compound and _bad_clustering_key(shape, write):
        return "bad_key", ""
    if (column := statements.mistyped_key(write, write.partition_key, shape)) is not None:
        return "bad_key_type", column
    if not own_key:
        return "wrong_record_key", ""
    if (column := statements.unknown_column(write, shape)) is not None:
        return "unknown_column", column
    if (column := statements.mistyped_value(write, shape)) is not None:
        return "bad_value_type", column
    if compound:
        for statement in statements.statements_of(write):
            if code := statements.bad_statement(statement, shape):
                return code, ""
    return (_outside(rules, _timestamps(write), now) if shape.cdc else ""), ""


def shape_for(rules: AdmissionRules, write: JudgedWrite, now: Micros) -> statements.TableShape | str:
    """Return the shape of the table version that reads a write appended at ``now``, or the code of the rejection."""
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
    """Return the first rejection of a timestamp by the acceptance window; empty if all are accepted."""
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

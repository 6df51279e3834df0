"""The table versions and settings that apply at an epoch and to a write, computed from the metadata log.

The kernel folds the log up to the published epoch, like every replica. So records that are not entries, lost a race or
were rejected have no effect here either. The states show each table at each epoch.

This module selects the table version for a write independently of ``ringlog.kernel.generations``, because the audit is
an independent check. The changes of an entry apply to writes appended at or after the validation watermark of the state
before it. Tables are identified by their ids, so a name may be dropped and reused. Before the first validation
watermark, the version as of the epoch in the job's plan applies. A dead letter or a row names that epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Value, replace
from ringlog.wire.entries import decode_entry
from ringlog_audit.rules.compound import AuditColumns
from ringlog_audit.rules.images import Wanted
from ringlog_audit.rules.lateness import Leeways, LeewayStep
from ringlog_audit.rules.tables import PublishedTable, collections_of, table_of_state
from ringlog_audit.sources.topics import AuditError, AuditTopics, Decoder, latest

NAMED_US = 3_600_000_000
"""Microseconds during which writes may still name a version after the next version applies."""
LEEWAY = "cdc_leeway_us"
UNKNOWN_TABLE, UNKNOWN_VERSION = "unknown_table", "unknown_version"


class AuditVersion(Value):
    """A version of a table. It applies to writes appended from ``since`` on. Writes may name it until ``end``.

    ``epoch``: epoch of the entry that created it. ``id``: 16 bytes, or the digest of a version created in a recovery.
    """

    epoch: int
    since: int
    id: bytes
    table: PublishedTable
    end: int | None = None


@dataclass(slots=True)
class AuditTableVersions:
    """All versions of one table id, ascending. The table accepts no writes from ``until`` on, and none after
    ``dropped``.

    ``dropped``: the epoch of the drop. ``unsettled``: versions that were replaced before the first validation
    watermark.
    """

    versions: list[AuditVersion]
    unsettled: list[AuditVersion] = field(default_factory=list)
    until: int | None = None
    dropped: int | None = None

    @property
    def id(self) -> str:
        """Return the table's id."""
        return self.versions[0].table.id

    @property
    def every(self) -> list[AuditVersion]:
        """Return all versions."""
        return self.unsettled + self.versions


@dataclass(slots=True)
class TableHistory:
    """The tables by full name. Each name has the tables that had it, in order.

    ``settled``: the newest validation watermark, 0 for none. ``settled_from``: the first epoch with one. ``forgotten``:
    pairs (epoch, append time); from that epoch on, writes appended below that time are not validated. ``decided``:
    mutations partition to the offset below which, according to the CDC writers, all writes are processed.
    """

    lives: dict[str, list[AuditTableVersions]] = field(default_factory=dict)
    settled: int = 0
    settled_from: int = 0
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    decided: dict[int, int] | None = None

    def newest(self, name: str) -> PublishedTable | None:
        """Return the table that has the name now."""
        lives = self.lives.get(name, ())
        return lives[-1].versions[-1].table if lives and lives[-1].dropped is None else None

    def columns_ever(self, name: str) -> AuditColumns:
        """Return the columns of all versions of the table that has the name now. Rows may have cells of earlier
        versions.
        """
        versions = self.lives[name][-1].every
        types = {column: kind for one in versions for column, kind in one.table.types.items()}
        static = frozenset(column for one in versions for column in one.table.columns.static)
        return replace(versions[-1].table.columns, static=static, collections=collections_of(types))

    def read_by(self, write: dict[str, Any], now: int, epoch: int | None) -> AuditVersion | str:
        """Return the version that reads a write appended at ``now``, or the reason why there is none.

        ``epoch``: the epoch of its validation, None if not known.
        """
        life = self.life_of(write, now, epoch)
        if life is None or write.get("table_id") not in (None, _bytes_of(life.id)):
            return UNKNOWN_TABLE
        if not self._is_settled_at(epoch):
            return [one for one in life.every if epoch is None or one.epoch <= epoch][-1]
        counting = [one for one in life.versions if one.since <= now]
        named = counting
        if (version := write.get("table_version")) is not None:
            named = [one for one in counting if one.id == version]
        elif (by := write.get("epoch")) is not None:
            named = [one for one in counting if one.epoch <= by]
        else:
            return counting[-1]
        if not named or ((end := named[-1].end) is not None and now >= end):
            return UNKNOWN_VERSION
        return named[-1]

    def life_of(self, write: dict[str, Any], now: int, epoch: int | None) -> AuditTableVersions | None:
        """Return the table that has the write's table name for writes appended at ``now``."""
        known = self.lives.get(f"{write['keyspace']}.{write['table']}", ())
        if not self._is_settled_at(epoch):
            made = [one for one in known if epoch is None or one.every[0].epoch <= epoch]
            if not made or (made[-1].dropped is not None and (epoch is None or made[-1].dropped <= epoch)):
                return None
            return made[-1]
        made = [one for one in known if one.versions[0].since <= now]
        return made[-1] if made and (made[-1].until is None or now < made[-1].until) else None

    def images_for(self, version: AuditVersion, life: AuditTableVersions, now: int) -> tuple[Wanted | None, int]:
        """Return (images of a write, how often images were switched on until then) for a write appended at ``now``.

        The options come from the newest version that applies at ``now``. The columns come from ``version``, which reads
        the write.
        """
        counting = [one for one in life.every if one.since <= now] if self.settled else [version]
        own, options = version.table, counting[-1].table.images
        if options is None:
            return None, 0
        kept = [one.table.images is not None for one in counting]
        switches = sum(on and not before for before, on in zip([True, *kept], kept, strict=False))
        static = tuple(name for name in own.types if name in own.columns.static)
        regular = tuple(name for name in own.types if name not in own.columns.static)
        return Wanted(options.preimage, options.postimage, regular, static), switches

    def is_forgotten(self, now: int, epoch: int | None) -> bool:
        """Return True if writes appended at ``now`` are no longer validated at ``epoch``."""
        return epoch is not None and any(since <= epoch and now < below for since, below in self.forgotten)

    def _is_settled_at(self, epoch: int | None) -> bool:
        return bool(self.settled) and (epoch is None or epoch >= self.settled_from)

    def look(self, before: ClusterState, after: ClusterState) -> None:
        """Record the changes that an entry made to the state."""
        now = before.settled.until
        if before.tables is not after.tables:
            for name in sorted({*before.tables, *after.tables}):
                was, table = before.tables.get(name), after.tables.get(name)
                if was is not table:
                    self._change(name, was, table, now, after)
        if after.settled.until and not self.settled_from:
            self.settled_from = after.epoch
            for life in self._all():
                life.unsettled, life.versions = life.versions[:-1], life.versions[-1:]
        if before.settled.lowered != after.settled.lowered:
            self._lower(after.settled.until)
        if before.settled.forgotten != after.settled.forgotten:
            self.forgotten.append((after.epoch, after.settled.forgotten))
        self.settled = after.settled.until

    def _change(self, name: str, was: Table | None, table: Table | None, now: int, after: ClusterState) -> None:
        lives = self.lives.setdefault(name, [])
        if was is not None and (table is None or table.id != was.id):
            lives[-1].until, lives[-1].dropped = now, after.epoch
        if table is None:
            return
        made = AuditVersion(after.epoch, now, _bytes_of(table.version), table_of_state(table))
        if was is None or table.id != was.id:
            lives.append(AuditTableVersions([made]))
            return
        versions = lives[-1].versions
        if table.version == was.version:
            versions[-1] = replace(versions[-1], table=made.table)
        else:
            versions[-1:] = [replace(versions[-1], end=now + NAMED_US), made]

    def _lower(self, until: int) -> None:
        for life in self._all():
            life.until = None if life.until is None else min(life.until, until)
            life.versions = [
                replace(
                    one,
                    since=min(one.since, until),
                    end=None if one.end is None else min(one.end, until + NAMED_US),
                )
                for one in life.versions
            ]

    def _all(self) -> list[AuditTableVersions]:
        return [life for lives in self.lives.values() for life in lives]


def replayed(topics: AuditTopics, decoder: Decoder, archived: Iterable[bytes] = ()) -> tuple[TableHistory, Leeways]:
    """Replay the entries up to the published epoch. Return the tables and the allowed lateness over time.

    ``archived``: records that precede the current start of the log. Raises AuditError if the result differs from the
    published epoch.
    """
    # Read the head first. The cluster continues, and later entries are not in the log that was read.
    heads = [decoder.decode(value) for value in latest(topics, "epochs").values()]
    if not heads:
        raise AuditError(f"{topics.name('epochs')} is empty: start the change publisher")
    epoch, state_id = heads[0]["epoch"], heads[0]["state_id"]
    history, state, steps = TableHistory(), EMPTY_STATE, list[LeewayStep]()
    for entry, before, state in changes(topics, archived):
        history.look(before, state)
        if not steps or state.settings is not before.settings:
            at = entry.at if isinstance(entry, Entry) else 0
            steps.append(LeewayStep(state.epoch, at, setting(state, LEEWAY), before.settled.until))
        if before.settled.lowered != state.settled.lowered:
            steps = [replace(step, since=min(step.since, state.settled.until)) for step in steps]
        if state.epoch == epoch:
            break
    if (state.epoch, state.state_id) != (epoch, state_id):
        raise AuditError(
            f"the metadata log does not lead from its start to epoch {epoch}; if it was truncated, pass the "
            "archive of the deleted entries (--archive)"
        )
    history.decided = _decided(state, topics.name("mutations"))
    return history, Leeways(tuple(steps), history.settled_from)


def changes(topics: AuditTopics, archived: Iterable[bytes]) -> Iterator[tuple[object, ClusterState, ClusterState]]:
    """Yield (record, state before, state after) for each record of the metadata log that changes the state.

    ``archived``: as in ``replayed``. Raises AuditError for an entry of a later release.
    """
    state = EMPTY_STATE
    log = (message.value() or b"" for message in topics.records("metadata"))
    for data in chain(archived, log):
        entry = decode_entry(data)
        folded = fold(state, entry)
        if folded.outcome.kind is OutcomeKind.HALT:
            raise AuditError(f"the entry after epoch {state.epoch} needs a later release: {folded.outcome.detail}")
        before, state = state, folded.state
        if state is not before:  # else it lost a race, was rejected, or is not an entry of the cluster
            yield entry, before, state


def _decided(state: ClusterState, source: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for writer in state.writers.values():
        for place in writer.decided if writer.source == source else ():
            found[place.partition] = max(place.offset, found.get(place.partition, 0))
    return found


def _bytes_of(identity: str) -> bytes:
    return bytes.fromhex(identity.replace("-", ""))

"""What was in force at an epoch and for a write, from the metadata log itself.

The kernel folds the log up to the published epoch, as every replica does. So each record that is not an entry, lost a
race or was refused has no effect here, either. The states say what each table looked like at each epoch.

Which version of a table reads a write is worked out here a second time, since the audit is a second opinion on
``ringlog.kernel.generations``. What an entry changes counts for writes appended from the settled time of the state
before it. Tables are known by their ids, so a name may be dropped and used again. Before a settled time was promised,
the version of the epoch counts at which the job planned the write; a dead letter and a row name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.wire.entries import decode_entry
from ringlog_audit.rules.compound import AuditColumns
from ringlog_audit.rules.images import Wanted
from ringlog_audit.rules.lateness import Leeways, LeewayStep
from ringlog_audit.rules.tables import PublishedTable, collections_of, table_of_state
from ringlog_audit.sources.topics import AuditError, AuditTopics, Decoder, latest

NAMED_US = 3_600_000_000
"""How long a write may name a version after the next one counts."""
LEEWAY = "cdc_leeway_us"
UNKNOWN_TABLE, UNKNOWN_VERSION = "unknown_table", "unknown_version"


@dataclass(frozen=True, slots=True)
class AuditVersion:
    """A version of a table. It counts for writes appended from ``since`` on and may be named until ``end``.

    ``epoch``: of the entry that made it; ``id``: 16 bytes, or the digest of one that was made in a recovery.
    """

    epoch: int
    since: int
    id: bytes
    table: PublishedTable
    end: int | None = None


@dataclass(slots=True)
class AuditTableVersions:
    """All versions of one table id, ascending. It takes no writes from ``until`` on; ``dropped``: at that epoch.

    ``unsettled``: versions that were replaced before any settled time was promised.
    """

    versions: list[AuditVersion]
    unsettled: list[AuditVersion] = field(default_factory=list)
    until: int | None = None
    dropped: int | None = None

    @property
    def id(self) -> str:
        """The table's id."""
        return self.versions[0].table.id

    @property
    def every(self) -> list[AuditVersion]:
        """All versions."""
        return self.unsettled + self.versions


@dataclass(slots=True)
class TableHistory:
    """The tables by full name, each name with the tables that had it, in order.

    ``settled``: the newest settled time, 0: none was promised; ``settled_from``: the first epoch with one;
    ``forgotten``: (epoch, append time below which nothing is judged from that epoch on); ``decided``: of the mutations,
    partition to the offset below which writers say that all is carried out.
    """

    lives: dict[str, list[AuditTableVersions]] = field(default_factory=dict)
    settled: int = 0
    settled_from: int = 0
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    decided: dict[int, int] | None = None

    def newest(self, name: str) -> PublishedTable | None:
        """The table that has the name now."""
        lives = self.lives.get(name, ())
        return lives[-1].versions[-1].table if lives and lives[-1].dropped is None else None

    def columns_ever(self, name: str) -> AuditColumns:
        """The columns of the table that has the name now, with those that earlier versions had: rows may have cells of
        them.
        """
        versions = self.lives[name][-1].every
        types = {column: kind for one in versions for column, kind in one.table.types.items()}
        static = frozenset(column for one in versions for column in one.table.columns.static)
        return replace(versions[-1].table.columns, static=static, collections=collections_of(types))

    def read_by(self, write: dict[str, Any], now: int, epoch: int | None) -> AuditVersion | str:
        """The version that reads a write appended at ``now``, or the reason why there is none. ``epoch``: at which
        the write was judged, None: that is not known.
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
        """The table that has a write's name for writes appended at ``now``."""
        known = self.lives.get(f"{write['keyspace']}.{write['table']}", ())
        if not self._is_settled_at(epoch):
            made = [one for one in known if epoch is None or one.every[0].epoch <= epoch]
            if not made or (made[-1].dropped is not None and (epoch is None or made[-1].dropped <= epoch)):
                return None
            return made[-1]
        made = [one for one in known if one.versions[0].since <= now]
        return made[-1] if made and (made[-1].until is None or now < made[-1].until) else None

    def images_for(self, version: AuditVersion, life: AuditTableVersions, now: int) -> tuple[Wanted | None, int]:
        """(images of a write appended at ``now`` that ``version`` reads, how often images were switched on until then).

        Options are those of the newest version that counts at ``now``, columns those of the version that reads it.
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
        """True if nothing appended at ``now`` is judged at ``epoch``."""
        return epoch is not None and any(since <= epoch and now < below for since, below in self.forgotten)

    def _is_settled_at(self, epoch: int | None) -> bool:
        return bool(self.settled) and (epoch is None or epoch >= self.settled_from)

    def look(self, before: ClusterState, after: ClusterState) -> None:
        """Take in the state that an entry made."""
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
    """What the entries up to the published epoch make of tables and of the leeway.

    ``archived``: records that the log had before those which it begins with now. Raises AuditError if they do not lead
    to what is published.
    """
    # The head first: the cluster goes on meanwhile, and what is published later is not in the log that was read.
    heads = [decoder.decode(value) for value in latest(topics, "epochs").values()]
    if not heads:
        raise AuditError(f"nothing is published in {topics.name('epochs')}: is the publisher running?")
    epoch, state_id = heads[0]["epoch"], heads[0]["state_id"]
    history, state, steps = TableHistory(), EMPTY_STATE, list[LeewayStep]()
    log = (message.value() or b"" for message in topics.records("metadata"))
    for data in chain(archived, log):
        entry = decode_entry(data)
        folded = fold(state, entry)
        if folded.outcome.kind is OutcomeKind.HALT:
            raise AuditError(f"the entry after epoch {state.epoch} needs a later release: {folded.outcome.detail}")
        before, state = state, folded.state
        if state is before:
            continue  # it lost a race, was refused, or is no entry of the cluster
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
            f"the metadata log does not lead from its beginning to epoch {epoch}; if it was truncated, name the "
            "archive of what went (--archive)"
        )
    history.decided = _decided(state, topics.name("mutations"))
    return history, Leeways(tuple(steps), history.settled_from)


def _decided(state: ClusterState, source: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for writer in state.writers.values():
        for place in writer.decided if writer.source == source else ():
            found[place.partition] = max(place.offset, found.get(place.partition, 0))
    return found


def _bytes_of(identity: str) -> bytes:
    return bytes.fromhex(identity.replace("-", ""))

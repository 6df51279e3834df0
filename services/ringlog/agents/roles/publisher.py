"""The publisher's thread: performs the effects of ``ringlog.protocol.followers.publisher``.

It reads the last published epoch from ``epochs`` before its replica starts. All later epochs come from a ``Feed`` of
the replica, in order, even if transactions are slow.

A change topic may lack a key of the last published state, because it was deleted and created again. Or it has another
value, because another process wrote to it or an older copy was restored. The missing records are written before
anything new.

One epoch is in one transaction, however large. So a read-committed consumer never sees a part of it, and ``epochs``
always agrees with the other topics. A restoration uses several transactions, which breaks no promise. ``epochs`` named
that state long ago. Each record only restores an earlier value, in the order of its first publication (streams before
their generation). If the instance dies in between, the next one finds the remaining differences.

A record that a change topic rejects for its size halts this agent (``RecordTooLarge``). Epochs are published in order,
so none may be skipped, and a restarted agent would meet the same record. ``kernel.size_limits`` keeps records below the
limits of the topics. So the limit of this topic was lowered, and the message says how to raise it.

At each start, the schemas of all records are published in ``<cluster>.schemas`` by fingerprint, so that consumers need
no other source. A release whose schemas are incompatible with the published ones halts before it writes anything
(``client.creation.schemas``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ringlog.agents.exits import Diverged
from ringlog.agents.fenced_producer import FencedProducer, TransactionRecord
from ringlog.agents.roles.epochs import EpochsReader
from ringlog.agents.roles.role import FollowingThread
from ringlog.client.creation.schemas import publish_schemas
from ringlog.client.errors import SchemasIncompatible
from ringlog.kernel.changes import ChangeRecord, EpochChange
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Value
from ringlog.log.kafka.compacted import read_compacted
from ringlog.log.kafka.topics import topic_name
from ringlog.log.replicas.feed import Feed
from ringlog.protocol.followers.publisher import (
    ROLE,
    Announce,
    HaltDiverged,
    LastPublished,
    NextStates,
    Restore,
    StartFollowing,
    publish,
    restoration_of,
)
from ringlog.protocol.role import Initialise
from ringlog.runtime.logs import get_logger
from ringlog.wire.changes import content_digest, encode_change_record

TRANSACTION_TIMEOUT_S = 600.0
"""The largest epoch is a generation of a million ranges. Brokers allow 900 s by default."""

RESTORED_RECORDS_MAX = 10_000
LOOK_RECORDS = 1_000

log = get_logger(__name__)


class EncodedChanges(Value):
    """Change records for ``cluster``, encoded at each iteration. ``check``: called from time to time; may raise."""

    cluster: str
    records: Sequence[ChangeRecord]
    check: Callable[[], None]

    def __iter__(self) -> Iterator[TransactionRecord]:
        """Encode one record at a time: the largest epochs fit into memory once as values, but not also as bytes."""
        for number, record in enumerate(self.records):
            if number % LOOK_RECORDS == LOOK_RECORDS - 1:
                self.check()
            suffix, key, value = encode_change_record(record)
            yield TransactionRecord(topic_name(self.cluster, suffix), key, value)


class PublisherThread(FollowingThread):
    """One instance of the change publisher. A ``Feed`` of its replica gives it every epoch."""

    role = ROLE
    _published: Epoch = 0
    _position = 0

    def prepare(self) -> None:
        """Make the replica keep all entries after the last published epoch."""
        last = self._last_published()
        published = 0 if last is None else last.epoch
        # The feed needs the published state itself, so the replica must begin before that epoch.
        self.start_finder.epoch_max = published - 1
        self._feed = Feed(self.replica, published)

    def work(self) -> None:
        """Publish every epoch once, forever."""
        name = f"{self.settings.cluster}.{self.role}"
        self._fenced = FencedProducer(self.settings.bootstrap_servers, name, TRANSACTION_TIMEOUT_S)
        self.driver.handlers |= {
            Initialise: lambda _: self._fenced.initialise(),
            LastPublished: lambda _: self._last_published(),
            HaltDiverged: self._diverge,
            StartFollowing: self._follow,
            NextStates: lambda _: self._next_states(),
            Restore: self._restore,
            Announce: self._announce,
        }
        self.driver.run_steps(publish(self.author.protocol))

    def handled_epoch(self) -> Epoch:
        """Return the last epoch in the change topics."""
        return self._published

    def _diverge(self, effect: HaltDiverged) -> None:
        raise Diverged(effect.why)

    def _follow(self, effect: StartFollowing) -> ClusterState:
        """Publish the schemas, and return the first state of the feed."""
        self._publish_schemas()
        state = self._feed.state
        if state is None or (0 if effect.last is None else effect.last.epoch) < state.epoch:
            raise Diverged(f"the change topics are at {effect.last}, but were at a later epoch before")
        return state

    def _next_states(self) -> Iterator[tuple[ClusterState, ClusterState]]:
        """Yield the folded records in their order. When all are taken, wait for news."""
        self.passed(self._position)  # the protocol has announced everything before
        for made in self._feed.take():
            self.raise_if_halted()
            yield made.before, made.after
            self._position = made.offset + 1
        self.wait_for_records()

    def _announce(self, effect: Announce) -> None:
        self._write(effect.changes)
        self._published = effect.epoch

    def _write(self, records: Sequence[ChangeRecord]) -> None:
        """Write all records in one transaction."""
        self._fenced.commit(EncodedChanges(self.settings.cluster, records, self.check_active))

    def _restore(self, effect: Restore) -> None:
        """Repair the change topics, in several transactions."""
        state, cluster = effect.state, self.settings.cluster
        self._published = state.epoch
        found = restoration_of(
            state,
            lambda suffix: read_compacted(
                self.settings.bootstrap_servers, topic_name(cluster, suffix), content_digest, self.check_active
            ),
        )
        if found.unseen:
            log.info("change_topics_not_compared", records=found.unseen, epoch=state.epoch)
        if records := found.records:
            names = ", ".join(sorted({topic_name(cluster, record.topic) for record in records}))
            gone, about = sum(record.value is None for record in records), {"other": found.other, "epoch": state.epoch}
            log.warning("change_topics_restored", topics=names, records=len(records), gone=gone, **about)
            for begin in range(0, len(records), RESTORED_RECORDS_MAX):
                self._write(records[begin : begin + RESTORED_RECORDS_MAX])

    def _last_published(self) -> EpochChange | None:
        epochs = EpochsReader(self.settings, self.check_active)
        try:
            return epochs.at_end()
        finally:
            epochs.close()

    def _publish_schemas(self) -> None:
        try:
            publish_schemas(self.settings.bootstrap_servers, self.settings.cluster, self.producer, self.check_active)
        except SchemasIncompatible as error:
            raise Diverged(str(error)) from error

"""The publisher at work: folds the log by itself, and writes each epoch's difference in one transaction over all change
topics.

After its take-over it initialises the role's transactional id, reads from ``epochs`` how far the topics go, and folds
the log up to there without writing. If the log does not contain what was published it halts: nothing it could write
would mend that. A change topic that lacks a key of that epoch's state was deleted and made again: what it lacks is
written before anything new.

One epoch is one transaction, however large: a reader of committed records never sees a part of it, and ``epochs`` and
the rest tell of the same epoch. What was lacking is written in several. Nothing is promised of it that a part would
break: ``epochs`` told of that state long ago, each record only puts back what stood there, in the order in which it
was first told (streams before their generation), and whoever dies half-way is followed by an instance that finds what
is lacking still.

A record that a change topic refuses for its size halts this agent (``RecordTooLarge``). Epochs go out in their order,
so nothing may be passed over, and to start again would meet the same record. ``kernel.carried`` keeps records below
what the topics take; so this is a topic whose limit was lowered, and the message says how to raise it.

The schemas of all records go to ``<cluster>.schemas`` at each start, by fingerprint, so that a consumer needs no other
source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from ringlog.agents.exits import Diverged
from ringlog.agents.fenced import FencedProducer, Written
from ringlog.agents.publisher_core import ROLE, ahead, starts_from
from ringlog.agents.shells.epochs import EpochsReader
from ringlog.agents.shells.held import keys_held
from ringlog.agents.shells.role import RoleThread
from ringlog.kernel.changes import EPOCHS, ChangeRecord, EpochChange, diff
from ringlog.kernel.fold import fold
from ringlog.kernel.outcome import OutcomeKind
from ringlog.kernel.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.topics import SCHEMAS, topic_name
from ringlog.wire.changes import encode_change_record
from ringlog.wire.entries import decode_entry
from ringlog_schemas import published

POLL_S = 0.2
SCHEMAS_TIMEOUT_S = 30.0
TRANSACTION_TIMEOUT_S = 600.0
"""The largest epoch is a generation of a million ranges; brokers allow 900 s unless they are told otherwise."""

RESTORED_RECORDS_MAX = 10_000
LOOK_RECORDS = 1_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Change records as they go to ``cluster``, encoded each time they are walked; ``look`` may end that by raising."""

    cluster: str
    records: Sequence[ChangeRecord]
    look: Callable[[], None]

    def __iter__(self) -> Iterator[Written]:
        """Encode one after the other: the largest epochs fit into memory once as values, not again as bytes."""
        for number, record in enumerate(self.records):
            if number % LOOK_RECORDS == LOOK_RECORDS - 1:
                self.look()
            suffix, key, value = encode_change_record(record)
            yield Written(topic_name(self.cluster, suffix), key, value)


class PublisherThread(RoleThread):
    """One instance of the publisher."""

    role = ROLE
    _published: Epoch = 0

    def work(self) -> None:
        """Publish every epoch once, for ever."""
        name = f"{self.settings.cluster}.{self.role}"
        fenced = FencedProducer(self.settings.bootstrap_servers, name, TRANSACTION_TIMEOUT_S)
        self.confirm()
        fenced.initialise()
        last = self._last_published()
        why = ahead(last, self.replica.read_barrier())
        if why is not None:
            raise Diverged(why)
        self.look()
        self._publish_schemas()
        self._follow(fenced, last)

    def handled_epoch(self) -> Epoch:
        """The last epoch that is in the change topics."""
        return self._published

    def _follow(self, fenced: FencedProducer, last: EpochChange | None) -> None:
        state, resumed = EMPTY_STATE, last is None
        tail = self.log.tail(self.log.begin_offset())
        try:
            if resumed:
                self.accepting()
            while True:
                for offset, _ in self.news(0)[-1:]:
                    self.acknowledge(offset)
                for record in tail.poll(POLL_S):
                    self.look()
                    folded = fold(state, decode_entry(record.data))
                    if folded.outcome.kind is OutcomeKind.HALT:
                        raise Diverged(f"offset {record.offset}: {folded.outcome.code}: {folded.outcome.detail}")
                    before, state = state, folded.state
                    if resumed and state is not before:
                        self._publish(fenced, before, state)
                    elif not resumed and self._is_start(last, state):
                        resumed, self._published = True, state.epoch
                        self._restore(fenced, state)
                        self.accepting()
        finally:
            tail.close()

    def _publish(self, fenced: FencedProducer, before: ClusterState, after: ClusterState) -> None:
        self._write(fenced, diff(before, after))
        self._published = after.epoch

    def _write(self, fenced: FencedProducer, records: Sequence[ChangeRecord]) -> None:
        """All of them in one transaction."""
        fenced.commit(Outgoing(self.settings.cluster, records, self.look))

    def _restore(self, fenced: FencedProducer, state: ClusterState) -> None:
        """Write what the change topics lack of ``state``, which was published last.

        ``epochs`` lacks nothing: it told which state that is.
        """
        records = [record for record in diff(EMPTY_STATE, state) if record.topic != EPOCHS]
        topics = sorted({record.topic for record in records})
        held = {suffix: keys_held(self.settings.bootstrap_servers, self._topic(suffix), self.look) for suffix in topics}
        lacking = [record for record in records if record.key.encode() not in held[record.topic]]
        if lacking:
            names = ", ".join(sorted({self._topic(record.topic) for record in lacking}))
            log.warning("change_topics_restored", topics=names, records=len(lacking), epoch=state.epoch)
            for begin in range(0, len(lacking), RESTORED_RECORDS_MAX):
                self._write(fenced, lacking[begin : begin + RESTORED_RECORDS_MAX])

    def _topic(self, suffix: str) -> str:
        return topic_name(self.settings.cluster, suffix)

    def _is_start(self, last: EpochChange | None, state: ClusterState) -> bool:
        try:
            return starts_from(last, state)
        except ValueError as error:
            raise Diverged(str(error)) from error

    def _last_published(self) -> EpochChange | None:
        epochs = EpochsReader(self.settings, self.look)
        try:
            return epochs.at_end()
        finally:
            epochs.close()

    def _publish_schemas(self) -> None:
        topic = topic_name(self.settings.cluster, SCHEMAS.suffix)
        sent = [
            self.producer.send(topic, text.encode(), key=fingerprint.encode(), partition=0)
            for fingerprint, text in published()
        ]
        for future in sent:
            future.result(SCHEMAS_TIMEOUT_S)

"""The coordinator's thread: performs the effects of ``ringlog.protocol.coordinator`` on the topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import structlog

from ringlog.agents.shells.epochs import EpochsReader
from ringlog.agents.shells.role import Offered, RoleThread
from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.client.results import AppliedResult, Submitted
from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka import KafkaLog
from ringlog.log.topics import ACKS, topic_name
from ringlog.protocol.coordinator import Forget, NewAcks, Note, PublishedEpoch, ReadAcks, Submit, Wait, coordinate
from ringlog.protocol.coordinator_core import ROLE
from ringlog.protocol.role import Accept
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck, RefusedProposal, decode_node_ack

SUBMIT_TIMEOUT_S = 5.0
WAITS_S = {Wait.NOTHING: 0.0, Wait.NEWS: 0.5, Wait.PUBLICATION: 0.02, Wait.PAUSE: 0.5}
REFUSED_MAX, DETAIL_MAX = 20, 500
"""So many refusals are shown, of so many characters each: a status is a small record."""

log = structlog.get_logger(__name__)


class CoordinatorThread(RoleThread):
    """One instance of the coordinator."""

    role = ROLE
    _refused: tuple[RefusedProposal, ...] = ()

    def work(self) -> None:
        """Look at every change, for ever."""
        epochs = EpochsReader(self.settings, self.look)
        self._client = Client(
            self.settings.bootstrap_servers,
            self.settings.cluster,
            f"{self.role}-{self.instance[:8]}",
            clock=self.clock,
            replica=self.replica,
        )
        self.driver.handlers |= {
            ReadAcks: lambda _: self._all_acks(),
            Forget: self._forget,
            Accept: lambda _: self._accept(),
            PublishedEpoch: lambda _: epochs.newest(),
            Submit: self._submit,
            Note: self._note,
            NewAcks: self._new_acks,
        }
        try:
            self.driver.carry_out(coordinate())
        finally:
            self._client.close()
            epochs.close()

    def _accept(self) -> None:
        self._client.start()
        self.accepting()

    def handled_epoch(self) -> Epoch:
        """The coordinator looks at the newest epoch that it has folded."""
        return self.replica.state.epoch

    def refused(self) -> tuple[RefusedProposal, ...]:
        """What cannot go on, since when: nodes' mistakes, and proposals that the validator refuses."""
        return self._refused

    def _note(self, effect: Note) -> None:
        """Keep for all to see what is refused, with the time at which it first was; each is logged once."""
        since = {(one.subject, one.command, one.code, one.detail): one.since for one in self._refused}
        now = self.clock.now_us()
        keys = list(dict.fromkeys((one.subject, one.kind, one.code, one.detail[:DETAIL_MAX]) for one in effect.found))
        for key in keys[:REFUSED_MAX]:
            if key not in since:
                log.warning("refused", subject=key[0], kind=key[1], code=key[2], why=key[3])
        self._refused = tuple(RefusedProposal(*key, since.get(key, now)) for key in keys[:REFUSED_MAX])

    def _submit(self, effect: Submit) -> Submitted | None:
        proposal = effect.proposal
        kind = type(proposal.command).__name__
        try:
            answer = self._client.submit(
                proposal.command,
                timeout_s=SUBMIT_TIMEOUT_S,
                request_id=proposal.request_id,
                since_epoch=proposal.since_epoch,
            )
        except SubmissionTimedOut as error:
            log.warning("no_answer_yet", kind=kind, request=proposal.request_id, why=error.message)
            return None
        if isinstance(answer, AppliedResult):
            log.info("applied", kind=kind, epoch=answer.epoch)
        else:
            log.info("not_applied", kind=kind, answer=str(replace(answer)))
        return answer

    def _all_acks(self) -> Iterator[tuple[int, NodeAck]]:
        acks = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, ACKS)
        try:
            yield from self._read((record.offset, record.data) for record in self.read_to_end(acks))
        finally:
            acks.close()

    def _new_acks(self, effect: NewAcks) -> Iterator[tuple[int, NodeAck]]:
        wait_s = WAITS_S[effect.wait]
        offered = self.rest(wait_s) if effect.wait is Wait.PAUSE else self.news(wait_s)
        yield from self._read(offered)
        for offset, _ in offered:
            self.acknowledge(offset)

    def _forget(self, effect: Forget) -> None:
        """A process that goes on speaking for such a node is not argued with: its last word goes at the next start."""
        try:
            for node in effect.nodes:
                self.producer.send(topic_name(self.settings.cluster, ACKS.suffix), None, key=node.encode())
        except LogUnavailable as error:
            log.warning("acks_not_forgotten", nodes=len(effect.nodes), why=error.message)

    @staticmethod
    def _read(records: Iterable[Offered]) -> Iterator[tuple[int, NodeAck]]:
        for offset, value in records:
            if not value:
                continue
            try:
                yield offset, decode_node_ack(value)
            except WireError as error:
                log.warning("unreadable_ack", offset=offset, why=str(error))

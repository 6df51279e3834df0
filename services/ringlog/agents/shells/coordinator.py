"""The coordinator at work: knows the newest acknowledgement of every node, looks at each change, submits what the core
proposes.

After its take-over it reads the compacted acks topic from the beginning; faust then brings what comes in. Both may
bring the same record, and in any order: which one counts, ``ringlog.client.ack_book`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from ringlog.agents.coordinator_core import (
    ROLE,
    Known,
    Proposal,
    Refusal,
    awaits_publication,
    prepared_in_full,
    propose,
    refusals,
)
from ringlog.agents.shells.epochs import EpochsReader
from ringlog.agents.shells.role import Offered, RoleThread
from ringlog.client.ack_book import AckBook
from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.client.results import AppliedResult, RejectedResult
from ringlog.kernel.values import Epoch, GenerationId, Micros
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka import KafkaLog
from ringlog.log.topics import ACKS, topic_name
from ringlog.wire.errors import WireError
from ringlog.wire.records import RefusedProposal, decode_node_ack

SUBMIT_TIMEOUT_S = 5.0
PUBLICATION_POLL_S = 0.02
AFTER_REFUSAL_S = 0.5
REFUSED_MAX, DETAIL_MAX = 20, 500
"""So many refusals are shown, of so many characters each: a status is a small record."""

log = structlog.get_logger(__name__)


class CoordinatorThread(RoleThread):
    """One instance of the coordinator."""

    role = ROLE
    _refused: tuple[RefusedProposal, ...] = ()

    def work(self) -> None:
        """Look at every change, for ever."""
        self._acks = AckBook()
        self._complete: tuple[GenerationId | None, Micros] = (None, 0)
        self._replay_acks()
        epochs = EpochsReader(self.settings, self.look)
        client = Client(
            self.settings.bootstrap_servers,
            self.settings.cluster,
            f"{self.role}-{self.instance[:8]}",
            clock=self.clock,
            replica=self.replica,
        )
        try:
            client.start()
            self.accepting()
            refused = False
            while True:
                waiting = awaits_publication(self.replica.state)
                wait_s = PUBLICATION_POLL_S if waiting else AFTER_REFUSAL_S
                for record in self.rest(wait_s) if refused else self.news(wait_s):
                    self._take_ack(record)
                    self.acknowledge(record[0])
                known = self._known(epochs.newest())
                answers = [self._submit(client, proposal) for proposal in propose(known)]
                refused = not all(answer is None for answer in answers)
                self._note([*refusals(known), *(answer for answer in answers if answer is not None)])
        finally:
            client.close()
            epochs.close()

    def handled_epoch(self) -> Epoch:
        """The coordinator looks at the newest epoch that it has folded."""
        return self.replica.state.epoch

    def _known(self, published: Epoch) -> Known:
        state, now = self.replica.state, self.clock.now_us()
        generation = prepared_in_full(state)
        if generation != self._complete[0]:
            self._complete = (generation, now)
        return Known(state, self._acks.newest(state), published, now, self._complete[1], self._acks.said())

    def refused(self) -> tuple[RefusedProposal, ...]:
        """What cannot go on, since when: nodes' mistakes, and proposals that the validator refuses."""
        return self._refused

    def _note(self, found: Sequence[Refusal]) -> None:
        """Keep for all to see what is refused, with the time at which it first was; each is logged once."""
        since = {(one.subject, one.command, one.code, one.detail): one.since for one in self._refused}
        now = self.clock.now_us()
        keys = list(dict.fromkeys((one.subject, one.kind, one.code, one.detail[:DETAIL_MAX]) for one in found))
        for key in keys[:REFUSED_MAX]:
            if key not in since:
                log.warning("refused", subject=key[0], kind=key[1], code=key[2], why=key[3])
        self._refused = tuple(RefusedProposal(*key, since.get(key, now)) for key in keys[:REFUSED_MAX])

    def _submit(self, client: Client, proposal: Proposal) -> Refusal | None:
        """Ask until there is an answer; None if it was applied."""
        kind = type(proposal.command).__name__
        while True:
            self.look()
            try:
                answer = client.submit(
                    proposal.command,
                    timeout_s=SUBMIT_TIMEOUT_S,
                    request_id=proposal.request_id,
                    since_epoch=proposal.since_epoch,
                )
                break
            except SubmissionTimedOut as error:
                log.warning("no_answer_yet", kind=kind, request=proposal.request_id, why=error.message)
        if isinstance(answer, AppliedResult):
            log.info("applied", kind=kind, epoch=answer.epoch)
            # Proposals that follow in this round, and the next look, must know of it.
            self.replica.wait_for(lambda state: state.epoch >= answer.epoch, SUBMIT_TIMEOUT_S, f"epoch {answer.epoch}")
            return None
        log.info("not_applied", kind=kind, answer=str(replace(answer)))
        if isinstance(answer, RejectedResult):
            return Refusal(proposal.subject, kind, answer.code, answer.detail)
        return Refusal(proposal.subject, kind, "request_expired", "what became of it is looked up in the log")

    def _replay_acks(self) -> None:
        acks = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, ACKS)
        try:
            for record in self.read_to_end(acks):
                self._take_ack((record.offset, record.data))
        finally:
            acks.close()
        self._forget_left()

    def _forget_left(self) -> None:
        """Take what nodes that left have said out of the topic, or every start would read it for ever.

        Node ids are never used again. A process that goes on speaking for such a node is not argued with: its last word
        goes at the next start.
        """
        nodes = self.replica.state.nodes
        left = [node for node in self._acks.nodes() if node in nodes and nodes[node].state == "left"]
        try:
            for node in left:
                self.producer.send(topic_name(self.settings.cluster, ACKS.suffix), None, key=node.encode())
        except LogUnavailable as error:
            log.warning("acks_not_forgotten", nodes=len(left), why=error.message)

    def _take_ack(self, record: Offered) -> None:
        offset, value = record
        if not value:
            return
        try:
            ack = decode_node_ack(value)
        except WireError as error:
            log.warning("unreadable_ack", offset=offset, why=str(error))
            return
        self._acks.take(offset, ack)

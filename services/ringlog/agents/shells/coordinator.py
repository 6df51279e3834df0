"""The coordinator at work: knows the newest acknowledgement of every node, looks at each change, submits what the core
proposes.

After its take-over it reads the compacted acks topic from the beginning; faust then brings what comes in. Both may
bring the same record, and in any order: the one with the greater offset counts.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from ringlog.agents.coordinator_core import ROLE, Known, Proposal, awaits_publication, prepared_in_full, propose
from ringlog.agents.shells.epochs import EpochsReader
from ringlog.agents.shells.role import Offered, RoleThread
from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.client.results import AppliedResult
from ringlog.kernel.values import Epoch, GenerationId, Micros
from ringlog.log.kafka import KafkaLog
from ringlog.log.topics import ACKS
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck, decode_node_ack

SUBMIT_TIMEOUT_S = 5.0
PUBLICATION_POLL_S = 0.02
AFTER_REFUSAL_S = 0.5

log = structlog.get_logger(__name__)


class CoordinatorThread(RoleThread):
    """One instance of the coordinator."""

    role = ROLE

    def work(self) -> None:
        """Look at every change, for ever."""
        self._acks: dict[str, tuple[int, NodeAck]] = {}
        self._complete: tuple[GenerationId | None, Micros] = (None, 0)
        self._replay_acks()
        epochs = EpochsReader(self.settings, self.look)
        client = Client(
            self.settings.bootstrap_servers, self.settings.cluster, f"{self.role}-{self.instance[:8]}", clock=self.clock
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
                proposals = propose(self._known(epochs.newest()))
                answers = [self._submit(client, proposal) for proposal in proposals]
                refused = not all(answers)
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
        acks = {node: ack for node, (_, ack) in self._acks.items()}
        return Known(state, acks, published, now, self._complete[1])

    def _submit(self, client: Client, proposal: Proposal) -> bool:
        """Ask until there is an answer; False if it was not applied."""
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
            return True
        log.info("not_applied", kind=kind, answer=str(replace(answer)))
        return False

    def _replay_acks(self) -> None:
        acks = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, ACKS)
        try:
            for record in self.read_to_end(acks):
                self._take_ack((record.offset, record.data))
        finally:
            acks.close()

    def _take_ack(self, record: Offered) -> None:
        offset, value = record
        if not value:
            return
        try:
            ack = decode_node_ack(value)
        except WireError as error:
            log.warning("unreadable_ack", offset=offset, why=str(error))
            return
        known = self._acks.get(ack.node)
        if known is None or known[0] <= offset:
            self._acks[ack.node] = (offset, ack)

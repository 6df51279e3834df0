"""The thread of a controller: a client on the role's own replica, and the rejected proposals for the status."""

from __future__ import annotations

from abc import abstractmethod

from ringlog.agents.roles.role import RoleThread
from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.kernel.model.state import ClusterState, changes_nothing
from ringlog.kernel.values import Epoch, replace
from ringlog.protocol.controller import ReportRejections, Submit, Wait
from ringlog.protocol.role import StartServing
from ringlog.protocol.submission.results import AppliedResult, Submitted
from ringlog.runtime import trust
from ringlog.runtime.logs import get_logger
from ringlog.wire.ids import derived_request_id
from ringlog.wire.records import RefusedProposal
from ringlog.wire.requests import PrincipalKey, agent_keys

SUBMIT_TIMEOUT_S = 5.0
WAITS_S = {Wait.NOTHING: 0.0, Wait.NEWS: 0.5, Wait.PUBLICATION: 0.02, Wait.PAUSE: 0.5}
REFUSED_MAX, DETAIL_MAX = 20, 500
"""At most N refusals are shown, each cut to a length: a status is a small record."""

log = get_logger(__name__)


class ControllerThread(RoleThread):
    """One instance of a role that submits commands (``ringlog.protocol.controller``)."""

    _refused: tuple[RefusedProposal, ...] = ()

    def work(self) -> None:
        """Run the protocol, forever."""
        self._client = Client(
            self.settings.bootstrap_servers,
            self.settings.cluster,
            f"{self.role}-{self.instance[:8]}",
            clock=self.clock,
            replica=self.replica,
            keys=self._keys,
        )
        self.driver.handlers |= {
            StartServing: lambda _: self._start_serving(),
            Submit: self._submit,
            ReportRejections: self._note,
        }
        try:
            self.run_protocol()
        finally:
            self._client.close()

    @abstractmethod
    def run_protocol(self) -> None:
        """Run the role's protocol."""

    def _start_serving(self) -> None:
        self._client.start()
        self.mark_active()

    def wakes_role(self, before: ClusterState, after: ClusterState) -> bool:
        """Return False for an epoch without a change: the plan stays the same."""
        return not changes_nothing(before, after)

    def handled_epoch(self) -> Epoch:
        """Return the newest folded epoch, which each plan uses."""
        return self.replica.state.epoch

    def refused(self) -> tuple[RefusedProposal, ...]:
        """Return the rejected proposals and the mistakes of nodes, each with its start."""
        return self._refused

    def _note(self, effect: ReportRejections) -> None:
        """Keep the rejections for the status, each with the time of its first occurrence. Each is logged once."""
        since = {(one.subject, one.command, one.code, one.detail): one.since for one in self._refused}
        now = self.clock.now_us()
        keys = list(dict.fromkeys((one.subject, one.kind, one.code, one.detail[:DETAIL_MAX]) for one in effect.found))
        for key in keys[:REFUSED_MAX]:
            if key not in since:
                log.warning("refused", subject=key[0], kind=key[1], code=key[2], why=key[3])
        self._refused = tuple(RefusedProposal(*key, since.get(key, now)) for key in keys[:REFUSED_MAX])

    def _keys(self) -> tuple[PrincipalKey, ...]:
        """Return the keys of this agent: those of its masters, else those of its file."""
        masters = trust.current().request_masters
        return agent_keys(masters, self.replica.state.cluster_id, self.role) or trust.request_keys()

    def _secret_id(self, request_id: str) -> str:
        """Return a request id that follows from a proposal's id and the key, if there is a key.

        Ids of proposals can be computed by anyone. A client could send a request that is refused under such an id
        first, and its refusal would answer the proposal.
        """
        keys = self._keys()
        return derived_request_id(keys[0].key, request_id) if keys else request_id

    def _submit(self, effect: Submit) -> Submitted | None:
        proposal = effect.proposal
        kind = type(proposal.command).__name__
        try:
            answer = self._client.submit(
                proposal.command,
                timeout_s=SUBMIT_TIMEOUT_S,
                request_id=self._secret_id(proposal.request_id),
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

"""Submission without a validator: runs ``ringlog.protocol.submission.direct`` on a log, in the calling thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ringlog.client.errors import ClusterNotCreated, InvalidSubmission, SubmissionTimedOut, TakeOverRefused
from ringlog.kernel.model.modes import Term
from ringlog.kernel.values import Command, Epoch
from ringlog.log.author import Author
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.driver import LogDriver, micros
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.effects import Draw
from ringlog.protocol.submission.commit import Undecided
from ringlog.protocol.submission.direct import AheadOfLog, Direct, NoCluster, RoleRefused
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, Submitted, WithdrawnResult
from ringlog.protocol.submission.submission import fall_back_to_direct
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.runtime.draw import SystemDraw

TIMEOUT_S = 30.0


class DirectAuthor:
    """An author that decides and appends entries itself. Thread-safe; concurrent calls run one at a time.

    ``protocol`` and ``driver`` are public for protocols that build on this class.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        replica: LogReplica,
        submitter: str,
        clock: Clock | None = None,
        draw: Draw | None = None,
    ) -> None:
        self._name = metadata.name
        author = Author(submitter, clock or SystemClock(), draw or SystemDraw())
        self.protocol = Direct(author, timeout=micros(TIMEOUT_S))
        self.driver = LogDriver(metadata, replica)

    def submit(
        self,
        command: Command,
        *,
        timeout_s: float = TIMEOUT_S,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
    ) -> Submitted:
        """Decide the command, append it and return the final answer.

        Raises SubmissionTimedOut (outcome unknown), ClusterNotCreated, InvalidSubmission, LogError.
        """
        with self.translated():
            return self.driver.run_steps(self.protocol.submit(command, request_id, since_epoch, micros(timeout_s)))

    def submit_again(self, command: Command, request_id: str, since_epoch: Epoch, *, timeout_s: float) -> Submitted:
        """Decide a request that was sent to the validator and has no answer. Raises as ``submit``."""
        with self.translated():
            steps = fall_back_to_direct(self.protocol, command, request_id, since_epoch, micros(timeout_s))
            return self.driver.run_steps(steps)

    def withdraw(
        self, request_id: str, since_epoch: Epoch, *, timeout_s: float = TIMEOUT_S
    ) -> WithdrawnResult | AppliedResult | ExpiredResult:
        """End a request by applying a Noop under its id. Every other entry with that id is then a duplicate.

        Returns AppliedResult if the command was applied first. Raises SubmissionTimedOut (still unknown), LogError.
        """
        with self.translated():
            return self.driver.run_steps(self.protocol.withdraw(request_id, since_epoch, micros(timeout_s)))

    def take_over(self, role: str, instance: str, *, timeout_s: float = TIMEOUT_S) -> Term:
        """Become the active instance of ``role``: submit TakeOver with a higher term until it is applied.

        Raises TakeOverRefused if a rule other than the term's is broken, SubmissionTimedOut, LogError.
        """
        with self.translated():
            return self.driver.run_steps(self.protocol.take_over(role, instance, micros(timeout_s)))

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Convert exceptions of the protocol to errors of the client."""
        started = time.monotonic()
        try:
            yield
        except Undecided as error:
            entry = error.chain.entries[0].entry
            waited = time.monotonic() - started
            raise SubmissionTimedOut(entry.request_id, entry.since_epoch, waited, "the outcome of its entry") from error
        except NoCluster as error:
            raise ClusterNotCreated(self._name) from error
        except AheadOfLog as error:
            raise InvalidSubmission(str(error), "pass an epoch that the client has read") from error
        except RoleRefused as error:
            raise TakeOverRefused(str(error)) from error

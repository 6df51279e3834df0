"""The client: submit commands through the validator or directly, and read the state behind barriers.

    with Client("127.0.0.1:9092", "orders", "deploy-tool") as client:
        answer = client.submit(CreateKeyspace("shop", Replication("simple", 2)))

A request goes to the validator, or this process decides it itself (direct submission). ``direct_after_s`` switches a
submission to direct if no validator answers in that time. After the switch, *applied* is reported as it is. *Rejected*
is reported only after the request was withdrawn, because the validator may still hold it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ringlog.client.changes import ChangeStream, Snapshots, start_before, state_at
from ringlog.client.direct import DirectAuthor
from ringlog.client.engine import RESEND_S, Engine, Submission
from ringlog.client.errors import ClientError, ClusterNotCreated, InvalidSubmission, NoClusterGiven, SubmissionTimedOut
from ringlog.client.fields import Intent, command_of, unfit
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Value
from ringlog.log.author import Author, this_sender
from ringlog.log.errors import LogUnavailable
from ringlog.log.folding import Start
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.diagnosis import reject_refused_login
from ringlog.log.kafka.topics import RECORD_BYTES_MAX, REQUESTS, RESULTS
from ringlog.log.opening import open_metadata, open_snapshots, start_point_finder
from ringlog.log.port import MetadataLog
from ringlog.log.reading import SILENCE_S
from ringlog.log.replicas.identity import IdentityStore, KnownEpoch
from ringlog.log.replicas.poll_policy import PollPolicy
from ringlog.log.replicas.replay import ProgressCallback, catch_up, log_progress
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import StartPointFinder
from ringlog.protocol.effects import Draw
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, WithdrawnResult
from ringlog.protocol.submission.submission import EncodedRequest, encoded_request
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.runtime.context import current_cluster, use_stored_login, use_stored_trust
from ringlog.runtime.draw import SystemDraw
from ringlog.runtime.trust import request_keys
from ringlog.wire.errors import WireError
from ringlog.wire.requests import PrincipalKey, chosen_key, with_code

T = TypeVar("T")
TIMEOUT_S = 30.0
BOOTSTRAP_VARIABLE, CLUSTER_VARIABLE = "RINGLOG_BOOTSTRAP_SERVERS", "RINGLOG_CLUSTER"
ENVELOPE_BYTES_MAX = 4 * 1024
"""Space reserved for the envelope. A request is refused before it is sent if its entry would be too large."""


class Logs(Value):
    """The topics that a client uses: metadata log, requests, results."""

    metadata: MetadataLog
    requests: MetadataLog
    results: MetadataLog

    @staticmethod
    def of_kafka(
        bootstrap_servers: str,
        cluster: str,
        submitter: str = "client",
        metadata: MetadataLog | None = None,
        is_relaxed: bool = False,
    ) -> Logs:
        """Open the topics of a cluster.

        ``submitter``: the owner of the logs; rules that delay a log refer to it. ``metadata``: a metadata log that is
        already open. ``is_relaxed``: poll the log at the relaxed pace.
        """
        return Logs(
            metadata or open_metadata(bootstrap_servers, cluster, submitter, is_relaxed=is_relaxed),
            KafkaLog(bootstrap_servers, cluster, REQUESTS),
            KafkaLog(bootstrap_servers, cluster, RESULTS, isolation="read_committed"),
        )

    def close(self) -> None:
        for each in (self.requests, self.results, self.metadata):
            each.close()


def connect(
    bootstrap_servers: str = "", cluster: str = "", submitter: str = "client", *, timeout_s: float = 5.0, **options: Any
) -> Client:
    """Return a started client.

    Args:
        bootstrap_servers: Kafka brokers, ``HOST:PORT,...``. Default: ``RINGLOG_BOOTSTRAP_SERVERS``, or those of the
            cluster in use (``ringlog cluster use``). A stored login of these brokers is used.
        cluster: Name of the cluster. Default: ``RINGLOG_CLUSTER``; without given brokers, the cluster in use.
        submitter: Name of the program, which appears in the log.
        timeout_s: Seconds after which a broker that does not answer is reported.
        options: See ``Client``.

    Raises LogUnavailable with the address and the cause, LoginRefused, ClusterNotCreated, TopicMissing, NoClusterGiven.
    """
    bootstrap_servers = bootstrap_servers or os.environ.get(BOOTSTRAP_VARIABLE, "")
    cluster = cluster or os.environ.get(CLUSTER_VARIABLE, "")
    if not bootstrap_servers and (last := current_cluster()) is not None:
        # The name of the cluster in use means that cluster at its own brokers only.
        bootstrap_servers, cluster = last.bootstrap, cluster or last.cluster
    if not bootstrap_servers or not cluster:
        raise NoClusterGiven
    use_stored_login(bootstrap_servers)
    use_stored_trust(bootstrap_servers, cluster)
    if why := reject_refused_login(bootstrap_servers, timeout_s):
        raise LogUnavailable(f"{bootstrap_servers}: {why}", "check the address, and that the broker is up")
    return Client(bootstrap_servers, cluster, submitter, **options).start()


class Client:
    """A connection of one submitter to a cluster. Thread-safe. Use it as a context manager, or call ``start`` and
    ``close``.

    On Kafka, the client starts from the newest snapshot. ``cluster_id``, ``record``, ``seen`` and ``start_finder`` are
    those of ``LogReplica``.

    Args:
        on_progress: Callback for progress messages during a long replay.
        resend_s: Time after which a request without an answer is sent again.
        logs: Adapters to use instead of Kafka's. The client closes them.
        replica: A replica that the caller runs. The caller remains responsible for it and its log.
        is_relaxed: Whether the replica polls at the relaxed pace while no request is pending.
        keys: Returns the keys that sign requests. Default: those of this process (``runtime.trust``).
        on_behalf: The person that the client acts for. Entries of its commands contain it.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        submitter: str = "client",
        *,
        cluster_id: str | None = None,
        record: Path | IdentityStore | None = None,
        seen: Iterable[KnownEpoch] = (),
        on_progress: ProgressCallback = log_progress,
        resend_s: float = RESEND_S,
        clock: Clock | None = None,
        draw: Draw | None = None,
        logs: Logs | None = None,
        replica: LogReplica | None = None,
        start_finder: StartPointFinder | None = None,
        is_relaxed: bool = False,
        keys: Callable[[], Sequence[PrincipalKey]] = request_keys,
        on_behalf: str = "",
    ) -> None:
        self.bootstrap_servers, self.cluster = bootstrap_servers, cluster
        metadata = None if replica is None else replica.log
        if start_finder is None and logs is None and replica is None:
            start_finder = start_point_finder(bootstrap_servers, cluster)
        self._logs = logs or Logs.of_kafka(bootstrap_servers, cluster, submitter, metadata, is_relaxed)
        self._is_guest = replica is not None
        self._is_started = False
        self._on_progress = on_progress
        self.keys = keys
        clock = clock or SystemClock()
        draw = draw or SystemDraw()
        sender = this_sender(submitter, on_behalf)
        self._author = Author(sender, clock, draw)
        self._draw = draw
        # A log in memory has no snapshots.
        self._snapshots: Snapshots | None = None
        if logs is None:
            self._snapshots = partial(open_snapshots, bootstrap_servers, cluster)
        self.replica = replica or LogReplica(
            self._logs.metadata, cluster_id=cluster_id, record=record, seen=seen, start_finder=start_finder
        )
        if is_relaxed:
            self.replica.poll_policy = PollPolicy(is_relaxed=True)
        self.direct = DirectAuthor(self._logs.metadata, self.replica, sender, clock, draw)
        self._engine = Engine(self.replica, self._logs.requests, self._logs.results, resend_s=resend_s)

    def start(self, silence_s: float = SILENCE_S) -> Client:
        """Replay the log and position the reader at the end of the results. The duration is not bounded.

        The client is closed if this raises. Raises LogUnavailable if nothing arrives for ``silence_s``,
        ClusterNotCreated, TopicMissing, other LogErrors.
        """
        try:
            return self.follow(silence_s=silence_s)
        except BaseException:
            self.close()
            raise

    def follow(self, check: Callable[[], None] = lambda: None, silence_s: float = SILENCE_S) -> Client:
        """Replay the log like ``start``, but leave the client open on an error.

        After LogUnavailable or TopicMissing, call it again to continue. ``check``: called periodically during the
        replay; may raise.
        """
        if not self.replica.is_started:
            self.replica.start()
        if catch_up(self.replica, silence_s=silence_s, check=check, on_progress=self._on_progress).epoch == 0:
            raise ClusterNotCreated(self._logs.metadata.name)
        self._engine.start()
        self._is_started = True
        return self

    def close(self) -> None:
        """Stop. Unanswered submissions end with SubmissionTimedOut."""
        self._engine.stop()
        if self._is_guest:
            self._logs.requests.close()
            self._logs.results.close()
            return
        self.replica.stop()
        self._logs.close()

    def __enter__(self) -> Client:
        return self if self._is_started else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------- state

    @property
    def state(self) -> ClusterState:
        """The newest applied state."""
        return self.replica.state

    def catch_up(self, silence_s: float = SILENCE_S) -> ClusterState:
        """Return a state like ``read_barrier``, without a deadline while the replica makes progress."""
        return catch_up(self.replica, silence_s=silence_s, on_progress=self._on_progress)

    def read_barrier(self, timeout_s: float = TIMEOUT_S) -> ClusterState:
        """Return a state that includes every entry that was in the log when this was called."""
        return self.replica.read_barrier(timeout_s)

    def strict_barrier(self, timeout_s: float = TIMEOUT_S) -> ClusterState:
        """Return a linearizable state: one that includes a Noop applied after the call."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self.submit(Noop(), timeout_s=max(deadline - time.monotonic(), 0.0))
            if isinstance(answer, AppliedResult):
                return self.replica.state
            if isinstance(answer, RejectedResult):
                raise ClientError(
                    f"a Noop was rejected: {answer.code}: {answer.detail}",
                    "check whether changes are paused: ringlog status",
                )

    def wait_for(self, predicate: Callable[[ClusterState], T | None], timeout_s: float, awaited: str) -> T:
        """Wait until the predicate returns a value for a state; see ``LogReplica.wait_for``. Raises WaitTimedOut."""
        return self.replica.wait_for(predicate, timeout_s, awaited)

    def state_at(self, epoch: Epoch) -> ClusterState:
        """Return the state at an epoch. Replays the log from the snapshot before it.

        Raises EpochUnknown, LogUnavailable.
        """
        return state_at(self.replica.log, self._snapshots, epoch)

    def changes(self, since: Epoch | None = None, of: Collection[str] = ()) -> ChangeStream:
        """Return an iterator over the changes after an epoch, which waits for new ones.

        Args:
            since: The last epoch that the caller knows. Default: the newest one.
            of: Names of sections of the state, for example ``placements``. Empty: all changes.

        Raises EpochUnknown, LogUnavailable, ValueError for the name of no section.
        """
        here = self.replica.subscribe(lambda *_: None)
        here.close()
        if since is None or since >= here.state.epoch:
            start, since = Start(here.state, here.offset), since or here.state.epoch
        else:
            start = start_before(self.replica.log, self._snapshots, since)
        return ChangeStream(self.replica.log, start, since, of, self.replica.raise_if_ended)

    # -------------------------------------------------------------------------------------------- submit

    def submit(
        self,
        command: Command | Intent,
        *,
        timeout_s: float = TIMEOUT_S,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
        direct_after_s: float | None = None,
    ) -> Submitted:
        """Submit through the validator and wait for the final answer.

        Args:
            command: A command, or a function that returns it for the newest state (``ringlog.commands``).
            request_id: Id of an earlier attempt with the same command. Requires ``since_epoch``.
            since_epoch: Epoch of that earlier attempt. Requires ``request_id``.
            direct_after_s: Decide in this process if the validator has not answered by then.

        Raises SubmissionTimedOut (outcome unknown), InvalidSubmission (for example, a value does not fit its field),
        ClientClosed, ReplicaHalted.
        """
        started = time.monotonic()
        command = command_of(command, self.replica.state, self._draw, is_again=request_id is not None)
        wait_s = timeout_s if direct_after_s is None else min(direct_after_s, timeout_s)
        try:
            return self.submit_future(
                command, timeout_s=wait_s, request_id=request_id, since_epoch=since_epoch
            ).result()
        except SubmissionTimedOut as error:
            left = timeout_s - (time.monotonic() - started)
            if direct_after_s is None or left <= 0:
                raise
            return self.direct.submit_again(command, error.request_id, error.since_epoch, timeout_s=left)

    def submit_future(
        self,
        command: Command | Intent,
        *,
        timeout_s: float = TIMEOUT_S,
        request_id: str | None = None,
        since_epoch: Epoch | None = None,
    ) -> Submission:
        """Submit without waiting. Callbacks of the future run in threads of the client and must not block."""
        command = command_of(command, self.replica.state, self._draw, is_again=request_id is not None)
        return self._engine.submit(self._encoded_request(command, request_id, since_epoch), timeout_s, command)

    def submit_many(self, commands: Sequence[Command], *, timeout_s: float = TIMEOUT_S) -> tuple[Submitted, ...]:
        """Submit independent commands together and return their answers in order.

        A command that cannot be sent does not delay the others. Raises as ``submit``, for the first command without an
        answer.
        """
        return self._engine.submit_together(map(self._request_or_refusal, commands), timeout_s)

    def _request_or_refusal(self, command: Command) -> EncodedRequest | InvalidSubmission:
        try:
            return self._encoded_request(command, None, None)
        except InvalidSubmission as refused:
            return refused

    def withdraw(
        self, request_id: str, since_epoch: Epoch, *, timeout_s: float = TIMEOUT_S
    ) -> WithdrawnResult | AppliedResult | ExpiredResult:
        """End a request with an unknown outcome. Return AppliedResult if it was applied after all."""
        return self.direct.withdraw(request_id, since_epoch, timeout_s=timeout_s)

    def _encoded_request(self, command: Command, request_id: str | None, since_epoch: Epoch | None) -> EncodedRequest:
        if (request_id is None) != (since_epoch is None):
            raise InvalidSubmission(
                "request_id and since_epoch belong together", "pass both values of the earlier attempt, or none"
            )
        since = since_epoch if since_epoch is not None else self.replica.state.epoch
        if since > self.replica.state.epoch and since > self.read_barrier().epoch:
            raise InvalidSubmission(
                f"since_epoch {since} is above the epoch of the client", "pass an epoch that the client has read"
            )
        asked_id = request_id if request_id is not None else self._author.new_request_id()
        try:
            made = encoded_request(command, asked_id, since, self._author.submitter, sign=self._signed)
        except WireError as error:
            raise unfit(command, asked_id, error) from error
        if len(made.data) > RECORD_BYTES_MAX - ENVELOPE_BYTES_MAX:
            raise InvalidSubmission(
                f"{made.kind}: {len(made.data)} bytes are too many for one record", "submit it in parts"
            )
        return made

    def _signed(self, request: bytes) -> bytes:
        """Return the record of a request, with a code if the client has a key."""
        state = self.replica.state
        key = chosen_key(state, self.keys())
        return request if key is None else with_code(request, key, state.cluster_id)

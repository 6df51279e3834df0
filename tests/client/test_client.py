"""Submission through the validator: accepted and ignored answers, retries, and the end of a request."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue

import pytest
from structlog.testing import capture_logs

from ringlog.client import engine
from ringlog.client.client import Client, Logs
from ringlog.client.errors import ClientBroken, ClientClosed, ClusterNotCreated, InvalidSubmission, SubmissionTimedOut
from ringlog.client.outbox import GROUP
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop, TakeOver
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.history import find_request
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.values import Command
from ringlog.log.author import Author
from ringlog.log.errors import LogUnavailable, RecordTooLarge, ReplicaHalted
from ringlog.log.kafka.producer import too_large
from ringlog.log.kafka.topics import RECORD_BYTES_MAX
from ringlog.log.memory import MemoryLog
from ringlog.log.port import LogRecord
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, WithdrawnResult
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.draw import SystemDraw
from ringlog.wire.commands import encode_command
from ringlog.wire.records import REJECTED, CommandRequest, Result, encode_result
from ringlog.wire.requests import decode_request, decode_requests
from tests.client.mini_validator import MiniValidator
from tests.log.faulty_log import Fault, FaultyLog

ID = "01890000-0000-7000-8000-000000000001"
DROP = DropKeyspace("nowhere")
OTHER = Author("other", SystemClock(), SystemDraw())


def next_request(log: FaultyLog, offset: int = 0) -> CommandRequest:
    """Wait for the request at an offset of the requests and return it."""
    tail = log.tail(offset)
    records = tail.poll(60)
    assert records, "a request was sent"
    return decode_request(records[0].data)


def rejection(request: CommandRequest, code: str, *, term: int, digest: str | None = None) -> bytes:
    own = command_digest(request.kind, request.version, request.payload)
    return encode_result(
        Result(request.request_id, digest or own, REJECTED, 1, code, "a detail", term, "v", request.since_epoch)
    )


def test_answers_of_a_validator(client: Client, logs: Logs) -> None:
    with MiniValidator(logs, "v1"):
        applied, rejected = client.submit_many([ChangeSettings((("history_entries", 300),)), DROP])
        assert applied == AppliedResult(applied.request_id, 3)
        assert isinstance(rejected, RejectedResult)
        assert rejected.code == "unknown_keyspace"
        assert client.strict_barrier().epoch == 4
    assert client.read_barrier().settings["history_entries"] == 300


def test_only_the_log_reports_applied_commands(client: Client, logs: Logs) -> None:
    with MiniValidator(logs, "v1", silent=True):
        assert isinstance(client.submit(Noop()), AppliedResult)


def test_only_answers_of_the_validator_count(client: Client, requests_log: FaultyLog, results_log: MemoryLog) -> None:
    client.direct.take_over("validator", "v1")
    future = client.submit_future(DROP)
    request = next_request(requests_log)
    client.direct.take_over("validator", "v2")
    results_log.append([rejection(request, "from_before", term=1), rejection(request, "of_today", term=2)])
    answer = future.result(60)
    assert isinstance(answer, RejectedResult)
    assert answer.code == "of_today"


def test_another_commands_answer_is_ignored(client: Client, requests_log: FaultyLog, results_log: MemoryLog) -> None:
    client.direct.take_over("validator", "v1")
    future = client.submit_future(DROP)
    request = next_request(requests_log)
    other = command_digest(*encode_command(Noop()))
    results_log.append(
        [
            b"not a result",
            rejection(request, "other_command", term=1, digest=other),
            rejection(request, "this_command", term=1),
        ]
    )
    answer = future.result(60)
    assert isinstance(answer, RejectedResult)
    assert answer.code == "this_command"


def test_a_rejection_cannot_hide_that_the_command_was_applied(
    client: Client, metadata: FaultyLog, requests_log: FaultyLog, results_log: MemoryLog
) -> None:
    """A validator that lost its role may reject a request that its successor applied: the log is right."""
    client.direct.take_over("validator", "v1")
    future = client.submit_future(Noop())
    request = next_request(requests_log)
    entry = OTHER.entry(client.read_barrier(), Noop(), request_id=request.request_id, since_epoch=request.since_epoch)
    metadata.append([entry.data])
    results_log.append([rejection(request, "wrong", term=1)])
    assert future.result(60) == AppliedResult(request.request_id, 3)


def test_an_identical_request_goes_out_until_answered(client: Client, logs: Logs, requests_log: FaultyLog) -> None:
    requests_log.plan(Fault(lost=frozenset({0})), Fault(lost=frozenset({0})), Fault(twice=frozenset({0})))
    with MiniValidator(logs, "v1"):
        assert isinstance(client.submit(Noop()), AppliedResult)
    assert len(requests_log.appends) >= 3
    assert len(set(requests_log.appends)) == 1
    assert client.read_barrier().epoch == 3, "take-over and one Noop: no second effect"


def test_an_unavailable_topic_is_logged_rarely(client: Client, logs: Logs, requests_log: FaultyLog) -> None:
    """A client retries a request every few seconds during an outage, but logs the outage rarely."""
    requests_log.plan(*[Fault(lost=frozenset({0}))] * 20)
    with capture_logs() as told, MiniValidator(logs, "v1"):
        assert isinstance(client.submit(Noop(), timeout_s=60), AppliedResult)
    assert len(requests_log.appends) > 20
    assert [one["event"] for one in told].count("requests_unanswered") == 1


def test_concurrent_submissions_are_sent_together(metadata: FaultyLog, results_log: MemoryLog) -> None:
    class Gate(FaultyLog):
        """Holds records back until the gate opens, then appends them in order."""

        opened = threading.Event()

        def __init__(self, inner: MemoryLog) -> None:
            super().__init__(inner)
            self._one_by_one = ThreadPoolExecutor(max_workers=1)

        def append_async(self, records: Sequence[bytes]) -> Future[None]:
            return self._one_by_one.submit(self._later, records)

        def _later(self, records: Sequence[bytes]) -> None:
            assert self.opened.wait(60)
            self.append(records)

    gate = Gate(MemoryLog("tests.requests"))
    logs = Logs(metadata, gate, results_log)
    with Client("", "tests", "tester", logs=logs, resend_s=30) as client, MiniValidator(logs, "v1"):
        futures = [client.submit_future(Noop()) for _ in range(16)]
        gate.opened.set()
        answers = [future.result(60) for future in futures]
    assert [len(records) for records in gate.appends] == [1, 1, 1, 1, 1]
    assert [len(decode_requests(record)) for records in gate.appends for record in records] == [1, 1, 2, 4, 8]
    takeover, *commits = [len(records) for records in dict.fromkeys(metadata.appends)]
    assert takeover == 1
    assert sum(commits) == 16
    assert len(commits) <= 5, "each record is one group commit, perhaps with the one before"
    assert len({answer.epoch for answer in answers if isinstance(answer, AppliedResult)}) == 16


def test_many_submissions_are_sent_in_full_groups(logs: Logs, requests_log: FaultyLog) -> None:
    """The client does not retry within the time that a busy machine takes to answer."""
    with Client("", "tests", logs=logs, resend_s=60) as client, MiniValidator(logs, "v1"):
        answers = client.submit_many([Noop()] * (GROUP + 3))
        assert {type(answer) for answer in answers} == {AppliedResult}
        sizes = [len(decode_requests(record)) for records in requests_log.appends for record in records]
        assert client.submit_many([]) == ()
    assert sizes == [GROUP, 3]


def test_the_groups_of_many_at_once_double(logs: Logs, requests_log: FaultyLog) -> None:
    """The validator decides the first record during the preparation of the others; after that each record costs as much
    as some requests in it.
    """
    with ThreadPoolExecutor(1) as pool:
        with Client("", "tests", logs=logs, resend_s=600) as client:
            pending = pool.submit(client.submit_many, [Noop()] * 500, timeout_s=600)
            tail, sizes = requests_log.tail(0), list[int]()
            while sum(sizes) < 500 and (records := tail.poll(60)):
                sizes += [len(decode_requests(record.data)) for record in records]
        with pytest.raises(SubmissionTimedOut):
            pending.result(60)
    assert sizes == [GROUP, 2 * GROUP, 4 * GROUP, 500 - 7 * GROUP]


def test_a_command_is_open_until_withdrawn(client: Client, metadata: FaultyLog, requests_log: FaultyLog) -> None:
    def submission_error() -> SubmissionTimedOut | None:
        """Submit a command; return the timeout error, or None if the request was not sent in time."""
        with pytest.raises(SubmissionTimedOut, match="the validator's answer") as caught:
            client.submit(ChangeSettings((("history_entries", 300),)), timeout_s=0.2)
        return caught.value if requests_log.appends else None

    error = None
    while error is None:
        error = submission_error()
    assert client.withdraw(error.request_id, error.since_epoch) == WithdrawnResult(error.request_id, 2)
    late = next_request(requests_log)
    entry = OTHER.entry(client.read_barrier(), Noop(), request_id=late.request_id, since_epoch=late.since_epoch)
    before = client.replica.counts[OutcomeKind.DUPLICATE]
    metadata.append([entry.data])
    assert client.read_barrier().epoch == 2
    assert client.replica.counts[OutcomeKind.DUPLICATE] == before + 1


def test_an_expired_request_is_unknown_and_final(client: Client) -> None:
    future = client.submit_future(Noop())
    for _ in range(110):
        client.direct.submit(Noop())
    answer = future.result(60)
    assert isinstance(answer, ExpiredResult)
    assert answer.since_epoch == 1


def test_a_request_id_belongs_to_one_command(client: Client, logs: Logs) -> None:
    with MiniValidator(logs, "v1"):
        first = client.submit(Noop(), request_id=ID, since_epoch=1)
        again = client.submit(Noop(), request_id=ID, since_epoch=1)
        other = client.submit(DROP, request_id=ID, since_epoch=1)
    assert first == again == AppliedResult(ID, 3)
    assert isinstance(other, RejectedResult)
    assert other.code == "request_id_reused"


def test_oversized_requests_are_rejected_locally(client: Client) -> None:
    with pytest.raises(InvalidSubmission, match="belong together"):
        client.submit(Noop(), request_id=ID)
    with pytest.raises(InvalidSubmission, match="above the epoch"):
        client.submit(Noop(), request_id=ID, since_epoch=77)
    with pytest.raises(InvalidSubmission, match="too many for one record"):
        client.submit(DropKeyspace("x" * 3_000_000))
    client.submit_future(Noop(), request_id=ID, since_epoch=1)
    with pytest.raises(InvalidSubmission, match="in use"):
        client.submit(DROP, request_id=ID, since_epoch=1)


def test_a_client_changes_its_submission_path(client: Client) -> None:
    """Without a validator, the client reports applied commands at once and rejected ones only after it withdrew the
    request.
    """
    applied = client.submit(ChangeSettings((("history_entries", 300),)), direct_after_s=0.05)
    assert applied == AppliedResult(applied.request_id, 2)
    rejected = client.submit(DROP, direct_after_s=0.05)
    assert isinstance(rejected, RejectedResult)
    withdrawn = find_request(client.state, rejected.request_id)
    assert withdrawn is not None
    assert withdrawn.digest == command_digest(*encode_command(Noop()))


def test_closing_reports_unknown_outcomes(logs: Logs) -> None:
    with Client("", "tests", "tester", logs=logs) as client:
        future = client.submit_future(Noop())
    with pytest.raises(SubmissionTimedOut, match="until the client was closed"):
        future.result(0)


def test_a_submission_to_a_closed_client_ends(logs: Logs) -> None:
    client = Client("", "tests", "tester", logs=logs).start()
    client.close()
    with pytest.raises(ClientClosed, match="nothing was sent"):
        client.submit_future(Noop(), timeout_s=0.1).result(timeout=60)


def test_a_halted_replica_ends_waiting_requests(client: Client) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    future = client.submit_future(DROP)
    client.replica.subscribe(fail, client.replica.halt_on_defect)
    client.replica.log.append([b"anything"])
    with pytest.raises(ReplicaHalted, match="broken"):
        future.result(60)


def test_a_client_needs_a_cluster() -> None:
    with pytest.raises(ClusterNotCreated):
        Client("", "tests", logs=Logs(MemoryLog(), MemoryLog(), MemoryLog())).start()


def test_successive_validators_answer_each_request_once(client: Client, logs: Logs) -> None:
    """Eight submitters run while three validators come and go, with direct authors in between."""
    client.direct.submit(ChangeSettings((("history_entries", 100_000),)))
    answers: list[Submitted] = []
    stop = threading.Event()

    def submit(number: int) -> None:
        for _ in range(6):
            answers.append(client.submit(Noop() if number % 2 else DROP, timeout_s=60))

    def disturb() -> None:
        while not stop.is_set():
            client.direct.submit(TakeOver("coordinator", "d", client.state.epoch + 1))
            stop.wait(0.01)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    disturber = threading.Thread(target=disturb)
    disturber.start()
    for thread in threads:
        thread.start()
    for number in range(2):
        with MiniValidator(logs, f"v{number}"):
            client.replica.wait_for(lambda _, least=10 * (number + 1): len(answers) >= least, 60, "answers")
    with MiniValidator(logs, "last"):
        for thread in threads:
            thread.join(60)
    stop.set()
    disturber.join(60)
    state = client.read_barrier()
    assert len(answers) == 48
    for answer in answers:
        made = find_request(state, answer.request_id)
        if isinstance(answer, AppliedResult):
            assert made is not None
            assert made.epoch == answer.epoch
        else:
            assert isinstance(answer, RejectedResult)
            assert made is None
    assert len({answer.epoch for answer in answers if isinstance(answer, AppliedResult)}) == 24


def test_truncated_results_are_read_from_their_new_start(client: Client, logs: Logs, results_log: MemoryLog) -> None:
    """Old results are deleted under the reader, which still reads the later ones."""
    results_log.append([b"old"] * 3)
    results_log.gap(2)
    results_log.delete_before(5)
    with MiniValidator(logs, "v1"):
        answer = client.submit(DROP)
    assert isinstance(answer, RejectedResult)
    assert answer.code == "unknown_keyspace"


def test_the_barrier_after_a_rejection_is_bounded(client: Client, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the barrier gets no answer, the deadline of the submission counts, not the barrier's own."""
    timeouts: Queue[float] = Queue()

    def silent(timeout_s: float) -> int:
        timeouts.put(timeout_s)
        raise LogUnavailable("no answer")

    monkeypatch.setattr(engine, "BARRIER_S", 1_000.0)
    with MiniValidator(logs, "v1"):
        monkeypatch.setattr(client.replica, "end_offset", silent)
        future = client.submit_future(DROP, timeout_s=100)
        assert timeouts.get(timeout=60) <= 100
        client.close()
        with pytest.raises(SubmissionTimedOut):
            future.result(60)


def test_a_client_reports_a_failed_listener(metadata: FaultyLog, requests_log: FaultyLog) -> None:
    class Broken(MemoryLog):
        def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
            assert go.wait(60)
            raise RuntimeError("a defect")

    go = threading.Event()
    with Client("", "tests", logs=Logs(metadata, requests_log, Broken())) as client:
        future = client.submit_future(Noop(), timeout_s=0.1)
        go.set()
        with pytest.raises(ClientBroken, match="a defect"):
            future.result(60)
        with pytest.raises(ClientBroken):
            client.submit_future(Noop())


def test_a_client_reports_a_failed_sender(metadata: FaultyLog, results_log: MemoryLog) -> None:
    class Broken(MemoryLog):
        def append(self, records: Sequence[bytes]) -> None:
            raise RuntimeError("a defect")

    with Client("", "tests", logs=Logs(metadata, Broken(), results_log)) as client:
        with pytest.raises(ClientBroken, match="a defect"):
            client.submit_future(Noop(), timeout_s=60).result(60)
        with pytest.raises(ClientBroken):
            client.submit_future(Noop())


def test_each_request_gets_its_own_error(
    client: Client, results_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that several threads raise would get the traceback of each."""
    waiting = [client.submit_future(Noop(), timeout_s=60) for _ in range(2)]

    def broken(*_: object) -> bytes:
        raise LogUnavailable("tests.results: no answer", "wait")

    monkeypatch.setattr(results_log, "read", broken)
    first, second = (one.exception(60) for one in waiting)
    assert first is not second
    assert str(first) == str(second) == "tests.results: no answer (wait)"


def test_a_request_that_the_topic_rejects_fails_alone(metadata: FaultyLog, results_log: MemoryLog) -> None:
    """An operator lowered the size limit of the topic: the client sends the other requests and continues."""

    class Narrow(MemoryLog):
        def append(self, records: Sequence[bytes]) -> None:
            for data in records:
                if len(data) > 10_000:
                    raise too_large("c.requests", None, len(data))
            super().append(records)

    requests = Narrow()
    with Client("", "tests", logs=Logs(metadata, requests, results_log)) as client:
        large = CancelOperation("o" * 20_000, "")
        before, refused = client.submit_future(Noop()), client.submit_future(large, timeout_s=60)
        with pytest.raises(RecordTooLarge, match=r"c\.requests rejects the record"):
            refused.result(60)
        with MiniValidator(Logs(metadata, requests, results_log), "v1"):
            assert isinstance(before.result(60), AppliedResult)
            assert isinstance(client.submit(Noop()), AppliedResult)


@pytest.mark.parametrize(
    ("refused", "why"),
    [(DropKeyspace(5), "name: must be str"), (CancelOperation("o" * RECORD_BYTES_MAX, ""), "too many for one record")],  # type: ignore[arg-type]
)
def test_unsendable_requests_do_not_stop_others(client: Client, logs: Logs, refused: Command, why: str) -> None:
    commands: list[Command] = [Noop()] * (GROUP + 10)
    for place in (0, GROUP + 3):
        commands[place] = refused
    epoch = client.read_barrier().epoch
    with MiniValidator(logs, "v1"):
        with pytest.raises(InvalidSubmission, match=why):
            client.submit_many(commands)
        assert client.read_barrier().epoch == epoch + 1 + len(commands) - 2, "its own TakeOver, and all other requests"


def test_queued_requests_are_sent_during_the_check_of_a_rejection(
    metadata: FaultyLog, requests_log: FaultyLog, results_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica lags, so the check of the rejection has to wait. A queued request does not depend on it."""
    monkeypatch.setattr(engine, "BARRIER_S", 600.0)
    judges = threading.Event()

    def never_reached(_: float) -> int:
        judges.set()
        return 1_000_000

    logs = Logs(metadata, requests_log, results_log)
    with Client("", "tests", "tester", logs=logs, resend_s=600) as client:
        term = client.direct.take_over("validator", OTHER.new_request_id()).term
        client.submit_future(DROP, timeout_s=600)
        monkeypatch.setattr(client.replica, "end_offset", never_reached)
        results_log.append([rejection(next_request(requests_log), "unknown_keyspace", term=term)])
        assert judges.wait(60)
        for offset in (1, 2):
            client.submit_future(Noop(), timeout_s=600)
            assert next_request(requests_log, offset).kind == "Noop"

"""The validator's process under SIGKILL, SIGSTOP and competition: no request is lost, applied twice, or reverted."""

from __future__ import annotations

import io
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import fastavro.schema
import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from ringlog.agents.exits import SUPERSEDED
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.values import Command
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import REQUESTS
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.stack import StackInfo, processes
from ringlog.wire.records import REJECTED, CommandRequest, encode_request
from ringlog_schemas import catalog

from .agents_world import DEADLINE_S, AgentsWorld, figures, until

pytestmark = pytest.mark.system

BAD = ChangeSettings((("no_such_setting", 1),))


@pytest.fixture(scope="module")
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentsWorld]:
    """One cluster for all tests of this file; each test finds or starts a validator."""
    world = AgentsWorld(stack, f"validated-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("agents"))
    # All share one port: a standby gets it after its predecessor ends, and works without it until then.
    world.environment["RINGLOG_METRICS_PORT"] = str(processes.choose(1)[0])
    yield world
    world.close()


def submit(world: AgentsWorld, count: int) -> list[tuple[Command, Future[Submitted]]]:
    """Submit valid and invalid commands together."""
    commands = [BAD if number % 4 == 0 else Noop() for number in range(count)]
    return [(command, world.client.submit_future(command, timeout_s=DEADLINE_S)) for command in commands]


DIRECT_MOST = 500


def check_each_once(world: AgentsWorld, futures: list[tuple[Command, Future[Submitted]]]) -> None:
    """Each valid command was applied exactly once, each invalid one was rejected, and the log has no rejected
    request.
    """
    wait([future for _, future in futures], DEADLINE_S)
    world.client.read_barrier()
    counts = Counter(entry.request_id for entry in world.applied())
    for command, future in futures:
        answer = future.result(0)
        if isinstance(command, Noop):
            assert isinstance(answer, AppliedResult)
            assert counts[answer.request_id] == 1
        else:
            assert isinstance(answer, RejectedResult)
            assert answer.code == "unknown_setting"
    assert max(counts.values()) == 1
    rejected = {result.request_id for result in world.results() if result.outcome == REJECTED}
    assert rejected
    assert not rejected.intersection(counts)


def test_metrics_show_the_answers_of_a_validator(world: AgentsWorld) -> None:
    world.running("validator")
    check_each_once(world, submit(world, 40))
    place = f"http://127.0.0.1:{world.environment['RINGLOG_METRICS_PORT']}"
    with httpx.Client(timeout=60) as http:

        def counted() -> dict[str, float] | None:
            """Clients may receive their answers before the validator has counted them."""
            found = figures(http.get(f"{place}/metrics").text, {"role": "validator"})
            outcomes = [found[f"ringlog_validator_answers_total {one}"] for one in ("applied", "rejected")]
            return found if outcomes >= [30, 10] and found["ringlog_validator_waiting_requests"] == 0 else None

        found = until(counted, "the answers to be counted")
        health = http.get(f"{place}/health")
    assert (health.status_code, health.json()["state"]) == (200, "active")
    assert found["ringlog_agent_state active"] == 1
    assert found["ringlog_agent_term"] == world.term("validator")
    assert found["ringlog_epoch"] >= 30
    assert found["ringlog_validator_answer_seconds_count"] >= 1
    assert found["ringlog_validator_commit_seconds_count"] >= 1


def test_sigkill_with_hundreds_in_flight(world: AgentsWorld) -> None:
    def one_kill() -> bool:
        """Kill a validator while another takes over; return True if requests were unanswered then."""
        first = world.running("validator")
        world.spawn("validator")
        before = world.term("validator")
        futures = submit(world, 600)
        until(lambda: any(future.done() for _, future in futures), "the first answer")
        first.kill()
        hit = not all(future.done() for _, future in futures)
        check_each_once(world, futures)
        # The dead validator may have decided all of them before their answers arrived.
        world.await_term("validator", before + 1)
        return hit

    until(one_kill, "a kill between two answers")


def test_a_stopped_validator_changes_nothing_when_it_continues(world: AgentsWorld) -> None:
    first = world.running("validator")
    early = submit(world, 300)
    until(lambda: any(future.done() for _, future in early), "the first answer")
    first.send(signal.SIGSTOP)
    zombie = world.state.terms["validator"].term
    world.spawn("validator")
    check_each_once(world, early)
    late = submit(world, 50)
    check_each_once(world, late)
    settled = len(world.results())
    first.send(signal.SIGCONT)
    assert first.exit_code() == SUPERSEDED
    check_each_once(world, submit(world, 50))
    assert all(result.term > zombie for result in world.results()[settled:] if result.outcome == REJECTED)


def test_direct_authors_in_the_middle_of_group_commits(world: AgentsWorld) -> None:
    world.running("validator")

    def one_burst() -> bool:
        """Submit requests while a direct author continues; return True if it appended between two of them."""
        futures = submit(world, 1_200)
        direct = []
        # The author stops in time: on a slow machine it would starve the validator until requests expire.
        while len(direct) < 20 or (len(direct) < DIRECT_MOST and not all(future.done() for _, future in futures)):
            direct.append(world.client.direct.submit(Noop()))
        check_each_once(world, futures)
        epochs = [answer.epoch for answer in direct if isinstance(answer, AppliedResult)]
        assert len(epochs) == len(direct)
        own = [answer.epoch for _, future in futures if isinstance(answer := future.result(0), AppliedResult)]
        return any(min(own) < epoch < max(own) for epoch in epochs)

    until(one_burst, "a direct entry between two of one burst")


def test_the_next_validator_repeats_a_rejection_under_its_own_term(world: AgentsWorld) -> None:
    first = world.running("validator")
    request_id, since = "01890000-0000-7000-8000-00000000cafe", world.state.epoch
    advance = AdvanceCdcWriter("spark", "a", 1, 0)
    answer = world.client.submit(advance, request_id=request_id, since_epoch=since, timeout_s=DEADLINE_S)
    assert isinstance(answer, RejectedResult)
    assert answer.code == "unknown_writer"
    first.kill()
    world.start("validator")
    assert isinstance(world.client.submit(RegisterCdcWriter("spark", "a"), timeout_s=DEADLINE_S), AppliedResult)
    assert isinstance(world.client.submit(advance, timeout_s=DEADLINE_S), AppliedResult)
    again = world.client.submit(advance, request_id=request_id, since_epoch=since, timeout_s=DEADLINE_S)
    assert again == answer
    terms = [result.term for result in world.results() if result.request_id == request_id]
    assert terms == sorted(terms)
    assert len(set(terms)) >= 2, "more if a validator slept longer than its session"


def test_a_request_id_used_twice(world: AgentsWorld) -> None:
    world.running("validator")
    request_id, since = "01890000-0000-7000-8000-00000000beef", world.state.epoch
    command = ChangeSettings((("operations_kept_max", 7),))

    def asked(which: Command) -> Submitted:
        return world.client.submit(which, request_id=request_id, since_epoch=since, timeout_s=DEADLINE_S)

    assert isinstance(asked(Noop()), AppliedResult)
    answer = asked(command)
    assert isinstance(answer, RejectedResult)
    assert answer.code == "request_id_reused"
    assert "operations_kept_max" not in world.state.settings


def test_invalid_bytes_and_future_commands_stop_nothing(world: AgentsWorld) -> None:
    world.running("validator")
    requests = KafkaLog(world.stack.bootstrap_servers, world.cluster, REQUESTS)
    unknown = CommandRequest(
        "01890000-0000-7000-8000-00000000feed", world.state.epoch, "tomorrow", "DoWonders", 1, b"?"
    )
    requests.append([b"", b"junk", b"\xc3\x01" + bytes(8), encode_request(unknown)])
    requests.close()
    assert isinstance(world.client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)

    def codes() -> list[str]:
        return [result.code for result in world.results() if result.request_id == unknown.request_id]

    # Its rejection uses another topic than the entry that answered the next request.
    until(codes, "the answer to the request of a later release")
    assert codes() == ["unknown_command"]


def test_a_program_in_another_language_gets_an_answer(world: AgentsWorld) -> None:
    """The program has a Kafka client, Avro and the schemas, and does not read the log."""
    world.running("validator")
    schema = fastavro.parse_schema(dict(catalog()["ringlog.requests.Request"]))
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    request_id, out, since = uuid.uuid4(), io.BytesIO(), world.state.epoch
    out.write(b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")))
    about = {"request_id": request_id.bytes, "since_epoch": since, "submitter": "go", "kind": "Noop", "version": 1}
    fastavro.schemaless_writer(out, schema, about | {"payload": b"", "answer_applied": True})
    producer = Producer({"bootstrap.servers": world.stack.bootstrap_servers, "acks": "all"})
    group = {"group.id": "go", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": world.stack.bootstrap_servers, **group})
    consumer.assign([TopicPartition(f"{world.cluster}.results", 0, OFFSET_BEGINNING)])
    results = fastavro.parse_schema(dict(catalog()["ringlog.requests.Result"]))

    def answered() -> dict[str, Any]:
        while True:
            message = until(lambda: consumer.poll(1.0), "a result")
            found: Any = fastavro.schemaless_reader(io.BytesIO(message.value()[10:]), results, None)
            if found["request_id"] == request_id.bytes:
                return dict(found)

    epochs = []
    for _ in range(2):  # the second answer comes from the history
        producer.produce(f"{world.cluster}.requests", out.getvalue())
        producer.flush(DEADLINE_S)
        result = answered()
        assert result["outcome"] == "applied"
        epochs.append(result["epoch"])
    consumer.close()
    applied = [epoch for epoch, entry in enumerate(world.applied(), start=1) if entry.request_id == str(request_id)]
    assert [*applied, *applied] == epochs


@pytest.mark.slow
def test_answered_requests_are_acknowledged_by_idle_faust(world: AgentsWorld) -> None:
    """The next validator does not read answered requests again, for any number of records."""
    world.running("validator")
    for _ in range(2):
        for _ in range(30):
            assert isinstance(world.client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)
        world.await_acknowledged("validator", REQUESTS)


def test_take_over_with_the_default_session_time_out(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    with closing(AgentsWorld(stack, cluster_name, tmp_path, session_timeout_s=6)) as world:
        first = world.start("validator")
        world.spawn("validator")
        assert isinstance(world.client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)
        first.kill()
        assert isinstance(world.client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)
        assert world.term("validator") >= 2, "a successor answered; it may have started before the kill"

"""One reference node as a process: register, join, tail the mutations, stream, acknowledge.

Main loop (one thread): take records of the mutations topic, take a read barrier of the metadata log, adopt the
state it gives, judge the records under it. The barrier makes the knowledge complete: whatever the log held when the
records were read is folded before they are judged. Between records the loop adopts new epochs as they come and
publishes an acknowledgement.

A restarted node reads the mutations topic from its beginning, under the placements of today, so what it holds is again
complete; it acknowledges nothing before it has passed the topic's end as it was at the start.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import structlog
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from ringlog.client.client import Client
from ringlog.client.results import AppliedResult, RejectedResult, describe
from ringlog.kernel.commands.model import RegisterNode
from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.state import ClusterState, Node
from ringlog.log.errors import LogError, WaitTimedOut
from ringlog.log.topics import topic_name
from ringlog.node.holder import Fetch, Holder
from ringlog.node.server import HttpServer, make_api
from ringlog.node.transfer import SourceNotReady, TransferError, fetch_rows
from ringlog.runtime.clock import Clock
from ringlog.wire.author_json import InvalidCommand, from_json
from ringlog.wire.draw import SystemDraw
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck, decode_mutation, encode_node_ack

log = structlog.get_logger("ringlog.node")

RECORDS_PER_POLL = 2_000
POLL_S = 0.05
RETRY_S = 0.2
IGNORE_MSB = 12
JOIN_RETRIED = ("range_locked", "token_owned", "duplicate_token")
"""Rejections of a join that another try, with tokens chosen anew, gets over.

Another node is moving, or has just moved.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Who this node is. ``folder`` keeps its id and port over restarts; ``port`` 0: the kept one, or a free one."""

    name: str
    host: str
    port: int
    datacenter: str
    rack: str
    shards: int
    folder: Path


class NodeFailed(Exception):
    """The node can't go on; the text says why and what to do."""


def identity(options: NodeOptions) -> tuple[str, int]:
    """Id and port of a node, as kept in its folder; made and kept there the first time."""
    path = options.folder / "identity.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return str(kept["id"]), options.port or int(kept["port"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as broken:
        raise NodeFailed(
            f"{path} is not readable ({broken}): restore it, or remove it to begin as a new node"
        ) from broken
    node, port = str(uuid.uuid4()), options.port or _free_port(options.host)
    options.folder.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"id": node, "port": port}) + "\n", encoding="utf-8")
    fresh.replace(path)
    return node, port


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


class NodeProcess:
    """Runs until ``stop`` is called."""

    def __init__(self, options: NodeOptions, client: Client, bootstrap: str, cluster: str, clock: Clock) -> None:
        self._options = options
        self._client = client
        self._cluster = cluster
        self._clock = clock
        self._incarnation = str(uuid.uuid4())
        node, self._port = identity(options)
        self._address = f"{options.host}:{self._port}"
        self._stopping = threading.Event()
        self._verdicts: Counter[str] = Counter()
        self._holder = Holder(node)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{cluster}.node.{options.name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
        )
        self._ends: dict[int, int] = {}
        self._threads: list[threading.Thread] = []
        self._failure: NodeFailed | LogError | None = None
        self._last_ack: tuple[int, tuple[str, ...]] = (0, ())

    # --------------------------------------------------------------------------------------- membership

    @property
    def node(self) -> str:
        """This node's id."""
        return self._holder.node

    def _register(self, release: str) -> None:
        """Make the node known to the cluster unless it is already."""
        state = self._client.read_barrier()
        me = self._me(state)
        if me is not None:
            if me.address != self._address:
                raise NodeFailed(f"node {me.name} is registered at {me.address}, not at {self._address}: use that port")
            return
        options = self._options
        command = RegisterNode(
            name=options.name,
            id=self.node,
            address=self._address,
            datacenter=options.datacenter,
            rack=options.rack,
            shards=options.shards,
            ignore_msb=IGNORE_MSB,
            release=release,
            features=(),
            capacity=1,
        )
        answer = self._client.submit(command)
        if not isinstance(answer, AppliedResult):
            raise NodeFailed(f"registering {options.name}: {describe(answer)}")
        log.info("registered", node=options.name, id=self.node)

    def _me(self, state: ClusterState) -> Node | None:
        found = state.nodes.get(self.node)
        if found is None and self._options.name in state.node_names:
            raise NodeFailed(
                f"the name {self._options.name} belongs to node {state.node_names[self._options.name]}, this one is "
                f"{self.node}: choose another name, or bring back the folder {self._options.folder} it had"
            )
        return found

    def _join(self, tokens: int) -> None:
        """Ask to join until the node is on its way; another node's movement is waited out."""
        while not self._stopping.is_set():
            state = self._client.read_barrier()
            if state.nodes[self.node].state != "none":
                return
            command = from_json(state, {"command": "Join", "node": self.node, "num_tokens": tokens}, SystemDraw())
            if isinstance(command, InvalidCommand):
                raise NodeFailed(f"joining: {command.code}: {command.detail}")
            answer = self._client.submit(command)
            if isinstance(answer, AppliedResult):
                log.info("join admitted", node=self._options.name, epoch=answer.epoch)
            elif isinstance(answer, RejectedResult) and answer.code in JOIN_RETRIED:
                log.info("join waits", node=self._options.name, code=answer.code, detail=answer.detail)
                self._await_epoch(answer.epoch)
            else:
                raise NodeFailed(f"joining: {describe(answer)}")

    def _await_epoch(self, after: int) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(WaitTimedOut):
                self._client.replica.wait_for(lambda state: state.epoch > after or None, 1.0, "a new epoch")
                return

    # --------------------------------------------------------------------------------------- main loop

    def run(self, release: str, join_tokens: int | None) -> None:
        """Register, join with that many tokens if asked, and serve until stopped.

        Raises NodeFailed when the node is refused or loses the log, the topic or its own server.
        """
        server = HttpServer(make_api(self._holder, self._options.name), self._options.host, self._port)
        server.start()
        try:
            self._register(release)
            self._assign()
            if join_tokens is not None:
                self._in_background("join", self._join, join_tokens)
            while not self._stopping.is_set():
                self._turn()
                if not server.alive():
                    raise NodeFailed(f"cannot listen on {self._address}: {server.failure}")
                if self._failure is not None:
                    raise self._failure
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join(timeout=5)
            server.stop()
            self._consumer.close()
            self._producer.flush(5)
            log.info("stopped", node=self._options.name, **self._verdicts)

    def stop(self) -> None:
        """End ``run`` soon; safe from a signal handler."""
        self._stopping.set()

    def _in_background(self, name: str, work: Callable[[T], None], argument: T) -> None:
        """Run ``work`` beside the main loop; what it raises ends the node."""

        def guarded() -> None:
            try:
                work(argument)
            except (NodeFailed, LogError) as error:
                self._failure = error

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _assign(self) -> None:
        topic = topic_name(self._cluster, "mutations")
        metadata = self._consumer.list_topics(topic, timeout=10).topics[topic]
        if metadata.error is not None:
            raise NodeFailed(f"topic {topic}: {metadata.error}")
        for partition in metadata.partitions:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            self._holder.positions[partition] = low
            self._ends[partition] = high
        self._consumer.assign([TopicPartition(topic, p, o) for p, o in sorted(self._holder.positions.items())])

    def _turn(self) -> None:
        records = self._consumer.consume(RECORDS_PER_POLL, POLL_S)
        for record in records:
            error = record.error()
            if error is not None and (error.fatal() or error.code() == KafkaError.OFFSET_OUT_OF_RANGE):
                raise NodeFailed(f"the mutations topic is not what it was: {error}")
        state = self._client.read_barrier() if records else self._client.replica.state
        for fetch in self._holder.adopt(state):
            self._in_background(f"stream-{fetch.source[:8]}", self._fetch, fetch)
        for record in records:
            if record.error() is None:
                self._apply(record)
        self._acknowledge()

    def _apply(self, record: Message) -> None:
        partition, offset, value = record.partition(), record.offset(), record.value()
        assert partition is not None, "a consumed record has a partition"
        assert offset is not None, "a consumed record has an offset"
        verdict = "not_mine"
        if self._holder.wants(record.key()):
            verdict = self._judge(record, value)
        self._verdicts[verdict] += 1
        with self._holder.lock:
            self._holder.positions[partition] = offset + 1

    def _judge(self, record: Message, value: bytes | None) -> str:
        try:
            mutation = decode_mutation(value or b"")
        except WireError:
            return "unreadable"
        return self._holder.admit(mutation, append_time_us(record.timestamp()[1]), value or b"")

    # --------------------------------------------------------------------------------------- streaming

    def _fetch(self, fetch: Fetch) -> None:
        """Try until the rows are here whole or the operation does not want them any more."""
        source = self._client.replica.state.nodes[fetch.source]
        with httpx.Client(timeout=60) as http:
            while not self._stopping.is_set() and self._wanted(fetch):
                try:
                    snapshot = fetch_rows(http, source.address, fetch)
                except (SourceNotReady, TransferError) as waiting:
                    log.info("stream waits", source=source.name, operation=fetch.operation, reason=str(waiting))
                    self._stopping.wait(RETRY_S)
                    continue
                kept = self._holder.receive(fetch, snapshot)
                log.info(
                    "streamed", source=source.name, operation=fetch.operation, rows=len(snapshot.versions), kept=kept
                )
                return

    def _wanted(self, fetch: Fetch) -> bool:
        operation = self._holder.state.operations.get(fetch.operation)
        return operation is not None and operation.stage_epoch == fetch.epoch

    # --------------------------------------------------------------------------------------- acknowledgements

    def _acknowledge(self) -> None:
        holder = self._holder
        with holder.lock:
            if any(holder.positions[p] < end for p, end in self._ends.items()):
                return
            reports = tuple(holder.reports[name] for name in sorted(holder.reports))
            now = (holder.state.epoch, tuple(report.operation for report in reports))
            if now == self._last_ack or holder.state.epoch == 0:
                return
            ack = NodeAck(
                cluster_id=holder.state.cluster_id,
                node=holder.node,
                incarnation=self._incarnation,
                applied=holder.state.epoch,
                drained=holder.state.epoch,
                reports=reports,
                rows=len(holder.store),
                at=self._clock.now_us(),
            )
        self._producer.produce(topic_name(self._cluster, "acks"), encode_node_ack(ack), key=holder.node.encode())
        self._producer.poll(0)
        self._last_ack = now

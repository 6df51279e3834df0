"""The load: a client that submits commands continuously, and a producer of mutations. Both keep all answers.

Commands are of four kinds. One kind always applies, one is always rejected, and the answers to two kinds depend on
earlier commands (a keyspace that may exist already, or that may be dropped). So the log reveals an applied request with
a rejection as its answer, and an answer from a lost state.

The client sends a request without an answer again under its id until the answer arrives, as a caller has to.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer

from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.values import Command, Replication
from ringlog.log.errors import LogError
from ringlog.log.kafka.topics import MUTATIONS, topic_name
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult, Submitted
from ringlog.wire.records import Cell, Mutation, encode_mutation, mutation_key, mutation_partition

KEYSPACE, TABLE = "shop", "orders"
IN_FLIGHT = 10
PATIENCE_S = 4.0
"""The time after which an unanswered submission is sent again under the same id."""
COMMAND_PAUSE_S = 0.04
MUTATION_PAUSE_S = 0.05
MUTATIONS_AT_ONCE = 2
KEYS = 150
EVER_MS = 600_000
"""The producer keeps retrying a mutation for as long as a test runs."""
POOL = tuple(f"k{number}" for number in range(6))


@dataclass(slots=True)
class Asked:
    """One request from its first try to its answer. Times are monotonic seconds."""

    command: Command
    began: float
    request_id: str = ""
    since_epoch: int = 0
    answer: Submitted | None = None
    answered: float = 0.0
    tries: int = 0


class Commands:
    """Keeps ``IN_FLIGHT`` requests open between ``run`` and ``pause``. ``broken``: unexpected errors."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._going = threading.Event()
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Asked, Future[Submitted]]] = {}
        self.asked: list[Asked] = []
        self.broken: list[str] = []
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Submit requests continuously."""
        self._going.set()

    def pause(self) -> None:
        """Submit no new request; open requests continue."""
        self._going.clear()

    def close(self) -> None:
        """Stop the thread."""
        self._ending.set()
        self._thread.join(10)

    @property
    def under_way(self) -> int:
        """The number of open requests of the client."""
        return len(self._open)

    def unanswered(self) -> list[Asked]:
        """Return the requests without an answer, oldest first."""
        with self._lock:
            return [asked for asked in self.asked if asked.answer is None]

    def answered_since(self, moment: float) -> int:
        """Return the number of answered requests that began after ``moment``."""
        with self._lock:
            return sum(1 for asked in self.asked if asked.answer is not None and asked.began >= moment)

    def longest_silence(self, since: float) -> float:
        """Return the longest time without an answer after ``since``, in seconds."""
        with self._lock:
            times = sorted(asked.answered for asked in self.asked if asked.answer is not None)
        points = [since, *(moment for moment in times if moment >= since)]
        return max((later - earlier for earlier, later in pairwise(points)), default=0.0)

    # --------------------------------------------------------------------------------------------- thread

    def _run(self) -> None:
        while not self._ending.wait(COMMAND_PAUSE_S):
            self._take_answers()
            if self._going.is_set() and len(self._open) < IN_FLIGHT:
                asked = Asked(self._draw(), time.monotonic())
                with self._lock:
                    self.asked.append(asked)
                self._submit(asked)

    def _draw(self) -> Command:
        kind = self._random.randrange(8)
        name = self._random.choice(POOL)
        if kind == 0:
            return ChangeSettings((("no_such_setting", 1),))
        if kind <= 2:
            return CreateKeyspace(name, Replication("simple", 2))
        if kind <= 4:
            return DropKeyspace(name)
        return Noop()

    def _submit(self, asked: Asked) -> None:
        asked.tries += 1
        again = {"request_id": asked.request_id, "since_epoch": asked.since_epoch} if asked.request_id else {}
        try:
            future = self._client.submit_future(asked.command, timeout_s=PATIENCE_S, **again)  # type: ignore[arg-type]
        except LogError as error:
            self.broken.append(f"submit {asked.command}: {type(error).__name__}: {error}")
            return
        self._open[id(asked)] = (asked, future)

    def _take_answers(self) -> None:
        for key, (asked, future) in tuple(self._open.items()):
            if not future.done():
                continue
            del self._open[key]
            error = future.exception()
            if error is None:
                with self._lock:
                    asked.answer, asked.answered = future.result(), time.monotonic()
                    asked.request_id = asked.answer.request_id
            elif isinstance(error, SubmissionTimedOut):
                asked.request_id, asked.since_epoch = error.request_id, error.since_epoch
                self._submit(asked)
            else:
                self.broken.append(f"{asked.command}: {type(error).__name__}: {error}")


class Mutations:
    """Writes rows of ``shop.orders``. ``acknowledged``: (partition, offset) to the acknowledged bytes."""

    def __init__(self, bootstrap: str, cluster: str) -> None:
        self._topic = topic_name(cluster, MUTATIONS.suffix)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": EVER_MS,
                "reconnect.backoff.max.ms": 500,
                "log_level": 2,
            }
        )
        self._going = threading.Event()
        self._ending = threading.Event()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.sent = 0
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, name="mutations", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Write continuously."""
        self._going.set()

    def pause(self) -> None:
        """Write no new mutation; open mutations still arrive."""
        self._going.clear()

    @property
    def under_way(self) -> int:
        """The number of mutations without an acknowledgement."""
        return self.sent - len(self.acknowledged) - len(self.failed)

    def close(self) -> None:
        """Stop; drop the mutations without an acknowledgement."""
        self._ending.set()
        self._thread.join(10)
        self._producer.purge()
        self._producer.flush(5)

    def _run(self) -> None:
        while not self._ending.wait(MUTATION_PAUSE_S):
            if self._going.is_set():
                for _ in range(MUTATIONS_AT_ONCE):
                    self._write()
            self._producer.poll(0)

    def _write(self) -> None:
        number = self.sent
        key = f"c{number % KEYS}".encode()
        made = Mutation(
            mutation_id=None,
            cluster_id=None,
            keyspace=KEYSPACE,
            table=TABLE,
            timestamp=time.time_ns() // 1000,
            ttl=None,
            operation="INSERT",
            partition_key=(key,),
            clustering_key=((number // KEYS).to_bytes(8, "big"),),
            cells=(Cell("v", number.to_bytes(4, "big") * 20),),
        )
        value, place = encode_mutation(made), mutation_key(KEYSPACE, TABLE, key)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged[(message.partition() or 0, message.offset() or 0)] = value
            else:
                self.failed.append(str(error))

        self.sent += 1
        partition = mutation_partition(place, MUTATIONS.partitions)
        self._producer.produce(self._topic, value, key=place, partition=partition, on_delivery=delivered)


def kind_of(answer: Submitted | None) -> str:
    """Return the name of an answer's kind, for counts."""
    match answer:
        case AppliedResult():
            return "applied"
        case RejectedResult():
            return "rejected"
        case ExpiredResult():
            return "expired"
        case None:
            return "unanswered"

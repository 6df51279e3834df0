"""The demo's load: every flight as a mutation, in order, without ever stopping.

Pace: the first 40 % as fast as the broker takes them; then slowly, ever more slowly towards 79 %, until the
metadata log shows a new CDC generation that has begun to operate and tablets spread over all nodes; then the rest at
full speed. So a fifth or more
of the rows lies on each side of the switch, and nothing here waits for a span of time: the pace follows conditions.

Run as a process of its own (``python -m ringlog_demo.producer``); it prints one JSON line whenever something changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

from ringlog.client.watch import MetadataWatch
from ringlog.kernel.model.state import ClusterState
from ringlog.log.kafka.topics import topic_name
from ringlog.runtime.kafka.config import connection
from ringlog.wire.records import INSERT, Mutation, encode_mutation, mutation_key
from ringlog_demo.flights import FLEET, KEYSPACE, TABLE, Flight, is_copied, load
from ringlog_demo.observe import is_spread

FAST_SHARE = 0.4
SLOW_SHARE = 0.79
SLOW_SHARE_MAX = 0.8
SLOW_TICKS = 200
TICK_S = 0.05
REPORT_S = 0.5


@dataclass(slots=True)
class ProducerProgress:
    """Counts of the run: ``sent`` to the client library, ``acknowledged`` by the broker."""

    total: int
    sent: int = 0
    acknowledged: int = 0
    failed: str = ""

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Delivery report of a flight."""
        self.copied(error, message)
        self.acknowledged += error is None

    def copied(self, error: KafkaError | None, message: Message) -> None:
        """Delivery report of a flight that is written to the table in tablets, too."""
        if error is not None:
            self.failed = f"{message.topic()}: {error}"


def written(flight: Flight, keyspace: str, cluster_id: str, mutation_id: str, timestamp_us: int) -> Mutation:
    """A flight as an INSERT of the whole row."""
    return Mutation(
        mutation_id=mutation_id,
        cluster_id=cluster_id,
        keyspace=keyspace,
        table=TABLE,
        timestamp=timestamp_us,
        ttl=None,
        operation=INSERT,
        partition_key=(flight.partition_key,),
        clustering_key=flight.clustering_key,
        cells=flight.cells,
    )


Delivered = Callable[[KafkaError | None, Message], None]


class Load:
    """Sends flights through one idempotent producer, in order."""

    def __init__(self, bootstrap: str, cluster: str, cluster_id: str, flights: list[Flight]) -> None:
        self._topic = topic_name(cluster, "mutations")
        self._cluster_id = cluster_id
        self._flights = flights
        self._next = 0
        self.progress = ProducerProgress(len(flights))
        self._producer = Producer(
            {
                **connection(bootstrap),
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.num.messages": 10_000,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 200_000,
            }
        )

    def send(self, count: int) -> None:
        """Send the next ``count`` flights, stamped now."""
        chosen = self._flights[self._next : self._next + count]
        for flight in chosen:
            self._produce(KEYSPACE, flight, self.progress.delivered)
        # Together, behind the flights: the job reads mutations of one table at a time most quickly.
        for place, flight in enumerate(chosen, self._next):
            if is_copied(place, flight.partition_key is not None):
                self._produce(FLEET, flight, self.progress.copied)
        self._next = min(self._next + count, len(self._flights))
        self.progress.sent = self._next
        self._producer.poll(0)

    def _produce(self, keyspace: str, flight: Flight, delivered: Delivered) -> None:
        key = mutation_key(keyspace, TABLE, flight.composed_key)
        value = encode_mutation(written(flight, keyspace, self._cluster_id, str(uuid.uuid4()), time.time_ns() // 1000))
        while True:
            try:
                self._producer.produce(self._topic, value, key=key, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(0.1)

    def finish(self) -> None:
        """Wait until the broker has everything."""
        while self._producer.flush(5) and not self.progress.failed:
            pass


def write_rate(sent: int, total: int) -> float:
    """Rows for one tick of the slow stretch: ever fewer the nearer 79 % are, then one in ten seconds, none from 80 %.

    So the producer goes on for at least three minutes with 2,000 rows, for three quarters of an hour with 20,000.
    """
    if sent >= int(total * SLOW_SHARE_MAX):
        return 0.0
    return max(1, int(total * SLOW_SHARE) - sent) / SLOW_TICKS


def run(bootstrap: str, cluster: str, flights: list[Flight]) -> int:
    """Produce all flights; 0 when the broker has acknowledged every one."""
    with MetadataWatch(bootstrap, cluster) as watch:
        state = watch.read_barrier()
        first, nodes = len(state.generations), len(state.nodes)
        load_ = Load(bootstrap, cluster, state.cluster_id, flights)
        total = len(flights)
        done = threading.Event()
        reporter = threading.Thread(target=_report, args=(load_.progress, done), daemon=True)
        reporter.start()
        fast = int(total * FAST_SHARE)
        while load_.progress.sent < fast and not load_.progress.failed:
            load_.send(min(1_000, fast - load_.progress.sent))
        load_.finish()  # the join is asked for when the broker has these
        _say("slow", load_.progress)
        next_at = 0.0
        while not (_switched(watch.state, first) and is_spread(watch.state, nodes + 1)) and not load_.progress.failed:
            next_at += write_rate(load_.progress.sent, total)
            load_.send(int(next_at))
            next_at -= int(next_at)
            time.sleep(TICK_S)
        _say("rest", load_.progress)
        while load_.progress.sent < total and not load_.progress.failed:
            load_.send(min(1_000, total - load_.progress.sent))
        load_.finish()
        done.set()
        reporter.join()
        _say("failed" if load_.progress.failed else "done", load_.progress)
    return 1 if load_.progress.failed else 0


def _switched(state: ClusterState, before: int) -> bool:
    """True once a generation newer than the first ``before`` ones operates."""
    return len(state.generations) > before and state.generations[-1].timestamp <= time.time_ns() // 1000


def _report(progress: ProducerProgress, done: threading.Event) -> None:
    last = -1
    while not done.wait(REPORT_S):
        if progress.acknowledged != last:
            last = progress.acknowledged
            _say("sending", progress)


def _say(phase: str, progress: ProducerProgress) -> None:
    line = {
        "phase": phase,
        "sent": progress.sent,
        "acknowledged": progress.acknowledged,
        "total": progress.total,
        "error": progress.failed,
    }
    print(json.dumps(line), flush=True)


def main() -> int:
    """Command line of the process."""
    parser = argparse.ArgumentParser(description="produce the flights as mutations")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--flights", type=int, default=None)
    options = parser.parse_args()
    return run(options.bootstrap, options.cluster, load(options.flights))


if __name__ == "__main__":
    sys.exit(main())

"""The demo's load: every flight as a mutation, in file order, without a pause.

It sends the first 40 % of the flights at full speed. Then it sends slowly, and more slowly towards 79 %, until the
metadata log has an active new CDC generation and the tablets are spread over all nodes. Then it sends the remaining
flights at full speed. So at least a fifth of the rows is on each side of the generation switch. The pace depends on
conditions, not on waiting times.

It runs as its own process (``python -m ringlog_demo.producer``) and prints one JSON line at each change.
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
    """Counters of the run: flights ``sent`` to the client library and flights ``acknowledged`` by the broker."""

    total: int
    sent: int = 0
    acknowledged: int = 0
    failed: str = ""

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Process the delivery report of a flight."""
        self.copied(error, message)
        self.acknowledged += error is None

    def copied(self, error: KafkaError | None, message: Message) -> None:
        """Process the delivery report of a flight's copy in the table in tablets."""
        if error is not None:
            self.failed = f"{message.topic()}: {error}"


def written(flight: Flight, keyspace: str, cluster_id: str, mutation_id: str, timestamp_us: int) -> Mutation:
    """Return a flight as an INSERT of the whole row."""
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
    """Sender of flights, in order, through one idempotent producer."""

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
        """Send the next ``count`` flights, with the current time as their timestamp."""
        chosen = self._flights[self._next : self._next + count]
        for flight in chosen:
            self._produce(KEYSPACE, flight, self.progress.delivered)
        # All copies follow the flights because the job is fastest with runs of mutations of one table.
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
        """Wait until the broker has acknowledged everything."""
        while self._producer.flush(5) and not self.progress.failed:
            pass


def write_rate(sent: int, total: int) -> float:
    """Return the number of rows for one tick of the slow phase.

    The rate falls towards 79 %. From there it is one row in ten seconds, and zero from 80 %. So the slow phase can last
    at least three minutes with 2,000 rows and 45 minutes with 20,000.
    """
    if sent >= int(total * SLOW_SHARE_MAX):
        return 0.0
    return max(1, int(total * SLOW_SHARE) - sent) / SLOW_TICKS


def run(bootstrap: str, cluster: str, flights: list[Flight]) -> int:
    """Produce all flights. Return 0 when the broker has acknowledged every flight, and 1 after a failure."""
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
        load_.finish()  # the broker has these flights before the demo starts the join
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
    """Return True if a generation after the first ``before`` ones is active."""
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
    """Run the command line of the process."""
    parser = argparse.ArgumentParser(description="send the flights as mutations")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--flights", type=int, default=None)
    options = parser.parse_args()
    return run(options.bootstrap, options.cluster, load(options.flights))


if __name__ == "__main__":
    sys.exit(main())
